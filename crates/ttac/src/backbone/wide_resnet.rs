//! Wide residual networks (Zagoruyko and Komodakis, 2016) for 32x32 images: pre-activation basic
//! blocks, 6n + 4 layers, widths 16, 16k, 32k, 64k.
//!
//! Keys of the checkpoints that robustness benchmarks distribute: `conv1`,
//! `block{1,2,3}.layer.{j}.{bn1,conv1,bn2,conv2,convShortcut}`, `bn1`, `fc`.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::global_average_pool;

use super::family::{Entry, Family, InputForm, Published, depth_problem};
use super::layers::{Conv2d, Linear, stage};
use super::{Backbone, BatchNorm, NormMode};

pub(super) const ENTRY: Entry<WideResNetConfig> = Entry {
    family: "wide-resnet",
    about: "wide ResNet for small images",
    weights: "robustness benchmarks",
    published: &[
        Published::new("wrn-28-10", "36 M", |n| published(28, 10, n)),
        Published::new("wrn-40-2", "2.2 M", |n| published(40, 2, n)),
    ],
};

fn published(depth: usize, widen: usize, num_classes: usize) -> WideResNetConfig {
    WideResNetConfig {
        depth,
        stem: 16,
        widen,
        num_classes,
    }
}

/// Configures a [`WideResNet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WideResNetConfig {
    /// Number of layers with weights, `6n + 4`.
    pub depth: usize,
    /// Number of channels of the stem, 16 in the paper.
    pub stem: usize,
    /// The factor k: the stages have `k`, `2k` and `4k` times the stem's channels.
    pub widen: usize,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl WideResNetConfig {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> WideResNet {
        let blocks = (self.depth - 4) / 6;
        let block = |inputs, outputs, stride| Block::new(inputs, outputs, stride, device);
        let stage = |inputs, outputs, stride| Stage {
            layer: stage(blocks, inputs, outputs, stride, block),
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

impl Family for WideResNetConfig {
    fn input(&self) -> InputForm {
        InputForm::images(32)
    }

    fn problems(&self) -> Vec<String> {
        depth_problem(self.depth, 4).into_iter().collect()
    }
}

/// A wide residual network, as the [module](self) describes it.
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

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.fc)
    }

    fn published_key(&self, path: &str) -> String {
        path.replace(".conv_shortcut.", ".convShortcut.")
    }
}

/// A residual block that normalises before it convolves. Where the number of channels changes, both branches start from the
/// activated input; elsewhere the shortcut is the input itself.
#[derive(Module, Debug)]
pub struct Block {
    bn1: BatchNorm,
    conv1: Conv2d,
    bn2: BatchNorm,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
}

impl Block {
    /// Builds a block with zero weights.
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

    /// Maps `[batch, height, width, in_channels]` to `[batch, out_height, out_width, channels]`.
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
