//! Attention with queries, keys, values and a mask of their own against a naive `f64` version of itself, on every instruction set this machine has.

#![allow(missing_docs)]

mod attention_oracle;
mod comparison;

use attention_oracle::{Case, Exact};
use comparison::{error, values};
use proptest::prelude::*;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// Sums of a few hundred products in `f32`, and functions within some 1e-7.
const TOLERANCE: f64 = 2e-6;

fn check(case: &Case, seed: u64) {
    let s = case.shape;
    let (buffers, dy) = (case.buffers(seed), values(s.out_len(), seed + 9));
    let input = case.input(&buffers);
    let exact = Exact::new(&input, &dy, &s);
    for isa in Isa::available() {
        let context = &Context::new().with_isa(isa);
        let within = |what: &str, found: &[f32], expected: &[f64]| {
            let error = error(found, expected);
            assert!(error < TOLERANCE, "{what}, {isa:?}, {case:?}: {error:.1e}");
        };
        let (y, softmax) = scaled_dot_product_forward(context, &input, &s);
        within("y", &y, &exact.y);
        for order in [AxisOrder::HeadsFirst, AxisOrder::TokensFirst] {
            let found =
                scaled_dot_product_backward(context, &dy, &input, &softmax, &s, [order; 3], true);
            let heads_first = |rows: &[f32], tokens: usize, width: usize| match order {
                AxisOrder::HeadsFirst => rows.to_vec(),
                AxisOrder::TokensFirst => {
                    let at = |i: usize| {
                        let (row, value) = (i / width, i % width);
                        let (pair, token) = (row / tokens, row % tokens);
                        let (image, head) = (pair / s.heads, pair % s.heads);
                        ((image * tokens + token) * s.heads + head) * width + value
                    };
                    (0..rows.len()).map(|i| rows[at(i)]).collect()
                }
            };
            within(
                "dq",
                &heads_first(&found.query, s.queries, s.width),
                &exact.query,
            );
            within(
                "dk",
                &heads_first(&found.key, s.tokens, s.width),
                &exact.key,
            );
            within(
                "dv",
                &heads_first(&found.value, s.tokens, s.value_width),
                &exact.value,
            );
            assert_eq!(found.mask.is_some(), input.mask.is_some());
            if let Some(found) = found.mask {
                within("dmask", &found, &exact.mask);
            }
        }
        let less = scaled_dot_product_backward(
            context,
            &dy,
            &input,
            &softmax,
            &s,
            [AxisOrder::HeadsFirst; 3],
            false,
        );
        assert!(less.mask.is_none(), "it was not wanted");
        within("dq alone", &less.query, &exact.query);
    }
}

fn shape(sizes: [usize; 6]) -> ScaledDotProductShape {
    let [batch, heads, queries, tokens, width, value_width] = sizes;
    ScaledDotProductShape {
        batch,
        heads,
        queries,
        tokens,
        width,
        value_width,
    }
}

#[test]
fn attentions_of_awkward_shapes() {
    for (sizes, mask) in [
        ([2, 3, 49, 49, 32, 32], Some([1, 3])),
        ([4, 3, 49, 49, 32, 32], Some([2, 3])),
        ([2, 2, 65, 65, 24, 24], Some([2, 1])),
        ([1, 1, 1, 1, 1, 1], Some([1, 1])),
        ([2, 2, 1, 17, 20, 5], None),
        ([3, 2, 100, 7, 5, 33], Some([3, 2])),
        ([20, 2, 3, 5, 4, 4], Some([1, 1])),
        ([2, 2, 0, 5, 4, 4], Some([1, 2])),
        ([0, 2, 5, 5, 4, 4], Some([1, 2])),
    ] {
        for scale in [0.3, -0.5] {
            let shape = shape(sizes);
            check(
                &Case {
                    shape,
                    mask,
                    scale,
                    tokens_first: false,
                },
                1,
            );
            check(
                &Case {
                    shape,
                    mask,
                    scale,
                    tokens_first: true,
                },
                2,
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn attentions_of_any_shape(
        batch in 1usize..5,
        heads in 1usize..4,
        queries in 0usize..60,
        tokens in 1usize..40,
        width in 1usize..36,
        value_width in 1usize..36,
        mask in 0usize..5,
        tokens_first: bool,
        seed in 1u64..1000,
    ) {
        let shape = shape([batch, heads, queries, tokens, width, value_width]);
        let mask = match mask {
            0 => None,
            1 => Some([1, 1]),
            2 => Some([batch, 1]),
            3 => Some([1, heads]),
            _ => Some([batch, heads]),
        };
        check(&Case { shape, mask, scale: 0.4, tokens_first }, seed);
    }
}

/// The gradients are those of the result: a step along any direction changes the weighted sum of the result by the scalar product of direction and gradients.
#[test]
fn gradients_are_slopes() {
    let case = Case {
        shape: shape([2, 2, 5, 6, 4, 3]),
        mask: Some([1, 2]),
        scale: 0.7,
        tokens_first: false,
    };
    let (s, context) = (case.shape, &Context::default());
    let (buffers, dy) = (case.buffers(3), values(case.shape.out_len(), 4));
    let input = case.input(&buffers);
    let (_, softmax) = scaled_dot_product_forward(context, &input, &s);
    let orders = [AxisOrder::HeadsFirst; 3];
    let found = scaled_dot_product_backward(context, &dy, &input, &softmax, &s, orders, true);
    let gradients = [found.query, found.key, found.value, found.mask.unwrap()];
    // The weighted sum is made in `f64` by the oracle, whose differences over 2e-3 are exact to 1e-6; the slope then has an error of 1e-6 of third derivatives.
    let step = 1e-3;
    for (operand, gradient) in gradients.iter().enumerate() {
        let direction = values(gradient.len(), 7);
        let moved = |by: f32| -> f64 {
            let mut buffers = buffers.clone();
            for (value, direction) in buffers[operand].iter_mut().zip(&direction) {
                *value += by * direction;
            }
            let y = Exact::new(&case.input(&buffers), &dy, &s).y;
            y.iter().zip(&dy).map(|(y, dy)| y * f64::from(*dy)).sum()
        };
        let slope = (moved(step) - moved(-step)) / (2. * f64::from(step));
        let pairs = gradient.iter().zip(&direction);
        let expected: f64 = pairs.map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        // `value + step * direction` is rounded to 6e-8 of the value, 6e-5 of the step, in random directions.
        let error = (slope - expected).abs();
        assert!(
            error < 3e-4,
            "operand {operand}: {slope} against {expected}"
        );
    }
}

#[test]
fn queries_keys_and_values_of_one_tensor_have_the_bits_of_separate_ones() {
    let context = &Context::default();
    let packed = AttentionShape::new([2, 50], [3, 20]);
    let (qkv, dy) = (values(packed.in_len(), 1), values(packed.out_len(), 2));
    let (y, softmax) = attention_forward(context, &qkv, &packed);
    let dqkv = attention_backward(context, &dy, &qkv, &softmax, &packed);
    let s = shape([2, 3, 50, 50, 20, 20]);
    // `[batch, tokens, 3, heads, width]`
    let part = |part: usize| HeadRows {
        values: &qkv[part * 60..],
        strides: [50 * 180, 20, 180],
    };
    let input = AttentionInput {
        query: part(0),
        key: part(1),
        value: part(2),
        mask: None,
        scale: 1. / 20f32.sqrt(),
    };
    let (again, kept) = scaled_dot_product_forward(context, &input, &s);
    assert!(again == y && kept == softmax);
    let orders = [AxisOrder::TokensFirst; 3];
    let found = scaled_dot_product_backward(context, &dy, &input, &softmax, &s, orders, false);
    for (part, gradient) in [found.query, found.key, found.value].iter().enumerate() {
        for (row, gradient) in gradient.chunks_exact(60).enumerate() {
            assert_eq!(dqkv[row * 180 + part * 60..][..60], *gradient);
        }
    }
    let whole = packed_attention_backward(context, &dy, &input, &softmax, &s, false);
    assert!(whole.0 == dqkv && whole.1.is_none());
}

#[test]
fn masked_tokens_have_no_influence() {
    let context = &Context::default();
    let s = shape([1, 1, 2, 3, 1, 1]);
    let (q, k, v) = ([1., 2.], [3., 4., 5.], [1., 2., 1e6]);
    // The last key is forbidden; the second query may see the first key alone.
    let hidden = f32::NEG_INFINITY;
    let mask = [0., 0., hidden, 0., hidden, hidden];
    let rows = |values, tokens| HeadRows::dense(values, [1, tokens, 1]);
    let input = AttentionInput {
        query: rows(&q, 2),
        key: rows(&k, 3),
        value: rows(&v, 3),
        mask: Some(AddedMask {
            values: &mask,
            images: 1,
            heads: 1,
        }),
        scale: 1.,
    };
    let (y, softmax) = scaled_dot_product_forward(context, &input, &s);
    let second = 1. / (1. + (-1f32).exp());
    assert!((y[0] - (1. + second)).abs() < 1e-6, "{y:?}");
    assert_eq!(y[1], 1.);
    let orders = [AxisOrder::HeadsFirst; 3];
    let dy = [1., 1.];
    let found = scaled_dot_product_backward(context, &dy, &input, &softmax, &s, orders, true);
    assert!(
        found.value[2].abs() < 1e-30 && found.key[2].abs() < 1e-30,
        "{found:?}"
    );
    assert!(found.mask.unwrap().iter().all(|g| g.is_finite()));
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let context = &Context::default();
    for mask in [[1, 1], [1, 3], [4, 3]] {
        let case = Case {
            shape: shape([12, 3, 50, 50, 24, 20]),
            mask: Some(mask),
            scale: 0.2,
            tokens_first: true,
        };
        let (s, buffers) = (case.shape, case.buffers(5));
        let (input, dy) = (case.input(&buffers), values(s.out_len(), 6));
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let (y, softmax) = scaled_dot_product_forward(context, &input, &s);
                let orders = [AxisOrder::TokensFirst; 3];
                let found =
                    scaled_dot_product_backward(context, &dy, &input, &softmax, &s, orders, true);
                let (packed, packed_mask) = if s.width == s.value_width {
                    packed_attention_backward(context, &dy, &input, &softmax, &s, true)
                } else {
                    (Vec::new(), None)
                };
                let mask = found.mask.unwrap();
                (
                    y,
                    softmax,
                    [found.query, found.key, found.value, mask, packed],
                    packed_mask,
                )
            })
        };
        let one = with(1);
        assert!(one == with(2) && one == with(3), "{mask:?}");
    }
}

#[test]
#[should_panic(
    expected = "keys of an attention: rows of 4 values for [1, 1, 3] images, heads and tokens, [12, 12, 4] apart, do not fit into 11 values"
)]
fn rows_beyond_their_memory_are_refused() {
    let (q, k) = ([0.; 8], [0.; 11]);
    let rows = |values, tokens| HeadRows::dense(values, [1, tokens, 4]);
    let input = AttentionInput {
        query: rows(&q, 2),
        key: rows(&k, 3),
        value: rows(&k, 3),
        mask: None,
        scale: 1.,
    };
    scaled_dot_product_forward(&Context::default(), &input, &shape([1, 1, 2, 3, 4, 4]));
}

#[test]
#[should_panic(expected = "mask of an attention: expected one for all heads or each")]
fn a_mask_for_some_of_the_heads_is_refused() {
    let case = Case {
        shape: shape([2, 4, 1, 1, 1, 1]),
        mask: Some([1, 2]),
        scale: 1.,
        tokens_first: false,
    };
    let buffers = case.buffers(1);
    scaled_dot_product_forward(&Context::default(), &case.input(&buffers), &case.shape);
}
