//! The ops of transformers as compositions of Burn's own ops.

use burn::tensor::{Tensor, activation};

use super::ops::{AttentionOptions, Before};

/// See [`crate::linear`].
pub fn linear(
    x: Tensor<2>,
    (weight, bias): (Tensor<2>, Option<Tensor<1>>),
    before: Before,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    let x = match before {
        Before::Nothing => x,
        Before::Gelu => activation::gelu(x),
        Before::GeluTanh => activation::gelu_approximate(x),
    };
    let y = x.matmul(weight.transpose());
    let y = match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    };
    match residual {
        Some(residual) => y + residual,
        None => y,
    }
}

/// See [`crate::layer_norm`].
pub fn layer_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f32) -> Tensor<2> {
    let centred = x.clone() - x.mean_dim(1);
    let variance = centred.clone().square().mean_dim(1);
    centred / (variance + epsilon).sqrt() * gamma.unsqueeze() + beta.unsqueeze()
}

/// See [`crate::attention`].
pub fn attention(qkv: Tensor<2>, options: AttentionOptions) -> Tensor<2> {
    let AttentionOptions {
        batch,
        heads,
        queries,
    } = options;
    let [rows, columns] = qkv.dims();
    let (tokens, width) = (rows / batch, columns / 3);
    let head_width = width / heads;
    // [3, batch, heads, tokens, head_width]
    let parts: Tensor<5> = qkv
        .reshape([batch, tokens, 3, heads, head_width])
        .permute([2, 0, 3, 1, 4]);
    let part = |index: usize| -> Tensor<4> {
        let one = parts.clone().narrow(0, index, 1);
        one.reshape([batch, heads, tokens, head_width])
    };
    let asking = part(0).narrow(2, 0, queries);
    let scores = asking.matmul(part(1).swap_dims(2, 3)) / (head_width as f64).sqrt();
    let mixed: Tensor<4> = activation::softmax(scores, 3).matmul(part(2));
    mixed.swap_dims(1, 2).reshape([batch * queries, width])
}
