//! The contrastive loss of SimCLR (Chen et al., 2020), with the factor of its published users.

use burn::tensor::{Tensor, TensorData, activation::log_softmax};

/// The temperature that similarities are divided by, as in TTT++ and TTAC.
pub const TEMPERATURE: f64 = 0.5;

/// The loss is multiplied by `TEMPERATURE / BASE_TEMPERATURE`, which is 7.14.
pub const BASE_TEMPERATURE: f64 = 0.07;

/// Computes the contrastive loss (NT-Xent) over two views of each of `b` images.
///
/// With `z` the projections scaled to unit length and `s = z z' / T`, every row is an anchor whose
/// positive is the other view of its image and whose denominator runs over all other rows:
///
/// `(T / 0.07) * mean_i ( log sum_{j != i} exp(s_ij) - s_{i, positive(i)} )`
///
/// # Shapes
/// - `projections`: `[2 * b, width]`, all first views and then all second views
/// - result: `[1]`
///
/// # Panics
/// If the number of rows is odd or zero.
pub fn contrastive(projections: Tensor<2>) -> Tensor<1> {
    let [rows, _] = projections.dims();
    assert!(
        rows > 0 && rows.is_multiple_of(2),
        "two views of each image, found {rows} rows"
    );
    let images = rows / 2;
    let length = projections.clone().square().sum_dim(1).sqrt();
    // PyTorch's `normalize` divides by at least 1e-12; so does this.
    let unit = projections / length.clamp_min(1e-12);
    let similarity = unit.clone().matmul(unit.transpose()) * (1.0 / TEMPERATURE);
    let device = similarity.device();
    let matrix = |value: &dyn Fn(usize, usize) -> f32| {
        let values: Vec<f32> = (0..rows * rows)
            .map(|i| value(i / rows, i % rows))
            .collect();
        Tensor::<2>::from_data(TensorData::new(values, [rows, rows]), &device)
    };
    // Far enough below every similarity (at most 2 in size) for exp to give zero.
    let not_itself = matrix(&|i, j| if i == j { -1e9 } else { 0.0 });
    let positive = matrix(&|i, j| f32::from(u8::from(j == (i + images) % rows)));
    let log_share = log_softmax(similarity + not_itself, 1);
    let sum = (log_share * positive).sum();
    sum * (-TEMPERATURE / BASE_TEMPERATURE / rows as f64)
}
