//! The ResNet-26 of test-time training with rotations (TTT-R, Sun et al. 2020): pre-activation
//! basic blocks, group norm or batch norm, shortcuts by average pooling and zero channels, and a
//! second head that tells by how much an image was turned.
//!
//! Keys `conv1`, `layer{1,2,3}.{j}.{bn1,conv1,bn2,conv2}`, `bn`, `fc`; the rotation head, published as
//! a second `state_dict`, is `head.*` here.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::{PoolOptions, average_pool, global_average_pool};

use super::layers::{Conv2d, Linear, Parameterless};
use super::{Backbone, BatchNorm, GroupNorm, Norm, NormMode};

/// Rotations by 0, 90, 180 and 270 degrees.
const ROTATIONS: usize = 4;

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormKind {
    /// Batch norm.
    Batch,
    /// Group norm with eight groups.
    Group,
}

/// Where the rotation head leaves the classifier's trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotationHead {
    /// After the second stage: the head has a third stage of its own.
    Layer2,
    /// After pooling: the head is one linear layer.
    Layer3,
}

/// Configuration of a [`ResNet26`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNet26Config {
    /// Layers with weights, `6n + 2`; 26 in the paper.
    pub depth: usize,
    /// Channels of the first stage; the others have twice and four times as many.
    pub width: usize,
    /// Which normalisation.
    pub norm: NormKind,
    /// Where the rotation head is, none for a network without one.
    pub rotation: Option<RotationHead>,
    /// Number of classes.
    pub num_classes: usize,
}

impl ResNet26Config {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.depth < 8 || !(self.depth - 2).is_multiple_of(6) {
            problems.push(format!(
                "`depth` must be 6n + 2 with n >= 1, found {}",
                self.depth
            ));
        }
        if self.norm == NormKind::Group && !self.width.is_multiple_of(GROUPS) {
            problems.push(format!(
                "`width` must be a multiple of the {GROUPS} groups of its norm, found {}",
                self.width
            ));
        }
        problems
    }

    /// The network with all weights zero and fresh norms.
    pub fn init(&self, device: &Device) -> ResNet26 {
        let blocks = (self.depth - 2) / 6;
        let stage = |in_channels: usize, channels: usize, stride: usize| -> Vec<Block> {
            (0..blocks)
                .map(|j| match j {
                    0 => Block::new(in_channels, channels, stride, self.norm, device),
                    _ => Block::new(channels, channels, 1, self.norm, device),
                })
                .collect()
        };
        let w = self.width;
        ResNet26 {
            conv1: Conv2d::new(3, w, 3, 1, device),
            layer1: stage(w, w, 1),
            layer2: stage(w, 2 * w, 2),
            layer3: stage(2 * w, 4 * w, 2),
            bn: self.norm.init(4 * w, device),
            fc: Linear::new(4 * w, self.num_classes, device),
            head: self.rotation.map(|place| match place {
                RotationHead::Layer2 => Head::Layer2((
                    stage(2 * w, 4 * w, 2),
                    self.norm.init(4 * w, device),
                    Parameterless,
                    Parameterless,
                    Parameterless,
                    Linear::new(4 * w, ROTATIONS, device),
                )),
                RotationHead::Layer3 => Head::Layer3(Linear::new(4 * w, ROTATIONS, device)),
            }),
        }
    }
}

/// Groups of the group norm, as in the paper.
const GROUPS: usize = 8;

impl NormKind {
    fn init(self, channels: usize, device: &Device) -> Norm {
        match self {
            Self::Batch => Norm::Batch(BatchNorm::new(channels, device)),
            Self::Group => Norm::Group(GroupNorm::new(channels, GROUPS, device)),
        }
    }
}

/// See the [module](self).
#[derive(Module, Debug)]
pub struct ResNet26 {
    conv1: Conv2d,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    bn: Norm,
    fc: Linear,
    head: Option<Head>,
}

/// The rotation head.
#[derive(Module, Debug)]
enum Head {
    /// Stage, norm, ReLU, pooling, flattening, linear.
    Layer2(
        (
            Vec<Block>,
            Norm,
            Parameterless,
            Parameterless,
            Parameterless,
            Linear,
        ),
    ),
    Layer3(Linear),
}

impl ResNet26 {
    /// Activations after the second stage.
    fn shared(&self, images: Tensor<4>, norm: NormMode) -> Tensor<4> {
        let x = run(&self.layer1, self.conv1.forward(images), norm);
        run(&self.layer2, x, norm)
    }
}

/// A stage, block by block.
fn run(stage: &[Block], x: Tensor<4>, norm: NormMode) -> Tensor<4> {
    stage.iter().fold(x, |x, block| block.forward(x, norm))
}

/// Third stage, norm, ReLU and pooling.
fn finish(stage: &[Block], last: &Norm, x: Tensor<4>, norm: NormMode) -> Tensor<2> {
    global_average_pool(last.relu(run(stage, x, norm), norm))
}

impl Backbone for ResNet26 {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        finish(&self.layer3, &self.bn, self.shared(images, norm), norm)
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.fc.forward(features)
    }

    fn head_weights(&self) -> Tensor<2> {
        self.fc.weight.val()
    }

    fn num_features(&self) -> usize {
        self.fc.weight.lazy_shape()[1]
    }

    fn num_classes(&self) -> usize {
        self.fc.weight.lazy_shape()[0]
    }

    fn classifier_key(&self) -> &'static str {
        "fc"
    }

    fn has_rotation(&self) -> bool {
        self.head.is_some()
    }

    fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>> {
        match self.head.as_ref()? {
            Head::Layer2((stage, last, _, _, _, linear)) => {
                Some(linear.forward(finish(stage, last, self.shared(images, norm), norm)))
            }
            Head::Layer3(linear) => Some(linear.forward(self.features(images, norm))),
        }
    }
}

/// `x + conv2(relu(norm2(conv1(relu(norm1(x))))))`, with the first `x` pooled and its channels padded
/// with zeros at the end where the shape changes.
#[derive(Module, Debug)]
pub struct Block {
    bn1: Norm,
    conv1: Conv2d,
    bn2: Norm,
    conv2: Conv2d,
    channels: usize,
}

impl Block {
    /// A block with zero weights.
    pub fn new(
        in_channels: usize,
        channels: usize,
        stride: usize,
        norm: NormKind,
        device: &Device,
    ) -> Self {
        Self {
            bn1: norm.init(in_channels, device),
            conv1: Conv2d::new(in_channels, channels, 3, stride, device),
            bn2: norm.init(channels, device),
            conv2: Conv2d::new(channels, channels, 3, 1, device),
            channels,
        }
    }

    /// `[batch, height, width, in_channels]` to `[batch, out_height, out_width, channels]`.
    pub fn forward(&self, x: Tensor<4>, norm: NormMode) -> Tensor<4> {
        let y = self.bn1.relu_conv(x.clone(), &self.conv1, None, norm);
        self.bn2
            .relu_conv(y, &self.conv2, Some(self.shortcut(x)), norm)
    }

    fn shortcut(&self, x: Tensor<4>) -> Tensor<4> {
        let stride = self.conv1.stride;
        let x = if stride == 1 {
            x
        } else {
            let options = PoolOptions {
                kernel: stride,
                stride,
                padding: 0,
            };
            average_pool(x, options)
        };
        let [batch, height, width, in_channels] = x.dims();
        if in_channels == self.channels {
            return x;
        }
        let missing = [batch, height, width, self.channels - in_channels];
        let zeros = Tensor::zeros(missing, &x.device());
        Tensor::cat(vec![x, zeros], 3)
    }
}
