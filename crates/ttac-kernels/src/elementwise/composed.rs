//! Sums, products and scales as compositions of Burn's own ops.

use burn::tensor::Tensor;

/// See [`crate::add`].
pub fn add<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    x + y
}

/// See [`crate::mul`].
pub fn mul<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    x * y
}

/// See [`crate::scale_channels`].
pub fn scale_channels(x: Tensor<4>, scale: Tensor<2>) -> Tensor<4> {
    let [batch, channels] = scale.dims();
    x * scale.reshape([batch, 1, 1, channels])
}

/// See [`crate::scale_last`].
pub fn scale_last(x: Tensor<2>, gamma: Tensor<1>, residual: Option<Tensor<2>>) -> Tensor<2> {
    let y = x * gamma.unsqueeze();
    match residual {
        Some(residual) => y + residual,
        None => y,
    }
}
