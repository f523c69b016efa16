//! Activations and their derivatives against `f64`, on every instruction set this machine has.

#![allow(missing_docs)]

mod activation_oracle;
mod comparison;

use activation_oracle::{derivative, value};
use comparison::values;
use proptest::prelude::*;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// The exponential and the polynomial of the normal tail are within 2e-7, a division and a handful of products add half an ulp each.
const BOUND: f64 = 6e-7;

/// From -30 to 30 with many near 0, the kinks and their neighbours, and the ends of `f32`.
fn arguments() -> Vec<f32> {
    let mut all: Vec<f32> = (-30_000..=30_000).map(|i| i as f32 / 1000.).collect();
    all.extend((-300..=300).map(|i| i as f32 / 100_000.));
    for kink in [-3f32, 0., 3., 6., 20., 88., 88.5, 87., 14.] {
        for z in [kink, -kink] {
            all.extend([z, z.next_up(), z.next_down()]);
        }
    }
    all.extend([
        1e-30,
        -1e-30,
        1e3,
        -1e3,
        1e10,
        -1e10,
        1e30,
        -1e30,
        f32::MAX,
        f32::MIN,
    ]);
    all
}

/// Values and slopes of an activation at all arguments.
fn computed(context: &Context, z: &[f32], activation: Activation) -> [Vec<f32>; 2] {
    let mut slopes = vec![1.; z.len()];
    activate_backward(context, &mut slopes, z, None, None, activation);
    [activate_forward(context, z, None, activation), slopes]
}

#[test]
fn values_and_slopes_are_within_the_bound() {
    let z = arguments();
    for (isa, activation) in Isa::available()
        .into_iter()
        .flat_map(|isa| Activation::ALL.map(|activation| (isa, activation)))
    {
        let [y, slope] = computed(&Context::new().with_isa(isa), &z, activation);
        for (k, &z) in z.iter().enumerate() {
            let exact = value(activation, f64::from(z));
            let found = f64::from(y[k]);
            // Relative beyond 1 in size: these are as large as their argument there.
            let error = (found - exact).abs() / exact.abs().max(1.);
            assert!(
                error < BOUND,
                "{activation:?}({z}), {isa:?}: {found} for {exact}"
            );
            let exact = derivative(activation, f64::from(z));
            let found = f64::from(slope[k]);
            let error = (found - exact).abs();
            assert!(
                error < BOUND,
                "{activation:?}'({z}), {isa:?}: {found} for {exact}"
            );
        }
    }
}

/// The tails are small, and right to some digits all the same: a GELU is never positive below 0, and falls to 0 like the normal distribution.
#[test]
fn tails_have_a_small_relative_error() {
    let z: Vec<f32> = (100..=1000).map(|i| -i as f32 / 100.).collect();
    for isa in Isa::available() {
        for activation in [Activation::Silu, Activation::Gelu, Activation::Sigmoid] {
            let [y, _] = computed(&Context::new().with_isa(isa), &z, activation);
            for (z, y) in z.iter().zip(y) {
                let exact = value(activation, f64::from(*z));
                // Half an ulp of the exponent z^2 / 2 = 50 is 2e-6 of the power.
                let error = (f64::from(y) / exact - 1.).abs();
                assert!(
                    error < 5e-6,
                    "{activation:?}({z}), {isa:?}: {y} for {exact}"
                );
            }
        }
    }
}

/// PyTorch's choices where a function has no derivative.
#[test]
fn slopes_at_the_kinks_are_those_of_pytorch() {
    for (activation, z, expected) in [
        (Activation::Relu, 0., 0.),
        (Activation::Relu, -0., 0.),
        (Activation::Relu6, 0., 0.),
        (Activation::Relu6, 6., 0.),
        (Activation::Relu6, 6f32.next_down(), 1.),
        (Activation::HardSwish, -3., 0.),
        (Activation::HardSwish, 3., 1.),
        (Activation::HardSigmoid, -3., 0.),
        (Activation::HardSigmoid, 3., 0.),
        (Activation::HardSigmoid, 0., 1. / 6.),
    ] {
        assert_eq!(activation.derivative(z), expected, "{activation:?}'({z})");
        for isa in Isa::available() {
            let [_, slope] = computed(&Context::new().with_isa(isa), &[z], activation);
            assert_eq!(slope, [expected], "{activation:?}'({z}), {isa:?}");
        }
    }
}

/// Central differences of the oracle itself: its slopes, with which all others are compared, are those of its values.
#[test]
fn the_slopes_of_the_oracle_are_its_differences() {
    let step = 1e-5;
    for activation in Activation::ALL {
        for i in -1000..1000 {
            // No kink is within a step.
            let z = f64::from(i) / 100. + 0.005;
            let difference =
                (value(activation, z + step) - value(activation, z - step)) / (2. * step);
            let error = (difference - derivative(activation, z)).abs();
            // The cubic term is below 1e-10, rounding of values up to 10 about 1e-10.
            assert!(error < 1e-9, "{activation:?}'({z}): {error:.1e}");
        }
    }
}

#[test]
fn nothing_hides_a_nan() {
    for isa in Isa::available() {
        for activation in Activation::ALL {
            let context = Context::new().with_isa(isa);
            let y = activate_forward(&context, &[f32::NAN; 3], None, activation);
            assert!(y.iter().all(|y| y.is_nan()), "{activation:?}, {isa:?}");
        }
    }
}

#[test]
fn one_number_is_computed_as_many_are() {
    let z = values(100, 3);
    let context = Context::new().with_isa(Isa::PORTABLE);
    for activation in Activation::ALL {
        let [y, slope] = computed(&context, &z, activation);
        for (k, &z) in z.iter().enumerate() {
            assert_eq!(activation.value(z), y[k]);
            assert_eq!(activation.derivative(z), slope[k]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 48 }))]

    /// A sum with an activation behind it is the sum and then the activation, to the bit; in place or not.
    #[test]
    fn fused_sums_are_separate_ones(len in 0..200usize, which in 0..9usize, seed in 0..1000u64) {
        let activation = Activation::ALL[which];
        let wide = |seed: u64| -> Vec<f32> { values(len, seed).iter().map(|v| 5. * v).collect() };
        let (x, addend, dy, other) = (wide(seed), wide(seed + 1), wide(seed + 2), wide(seed + 3));
        for isa in Isa::available() {
            let context = &Context::new().with_isa(isa);
            let sum: Vec<f32> = x.iter().zip(&addend).map(|(x, a)| x + a).collect();
            let y = activate_forward(context, &x, Some(&addend), activation);
            prop_assert_eq!(&y, &activate_forward(context, &sum, None, activation));
            let mut in_place = x.clone();
            activate_forward_in_place(context, &mut in_place, Some(&addend), activation);
            prop_assert_eq!(&y, &in_place);

            let mut expected = dy.clone();
            activate_backward(context, &mut expected, &sum, None, None, activation);
            add_in_place(context, &mut expected, &other);
            let mut found = dy.clone();
            activate_backward(context, &mut found, &x, Some(&addend), Some(&other), activation);
            prop_assert_eq!(&found, &expected);
        }
    }
}

#[test]
#[should_panic(expected = "addend of an activation: expected 3 values, found 4")]
fn an_addend_of_another_length_is_refused() {
    let context = Context::default();
    activate_forward(&context, &[0.; 3], Some(&[0.; 4]), Activation::Relu);
}
