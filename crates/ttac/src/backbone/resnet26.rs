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

use super::family::{Entry, Family, InputForm, Published, depth_problem};
use super::layers::{Conv2d, Linear, Parameterless, stage};
use super::{Backbone, BatchNorm, GroupNorm, Norm, NormMode};

pub(super) const ENTRY: Entry<ResNet26Config> = Entry {
    family: "resnet26",
    about: "pre-activation ResNet for small images, rotation head (TTT-R)",
    weights: "TTT-R",
    published: &[Published::new("resnet26", "0.64 M", published)],
};

fn published(num_classes: usize) -> ResNet26Config {
    ResNet26Config {
        depth: 26,
        width: 16,
        norm: NormKind::Group,
        rotation: Some(RotationHead::Layer2),
        num_classes,
    }
}

/// The head tells apart rotations by 0, 90, 180 and 270 degrees.
const ROTATIONS: usize = 4;

/// How many groups of channels a group norm has, as in the paper.
const GROUPS: usize = 8;

/// The kind of all norms of a [`ResNet26`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormKind {
    /// Normalises by the statistics of the batch.
    Batch,
    /// Normalises every image by itself, in eight groups of channels.
    Group,
}

/// The place where the rotation head leaves the classifier's trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotationHead {
    /// The head begins after the second stage and has a third stage of its own.
    Layer2,
    /// The head begins after pooling and is one linear layer.
    Layer3,
}

/// Configures a [`ResNet26`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNet26Config {
    /// Number of layers with weights, `6n + 2`; 26 in the paper.
    pub depth: usize,
    /// Number of channels of the first stage; the others have twice and four times as many.
    pub width: usize,
    /// Kind of the norms.
    pub norm: NormKind,
    /// Place of the rotation head; `None` builds a network without one.
    pub rotation: Option<RotationHead>,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl ResNet26Config {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> ResNet26 {
        let blocks = (self.depth - 2) / 6;
        let block =
            |inputs, outputs, stride| Block::new(inputs, outputs, stride, self.norm, device);
        let stage = |inputs, outputs, stride| stage(blocks, inputs, outputs, stride, block);
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

impl Family for ResNet26Config {
    fn input(&self) -> InputForm {
        InputForm::images(32)
    }

    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = depth_problem(self.depth, 2).into_iter().collect();
        if self.norm == NormKind::Group && !self.width.is_multiple_of(GROUPS) {
            problems.push(format!(
                "`width` must be a multiple of the {GROUPS} groups of its norm, found {}",
                self.width
            ));
        }
        problems
    }
}

impl NormKind {
    fn init(self, channels: usize, device: &Device) -> Norm {
        match self {
            Self::Batch => Norm::Batch(BatchNorm::new(channels, device)),
            Self::Group => Norm::Group(GroupNorm::new(channels, GROUPS, device)),
        }
    }
}

/// A residual network with a rotation head, as the [module](self) describes it.
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

#[derive(Module, Debug)]
enum Head {
    /// Holds a stage, a norm, three steps without parameters (ReLU, pooling, flattening) and a linear layer.
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
    /// Computes the activations after the second stage, which both heads share.
    fn shared(&self, images: Tensor<4>, norm: NormMode) -> Tensor<4> {
        let x = run(&self.layer1, self.conv1.forward(images), norm);
        run(&self.layer2, x, norm)
    }
}

/// Sends activations through the blocks of a stage.
fn run(stage: &[Block], x: Tensor<4>, norm: NormMode) -> Tensor<4> {
    stage.iter().fold(x, |x, block| block.forward(x, norm))
}

/// Computes features from the activations after the second stage: third stage, norm, ReLU, pooling.
fn finish(stage: &[Block], last: &Norm, x: Tensor<4>, norm: NormMode) -> Tensor<2> {
    global_average_pool(last.relu(run(stage, x, norm), norm))
}

impl Backbone for ResNet26 {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        finish(&self.layer3, &self.bn, self.shared(images, norm), norm)
    }

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.fc)
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

/// A residual block that computes `x + conv2(relu(norm2(conv1(relu(norm1(x))))))`. Where the shape changes, the first `x` is pooled
/// and gets channels of zeros at the end.
#[derive(Module, Debug)]
pub struct Block {
    bn1: Norm,
    conv1: Conv2d,
    bn2: Norm,
    conv2: Conv2d,
    channels: usize,
}

impl Block {
    /// Builds a block with zero weights.
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

    /// Maps `[batch, height, width, in_channels]` to `[batch, out_height, out_width, channels]`.
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
            average_pool(x, PoolOptions::square(stride, stride, 0))
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
