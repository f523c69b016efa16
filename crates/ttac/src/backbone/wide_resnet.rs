//! Wide residual networks (Zagoruyko and Komodakis, 2016) for 32x32 images: pre-activation basic
//! blocks, 6n + 4 layers, widths 16, 16k, 32k, 64k.
//!
//! Keys of the checkpoints that robustness benchmarks distribute: `conv1`,
//! `block{1,2,3}.layer.{j}.{bn1,conv1,bn2,conv2,convShortcut}`, `bn1`, `fc`.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::global_average_pool;

use super::layers::{Conv2d, Linear};
use super::{Backbone, BatchNorm, NormMode};

/// Configuration of a [`WideResNet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WideResNetConfig {
    /// Layers with weights, `6n + 4`.
    pub depth: usize,
    /// Channels of the stem, 16 in the paper.
    pub stem: usize,
    /// The factor k: the stages have `k`, `2k` and `4k` times the stem's channels.
    pub widen: usize,
    /// Number of classes.
    pub num_classes: usize,
}

impl WideResNetConfig {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.depth < 10 || !(self.depth - 4).is_multiple_of(6) {
            problems.push(format!(
                "`depth` must be 6n + 4 with n >= 1, found {}",
                self.depth
            ));
        }
        problems
    }

    /// The network with all weights zero and fresh norms.
    pub fn init(&self, device: &Device) -> WideResNet {
        let blocks = (self.depth - 4) / 6;
        let stage = |in_channels: usize, channels: usize, stride: usize| Stage {
            layer: (0..blocks)
                .map(|j| match j {
                    0 => Block::new(in_channels, channels, stride, device),
                    _ => Block::new(channels, channels, 1, device),
                })
                .collect(),
        };
        let w = self.stem * self.widen;
        WideResNet {
            conv1: Conv2d::new(3, self.stem, 3, 1, device),
            block1: stage(self.stem, w, 1),
            block2: stage(w, 2 * w, 2),
            block3: stage(2 * w, 4 * w, 2),
            bn1: BatchNorm::new(4 * w, device),
            fc: Linear::new(4 * w, self.num_classes, device),
        }
    }
}

/// See the [module](self).
#[derive(Module, Debug)]
pub struct WideResNet {
    conv1: Conv2d,
    block1: Stage,
    block2: Stage,
    block3: Stage,
    bn1: BatchNorm,
    fc: Linear,
}

#[derive(Module, Debug)]
struct Stage {
    layer: Vec<Block>,
}

impl Backbone for WideResNet {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let mut x = self.conv1.forward(images);
        for stage in [&self.block1, &self.block2, &self.block3] {
            for block in &stage.layer {
                x = block.forward(x, norm);
            }
        }
        global_average_pool(self.bn1.forward(x, None, true, norm))
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

    fn published_key(&self, path: &str) -> String {
        path.replace(".conv_shortcut.", ".convShortcut.")
    }
}

/// Pre-activation basic block. Where the channels change, both branches start from the activated
/// input; elsewhere the shortcut is the raw one.
#[derive(Module, Debug)]
pub struct Block {
    bn1: BatchNorm,
    conv1: Conv2d,
    bn2: BatchNorm,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
}

impl Block {
    /// A block with zero weights.
    pub fn new(in_channels: usize, channels: usize, stride: usize, device: &Device) -> Self {
        Self {
            bn1: BatchNorm::new(in_channels, device),
            conv1: Conv2d::new(in_channels, channels, 3, stride, device),
            bn2: BatchNorm::new(channels, device),
            conv2: Conv2d::new(channels, channels, 3, 1, device),
            conv_shortcut: (in_channels != channels)
                .then(|| Conv2d::new(in_channels, channels, 1, stride, device)),
        }
    }

    /// `[batch, height, width, in_channels]` to `[batch, out_height, out_width, channels]`.
    pub fn forward(&self, x: Tensor<4>, norm: NormMode) -> Tensor<4> {
        let (y, shortcut) = match &self.conv_shortcut {
            Some(conv) => {
                let activated = self.bn1.forward(x, None, true, norm);
                (
                    self.conv1.forward(activated.clone()),
                    conv.forward(activated),
                )
            }
            None => (self.bn1.relu_conv(x.clone(), &self.conv1, None, norm), x),
        };
        self.bn2.relu_conv(y, &self.conv2, Some(shortcut), norm)
    }
}
