//! ResNets of He et al. (2016, section 4.2) for 32x32 images: three stages of basic blocks,
//! shortcuts without parameters ("option A"), 6n + 2 layers.
//!
//! Keys as in the widely used PyTorch port: `conv1`, `bn1`, `layer{1,2,3}.{j}.{conv1,bn1,conv2,bn2}`,
//! `linear`; a projection head, which the port does not have, is `head`.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::{global_average_pool, shortcut_a};

use super::layers::{
    Conv2d, Linear, ProjectionHead, Then, conv_norm, conv_norms, project, projection_head,
};
use super::{Backbone, BatchNorm, NormMode};

/// Configuration of a [`ResNetCifar`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetCifarConfig {
    /// Layers with weights, `6n + 2`.
    pub depth: usize,
    /// Channels of the first stage; the others have twice and four times as many.
    pub width: usize,
    /// Outputs of a contrastive projection head, none for a network without one.
    #[serde(default)]
    pub projection: Option<usize>,
    /// Number of classes.
    pub num_classes: usize,
}

impl ResNetCifarConfig {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.depth < 8 || !(self.depth - 2).is_multiple_of(6) {
            problems.push(format!(
                "`depth` must be 6n + 2 with n >= 1, found {}",
                self.depth
            ));
        }
        problems
    }

    /// The network with all weights zero and fresh norms.
    pub fn init(&self, device: &Device) -> ResNetCifar {
        let blocks = (self.depth - 2) / 6;
        let stage = |in_channels: usize, channels: usize, stride: usize| {
            (0..blocks)
                .map(|j| match j {
                    0 => BasicBlock::new(in_channels, channels, stride, device),
                    _ => BasicBlock::new(channels, channels, 1, device),
                })
                .collect()
        };
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

/// See the [module](self).
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

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.linear.forward(features)
    }

    fn head_weights(&self) -> Tensor<2> {
        self.linear.weight.val()
    }

    fn num_features(&self) -> usize {
        self.linear.weight.lazy_shape()[1]
    }

    fn num_classes(&self) -> usize {
        self.linear.weight.lazy_shape()[0]
    }

    fn classifier_key(&self) -> &'static str {
        "linear"
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        Some(project(self.head.as_ref()?, features))
    }

    fn has_projection(&self) -> bool {
        self.head.is_some()
    }
}

/// Two 3x3 convolutions beside a shortcut without parameters.
#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    channels: usize,
}

impl BasicBlock {
    /// A block with zero weights.
    pub fn new(in_channels: usize, channels: usize, stride: usize, device: &Device) -> Self {
        Self {
            conv1: Conv2d::new(in_channels, channels, 3, stride, device),
            bn1: BatchNorm::new(channels, device),
            conv2: Conv2d::new(channels, channels, 3, 1, device),
            bn2: BatchNorm::new(channels, device),
            channels,
        }
    }

    /// `[batch, height, width, in_channels]` to `[batch, out_height, out_width, channels]`.
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
