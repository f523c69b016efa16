//! ResNets of He et al. (2016) in torchvision's form: four stages of basic or bottleneck blocks,
//! projection shortcuts, the stride on the 3x3 convolution.
//!
//! [`ResNet`] is the 224x224 network with torchvision's keys; its four stages also make up the 32x32
//! variants of [`super::resnet_simclr`].

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::{PoolOptions, global_average_pool, max_pool};

use super::family::{Entry, Family, InputForm, Published};
use super::layers::{Conv2d, Linear, Then, conv_norm, conv_norms};
use super::{Backbone, BatchNorm, NormMode};

pub(super) const ENTRY: Entry<ResNetConfig> = Entry {
    family: "resnet",
    about: "ResNet in torchvision's form",
    weights: "torchvision",
    published: &[
        Published::new("resnet18", "12 M", |n| published(RESNET18, n)),
        Published::new("resnet50", "26 M", |n| published(RESNET50, n)),
    ],
};

/// Kind of the blocks, and how many of them each stage has.
pub(super) const RESNET18: (BlockKind, [usize; 4]) = (BlockKind::Basic, [2, 2, 2, 2]);
pub(super) const RESNET50: (BlockKind, [usize; 4]) = (BlockKind::Bottleneck, [3, 4, 6, 3]);

fn published((block, blocks): (BlockKind, [usize; 4]), num_classes: usize) -> ResNetConfig {
    ResNetConfig {
        block,
        blocks,
        width: 64,
        num_classes,
    }
}

/// One of the two blocks of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockKind {
    /// Has two 3x3 convolutions (ResNet-18 and -34).
    Basic,
    /// Has convolutions of 1x1, 3x3 and 1x1, with four times as many channels at the end (ResNet-50 and deeper).
    Bottleneck,
}

impl BlockKind {
    /// Returns how many times as many channels as its width a block puts out.
    pub fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
}

/// Configures a [`ResNet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// Kind of the blocks.
    pub block: BlockKind,
    /// Number of blocks in each stage.
    pub blocks: [usize; 4],
    /// Number of channels of the first stage, 64 in the paper; it doubles from stage to stage.
    pub width: usize,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl ResNetConfig {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> ResNet {
        let [layer1, layer2, layer3, layer4] = stages(self.block, self.blocks, self.width, device);
        let features = 8 * self.width * self.block.expansion();
        let mut conv1 = Conv2d::new(3, self.width, 7, 2, device);
        conv1.padding = 3;
        ResNet {
            conv1,
            bn1: BatchNorm::new(self.width, device),
            layer1,
            layer2,
            layer3,
            layer4,
            fc: Linear::new(features, self.num_classes, device),
        }
    }
}

impl Family for ResNetConfig {
    fn input(&self) -> InputForm {
        InputForm::images(224)
    }
}

/// A residual network for 224x224 images, as the [module](self) describes it.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    fc: Linear,
}

impl Backbone for ResNet {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let x = conv_norm(&self.conv1, &self.bn1, images, Then::Relu, norm);
        let every_second = PoolOptions::square(3, 2, 1);
        let stages = [&self.layer1, &self.layer2, &self.layer3, &self.layer4];
        global_average_pool(forward_all(stages, max_pool(x, every_second), norm))
    }

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.fc)
    }
}

/// Builds the four stages behind a stem of `width` channels, with zero weights; their strides are 1, 2, 2, 2.
pub(super) fn stages(
    kind: BlockKind,
    blocks: [usize; 4],
    width: usize,
    device: &Device,
) -> [Vec<Block>; 4] {
    let mut in_channels = width;
    std::array::from_fn(|index| {
        let planes = width << index;
        (0..blocks[index])
            .map(|j| {
                let stride = if index > 0 && j == 0 { 2 } else { 1 };
                let block = Block::new(kind, in_channels, planes, stride, device);
                in_channels = planes * kind.expansion();
                block
            })
            .collect()
    })
}

/// Sends activations through all blocks of the stages.
pub(super) fn forward_all(stages: [&Vec<Block>; 4], x: Tensor<4>, norm: NormMode) -> Tensor<4> {
    let blocks = stages.into_iter().flatten();
    blocks.fold(x, |x, block| block.forward(x, norm))
}

/// A residual block of either kind: a bottleneck has a third convolution, a basic block has not.
#[derive(Module, Debug)]
pub struct Block {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm>,
    downsample: Option<(Conv2d, BatchNorm)>,
}

impl Block {
    /// Builds a block with zero weights. It puts out `planes` channels, times the [expansion](BlockKind::expansion).
    pub fn new(
        kind: BlockKind,
        in_channels: usize,
        planes: usize,
        stride: usize,
        device: &Device,
    ) -> Self {
        let out_channels = planes * kind.expansion();
        let conv = |i, o, k, s| Conv2d::new(i, o, k, s, device);
        let norm = |channels| BatchNorm::new(channels, device);
        let (conv1, conv2, third) = match kind {
            BlockKind::Basic => (
                conv(in_channels, planes, 3, stride),
                conv(planes, planes, 3, 1),
                None,
            ),
            BlockKind::Bottleneck => (
                conv(in_channels, planes, 1, 1),
                conv(planes, planes, 3, stride),
                Some((conv(planes, out_channels, 1, 1), norm(out_channels))),
            ),
        };
        let (conv3, bn3) = third.unzip();
        Self {
            conv1,
            bn1: norm(planes),
            conv2,
            bn2: norm(planes),
            conv3,
            bn3,
            downsample: (stride != 1 || in_channels != out_channels).then(|| {
                (
                    conv(in_channels, out_channels, 1, stride),
                    norm(out_channels),
                )
            }),
        }
    }

    /// Maps `[batch, height, width, in_channels]` to `[batch, out_height, out_width, out_channels]`.
    pub fn forward(&self, x: Tensor<4>, norm: NormMode) -> Tensor<4> {
        let shortcut = match &self.downsample {
            Some((conv, layer)) => conv_norm(conv, layer, x.clone(), Then::Nothing, norm),
            None => x.clone(),
        };
        let then = Then::AddRelu(shortcut);
        let (first, second) = ((&self.conv1, &self.bn1), (&self.conv2, &self.bn2));
        match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => conv_norms(&[first, second], (conv3, bn3), x, then, norm),
            _ => conv_norms(&[first], second, x, then, norm),
        }
    }
}
