//! The micro-kernel of weight gradients: sums over rows of outer products.

use crate::core::simd::{Kernel, Simd};

/// `out[channel][o] = sum over rows of a[row][channel] * b[row][o]`, for the channels of one plane of `a` and all planes of `b`.
pub(in crate::conv::kernel) struct Outer {
    pub(in crate::conv::kernel) rows: usize,
    pub(in crate::conv::kernel) a: *const f32,
    /// Channels of `a`'s plane that exist.
    pub(in crate::conv::kernel) channels: usize,
    pub(in crate::conv::kernel) b: *const f32,
    pub(in crate::conv::kernel) b_planes: usize,
    /// Floats between planes of `b`.
    pub(in crate::conv::kernel) b_plane: usize,
    pub(in crate::conv::kernel) out: *mut f32,
    /// Floats between channels in the output; at least `b_planes * LANES`.
    pub(in crate::conv::kernel) out_stride: usize,
    /// Add to what the output holds.
    pub(in crate::conv::kernel) accumulate: bool,
}

impl Kernel for &Outer {
    /// # Safety
    /// Besides the instruction set: all pointers cover what [`Outer`]'s fields say, and nobody else touches the output.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut plane = 0;
        macro_rules! tiles {
            ($($vectors:literal [$($size:literal)*])*) => { $(
                while $vectors <= S::PANEL && self.b_planes - plane >= $vectors {
                    if $vectors == 1 && self.channels == S::LANES {
                        // SAFETY: the whole plane of `a` and this one of `b` exist; the rest is the caller's promise.
                        unsafe { square_tile::<S>(self, plane) };
                        plane += 1;
                        continue;
                    }
                    let mut channel = 0;
                    $(while self.channels - channel >= $size {
                        // SAFETY: these channels and planes exist; the rest is the caller's promise.
                        unsafe { outer_tile::<S, $size, $vectors>(self, channel, plane) };
                        channel += $size;
                    })*
                    plane += $vectors;
                }
            )* };
        }
        tiles!(4 [4 2 1] 2 [8 4 2 1] 1 [8 4 2 1]);
    }
}

/// All channels of `a`'s plane by one vector, held in registers over all rows.
///
/// A single vector of `b` would meet one broadcast, and so one load, in every multiply-add. Here four channels of `a`, repeated over a vector, meet `b` with every
/// four of its lanes turned by 0 to 3: a load for four multiply-adds, and three turns for all. The sums come out mixed,
/// `sums[q][t][4 m + i] = sum of a[4 q + i] * b[4 m + (i + t) % 4]`, and are put in order at the end.
#[inline(always)]
unsafe fn square_tile<S: Simd>(p: &Outer, plane: usize) {
    // SAFETY: the caller vouches for the pointers in `p`, for `LANES` channels and for `plane`.
    unsafe {
        // Quads of channels; a vector has at most four.
        let mut sums = [[S::splat(0.); 4]; 4];
        let quads = S::LANES / 4;
        let mut a = p.a;
        let mut b = p.b.add(plane * p.b_plane);
        for _ in 0..p.rows {
            let v = S::load(b);
            let turned = [v, S::turn::<1>(v), S::turn::<2>(v), S::turn::<3>(v)];
            for q in 0..quads {
                let x = S::quad(a.add(4 * q));
                for t in 0..4 {
                    sums[q][t] = S::fma(x, turned[t], sums[q][t]);
                }
            }
            a = a.add(S::LANES);
            b = b.add(S::LANES);
        }
        for q in 0..quads {
            let [s0, s1, s2, s3] = sums[q];
            // Turned back, lane `4 m + j` of vector `t` is for channel `(j - t) % 4`.
            let back = [s0, S::turn::<3>(s1), S::turn::<2>(s2), S::turn::<1>(s3)];
            for channel in 0..4 {
                let of = |lane: usize| back[(lane + 4 - channel) % 4];
                let mut sum = S::merge([of(0), of(1), of(2), of(3)]);
                let out = p
                    .out
                    .add((4 * q + channel) * p.out_stride + plane * S::LANES);
                if p.accumulate {
                    sum = S::add(sum, S::load(out));
                }
                S::store(out, sum);
            }
        }
    }
}

/// `R` channels by `N` vectors, held in registers over all rows.
#[inline(always)]
unsafe fn outer_tile<S: Simd, const R: usize, const N: usize>(
    p: &Outer,
    channel: usize,
    plane: usize,
) {
    // SAFETY: the caller vouches for the pointers in `p` and for `channel .. channel + R`, `plane .. plane + N`.
    unsafe {
        let mut sums = [[S::splat(0.); N]; R];
        let mut a = p.a.add(channel);
        let mut b = p.b.add(plane * p.b_plane);
        for _ in 0..p.rows {
            let mut w = [S::splat(0.); N];
            for n in 0..N {
                w[n] = S::load(b.add(n * p.b_plane));
            }
            for r in 0..R {
                let x = S::splat(*a.add(r));
                for n in 0..N {
                    sums[r][n] = S::fma(x, w[n], sums[r][n]);
                }
            }
            a = a.add(S::LANES);
            b = b.add(S::LANES);
        }
        for r in 0..R {
            for n in 0..N {
                let out = p
                    .out
                    .add((channel + r) * p.out_stride + (plane + n) * S::LANES);
                let mut sum = sums[r][n];
                if p.accumulate {
                    sum = S::add(sum, S::load(out));
                }
                S::store(out, sum);
            }
        }
    }
}
