//! Ops of transformers on tensors, views included: on our kernels against compositions of Burn's own ops, results and gradients.

#![allow(missing_docs)]
#![cfg(feature = "burn")]

mod comparison;

use burn::tensor::{Device, Tensor, TensorData};
use comparison::values;
use ttac_kernels::{Context, Implementation};

/// Sums of at most some hundred products, in `f32` on both sides.
const TOLERANCE: f32 = 3e-6;

fn leaf<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let data = TensorData::new(values(shape.iter().product(), seed), shape);
    Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().unwrap()
}

/// A function of leaves, which are flat so that they may have any rank.
type Op<'a, const D: usize> = &'a dyn Fn(&[Tensor<1>]) -> Tensor<D>;

/// Result and gradients of all leaves, with our kernels or composed.
fn run<const D: usize>(op: Op<D>, lengths: &[usize], composed: bool) -> Vec<Vec<f32>> {
    let leaves: Vec<Tensor<1>> = (1..)
        .zip(lengths)
        .map(|(seed, &len)| leaf([len], seed))
        .collect();
    let context = if composed {
        Context::new().with_implementation(Implementation::Composed)
    } else {
        Context::new()
    };
    context.scope(|| {
        let y = op(&leaves);
        let dy = leaf(y.dims(), 99).detach();
        let gradients = (y.clone() * dy).sum().backward();
        let mut all = vec![numbers(&y)];
        for leaf in &leaves {
            let gradient = leaf.grad(&gradients).expect("every leaf has a gradient");
            all.push(numbers(&gradient));
        }
        all
    })
}

fn agree<const D: usize>(what: &str, lengths: &[usize], op: Op<D>) {
    let (found, expected) = (run(op, lengths, false), run(op, lengths, true));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: {i}");
        let largest = expected.iter().fold(1f32, |m, v| m.max(v.abs()));
        for (f, e) in found.iter().zip(expected) {
            let error = (f - e).abs() / largest;
            assert!(
                error < TOLERANCE,
                "{what}, result or leaf {i}: {f} against {e}"
            );
        }
    }
}

#[test]
fn attention_of_views() {
    // Rows that linear layers made, of which queries and keys are permuted views; values are a slice of something wider.
    let (batch, heads, queries, tokens) = (2, 3, 5, 7);
    for mask in [[1, 1], [1, heads], [batch, 1], [batch, heads]] {
        let [images, mask_heads] = mask;
        let lengths = [
            batch * queries * heads * 4,
            batch * tokens * heads * 4,
            batch * heads * tokens * 9,
            images * mask_heads * queries * tokens,
        ];
        agree::<4>(&format!("mask {mask:?}"), &lengths, &|leaves| {
            let rows = |leaf: &Tensor<1>, tokens: usize| -> Tensor<4> {
                let rows: Tensor<4> = leaf.clone().reshape([batch, tokens, heads, 4]);
                rows.permute([0, 2, 1, 3])
            };
            let value: Tensor<4> = leaves[2].clone().reshape([batch, heads, tokens, 9]);
            let mask = leaves[3]
                .clone()
                .reshape([images, mask_heads, queries, tokens]);
            ttac_kernels::scaled_dot_product_attention(
                rows(&leaves[0], queries),
                rows(&leaves[1], tokens),
                value.narrow(3, 2, 6),
                Some(mask),
                0.6,
            )
        });
    }
}

#[test]
fn attention_without_a_mask_and_of_turned_views() {
    // The last axis of the keys does not lie side by side, so they are copied; the queries are flipped.
    let lengths = [2 * 2 * 5 * 4, 2 * 2 * 4 * 6, 2 * 2 * 6 * 3];
    agree::<4>("turned", &lengths, &|leaves| {
        let query: Tensor<4> = leaves[0].clone().reshape([2, 2, 5, 4]);
        let key: Tensor<4> = leaves[1].clone().reshape([2, 2, 4, 6]);
        let value = leaves[2].clone().reshape([2, 2, 6, 3]);
        ttac_kernels::scaled_dot_product_attention(
            query.flip([2]),
            key.swap_dims(2, 3),
            value,
            None,
            -0.7,
        )
    });
}

#[test]
fn attention_of_windows_with_their_own_masks() {
    // Three images of two windows; a window's mask is that of the same window of the next image.
    let lengths = [3 * 6 * 2 * 4 * 5, 2 * 2 * 4 * 4];
    agree::<4>("windows", &lengths, &|leaves| {
        let qkv: Tensor<5> = leaves[0].clone().reshape([3, 6, 2, 4, 5]);
        let mask: Tensor<4> = leaves[1].clone().reshape([2, 2, 4, 4]);
        ttac_kernels::packed_attention(qkv, Some(mask), 4, 0.5)
    });
}

#[test]
fn packed_attention_of_rows() {
    let (batch, tokens, heads, width) = (2, 6, 2, 5);
    for queries in [tokens, 1] {
        let lengths = [batch * tokens * 3 * heads * width, queries * tokens];
        for masked in [false, true] {
            let lengths = &lengths[..=usize::from(masked)];
            agree::<4>(&format!("{queries} queries"), lengths, &|leaves| {
                let rows: Tensor<5> = leaves[0].clone().reshape([batch, tokens, 3, heads, width]);
                let mask = leaves.get(1);
                let mask = mask.map(|mask| mask.clone().reshape([1, 1, queries, tokens]));
                let qkv = rows.permute([2, 0, 3, 1, 4]);
                ttac_kernels::packed_attention(qkv, mask, queries, 0.5)
            });
        }
    }
}

#[test]
fn one_tensor_and_its_three_parts_have_the_same_bits() {
    let (batch, tokens, heads, width) = (2, 6, 2, 5);
    let lengths = [batch * tokens * 3 * heads * width];
    let parts = |leaves: &[Tensor<1>]| -> Tensor<5> {
        let rows: Tensor<5> = leaves[0].clone().reshape([batch, tokens, 3, heads, width]);
        rows.permute([2, 0, 3, 1, 4])
    };
    let packed = run::<4>(
        &|leaves| ttac_kernels::packed_attention(parts(leaves), None, tokens, 0.5),
        &lengths,
        false,
    );
    let separate = run::<4>(
        &|leaves| {
            let part = |part: usize| -> Tensor<4> {
                let one = parts(leaves).narrow(0, part, 1);
                one.reshape([batch, heads, tokens, width])
            };
            ttac_kernels::scaled_dot_product_attention(part(0), part(1), part(2), None, 0.5)
        },
        &lengths,
        false,
    );
    assert_eq!(packed, separate);
}

#[test]
fn softmax_of_rows() {
    agree::<2>("softmax", &[7 * 37], &|leaves| {
        let x: Tensor<2> = leaves[0].clone().reshape([7, 37]);
        ttac_kernels::softmax(x * 5.)
    });
}

#[test]
fn linear_layers_with_and_without_what_is_added() {
    use ttac_kernels::{Before, linear};
    for before in [Before::Nothing, Before::Gelu, Before::GeluTanh] {
        for [with_bias, with_residual] in
            [[false, false], [true, false], [false, true], [true, true]]
        {
            let mut lengths = vec![6 * 5, 4 * 5];
            lengths.extend(with_bias.then_some(4));
            lengths.extend(with_residual.then_some(6 * 4));
            let what = format!("{before:?}, bias {with_bias}, residual {with_residual}");
            agree::<2>(&what, &lengths, &|leaves| {
                let mut rest = leaves[2..].iter().cloned();
                let bias = with_bias.then(|| rest.next().unwrap());
                let residual = with_residual.then(|| rest.next().unwrap().reshape([6, 4]));
                let x: Tensor<2> = leaves[0].clone().reshape([6, 5]);
                let weight = leaves[1].clone().reshape([4, 5]);
                linear(x * 3., weight, bias, before, residual)
            });
        }
    }
}

#[test]
fn reordered_axes() {
    fn check<const D: usize>(shape: [usize; D], axes: [usize; D]) {
        let length = [shape.iter().product()];
        let what = format!("{shape:?} by {axes:?}");
        let op = |leaves: &[Tensor<1>]| {
            let x: Tensor<D> = leaves[0].clone().reshape(shape);
            ttac_kernels::reorder(x, axes)
        };
        // Only copies: the same bits.
        assert_eq!(run(&op, &length, false), run(&op, &length, true), "{what}");
    }
    check([2, 3], [1, 0]);
    check([3, 40, 50], [0, 2, 1]);
    check([2, 7, 5, 3], [0, 3, 1, 2]);
    check([2, 3, 4, 5, 6, 7], [0, 1, 3, 2, 4, 5]);
    check([2, 3, 4, 5, 6, 7], [5, 3, 1, 0, 2, 4]);
    check([4, 1, 3], [0, 1, 2]);
}

#[test]
fn reordered_views() {
    let x = leaf([4, 6, 5], 1).detach();
    let parts = [
        x.clone().narrow(1, 2, 3),
        x.clone().flip([0]).narrow(1, 0, 3),
        x.narrow(1, 1, 1).expand([4, 3, 5]),
    ];
    for view in parts {
        let found = ttac_kernels::reorder(view.clone(), [2, 0, 1]);
        assert_eq!(numbers(&found), numbers(&view.permute([2, 0, 1])));
    }
}

#[test]
fn layer_norms_and_a_residual() {
    agree::<2>("layer norm", &[6 * 20, 20, 20, 6 * 20], &|leaves| {
        let rows = |leaf: &Tensor<1>| -> Tensor<2> { leaf.clone().reshape([6, 20]) };
        let (gamma, beta) = (leaves[1].clone(), leaves[2].clone());
        ttac_kernels::layer_norm_add(rows(&leaves[0]), gamma, beta, 1e-5, rows(&leaves[3]))
    });
}
