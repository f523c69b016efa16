//! Elementary functions without branches and table look-ups. In a loop over a slice, inside a function compiled for an instruction set, the compiler makes
//! vectors of them.

/// `1.5 * 2^23`: added to a small number it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `e^x` for `x <= 88`, within 1e-7 of its value (Cephes' polynomial). Below -87, where it is of no account beside any probability, it stays at `e^-87`.
#[inline(always)]
#[expect(
    clippy::excessive_precision,
    reason = "Cephes' constants, as published"
)]
pub(super) fn exp(x: f32) -> f32 {
    // Not `max`, which would turn NaN into a number.
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, of which the first times `n` is exact.
    let r = (x - n * 0.693_359_375) + n * 2.121_944_40e-4;
    let mut p = 1.987_569_15e-4;
    for c in [
        1.398_199_950_7e-3,
        8.333_451_907_3e-3,
        4.166_579_589_4e-2,
        1.666_666_545_9e-1,
        5.000_000_120_1e-1,
    ] {
        p = p * r + c;
    }
    let fraction = p * (r * r) + r + 1.0;
    let power = shifted.to_bits().wrapping_add(127) << 23;
    fraction * f32::from_bits(power)
}

/// The distribution function of the standard normal, within 2.5e-7 (Eigen's rational approximation of `erf`).
#[inline(always)]
#[expect(
    clippy::excessive_precision,
    reason = "Eigen's constants, as published"
)]
pub(super) fn normal_distribution(x: f32) -> f32 {
    let z = x * std::f32::consts::FRAC_1_SQRT_2;
    let z = if z < -4.0 { -4.0 } else { z };
    let z = if z > 4.0 { 4.0 } else { z };
    let s = z * z;
    let mut p = -2.726_142_258_013_06e-10;
    for c in [
        2.770_681_424_959_02e-8,
        -2.101_024_020_825_08e-6,
        -5.692_506_394_623_46e-5,
        -7.349_906_303_268_55e-4,
        -2.954_599_808_540_25e-3,
        -1.609_603_332_624_15e-2,
    ] {
        p = p * s + c;
    }
    let mut q = -1.456_607_184_649_96e-5;
    for c in [
        -2.133_740_552_789_05e-4,
        -1.682_826_974_382_03e-3,
        -7.373_329_167_204_68e-3,
        -1.426_473_905_141_89e-2,
    ] {
        q = q * s + c;
    }
    0.5 + 0.5 * (z * p / q)
}

/// The density of the standard normal.
#[inline(always)]
pub(super) fn normal_density(x: f32) -> f32 {
    const AT_ZERO: f32 = 0.398_942_3;
    AT_ZERO * exp(-0.5 * x * x)
}

/// The factor of the GELU by a hyperbolic tangent, `(1 + tanh u) / 2` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, and its slope.
///
/// It is the logistic function of `2 u`, so that a very negative `x` keeps its relative precision. Beyond 10 it is what it is at 10: 1 or, below, less than 1e-37.
#[inline(always)]
pub(super) fn tanh_gate(x: f32) -> (f32, f32) {
    const TWICE: f32 = 1.595_769_2; // 2 sqrt(2 / pi)
    const CUBIC: f32 = 0.044_715;
    // By comparisons that leave NaN what it is.
    let x = if x < -10.0 { -10.0 } else { x };
    let x = if x > 10.0 { 10.0 } else { x };
    let square = x * x;
    let odds = exp(-TWICE * x * (1.0 + CUBIC * square));
    let gate = 1.0 / (1.0 + odds);
    let inner = TWICE * (1.0 + 3.0 * CUBIC * square);
    // `odds * gate` is `1 - gate`, without the cancellation.
    (gate, odds * gate * gate * inner)
}

/// Lanes of a sum or a maximum that the compiler keeps in vectors: as many as the widest has.
const LANES: usize = 16;

/// The largest of some values; NaN are passed over.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = if value > *lane { value } else { *lane };
    }
    lanes
        .into_iter()
        .fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// The sum over `a[i] * b[i]`, in an order that the length alone decides.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    lanes.into_iter().sum()
}

/// `exp((score - most) * scale)` in place of each score.
#[inline(always)]
pub(super) fn exponentials(scores: &mut [f32], most: f32, scale: f32) {
    for score in scores {
        *score = exp((*score - most) * scale);
    }
}

/// The sum of some values, in an order that the length alone decides.
#[inline(always)]
pub(super) fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += value;
    }
    lanes.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_an_ulp_or_two() {
        for i in -8700..=1000 {
            let x = i as f32 / 100.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 1.2e-7, "exp({x}): {error:.1e}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
    }

    #[test]
    fn the_normal_distribution_has_its_symmetry_and_its_values() {
        // To nine digits.
        for (x, expected) in [
            (0.0, 0.5),
            (0.5, 0.691_462_461),
            (1.0, 0.841_344_746),
            (2.0, 0.977_249_868),
            (3.0, 0.998_650_102),
            (4.5, 0.999_996_602),
            (9.0, 1.0),
        ] {
            assert!((f64::from(normal_distribution(x)) - expected).abs() < 2.5e-7);
            assert!((f64::from(normal_distribution(-x)) - (1.0 - expected)).abs() < 2.5e-7);
        }
        assert!((normal_density(1.0) - 0.241_970_72).abs() < 1e-7);
    }

    #[test]
    fn largest_sum_and_dot_see_every_element() {
        let values: Vec<f32> = (0..37).map(|i| (i * 5 % 37) as f32).collect();
        assert_eq!(largest(&values), 36.0);
        assert_eq!(largest(&[]), f32::NEG_INFINITY);
        let ones = vec![1.0; 37];
        assert_eq!(dot(&values, &ones), 666.0);
        assert_eq!(sum(&values), 666.0);
    }
}
