//! The ops of transformers as networks see them: functions on rows of tokens.

pub mod composed;
mod extension;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::extension::Optional;
use crate::ops::fast;
use extension::TokenOps;

/// What stands before the product of [`linear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// The exact GELU, `x Phi(x)`. Its result is not kept for the backward pass but made again.
    Gelu,
}

/// How rows of tokens are divided into images and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionOptions {
    /// Images.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// How many tokens of each image ask, from the first on; all are asked.
    pub queries: usize,
}

/// `before(x) weight^T + bias [+ residual]`.
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
    bias: Tensor<1>,
    before: Before,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    let ([rows, inputs], [outputs, expected]) = (x.dims(), weight.dims());
    assert!(
        inputs == expected && bias.dims() == [outputs],
        "linear: input {:?} does not fit weight {:?} and bias {:?}",
        x.dims(),
        weight.dims(),
        bias.dims()
    );
    if let Some(residual) = &residual {
        assert_eq!(
            residual.dims(),
            [rows, outputs],
            "linear: residual and result"
        );
    }
    if fast(&x).is_none() {
        return composed::linear(x, weight, bias, before, residual);
    }
    let residual = residual.map_or(Optional::None, |tensor| {
        Optional::Some(tensor.into_dispatch())
    });
    Tensor::from_dispatch(Dispatch::fast_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        residual,
        before,
    ))
}

/// `gamma * (x - mean) / sqrt(variance + epsilon) + beta` with mean and biased variance of each row.
///
/// # Shapes
/// - `x`, result: `[rows, width]`
/// - `gamma`, `beta`: `[width]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f32) -> Tensor<2> {
    let [_, width] = x.dims();
    assert!(
        gamma.dims() == [width] && beta.dims() == [width],
        "layer_norm: input {:?} does not fit scale {:?} and shift {:?}",
        x.dims(),
        gamma.dims(),
        beta.dims()
    );
    match fast(&x) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_layer_norm(
            x.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            epsilon,
        )),
        None => composed::layer_norm(x, gamma, beta, epsilon),
    }
}

/// Softmax attention within each image and head: `y_i = sum_j softmax_j(q_i k_j / sqrt(d)) v_j`.
///
/// # Shapes
/// - `qkv`: `[batch * tokens, 3 * width]`, a row being the queries of all heads, their keys, their values
/// - result: `[batch * queries, width]`
///
/// # Panics
/// If images or heads do not divide the rows, or more tokens ask than there are.
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
    match fast(&qkv) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_attention(qkv.into_dispatch(), options)),
        None => composed::attention(qkv, options),
    }
}
