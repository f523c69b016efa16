//! The transformations in one dimension; a tile takes them over its columns and then over its rows.
//!
//! # Points
//! The polynomials are evaluated at 0, the points below with both signs, and infinity. For m = 4 the textbook takes 1 and 2. Smaller points near 1 in
//! geometric mean round less: with 5/8 and 3/2 (exact in binary, squares too) the error is half as large, at the same cost.

use crate::core::simd::Simd;

/// The two points of F(4x4, 3x3), besides 0 and infinity. That of F(2x2, 3x3) is 1.
const POINT_A: f32 = 0.625;
const POINT_B: f32 = 1.5;

/// What a row of `G` is divided by: the product of the point's distances to the others.
const fn divisors() -> [f32; 3] {
    let (a, b) = (
        POINT_A as f64 * POINT_A as f64,
        POINT_B as f64 * POINT_B as f64,
    );
    [
        (1. / (a * b)) as f32,
        (1. / (2. * a * (a - b))) as f32,
        (1. / (2. * b * (b - a))) as f32,
    ]
}

/// One dimension of `Bt`: input to positions.
#[inline(always)]
pub(super) unsafe fn input_transform<S: Simd, const A: usize>(d: [S::V; A]) -> [S::V; A] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut t = d;
        if A == 4 {
            t[0] = S::sub(d[0], d[2]);
            t[1] = S::add(d[2], d[1]);
            t[2] = S::sub(d[2], d[1]);
            t[3] = S::sub(d[3], d[1]);
        } else {
            let (a, b) = (POINT_A * POINT_A, POINT_B * POINT_B);
            let (product, sum) = (S::splat(a * b), S::splat(-(a + b)));
            t[0] = S::fma(product, d[0], S::fma(sum, d[2], d[4]));
            t[5] = S::fma(product, d[1], S::fma(sum, d[3], d[5]));
            let even = S::fma(S::splat(-b), d[2], d[4]);
            let odd = S::mul(S::splat(POINT_A), S::fma(S::splat(-b), d[1], d[3]));
            (t[1], t[2]) = (S::add(even, odd), S::sub(even, odd));
            let even = S::fma(S::splat(-a), d[2], d[4]);
            let odd = S::mul(S::splat(POINT_B), S::fma(S::splat(-a), d[1], d[3]));
            (t[3], t[4]) = (S::add(even, odd), S::sub(even, odd));
        }
        t
    }
}

/// One dimension of `At`: positions to outputs; the first `A - 2` of the result count.
#[inline(always)]
pub(super) unsafe fn output_transform<S: Simd, const A: usize>(m: [S::V; A]) -> [S::V; 4] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let (p, q) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        if A == 4 {
            [S::add(m[0], p), S::add(q, m[3]), p, q]
        } else {
            let (r, s) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            // Products, all exact; how `powi` rounds is left open.
            let (square_a, square_b) = (POINT_A * POINT_A, POINT_B * POINT_B);
            let (cube_a, cube_b) = (square_a * POINT_A, square_b * POINT_B);
            [
                S::add(m[0], S::add(p, r)),
                S::fma(S::splat(POINT_A), q, S::mul(S::splat(POINT_B), s)),
                S::fma(S::splat(square_a), p, S::mul(S::splat(square_b), r)),
                S::add(
                    S::fma(S::splat(cube_a), q, S::mul(S::splat(cube_b), s)),
                    m[5],
                ),
            ]
        }
    }
}

/// One dimension of `G`: a kernel of three values to positions.
#[inline(always)]
pub(super) unsafe fn kernel_transform<S: Simd, const A: usize>(k: [S::V; 3]) -> [S::V; A] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut t = [k[2]; A];
        let pair = |point: f32, divisor: f32| {
            let even = S::mul(
                S::splat(divisor),
                S::fma(S::splat(point * point), k[2], k[0]),
            );
            let odd = S::mul(S::splat(divisor * point), k[1]);
            (S::add(even, odd), S::sub(even, odd))
        };
        if A == 4 {
            t[0] = k[0];
            (t[1], t[2]) = pair(1., 0.5);
        } else {
            let [zero, a, b] = divisors();
            t[0] = S::mul(S::splat(zero), k[0]);
            (t[1], t[2]) = pair(POINT_A, a);
            (t[3], t[4]) = pair(POINT_B, b);
        }
        t
    }
}

/// One dimension of the weight gradient's `G`: a tile of `A - 2` output gradients (the first of `g`) to positions.
#[inline(always)]
pub(super) unsafe fn gradient_transform<S: Simd, const A: usize>(g: [S::V; 4]) -> [S::V; A] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut t = [g[A - 3]; A];
        if A == 4 {
            let half = S::splat(0.5);
            t[0] = g[0];
            t[1] = S::mul(half, S::add(g[0], g[1]));
            t[2] = S::mul(half, S::sub(g[0], g[1]));
        } else {
            let [zero, a, b] = divisors();
            let pair = |point: f32, divisor: f32| {
                let even = S::mul(
                    S::splat(divisor),
                    S::fma(S::splat(point * point), g[2], g[0]),
                );
                let odd = S::mul(
                    S::splat(divisor * point),
                    S::fma(S::splat(point * point), g[3], g[1]),
                );
                (S::add(even, odd), S::sub(even, odd))
            };
            t[0] = S::mul(S::splat(zero), g[0]);
            (t[1], t[2]) = pair(POINT_A, a);
            (t[3], t[4]) = pair(POINT_B, b);
        }
        t
    }
}

/// One dimension of the weight gradient's `At`: positions to three values.
#[inline(always)]
pub(super) unsafe fn gradient_sum_transform<S: Simd, const A: usize>(m: [S::V; A]) -> [S::V; 3] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let (p, q) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        if A == 4 {
            [S::add(m[0], p), q, S::add(p, m[3])]
        } else {
            let (r, s) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            let (a, b) = (S::splat(POINT_A), S::splat(POINT_B));
            [
                S::add(m[0], S::add(p, r)),
                S::fma(a, q, S::mul(b, s)),
                S::add(S::fma(S::mul(a, a), p, S::mul(S::mul(b, b), r)), m[5]),
            ]
        }
    }
}
