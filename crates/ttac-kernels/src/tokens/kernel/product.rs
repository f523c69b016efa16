//! The small matrix product under attention: operands that lie in the caches, in any order.

use crate::core::simd::{Kernel, Simd};

/// `c[i][j] = sum over k of a[i * a_row + k * a_step] * b[k * b_row + j]`, or that added to `c`.
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) reduction: usize,
    /// Columns, in whole vectors.
    pub(super) vectors: usize,
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_step: usize,
    pub(super) b: *const f32,
    pub(super) b_row: usize,
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    pub(super) accumulate: bool,
}

impl Kernel for &Product {
    /// Cuts columns and rows into register tiles.
    ///
    /// # Safety
    /// Besides the instruction set: all pointers cover what [`Product`]'s fields say, and nobody else touches the output.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let panels = self.vectors.div_ceil(S::PANEL);
        let mut vector = 0;
        for panel in 0..panels {
            // Panels as wide as each other: five vectors are three and two, not four and one.
            let count = (self.vectors - vector).div_ceil(panels - panel);
            let mut row = 0;
            macro_rules! tiles {
                ($($size:literal [$($vectors:literal)*])*) => { $(
                    let tiles = (self.rows - row) / $size;
                    if tiles > 0 && $size * count <= S::SUMS {
                        match count {
                            $($vectors => {
                                // SAFETY: these rows and vectors exist; the rest is the caller's promise.
                                unsafe { S::enter(Tiles::<$size, $vectors> { product: self, row, vector, count: tiles }) };
                            })*
                            count => unreachable!("a panel of {count} vectors"),
                        }
                        row += tiles * $size;
                    }
                )* };
            }
            tiles!(8 [1 2 3] 6 [1 2 3 4] 4 [1 2 3 4] 2 [1 2 3 4] 1 [1 2 3 4]);
            debug_assert_eq!(row, self.rows);
            vector += count;
        }
    }
}

/// So many tiles of `R` rows and `N` vectors, from `row` on.
struct Tiles<'a, const R: usize, const N: usize> {
    product: &'a Product,
    row: usize,
    vector: usize,
    count: usize,
}

impl<const R: usize, const N: usize> Kernel for Tiles<'_, R, N> {
    /// # Safety
    /// The product's pointers cover what its fields say, these rows and vectors exist, and nobody else touches them in the output.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for tile in 0..self.count {
            // SAFETY: the caller vouches for these rows and vectors.
            unsafe { register_tile::<S, R, N>(self.product, self.row + tile * R, self.vector) };
        }
    }
}

/// `R` rows by `N` vectors, held in registers over the whole reduction.
#[inline(always)]
unsafe fn register_tile<S: Simd, const R: usize, const N: usize>(
    p: &Product,
    row: usize,
    vector: usize,
) {
    // SAFETY: the caller vouches for the pointers in `p`, for rows `row .. row + R` and vectors `vector .. vector + N`.
    unsafe {
        let a: [*const f32; R] = std::array::from_fn(|r| p.a.wrapping_add((row + r) * p.a_row));
        let mut b = p.b.add(vector * S::LANES);
        let mut sums = [[S::splat(0.); N]; R];
        let mut at = 0;
        for _ in 0..p.reduction {
            let mut w = [S::splat(0.); N];
            for n in 0..N {
                w[n] = S::load(b.add(n * S::LANES));
            }
            for r in 0..R {
                let x = S::splat(*a[r].wrapping_add(at));
                for n in 0..N {
                    sums[r][n] = S::fma(x, w[n], sums[r][n]);
                }
            }
            at += p.a_step;
            b = b.wrapping_add(p.b_row);
        }
        for r in 0..R {
            for n in 0..N {
                let c = p.c.add((row + r) * p.c_row + (vector + n) * S::LANES);
                let sum = if p.accumulate {
                    S::add(sums[r][n], S::load(c))
                } else {
                    sums[r][n]
                };
                S::store(c, sum);
            }
        }
    }
}
