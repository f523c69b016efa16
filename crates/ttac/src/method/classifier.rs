//! What a method may ask of a network, whatever the network's type.

use burn::tensor::Tensor;

use crate::backbone::{Backbone, NormMode};

/// A network as methods see it. Every [`Backbone`] is one; unlike a backbone it can be a trait object, so a method
/// is compiled once and not once for each architecture.
pub trait Classifier {
    /// Computes features of normalised samples: `[batch, height, width, 3]` to `[batch, num_features]`; clouds
    /// come as `[batch, points, 1, 3]`.
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2>;

    /// Computes class scores of features: `[batch, num_features]` to `[batch, num_classes]`.
    fn logits(&self, features: Tensor<2>) -> Tensor<2>;

    /// Computes class scores of normalised samples, `logits(features(images))`.
    fn forward(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        self.logits(self.features(images, norm))
    }

    /// Computes the output of the contrastive projection head, `[batch, projection]`, if there is one.
    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>>;

    /// Scores the four rotations, `[batch, 4]`, if there is a rotation head.
    fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>>;

    /// Returns the rows of the linear classifier, `[num_classes, num_features]`, if the network ends with one.
    fn head_weights(&self) -> Option<Tensor<2>>;

    /// Returns the length of a feature vector.
    fn num_features(&self) -> usize;

    /// Returns the number of classes.
    fn num_classes(&self) -> usize;

    /// Whether there are layers of this kind.
    fn has_layers(&self, layers: Layers) -> bool;

    /// Whether there is a self-supervised head of this kind.
    fn has(&self, head: Head) -> bool;
}

/// A self-supervised head beside the classifier, which the source has to be trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The projection of contrastive learning.
    Projection,
    /// The prediction of rotations.
    Rotation,
}

/// Layers that a method works with, and that not every network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// A linear layer between features and scores.
    LinearClassifier,
    /// Batch norms, with their running statistics.
    BatchNorms,
    /// Norms of any kind, with scales and shifts.
    Norms,
}

impl Layers {
    /// Names the layers, for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::LinearClassifier => "a linear classifier",
            Self::BatchNorms => "batch norms",
            Self::Norms => "norms with scales and shifts",
        }
    }
}

impl Head {
    /// Names the head with its article, for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Projection => "a projection head",
            Self::Rotation => "a rotation head",
        }
    }
}

impl<B: Backbone> Classifier for B {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        Backbone::features(self, images, norm)
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        Backbone::logits(self, features)
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        Backbone::projection(self, features)
    }

    fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>> {
        Backbone::rotation(self, images, norm)
    }

    fn head_weights(&self) -> Option<Tensor<2>> {
        Backbone::head_weights(self)
    }

    fn num_features(&self) -> usize {
        Backbone::num_features(self)
    }

    fn num_classes(&self) -> usize {
        Backbone::num_classes(self)
    }

    fn has_layers(&self, layers: Layers) -> bool {
        match layers {
            Layers::LinearClassifier => Backbone::head_weights(self).is_some(),
            Layers::BatchNorms => self.has_batch_norm(),
            Layers::Norms => {
                let mut parts = crate::backbone::parameters(self).into_iter();
                parts.any(|one| one.kind == crate::backbone::ParameterKind::Affine)
            }
        }
    }

    fn has(&self, head: Head) -> bool {
        match head {
            Head::Projection => self.has_projection(),
            Head::Rotation => self.has_rotation(),
        }
    }
}
