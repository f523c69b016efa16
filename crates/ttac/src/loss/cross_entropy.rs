//! Cross-entropy against class labels.

use burn::tensor::{Int, Tensor, TensorData, activation::log_softmax};

/// Gives a share of a label's weight to other classes (Szegedy et al., 2016).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LabelSmoothing {
    /// Spreads the share evenly over all classes, the true one included (PyTorch's definition).
    AllClasses(f32),
    /// Spreads the share evenly over the other classes (as DGCNN is trained).
    OtherClasses(f32),
}

/// Computes the mean over the batch of `-log softmax(logits)[label]`.
///
/// # Shapes
/// - `logits`: `[batch, classes]`
/// - `labels`: `batch` class indices
/// - result: `[1]`
///
/// # Panics
/// If there is not one label per row, or a label is no class.
pub fn cross_entropy(logits: Tensor<2>, labels: &[usize]) -> Tensor<1> {
    let indices = indices(&logits, labels);
    -log_softmax(logits, 1).gather(1, indices).mean()
}

/// Computes the mean over the batch of `-sum_k q_k log softmax(logits)_k`, where `q` is the smoothed label. Shapes
/// and panics are those of [`cross_entropy`].
pub fn smoothed_cross_entropy(
    logits: Tensor<2>,
    labels: &[usize],
    smoothing: LabelSmoothing,
) -> Tensor<1> {
    let [_, classes] = logits.dims();
    let indices = indices(&logits, labels);
    let log_probabilities = log_softmax(logits, 1);
    // q = on_label at the label and elsewhere `everywhere`; the first is written as a surplus.
    let (on_label, everywhere) = match smoothing {
        LabelSmoothing::AllClasses(share) => (1.0 - share, share / classes as f32),
        LabelSmoothing::OtherClasses(share) => {
            let each = share / (classes - 1).max(1) as f32;
            (1.0 - share - each, each)
        }
    };
    let label = log_probabilities.clone().gather(1, indices).mean();
    let all = log_probabilities.sum_dim(1).mean();
    -(label * on_label + all * everywhere)
}

fn indices(logits: &Tensor<2>, labels: &[usize]) -> Tensor<2, Int> {
    let [batch, classes] = logits.dims();
    assert_eq!(labels.len(), batch, "labels for logits {:?}", logits.dims());
    assert!(
        labels.iter().all(|&label| label < classes),
        "labels {labels:?} for {classes} classes"
    );
    let indices: Vec<i64> = labels.iter().map(|&label| label as i64).collect();
    Tensor::from_data(
        TensorData::new(indices, [batch, 1]),
        &logits.device().without_autodiff(),
    )
}
