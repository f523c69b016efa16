//! Attention and softmax on tensors.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::AttentionOps;
use super::composed;
use crate::core::extension::{Optional, kernels_for};

/// Attends within each image and head: `y_i = sum_j softmax_j(scale q_i k_j + mask_ij) v_j`.
///
/// Queries, keys and values may be permuted or sliced views: they are read where they are, if their last axis lies side by side in memory. Their gradients have
/// their order of heads and tokens in memory, so that a gradient of rows that a linear layer made goes back to that layer without a copy. Where all three are parts of one
/// tensor, [`packed_attention`] saves Burn's putting together of the three gradients.
///
/// # Shapes
/// - `query`: `[batch, heads, queries, width]`
/// - `key`: `[batch, heads, tokens, width]`
/// - `value`: `[batch, heads, tokens, value_width]`
/// - `mask`: `[images, 1 or heads, queries, tokens]`, where `images` divides the batch: image `i` uses the mask `i % images`. So 1 is one mask for all, the batch one
///   for each, and between them lie the masks of windows, which are the same for every image. It has a gradient, as biases for relative positions are trained.
/// - result: `[batch, queries, heads, value_width]`, contiguous: the rows that a projection reads
///
/// # Panics
/// If the shapes do not fit together, or there are no keys.
pub fn scaled_dot_product_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<Tensor<4>>,
    scale: f32,
) -> Tensor<4> {
    let ([batch, heads, queries, width], [_, _, tokens, value_width]) =
        (query.dims(), value.dims());
    assert!(
        key.dims() == [batch, heads, tokens, width]
            && value.dims() == [batch, heads, tokens, value_width],
        "scaled_dot_product_attention: queries {:?}, keys {:?} and values {:?} do not fit together",
        query.dims(),
        key.dims(),
        value.dims()
    );
    check_mask(mask.as_ref(), [batch, heads, queries, tokens]);
    match kernels_for(&query) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_scaled_dot_product(
            query.into_dispatch(),
            key.into_dispatch(),
            value.into_dispatch(),
            Optional::new(mask),
            scale,
            context,
        )),
        None => composed::scaled_dot_product_attention(query, key, value, mask, scale),
    }
}

/// Attends like [`scaled_dot_product_attention`], with queries, keys and values as one tensor. Their gradient is one tensor too, in the order
/// `[batch, tokens, 3, heads, width]` in memory: that of the rows that one linear layer makes for all three.
///
/// # Shapes
/// - `qkv`: `[3, batch, heads, tokens, width]`, which may be a view, for instance `rows.reshape([batch, tokens, 3, heads, width]).permute([2, 0, 3, 1, 4])`
/// - `mask`: `[images, 1 or heads, queries, tokens]`
/// - result: `[batch, queries, heads, width]`, contiguous, where the first `queries` tokens of each image ask
///
/// # Panics
/// If the shapes do not fit together.
pub fn packed_attention(
    qkv: Tensor<5>,
    mask: Option<Tensor<4>>,
    queries: usize,
    scale: f32,
) -> Tensor<4> {
    let [three, batch, heads, tokens, _] = qkv.dims();
    assert!(
        three == 3 && queries <= tokens,
        "packed_attention: expected queries, keys and values of at least {queries} tokens, found {:?}",
        qkv.dims()
    );
    check_mask(mask.as_ref(), [batch, heads, queries, tokens]);
    match kernels_for(&qkv) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_packed_attention(
            qkv.into_dispatch(),
            Optional::new(mask),
            queries,
            scale,
            context,
        )),
        None => composed::packed_attention(qkv, mask, queries, scale),
    }
}

fn check_mask(mask: Option<&Tensor<4>>, [batch, heads, queries, tokens]: [usize; 4]) {
    let Some(mask) = mask else { return };
    let [images, for_heads, rows, columns] = mask.dims();
    assert!(
        batch.is_multiple_of(images)
            && (for_heads == 1 || for_heads == heads)
            && [rows, columns] == [queries, tokens],
        "attention: a mask of {:?} does not fit the scores {:?}",
        mask.dims(),
        [batch, heads, queries, tokens]
    );
}

/// Computes the softmax of every row: `exp(x_j) / sum over k of exp(x_k)`.
///
/// # Shapes
/// - `x`, result: `[rows, columns]`
pub fn softmax(x: Tensor<2>) -> Tensor<2> {
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_softmax(x.into_dispatch(), context)),
        None => composed::softmax(x),
    }
}
