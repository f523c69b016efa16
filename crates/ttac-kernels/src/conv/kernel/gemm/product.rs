//! The micro-kernel of forward passes and input gradients: rows times a panel of weights.

use crate::activation::kernel::{Activation, activated};
use crate::core::simd::{Kernel, Simd};

/// One piece of a reduction: `count` channels, whose values for row `r` begin at `offset + r * LANES` (or at the product's own distance).
#[derive(Clone, Copy, Debug)]
pub(in crate::conv::kernel) struct Step {
    pub(in crate::conv::kernel) offset: usize,
    pub(in crate::conv::kernel) count: usize,
}

/// Where the rows of a product go, in floats from the output pointer.
#[derive(Clone, Copy)]
pub(in crate::conv::kernel) enum Rows<'a> {
    /// Row `r` at `r * stride`.
    Every(usize),
    /// Row `r` at `offsets[r]`.
    At(&'a [usize]),
}

/// `out[row][o] = sum over steps, channels of a[row][channel] * weights[channel][o]`, for one panel of vectors of `o`.
pub(in crate::conv::kernel) struct Product<'a> {
    pub(in crate::conv::kernel) rows: usize,
    pub(in crate::conv::kernel) a: *const f32,
    /// Floats between rows of `a`, if they are not in planes.
    pub(in crate::conv::kernel) a_row: Option<usize>,
    pub(in crate::conv::kernel) steps: &'a [Step],
    /// `[channels of all steps][vectors * LANES]`.
    pub(in crate::conv::kernel) weights: *const f32,
    /// Vectors in the panel, at most `PANEL`.
    pub(in crate::conv::kernel) vectors: usize,
    /// Whether the weights are in the order of [`in_quads`]; then the panel is one vector, and every step has a multiple of four channels.
    pub(in crate::conv::kernel) quads: bool,
    pub(in crate::conv::kernel) out: *mut f32,
    pub(in crate::conv::kernel) out_rows: Rows<'a>,
    /// Floats between the panel's vectors in the output.
    pub(in crate::conv::kernel) out_vector: usize,
    /// Lanes of the last vector that exist in the output.
    pub(in crate::conv::kernel) last_lanes: usize,
    /// Add to what the output holds.
    pub(in crate::conv::kernel) accumulate: bool,
    /// What is done to the sum before it is stored.
    pub(in crate::conv::kernel) finish: Finish,
}

/// An epilogue, for one panel. Null pointers: none.
#[derive(Clone, Copy)]
pub(in crate::conv::kernel) struct Finish {
    /// At the panel's first channel.
    pub(in crate::conv::kernel) bias: *const f32,
    /// Laid out as the output, at the same place as `out`.
    pub(in crate::conv::kernel) residual: *const f32,
    pub(in crate::conv::kernel) activation: Activation,
}

impl Finish {
    pub(in crate::conv::kernel) const NONE: Self = Self {
        bias: std::ptr::null(),
        residual: std::ptr::null(),
        activation: Activation::None,
    };
}

impl Kernel for &Product<'_> {
    /// Cuts the rows into register tiles: as many full ones as fit, then powers of two.
    ///
    /// # Safety
    /// Besides the instruction set: all pointers cover what [`Product`]'s fields say, and nobody else writes the output.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut row = 0;
        if self.quads {
            macro_rules! quad_tiles {
                ($($size:literal)*) => { $(
                    let count = (self.rows - row) / $size;
                    if count > 0 && $size * 4 <= S::SUMS {
                        // SAFETY: rows `row .. row + count * size` exist; the rest is the caller's promise.
                        unsafe {
                            match self.a_row {
                                None => S::enter(QuadTiles::<$size, true> { product: self, row, count }),
                                Some(_) => S::enter(QuadTiles::<$size, false> { product: self, row, count }),
                            }
                        };
                        row += count * $size;
                    }
                )* };
            }
            quad_tiles!(6 3 2 1);
            debug_assert_eq!(row, self.rows);
            return;
        }
        macro_rules! tiles {
            ($($size:literal [$($vectors:literal)*])*) => { $(
                let count = (self.rows - row) / $size;
                if count > 0 && $size * self.vectors <= S::SUMS {
                    match self.vectors {
                        $($vectors => {
                            // SAFETY: rows `row .. row + count * size` exist; the rest is the caller's promise.
                            unsafe {
                                match self.a_row {
                                    None => S::enter(Tiles::<$size, $vectors, true> { product: self, row, count }),
                                    Some(_) => S::enter(Tiles::<$size, $vectors, false> { product: self, row, count }),
                                }
                            };
                        })*
                        vectors => unreachable!("a panel of {vectors} vectors"),
                    }
                    row += count * $size;
                }
            )* };
        }
        tiles!(12 [1 2] 8 [1 2 3] 6 [1 2 3 4] 4 [1 2 3 4] 2 [1 2 3 4] 1 [1 2 3 4]);
        debug_assert_eq!(row, self.rows);
    }
}

/// `count` register tiles of `R` rows and `N` vectors, from `row` on. `PLANES`: whether the rows of `a` are in planes.
struct Tiles<'a, const R: usize, const N: usize, const PLANES: bool> {
    product: &'a Product<'a>,
    row: usize,
    count: usize,
}

impl<const R: usize, const N: usize, const PLANES: bool> Kernel for Tiles<'_, R, N, PLANES> {
    /// # Safety
    /// The product's pointers cover what its fields say, these rows exist, and nobody else writes them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for tile in 0..self.count {
            // SAFETY: the caller vouches for `count` tiles.
            unsafe { register_tile::<S, R, N, PLANES>(self.product, self.row + tile * R) };
        }
    }
}

/// `R` rows by `N` vectors, held in registers over the whole reduction: `N` loads of weights and `R` broadcasts feed `R * N` FMAs.
#[inline(always)]
unsafe fn register_tile<S: Simd, const R: usize, const N: usize, const PLANES: bool>(
    p: &Product,
    row: usize,
) {
    let a_row = p.a_row::<S, PLANES>();
    // SAFETY: the caller vouches for the pointers in `p` and for rows `row .. row + R`.
    unsafe {
        p.fetch_output::<S, R, N>(row);
        let mut sums = [[S::splat(0.); N]; R];
        let mut weights = p.weights;
        for step in p.steps {
            let mut a = p.a.add(step.offset + row * a_row);
            for _ in 0..step.count {
                let mut w = [S::splat(0.); N];
                for n in 0..N {
                    w[n] = S::load(weights.add(n * S::LANES));
                }
                for r in 0..R {
                    let x = S::splat(*a.add(r * a_row));
                    for n in 0..N {
                        sums[r][n] = S::fma(x, w[n], sums[r][n]);
                    }
                }
                a = a.add(1);
                weights = weights.add(N * S::LANES);
            }
        }
        p.store_tile::<S, R, N>(row, sums);
    }
}

/// Where the weight from input channel `input` to lane `lane` lies in a panel of one vector, for [`QuadTiles`].
pub(in crate::conv::kernel) fn in_quads(input: usize, lane: usize, lanes: usize) -> usize {
    let turn = (4 + lane % 4 - input % 4) % 4;
    (input - input % 4 + turn) * lanes + lane - lane % 4 + input % 4
}

/// The weights of four input channels, a vector each, in the order of [`in_quads`].
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(in crate::conv::kernel) unsafe fn to_quads<S: Simd>(weights: [S::V; 4]) -> [S::V; 4] {
    let [a, b, c, d] = weights;
    // Lane `4 m + i` of vector `t` is lane `4 m + (i + t) % 4` of channel `i`.
    // SAFETY: the caller's promise.
    unsafe {
        [
            S::merge(weights),
            S::merge([
                S::turn::<1>(a),
                S::turn::<1>(b),
                S::turn::<1>(c),
                S::turn::<1>(d),
            ]),
            S::merge([
                S::turn::<2>(a),
                S::turn::<2>(b),
                S::turn::<2>(c),
                S::turn::<2>(d),
            ]),
            S::merge([
                S::turn::<3>(a),
                S::turn::<3>(b),
                S::turn::<3>(c),
                S::turn::<3>(d),
            ]),
        ]
    }
}

/// `count` register tiles of `R` rows of one vector, from `row` on.
///
/// With one vector of outputs every multiply-add of a usual tile would need a broadcast, and so a load, of its own. Here four channels of a row, repeated over a vector
/// by one load, meet four vectors of weights, in each of which every four lanes are turned by another number; the four sums are turned back and added at
/// the end. So 16 output channels are multiplied like 64 with a quarter of the reduction.
struct QuadTiles<'a, const R: usize, const PLANES: bool> {
    product: &'a Product<'a>,
    row: usize,
    count: usize,
}

impl<const R: usize, const PLANES: bool> Kernel for QuadTiles<'_, R, PLANES> {
    /// # Safety
    /// The product's pointers cover what its fields say, these rows exist, and nobody else writes them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for tile in 0..self.count {
            // SAFETY: the caller vouches for `count` tiles.
            unsafe { quad_tile::<S, R, PLANES>(self.product, self.row + tile * R) };
        }
    }
}

/// See [`QuadTiles`].
#[inline(always)]
unsafe fn quad_tile<S: Simd, const R: usize, const PLANES: bool>(p: &Product, row: usize) {
    let a_row = p.a_row::<S, PLANES>();
    // SAFETY: the caller vouches for the pointers in `p` and for rows `row .. row + R`.
    unsafe {
        p.fetch_output::<S, R, 1>(row);
        let mut sums = [[S::splat(0.); 4]; R];
        let mut weights = p.weights;
        for step in p.steps {
            let mut a = p.a.add(step.offset + row * a_row);
            for _ in 0..step.count / 4 {
                let mut w = [S::splat(0.); 4];
                for t in 0..4 {
                    w[t] = S::load(weights.add(t * S::LANES));
                }
                for r in 0..R {
                    let x = S::quad(a.add(r * a_row));
                    for t in 0..4 {
                        sums[r][t] = S::fma(x, w[t], sums[r][t]);
                    }
                }
                a = a.add(4);
                weights = weights.add(4 * S::LANES);
            }
        }
        let mut turned = [[S::splat(0.); 1]; R];
        for r in 0..R {
            let [s0, s1, s2, s3] = sums[r];
            turned[r] = [S::add(
                S::add(s0, S::turn::<3>(s1)),
                S::add(S::turn::<2>(s2), S::turn::<1>(s3)),
            )];
        }
        p.store_tile::<S, R, 1>(row, turned);
    }
}

impl Product<'_> {
    /// Floats between rows of `a`.
    #[inline(always)]
    fn a_row<S: Simd, const PLANES: bool>(&self) -> usize {
        match self.a_row {
            Some(a_row) if !PLANES => a_row,
            _ => S::LANES,
        }
    }

    /// Asks for the output of a tile, if it is far away, while the sums are made.
    #[inline(always)]
    unsafe fn fetch_output<S: Simd, const R: usize, const N: usize>(&self, row: usize) {
        if let Rows::At(_) = self.out_rows {
            for r in 0..R {
                for n in 0..N {
                    // SAFETY: the caller asks for rows that exist.
                    let at = unsafe { self.row(row + r) };
                    S::prefetch_write(self.out.wrapping_add(at + n * self.out_vector));
                }
            }
        }
    }

    /// Finishes and stores the sums of a tile.
    #[inline(always)]
    unsafe fn store_tile<S: Simd, const R: usize, const N: usize>(
        &self,
        row: usize,
        sums: [[S::V; N]; R],
    ) {
        // SAFETY: the caller vouches for rows `row .. row + R` and the pointers in `self`.
        unsafe {
            if self.plain(S::LANES) {
                for r in 0..R {
                    for n in 0..N {
                        let at = self.row(row + r) + n * self.out_vector;
                        S::store(self.out.add(at), sums[r][n]);
                    }
                }
            } else {
                // Through memory, in a loop that is not unrolled: an unrolled one would not leave the sums in registers above.
                let mut buffer = [0f32; 24 * 16];
                for r in 0..R {
                    for n in 0..N {
                        S::store(buffer.as_mut_ptr().add((r * N + n) * S::LANES), sums[r][n]);
                    }
                }
                for r in 0..R {
                    for n in 0..N {
                        let lanes = if n + 1 == N {
                            self.last_lanes
                        } else {
                            S::LANES
                        };
                        let at = self.row(row + r) + n * self.out_vector;
                        let sum = S::load(buffer.as_ptr().add((r * N + n) * S::LANES));
                        self.store::<S>(sum, at, n, lanes);
                    }
                }
            }
        }
    }

    /// Whether the sums are stored as they are.
    #[inline(always)]
    fn plain(&self, lanes: usize) -> bool {
        let finish = &self.finish;
        self.last_lanes == lanes
            && !self.accumulate
            && finish.bias.is_null()
            && finish.residual.is_null()
            && finish.activation == Activation::None
    }

    /// Where row `row` begins in the output.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> usize {
        match self.out_rows {
            Rows::Every(stride) => row * stride,
            // SAFETY: the caller asks for rows that exist.
            Rows::At(offsets) => unsafe { *offsets.get_unchecked(row) },
        }
    }

    /// Finishes and stores the first `lanes` of a sum, that of vector `n` of the panel, at `at`.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, mut sum: S::V, at: usize, n: usize, lanes: usize) {
        // SAFETY: the caller vouches for `lanes` floats at `at`, the creator of `self` for the epilogue's pointers.
        unsafe {
            let out = self.out.add(at);
            if self.accumulate {
                sum = S::add(sum, S::load_partial(out, lanes));
            }
            if !self.finish.bias.is_null() {
                sum = S::add(
                    sum,
                    S::load_partial(self.finish.bias.add(n * S::LANES), lanes),
                );
            }
            if !self.finish.residual.is_null() {
                sum = S::add(sum, S::load_partial(self.finish.residual.add(at), lanes));
            }
            let [y] = activated::<S, 1>(self.finish.activation, [sum]);
            S::store_partial(out, y, lanes);
        }
    }
}
