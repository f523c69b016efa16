//! The functions and their derivatives, on vectors.
//!
//! Every one is a type, so that a kernel is compiled for it and no inner loop asks which it is. The definitions are PyTorch's, at the kinks too.

use std::f32::consts::LOG2_E;

use crate::core::simd::Simd;

/// An activation function that is known when a kernel is compiled.
pub(crate) trait Function: Copy + Send + Sync + 'static {
    /// Whether it takes dozens of operations: then a walk has few vectors abreast, as their intermediate results would not stay in registers.
    const LONG: bool;

    /// `f(z)`.
    ///
    /// # Safety
    /// The processor has `S`.
    unsafe fn value<S: Simd>(self, z: S::V) -> S::V;

    /// `g f'(z)`, which is 0 where `g` is and `z` is finite.
    ///
    /// # Safety
    /// The processor has `S`.
    unsafe fn gradient<S: Simd>(self, z: S::V, g: S::V) -> S::V;
}

/// Implements [`Function`]; both expressions may use `S`, and are unsafe for the sake of the instruction set alone.
macro_rules! function {
    ($(#[$meta:meta])* $name:ident, $long:literal, |$z:ident| $value:expr, |$w:ident, $g:ident| $gradient:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Function for $name {
            const LONG: bool = $long;

            #[inline(always)]
            unsafe fn value<S: Simd>(self, $z: S::V) -> S::V {
                // SAFETY: the caller's promise; nothing is read or written.
                unsafe { $value }
            }

            #[inline(always)]
            unsafe fn gradient<S: Simd>(self, $w: S::V, $g: S::V) -> S::V {
                // SAFETY: the caller's promise; nothing is read or written.
                unsafe { $gradient }
            }
        }
    };
}

/// `z`.
#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl Function for Identity {
    const LONG: bool = false;

    #[inline(always)]
    unsafe fn value<S: Simd>(self, z: S::V) -> S::V {
        z
    }

    #[inline(always)]
    unsafe fn gradient<S: Simd>(self, _: S::V, g: S::V) -> S::V {
        g
    }
}

function!(
    /// `max(z, 0)`.
    Relu, false, |z| S::relu(z), |z, g| S::gate(z, g)
);

function!(
    /// `min(max(z, 0), 6)`.
    Relu6, false,
    |z| S::at_most(S::relu(z), S::splat(6.)),
    |z, g| S::gate(z, S::gate(S::sub(S::splat(6.), z), g))
);

function!(
    /// `min(max(z + 3, 0), 6) / 6`.
    HardSigmoid, false,
    |z| hard_sigmoid::<S>(z),
    |z, g| {
        let inside = S::gate(S::sub(S::splat(3.), z), S::mul(g, S::splat(1. / 6.)));
        S::gate(S::add(z, S::splat(3.)), inside)
    }
);

function!(
    /// `z min(max(z + 3, 0), 6) / 6`.
    HardSwish, false,
    |z| S::mul(z, hard_sigmoid::<S>(z)),
    |z, g| {
        let slope = S::fma(z, S::splat(1. / 3.), S::splat(0.5));
        let slope = S::select(S::sub(S::splat(3.), z), slope, S::splat(1.));
        S::gate(S::add(z, S::splat(3.)), S::mul(g, slope))
    }
);

function!(
    /// `1 / (1 + e^-z)`.
    Sigmoid, true,
    |z| S::div(S::splat(1.), one_plus_exp_of_minus::<S>(z)),
    |z, g| {
        let (s, rest, _) = sigmoid_and_rest::<S>(z);
        S::mul(g, S::mul(s, rest))
    }
);

function!(
    /// `z / (1 + e^-z)`.
    Silu, true,
    |z| S::div(z, one_plus_exp_of_minus::<S>(z)),
    |z, g| {
        let (s, rest, bounded) = sigmoid_and_rest::<S>(z);
        S::mul(g, S::mul(s, S::fma(bounded, rest, S::splat(1.))))
    }
);

function!(
    /// `z Phi(z)`, with `Phi` the distribution function of the standard normal.
    Gelu, true,
    |z| {
        // `z Phi(z) = max(z, 0) - |z| Phi(-|z|)`, which cancels nowhere.
        let (tail, _, size) = normal_tail::<S>(z);
        S::sub(S::relu(z), S::mul(size, tail))
    },
    |z, g| {
        let (tail, density, size) = normal_tail::<S>(z);
        let below = S::select(z, S::sub(S::splat(1.), tail), tail);
        let product = S::mul(size, density);
        let signed = S::select(z, product, S::sub(S::splat(0.), product));
        S::mul(g, S::add(below, signed))
    }
);

/// `2 sqrt(2 / pi)`.
const TANH_SCALE: f32 = 1.595_769_2;
const TANH_CUBIC: f32 = 0.044_715;

function!(
    /// `z (1 + tanh u) / 2` with `u = sqrt(2 / pi) (z + 0.044715 z^3)`, which is `z / (1 + e^-2u)`.
    GeluTanh, true,
    |z| {
        let (double, _, _) = tanh_argument::<S>(z);
        S::div(z, one_plus_exp_of_minus::<S>(double))
    },
    |z, g| {
        let (double, slope, bounded) = tanh_argument::<S>(z);
        let (s, rest, _) = sigmoid_and_rest::<S>(double);
        let through = S::mul(S::mul(bounded, slope), rest);
        S::mul(g, S::mul(s, S::add(through, S::splat(1.))))
    }
);

/// Beyond this many deviations nothing of a normal distribution is left in `f32`.
const FAR: f32 = 20.;

/// `min(max(z + 3, 0), 6) / 6`, and exactly 1 from 3 on.
#[inline(always)]
unsafe fn hard_sigmoid<S: Simd>(z: S::V) -> S::V {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let bounded = S::at_most(S::relu(S::add(z, S::splat(3.))), S::splat(6.));
        S::mul(bounded, S::splat(1. / 6.))
    }
}

#[inline(always)]
unsafe fn one_plus_exp_of_minus<S: Simd>(z: S::V) -> S::V {
    // SAFETY: the caller has the instruction set.
    unsafe { S::add(exp::<S>(S::sub(S::splat(0.), z)), S::splat(1.)) }
}

/// `s = 1 / (1 + e^-z)`, `1 - s` without cancellation, and `z`; all as if `z` were no further than 80 from 0, where every slope is
/// constant to 32 digits.
#[inline(always)]
unsafe fn sigmoid_and_rest<S: Simd>(z: S::V) -> (S::V, S::V, S::V) {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let z = S::at_most(S::at_least(z, S::splat(-80.)), S::splat(80.));
        let power = exp::<S>(S::sub(S::splat(0.), z));
        let s = S::div(S::splat(1.), S::add(power, S::splat(1.)));
        (s, S::mul(power, s), z)
    }
}

/// `2 u` of the GELU by `tanh`, its derivative, and `z`, bounded so that no power of it overflows.
#[inline(always)]
unsafe fn tanh_argument<S: Simd>(z: S::V) -> (S::V, S::V, S::V) {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let z = S::at_most(S::at_least(z, S::splat(-FAR)), S::splat(FAR));
        let square = S::mul(z, z);
        let one = S::splat(TANH_SCALE);
        let double = S::mul(z, S::fma(square, S::splat(TANH_SCALE * TANH_CUBIC), one));
        let slope = S::fma(square, S::splat(3. * TANH_SCALE * TANH_CUBIC), one);
        (double, slope, z)
    }
}

/// `Phi(-|z|)`, the normal density at `z`, and `|z|`, which stays at 20 beyond it.
///
/// `Phi(-a) = e^(-a^2 / 2) t Q(t)` with `t = 1 / (1 + 0.3 a)` and a polynomial `Q` that was fitted to the least largest relative error for `a` up to 14,
/// 1.5e-7.
#[inline(always)]
unsafe fn normal_tail<S: Simd>(z: S::V) -> (S::V, S::V, S::V) {
    const Q: [f32; 8] = [
        0.035_677_746,
        -0.157_214_98,
        0.206_372_99,
        -0.053_700_488,
        0.128_569_9,
        0.099_911_19,
        0.120_754_294,
        0.119_629_28,
    ];
    const DENSITY_AT_ZERO: f32 = 0.398_942_3;
    // SAFETY: the caller has the instruction set.
    unsafe {
        let size = S::at_most(S::at_least(z, S::sub(S::splat(0.), z)), S::splat(FAR));
        let power = exp::<S>(S::mul(S::mul(size, size), S::splat(-0.5)));
        let t = S::div(S::splat(1.), S::fma(size, S::splat(0.3), S::splat(1.)));
        let mut q = S::splat(Q[0]);
        for i in 1..Q.len() {
            q = S::fma(q, t, S::splat(Q[i]));
        }
        let tail = S::mul(power, S::mul(q, t));
        (tail, S::mul(power, S::splat(DENSITY_AT_ZERO)), size)
    }
}

/// `e^x` within 2e-7 of its value. Below -87 it stays at `e^-87`, from 88.4 on it is infinite.
///
/// `x = n ln 2 + r` with an integer `n`; a polynomial, fitted to the least largest relative error (3e-9), gives `e^r`.
#[inline(always)]
unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    /// Added to a small number it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.; // 1.5 * 2^23
    /// ln 2 in two parts, of which the first times `n` is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const P: [f32; 5] = [
        0.001_381_445_4,
        0.008_368_782,
        0.041_668_393,
        0.166_665_2,
        0.499_999_94,
    ];
    // SAFETY: the caller has the instruction set.
    unsafe {
        let x = S::at_most(S::at_least(x, S::splat(-87.)), S::splat(89.));
        let shifted = S::fma(x, S::splat(LOG2_E), S::splat(ROUND));
        let n = S::sub(shifted, S::splat(ROUND));
        let r = S::fma(n, S::splat(-LN_2[0]), x);
        let r = S::fma(n, S::splat(-LN_2[1]), r);
        let mut p = S::splat(P[0]);
        for i in 1..P.len() {
            p = S::fma(p, r, S::splat(P[i]));
        }
        let fraction = S::add(S::fma(S::mul(r, r), p, r), S::splat(1.));
        S::mul(fraction, S::power_of_two(shifted))
    }
}
