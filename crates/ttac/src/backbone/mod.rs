//! Classifiers, split where adaptation needs them split.
//!
//! A [`Backbone`] turns images or clouds of points into features, and features into scores of classes. Implement it for a
//! network of your own, and every method adapts it. [`Network`] is any of the networks this crate knows;
//! [`Architecture`] is the configuration that builds one, by name or from a checkpoint.
//!
//! The path of a parameter in a network is its key in the published PyTorch checkpoints, so that loading needs no
//! table of names.

mod architecture;
mod family;
mod init;
mod keys;
pub mod layers;
mod norm;

use burn::module::{Module, ParamGroup};
use burn::tensor::Tensor;

pub use architecture::PublishedArchitecture;
pub use family::{InputForm, OtherSizes};
pub use init::parameter_id;
pub use keys::{Parameter, ParameterKind, load_tensors, map_tensors, parameters, tensors};
pub(crate) use norm::RunningStatistics;
pub use norm::{
    BatchNorm, Buffer, GroupNorm, ImageMoments, LayerNorm, Norm, NormKeeper, NormLayer, NormRule,
};

// The families of networks, one line each: file, variant of `Architecture` and `Network`, configuration, network. The macro
// explains what it makes of them. Names are listed in this order.
architecture::families! {
    pub mod resnet_cifar => ResnetCifar(ResNetCifarConfig) -> ResNetCifar;
    pub mod resnet_simclr => ResnetSimclr(ResNetSimclrConfig) -> ResNetSimclr;
    pub mod resnet26 => Resnet26(ResNet26Config) -> ResNet26;
    pub mod wide_resnet => WideResnet(WideResNetConfig) -> WideResNet;
    pub mod resnet => Resnet(ResNetConfig) -> ResNet;
    pub mod vit => Vit(VitConfig) -> VisionTransformer;
    pub mod dgcnn => Dgcnn(DgcnnConfig) -> Dgcnn;
    pub mod graph => Graph(GraphConfig) -> GraphNetwork;
}

/// Tells a batch norm which statistics to use. Layers without batch statistics ignore it.
#[derive(Clone, Copy, Debug)]
pub enum NormMode<'a> {
    /// It uses the stored running statistics (PyTorch's `eval()`).
    Running,
    /// It uses the statistics of the batch; the stored ones stay as they are.
    Batch,
    /// It uses the statistics of the batch, and moves the running ones towards them by the layer's
    /// momentum (PyTorch's `train()`).
    BatchUpdating,
    /// It does the same with another momentum.
    Blending {
        /// The share of the batch in the new running statistics, 0 to 1.
        momentum: f64,
    },
    /// It uses the statistics that a rule chooses after a look at what each image brings, and stores them. They are
    /// constants to gradients.
    Ruled(&'a dyn NormRule),
    /// It uses the statistics that a keeper makes of what each image brings, and stores them. Gradients pass through them.
    Kept(&'a dyn NormKeeper),
}

impl NormMode<'_> {
    /// Tells whether every batch norm uses its stored statistics as they are.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running)
    }
}

/// A set of parameters that a method may change, as in [`Backbone::trainable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptable {
    /// Holds the scales and shifts of the norms among the layers that make features.
    Affine,
    /// Holds the same without those of the last stage, which are told by their keys: `layer4`, `blocks.9` to `blocks.11`, and a `norm`
    /// at the end. Networks without such keys leave out nothing.
    LowerAffine,
    /// Holds everything that makes features, without the classifier and self-supervised heads.
    Features,
    /// Holds everything but the classifier: what makes features, and the self-supervised heads.
    FeaturesAndHeads,
    /// Holds the weight and the bias of the classifier.
    Head,
    /// Holds all parameters. Running statistics are buffers, not parameters.
    All,
}

/// A classifier that shows its features.
///
/// A network of your own has to give [`features`](Self::features) and [`classifier`](Self::classifier); everything else follows
/// from these two. `examples/own_backbone.rs` trains and adapts such a network. A network with a further head, with dropout, or
/// with published weights whose keys Rust cannot spell, overrides the functions that speak of them.
pub trait Backbone: Module {
    /// Computes the features of normalised images, `[batch, height, width, 3]`, or of clouds, `[batch, points, 1, 3]`. The result is
    /// `[batch, num_features]`. Every batch norm of the network works as `norm` says.
    fn features(&self, inputs: Tensor<4>, norm: NormMode) -> Tensor<2>;

    /// Returns the last layer, whose outputs are the scores of the classes. [`Linear`](layers::Linear) holds a weight
    /// `[num_classes, inputs]` and a bias `[num_classes]`. A network that ends otherwise returns `None`, and overrides
    /// [`logits`](Self::logits), [`num_features`](Self::num_features), [`num_classes`](Self::num_classes) and
    /// [`classifier_keys`](Self::classifier_keys).
    fn classifier(&self) -> Option<&layers::Linear>;

    /// Computes the scores of the classes from features: `[batch, num_features]` to `[batch, num_classes]`. Override it if there is
    /// more between features and scores than the classifier.
    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        linear_end(self).forward(features)
    }

    /// Returns the length of a feature vector: the number of inputs of the classifier, unless [`logits`](Self::logits) is overridden.
    fn num_features(&self) -> usize {
        linear_end(self).weight.lazy_shape()[1]
    }

    /// Returns the number of classes.
    fn num_classes(&self) -> usize {
        linear_end(self).weight.lazy_shape()[0]
    }

    /// Returns the weight of the classifier, one row for each class, `[num_classes, inputs]`, if the scores are a linear function of
    /// what it reads.
    fn head_weights(&self) -> Option<Tensor<2>> {
        self.classifier().map(|classifier| classifier.weight.val())
    }

    /// Returns the keys of the classifier's tensors, such as `fc.weight` and `fc.bias`.
    fn classifier_keys(&self) -> Vec<String> {
        let classifier = linear_end(self);
        let ids = [classifier.weight.id, classifier.bias.id];
        let parts = parameters(self).into_iter();
        parts
            .filter(|one| ids.contains(&one.id))
            .map(|one| one.key)
            .collect()
    }

    /// Translates the path of a parameter to its key in the published checkpoint. The two are the same unless Rust cannot spell the
    /// key.
    fn published_key(&self, path: &str) -> String {
        path.to_owned()
    }

    /// Computes the scores of the classes of normalised images or clouds: `logits(features(inputs))`, `[batch, num_classes]`.
    fn forward(&self, inputs: Tensor<4>, norm: NormMode) -> Tensor<2> {
        self.logits(self.features(inputs, norm))
    }

    /// Computes the scores of the classes in source training, `[batch, num_classes]`. That is [`forward`](Self::forward) with
    /// [`BatchUpdating`](NormMode::BatchUpdating); a network with dropout overrides it and draws what it drops from `draw`. Nothing is
    /// dropped anywhere else.
    fn training_logits(&self, inputs: Tensor<4>, _draw: u64) -> Tensor<2> {
        self.forward(inputs, NormMode::BatchUpdating)
    }

    /// Tells whether any layer is a batch norm. Without one, methods that use the batch statistics of the target predict what the
    /// source does.
    fn has_batch_norm(&self) -> bool {
        parameters(self)
            .iter()
            .any(|parameter| parameter.kind == ParameterKind::Buffer)
    }

    /// Tells whether the network has a contrastive head, [`projection`](Self::projection). Override both or neither.
    fn has_projection(&self) -> bool {
        false
    }

    /// Computes the output of the contrastive head from features, `[batch, projection]`, if there is one. It is not scaled to unit
    /// length.
    fn projection(&self, _features: Tensor<2>) -> Option<Tensor<2>> {
        None
    }

    /// Tells whether the network has a head for rotations, [`rotation`](Self::rotation). Override both or neither.
    fn has_rotation(&self) -> bool {
        false
    }

    /// Computes the scores of the four rotations of normalised images, `[batch, 4]`, if there is a head for them.
    fn rotation(&self, _images: Tensor<4>, _norm: NormMode) -> Option<Tensor<2>> {
        None
    }

    /// Returns the parameters in a set, as a group for Burn's optimisers and gradient switches. Heads for self-supervision are
    /// recognised by their key, `head`, unless that is the classifier's.
    fn params(&self, which: Adaptable) -> ParamGroup {
        let classifier = self.classifier_keys();
        let selected = parameters(self).into_iter().filter(|parameter| {
            let in_classifier = classifier.contains(&parameter.key);
            let in_features = !in_classifier && !parameter.key.starts_with("head.");
            parameter.kind.is_learned()
                && match which {
                    Adaptable::Affine => in_features && parameter.kind == ParameterKind::Affine,
                    Adaptable::LowerAffine => {
                        let is_affine = parameter.kind == ParameterKind::Affine;
                        in_features && is_affine && !is_in_last_stage(&parameter.key)
                    }
                    Adaptable::Features => in_features,
                    Adaptable::FeaturesAndHeads => !in_classifier,
                    Adaptable::Head => in_classifier,
                    Adaptable::All => true,
                }
        });
        ParamGroup::from_ids(selected.map(|parameter| parameter.id).collect())
    }

    /// Returns the same network, on an autodiff device, with gradients for one set of parameters only.
    fn trainable(self, which: Adaptable) -> Self {
        let group = self.params(which);
        self.train().no_grad().set_require_grad_group(group, true)
    }
}

/// Tells whether a key belongs to the last stage of a residual network or a transformer, or to the norm at its end.
fn is_in_last_stage(key: &str) -> bool {
    let last = ["layer4", "blocks.9", "blocks.10", "blocks.11"];
    key.starts_with("norm.") || last.iter().any(|part| key.contains(part))
}

/// Returns the linear layer that a network ends with.
///
/// # Panics
/// If it ends otherwise: then it has to override what calls this.
fn linear_end<B: Backbone>(network: &B) -> &layers::Linear {
    let classifier = network.classifier();
    classifier.expect("a network without a linear classifier overrides what depends on it")
}
