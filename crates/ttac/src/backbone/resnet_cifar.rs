//! ResNets of He et al. (2016, section 4.2) for 32x32 images: three stages of basic blocks,
//! shortcuts without parameters ("option A"), 6n + 2 layers.
//!
//! Keys as in the widely used PyTorch port: `conv1`, `bn1`, `layer{1,2,3}.{j}.{conv1,bn1,conv2,bn2}`,
//! `linear`; a projection head, which the port does not have, is `head`.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::{global_average_pool, shortcut_a};

use super::family::{Entry, Family, InputForm, Published, depth_problem};
use super::layers::{
    Conv2d, Linear, ProjectionHead, Then, conv_norm, conv_norms, project, projection_head, stage,
};
use super::{Backbone, BatchNorm, NormMode};

pub(super) const ENTRY: Entry<ResNetCifarConfig> = Entry {
    family: "resnet-cifar",
    about: "He et al. for small images, shortcuts without parameters",
    weights: "the common PyTorch port of He et al.",
    published: &[
        Published::new("resnet20-cifar", "0.27 M", |n| published(20, n)),
        Published::new("resnet32-cifar", "0.46 M", |n| published(32, n)),
        Published::new("resnet44-cifar", "0.66 M", |n| published(44, n)),
        Published::new("resnet56-cifar", "0.85 M", |n| published(56, n)),
        Published::new("resnet110-cifar", "1.7 M", |n| published(110, n)),
    ],
};

fn published(depth: usize, num_classes: usize) -> ResNetCifarConfig {
    ResNetCifarConfig {
        depth,
        width: 16,
        projection: None,
        num_classes,
    }
}

/// Configures a [`ResNetCifar`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetCifarConfig {
    /// Number of layers with weights, `6n + 2`.
    pub depth: usize,
    /// Number of channels of the first stage; the others have twice and four times as many.
    pub width: usize,
    /// Number of outputs of the contrastive projection head; `None` builds a network without one.
    #[serde(default)]
    pub projection: Option<usize>,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl ResNetCifarConfig {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> ResNetCifar {
        let blocks = (self.depth - 2) / 6;
        let block = |inputs, outputs, stride| BasicBlock::new(inputs, outputs, stride, device);
        let stage = |inputs, outputs, stride| stage(blocks, inputs, outputs, stride, block);
        let w = self.width;
        ResNetCifar {
            conv1: Conv2d::new(3, w, 3, 1, device),
            bn1: BatchNorm::new(w, device),
            layer1: stage(w, w, 1),
            layer2: stage(w, 2 * w, 2),
            layer3: stage(2 * w, 4 * w, 2),
            linear: Linear::new(4 * w, self.num_classes, device),
            head: self
                .projection
                .map(|outputs| projection_head(4 * w, outputs, device)),
        }
    }
}

impl Family for ResNetCifarConfig {
    fn input(&self) -> InputForm {
        InputForm::images(32)
    }

    fn problems(&self) -> Vec<String> {
        depth_problem(self.depth, 2).into_iter().collect()
    }
}

/// A residual network for 32x32 images, as the [module](self) describes it.
#[derive(Module, Debug)]
pub struct ResNetCifar {
    conv1: Conv2d,
    bn1: BatchNorm,
    layer1: Vec<BasicBlock>,
    layer2: Vec<BasicBlock>,
    layer3: Vec<BasicBlock>,
    linear: Linear,
    head: Option<ProjectionHead>,
}

impl Backbone for ResNetCifar {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let mut x = conv_norm(&self.conv1, &self.bn1, images, Then::Relu, norm);
        for block in [&self.layer1, &self.layer2, &self.layer3]
            .into_iter()
            .flatten()
        {
            x = block.forward(x, norm);
        }
        global_average_pool(x)
    }

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.linear)
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        Some(project(self.head.as_ref()?, features))
    }

    fn has_projection(&self) -> bool {
        self.head.is_some()
    }
}

/// A residual block: two 3x3 convolutions beside a shortcut without parameters.
#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    channels: usize,
}

impl BasicBlock {
    /// Builds a block with zero weights.
    pub fn new(in_channels: usize, channels: usize, stride: usize, device: &Device) -> Self {
        Self {
            conv1: Conv2d::new(in_channels, channels, 3, stride, device),
            bn1: BatchNorm::new(channels, device),
            conv2: Conv2d::new(channels, channels, 3, 1, device),
            bn2: BatchNorm::new(channels, device),
            channels,
        }
    }

    /// Maps `[batch, height, width, in_channels]` to `[batch, out_height, out_width, channels]`.
    pub fn forward(&self, x: Tensor<4>, norm: NormMode) -> Tensor<4> {
        let [_, _, _, in_channels] = x.dims();
        let stride = self.conv1.stride;
        let shortcut = if stride == 1 && in_channels == self.channels {
            x.clone()
        } else {
            shortcut_a(x.clone(), self.channels, stride)
        };
        conv_norms(
            &[(&self.conv1, &self.bn1)],
            (&self.conv2, &self.bn2),
            x,
            Then::AddRelu(shortcut),
            norm,
        )
    }
}
