//! Cross-entropy against class labels.

use burn::tensor::{Int, Tensor, TensorData, activation::log_softmax};

/// Mean over the batch of `-log softmax(logits)[label]`.
///
/// # Shapes
/// - `logits`: `[batch, classes]`
/// - `labels`: `batch` class indices
/// - result: `[1]`
///
/// # Panics
/// If there is not one label per row, or a label is no class.
pub fn cross_entropy(logits: Tensor<2>, labels: &[usize]) -> Tensor<1> {
    let [batch, classes] = logits.dims();
    assert_eq!(labels.len(), batch, "labels for logits {:?}", logits.dims());
    assert!(
        labels.iter().all(|&label| label < classes),
        "labels {labels:?} for {classes} classes"
    );
    let indices: Vec<i64> = labels.iter().map(|&label| label as i64).collect();
    let indices: Tensor<2, Int> = Tensor::from_data(
        TensorData::new(indices, [batch, 1]),
        &logits.device().without_autodiff(),
    );
    -log_softmax(logits, 1).gather(1, indices).mean()
}
