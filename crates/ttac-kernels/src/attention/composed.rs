//! Attention and softmax as compositions of Burn's own ops.

use burn::tensor::{Tensor, activation};

/// See [`crate::scaled_dot_product_attention`].
pub fn scaled_dot_product_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<Tensor<4>>,
    scale: f32,
) -> Tensor<4> {
    let batch = query.dims()[0];
    let scores = query.matmul(key.swap_dims(2, 3)) * scale;
    let scores = match mask {
        Some(mask) => {
            let images = mask.dims()[0];
            // One mask after the other, and from the first again.
            scores + mask.repeat_dim(0, batch.checked_div(images).unwrap_or(1))
        }
        None => scores,
    };
    activation::softmax(scores, 3).matmul(value).swap_dims(1, 2)
}

/// See [`crate::packed_attention`].
pub fn packed_attention(
    qkv: Tensor<5>,
    mask: Option<Tensor<4>>,
    queries: usize,
    scale: f32,
) -> Tensor<4> {
    let [_, batch, heads, tokens, width] = qkv.dims();
    let [query, key, value] = [0, 1, 2].map(|index| -> Tensor<4> {
        let one = qkv.clone().narrow(0, index, 1);
        one.reshape([batch, heads, tokens, width])
    });
    drop(qkv);
    let asking = query.narrow(2, 0, queries);
    scaled_dot_product_attention(asking, key, value, mask, scale)
}

/// See [`crate::softmax`].
pub fn softmax(x: Tensor<2>) -> Tensor<2> {
    activation::softmax(x, 1)
}
