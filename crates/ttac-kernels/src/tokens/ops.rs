//! The ops of transformers on tensors, which are rows of tokens.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::TokenOps;
use super::composed;
use crate::core::extension::{Optional, kernels_for};
use crate::norm::ops::check_channels;

/// What [`linear`] does to its input before the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing is done.
    Nothing,
    /// The exact GELU, `x Phi(x)`. Its result is not kept for the backward pass but made again.
    Gelu,
    /// The GELU by a hyperbolic tangent, `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`. Its result is made again too.
    GeluTanh,
}

/// How rows of tokens are divided into images and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionOptions {
    /// The number of images.
    pub batch: usize,
    /// The number of heads.
    pub heads: usize,
    /// How many tokens of each image have a row in the result, from the first on. Each of them attends to all tokens.
    pub queries: usize,
}

/// Computes `before(x) weight^T [+ bias] [+ residual]`.
///
/// # Shapes
/// - `x`: `[rows, inputs]`
/// - `weight`: `[outputs, inputs]` (PyTorch's order)
/// - `bias`: `[outputs]`
/// - `residual`, result: `[rows, outputs]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn linear(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    before: Before,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    let ([rows, inputs], [outputs, expected]) = (x.dims(), weight.dims());
    let bias_dims = bias.as_ref().map(Tensor::dims);
    assert!(
        inputs == expected && bias_dims.is_none_or(|found| found == [outputs]),
        "linear: input {:?} does not fit weight {:?} and bias {bias_dims:?}",
        x.dims(),
        weight.dims()
    );
    if let Some(residual) = &residual {
        assert_eq!(
            residual.dims(),
            [rows, outputs],
            "linear: residual and result"
        );
    }
    let Some(context) = kernels_for(&x) else {
        return composed::linear(x, (weight, bias), before, residual);
    };
    Tensor::from_dispatch(Dispatch::fast_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        Optional::new(bias),
        Optional::new(residual),
        before,
        context,
    ))
}

/// Normalises rows: `gamma * (x - mean) / sqrt(variance + epsilon) + beta` with mean and biased variance of each row.
///
/// # Shapes
/// - `x`, result: `[rows, width]`
/// - `gamma`, `beta`: `[width]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f32) -> Tensor<2> {
    normalise(x, gamma, beta, epsilon, None)
}

/// Normalises rows like [`layer_norm`] and adds `residual`, `[rows, width]`, in the same pass: the end of a block whose norm comes last. The result has the bits of the
/// two ops one after the other.
///
/// # Panics
/// If the shapes do not fit together.
pub fn layer_norm_add(
    x: Tensor<2>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f32,
    residual: Tensor<2>,
) -> Tensor<2> {
    assert_eq!(
        residual.dims(),
        x.dims(),
        "layer_norm_add: residual and input"
    );
    normalise(x, gamma, beta, epsilon, Some(residual))
}

fn normalise(
    x: Tensor<2>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f32,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    check_channels("layer_norm", &x, &gamma, &beta);
    let Some(context) = kernels_for(&x) else {
        let y = composed::layer_norm(x, gamma, beta, epsilon);
        return match residual {
            Some(residual) => y + residual,
            None => y,
        };
    };
    Tensor::from_dispatch(Dispatch::fast_layer_norm(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        Optional::new(residual),
        epsilon,
        context,
    ))
}

/// Attends within each image and head: `y_i = sum_j softmax_j(q_i k_j / sqrt(d)) v_j`.
///
/// # Shapes
/// - `qkv`: `[batch * tokens, 3 * width]`, a row being the queries of all heads, their keys, their values
/// - result: `[batch * queries, width]`
///
/// # Panics
/// If images do not divide the rows or heads the columns, or there are more queries than tokens.
pub fn attention(qkv: Tensor<2>, options: AttentionOptions) -> Tensor<2> {
    let [rows, columns] = qkv.dims();
    let AttentionOptions {
        batch,
        heads,
        queries,
    } = options;
    assert!(
        batch > 0
            && heads > 0
            && rows.is_multiple_of(batch)
            && columns.is_multiple_of(3 * heads)
            && queries <= rows / batch,
        "attention: input {:?} does not fit {options:?}",
        qkv.dims()
    );
    match kernels_for(&qkv) {
        Some(context) => {
            let y = Dispatch::fast_attention(qkv.into_dispatch(), options, context);
            Tensor::from_dispatch(y)
        }
        None => composed::attention(qkv, options),
    }
}
