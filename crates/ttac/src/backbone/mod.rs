//! Classifiers, split where adaptation needs them split.
//!
//! A [`Backbone`] maps images (or clouds of points) to features and features to logits. [`Network`] is the closed set of
//! architectures this crate knows; [`Architecture`] is its configuration and can be written down.
//! Paths of modules equal the keys of the published PyTorch checkpoints, so that loading needs no
//! table of names.

mod architecture;
pub mod dgcnn;
mod init;
mod keys;
pub mod layers;
mod norm;
pub mod resnet;
pub mod resnet26;
pub mod resnet_cifar;
pub mod resnet_simclr;
pub mod vit;
pub mod wide_resnet;

use burn::module::{Module, ParamGroup};
use burn::tensor::Tensor;

pub use architecture::{Architecture, Network};
pub use init::parameter_id;
pub use keys::{Parameter, ParameterKind, load_tensors, map_tensors, parameters, tensors};
pub use norm::{BatchNorm, Buffer, GroupNorm, LayerNorm, Norm};

/// Which statistics batch normalisation uses. Layers without batch statistics ignore it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormMode {
    /// The stored running statistics (PyTorch's `eval()`).
    Running,
    /// The statistics of the batch; the stored ones stay as they are.
    Batch,
    /// The statistics of the batch, and the running ones move towards them by the layer's
    /// momentum (PyTorch's `train()`).
    BatchUpdating,
    /// The same with another momentum, the share of the batch in the new running statistics.
    Blending {
        /// 0 to 1.
        momentum: f64,
    },
}

/// A set of parameters that a method may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptable {
    /// Scale and shift of the normalisation layers of the feature extractor.
    Affine,
    /// Everything that makes features, without the classifier and self-supervised heads.
    Features,
    /// Those and the self-supervised heads: everything but the classifier.
    FeaturesAndHeads,
    /// The classifier.
    Head,
    /// All parameters. Running statistics are buffers, not parameters.
    All,
}

/// A classifier that shows its features.
pub trait Backbone: Module {
    /// Features of normalised images: `[batch, height, width, 3]` to `[batch, num_features]`. Clouds are
    /// `[batch, points, 1, 3]`.
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2>;

    /// Class scores of features: `[batch, num_features]` to `[batch, num_classes]`.
    fn logits(&self, features: Tensor<2>) -> Tensor<2>;

    /// Rows of the linear classifier, `[num_classes, num_features]`.
    fn head_weights(&self) -> Tensor<2>;

    /// Length of a feature vector.
    fn num_features(&self) -> usize;

    /// Number of classes.
    fn num_classes(&self) -> usize;

    /// Key prefix of the classifier, `fc`, `linear` or `head`.
    fn classifier_key(&self) -> &'static str;

    /// Whether any layer is a batch norm. Without one, methods that take the target's batch
    /// statistics predict what the source does.
    fn has_batch_norm(&self) -> bool {
        parameters(self)
            .iter()
            .any(|parameter| parameter.kind == ParameterKind::Buffer)
    }

    /// The published checkpoint's name of a module path. Nearly always the path itself.
    fn published_key(&self, path: &str) -> String {
        path.to_owned()
    }

    /// Output of the contrastive projection head, `[batch, projection]`, if the network has one.
    /// It is not normalised.
    fn projection(&self, _features: Tensor<2>) -> Option<Tensor<2>> {
        None
    }

    /// Whether there is a [`projection`](Self::projection).
    fn has_projection(&self) -> bool {
        false
    }

    /// Whether there is a [`rotation`](Self::rotation) head.
    fn has_rotation(&self) -> bool {
        false
    }

    /// Scores of the four rotations, `[batch, 4]`, if the network has a rotation head.
    fn rotation(&self, _images: Tensor<4>, _norm: NormMode) -> Option<Tensor<2>> {
        None
    }

    /// Class scores of normalised images: `logits(features(images))`.
    fn forward(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        self.logits(self.features(images, norm))
    }

    /// Class scores of the source training: as [`forward`](Self::forward) with
    /// [`BatchUpdating`](NormMode::BatchUpdating), and with dropout drawn from `draw` where the network has it.
    /// Nothing else ever drops anything.
    fn training_logits(&self, images: Tensor<4>, _draw: u64) -> Tensor<2> {
        self.forward(images, NormMode::BatchUpdating)
    }

    /// The parameters in a set, as a group for Burn's optimisers and gradient switches.
    fn params(&self, which: Adaptable) -> ParamGroup {
        let classifier = format!("{}.", self.classifier_key());
        let selected = parameters(self).into_iter().filter(|parameter| {
            let in_classifier = parameter.key.starts_with(&classifier);
            let in_features = !in_classifier && !parameter.key.starts_with("head.");
            parameter.kind != ParameterKind::Buffer
                && match which {
                    Adaptable::Affine => in_features && parameter.kind == ParameterKind::Affine,
                    Adaptable::Features => in_features,
                    Adaptable::FeaturesAndHeads => !in_classifier,
                    Adaptable::Head => in_classifier,
                    Adaptable::All => true,
                }
        });
        ParamGroup::from_ids(selected.map(|parameter| parameter.id).collect())
    }

    /// The same network, on an autodiff device, with gradients for one set of parameters only.
    fn trainable(self, which: Adaptable) -> Self {
        let group = self.params(which);
        self.train().no_grad().set_require_grad_group(group, true)
    }
}
