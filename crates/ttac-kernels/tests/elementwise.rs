//! Products and scaled channels against plain loops in `f64`, on every instruction set this machine has.

#![allow(missing_docs)]

mod comparison;

use comparison::{error, values};
use proptest::prelude::*;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// One or two roundings; sums are made of chunks in `f32` of some hundred products each.
const BOUND: f64 = 2e-6;

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn check_scale(shape: ScaleShape, seed: u64) {
    let ScaleShape {
        batch,
        rows,
        channels,
    } = shape;
    let len = batch * rows * channels;
    let (x, dy) = (values(len, seed), values(len, seed + 1));
    let (residual, scale) = (values(len, seed + 2), values(batch * channels, seed + 3));
    let factor = |k: usize| k / (rows * channels) * channels + k % channels;
    for isa in Isa::available() {
        let context = &Context::new().with_isa(isa);
        let within = |what: &str, found: &[f32], expected: &[f64]| {
            let error = error(found, expected);
            assert!(error < BOUND, "{what}, {isa:?}, {shape:?}: {error:.1e}");
        };
        let (mut dscale, mut dx) = (vec![0.; batch * channels], vec![0.; len]);
        for k in 0..len {
            dscale[factor(k)] += f64::from(dy[k]) * f64::from(x[k]);
            dx[k] = f64::from(dy[k]) * f64::from(scale[factor(k)]);
        }
        for add in [None, Some(&residual[..])] {
            let y = scale_forward(context, &x, &scale, add, &shape);
            let expected: Vec<f64> = (0..len)
                .map(|k| {
                    f64::from(x[k]) * f64::from(scale[factor(k)])
                        + add.map_or(0., |r| f64::from(r[k]))
                })
                .collect();
            within("forward", &y, &expected);
            let mut in_place = x.clone();
            scale_forward_in_place(context, &mut in_place, &scale, add, &shape);
            assert_eq!(in_place, y);
        }
        let saved = ScaleBackward {
            x: Some(&x),
            scale: Some(&scale),
            other: None,
            shape,
        };
        let both = scale_backward(context, &dy, &saved);
        let (found_x, found_scale) = (both.x.unwrap(), both.scale.unwrap());
        within("dx", &found_x, &dx);
        within("dscale", &found_scale, &dscale);
        // One gradient alone has the same bits, and so has one with another added.
        let alone = scale_backward(context, &dy, &ScaleBackward { x: None, ..saved });
        assert_eq!((alone.x.as_ref(), alone.scale), (Some(&found_x), None));
        let scale = None;
        let alone = scale_backward(context, &dy, &ScaleBackward { scale, ..saved });
        assert_eq!((alone.x, alone.scale), (None, Some(found_scale)));
        let other = Some(&residual[..]);
        let added = scale_backward(context, &dy, &ScaleBackward { other, ..saved });
        let mut sum = found_x;
        add_in_place(context, &mut sum, &residual);
        assert_eq!(added.x, Some(sum));
    }
}

fn scaled(batch: usize, rows: usize, channels: usize) -> ScaleShape {
    ScaleShape {
        batch,
        rows,
        channels,
    }
}

#[test]
fn scales_of_awkward_shapes() {
    for shape in [
        scaled(1, 1, 1),
        scaled(0, 5, 3),
        scaled(2, 0, 3),
        scaled(2, 3, 0),
        scaled(3, 49, 96),
        scaled(2, 7, 1001),
        scaled(1, 9000, 24), // an image of several tasks
        scaled(2, 6000, 17),
    ] {
        check_scale(shape, 5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 32 }))]

    #[test]
    fn scales_equal_their_definition(
        batch in 0..4usize, rows in 0..40usize, channels in 1..70usize, seed in 0..1000u64,
    ) {
        check_scale(scaled(batch, rows, channels), seed);
    }

    #[test]
    fn products_equal_their_definition(len in 0..300usize, seed in 0..1000u64) {
        let (x, y) = (values(len, seed), values(len, seed + 1));
        let (dy, other) = (values(len, seed + 2), values(len, seed + 3));
        let product = |a: &[f32], b: &[f32]| -> Vec<f32> {
            a.iter().zip(b).map(|(a, b)| a * b).collect()
        };
        for isa in Isa::available() {
            let context = &Context::new().with_isa(isa);
            // A single rounding: the bits are those of the scalar product.
            prop_assert_eq!(multiply(context, &x, &y), product(&x, &y));
            let mut in_place = x.clone();
            multiply_in_place(context, &mut in_place, &y);
            prop_assert_eq!(&in_place, &product(&x, &y));
            let mut dx = dy.clone();
            let second = multiply_backward(context, &mut dx, [&x, &y], None);
            prop_assert_eq!((&dx, &second), (&product(&dy, &y), &product(&dy, &x)));
            let mut added = dy.clone();
            multiply_backward(context, &mut added, [&x, &y], Some(&other));
            add_in_place(context, &mut dx, &other);
            prop_assert_eq!(added, dx);
        }
    }
}

/// Large enough for several tasks on every number of threads.
fn all_bits() -> Vec<Vec<u32>> {
    let context = &Context::default();
    let shape = scaled(3, 5000, 40);
    let len = 3 * 5000 * 40;
    let (x, dy, scale) = (values(len, 1), values(len, 2), values(120, 3));
    let saved = ScaleBackward {
        x: Some(&x),
        scale: Some(&scale),
        other: None,
        shape,
    };
    let gradients = scale_backward(context, &dy, &saved);
    let mut dx = dy.clone();
    let second = multiply_backward(context, &mut dx, [&x, &dy], None);
    let mut results = vec![
        scale_forward(context, &x, &scale, Some(&dy), &shape),
        gradients.x.unwrap(),
        gradients.scale.unwrap(),
        multiply(context, &x, &dy),
        dx,
        second,
    ];
    for activation in Activation::ALL {
        results.push(activate_forward(context, &x, Some(&dy), activation));
        let mut dx = dy.clone();
        activate_backward(context, &mut dx, &x, None, Some(&dy), activation);
        results.push(dx);
    }
    results
        .iter()
        .map(|values| values.iter().map(|value| value.to_bits()).collect())
        .collect()
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let bits = [1, 2, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool");
        pool.install(all_bits)
    });
    assert!(bits[0] == bits[1] && bits[1] == bits[2]);
}

/// The sum over rows is linear in the factors, so a difference of any size is the gradient.
#[test]
fn the_gradient_of_the_factors_is_a_difference() {
    let context = &Context::default();
    let shape = scaled(2, 30, 5);
    let (x, dy, scale) = (values(300, 1), values(300, 2), values(10, 3));
    let objective = |scale: &[f32]| -> f64 {
        let y = exact(&scale_forward(context, &x, scale, None, &shape));
        y.iter().zip(exact(&dy)).map(|(y, d)| y * d).sum()
    };
    let saved = ScaleBackward {
        x: Some(&x),
        scale: Some(&scale),
        other: None,
        shape,
    };
    let found = scale_backward(context, &dy, &saved).scale.unwrap();
    for (k, found) in found.iter().enumerate() {
        let mut moved = scale.clone();
        moved[k] += 1.;
        let difference = objective(&moved) - objective(&scale);
        // 30 products, each rounded twice.
        assert!((f64::from(*found) - difference).abs() < 1e-5);
    }
}

#[test]
#[should_panic(expected = "factors of a scaled tensor: expected the shape [2, 3], found 5 values")]
fn factors_of_the_wrong_length_are_refused() {
    scale_forward(
        &Context::default(),
        &[0.; 24],
        &[0.; 5],
        None,
        &scaled(2, 4, 3),
    );
}

#[test]
#[should_panic(expected = "factor of a product: expected 3 values as in the other, found 4")]
fn factors_of_different_lengths_are_refused() {
    multiply(&Context::default(), &[0.; 3], &[0.; 4]);
}
