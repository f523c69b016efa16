//! ResNets for 32x32 images with a contrastive projection head: the models of TTT++ and TTAC.
//!
//! The stem is a 3x3 convolution without pooling; the stages are those of [`super::resnet`]. Keys
//! `encoder.*`, `fc.*`, `head.*`. The published checkpoints call a projection shortcut `shortcut`
//! where torchvision says `downsample`; `published_key` is that one difference.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::global_average_pool;

use super::family::{Entry, Family, InputForm, Published};
use super::layers::{Conv2d, Linear, ProjectionHead, Then, conv_norm, project, projection_head};
use super::resnet::{Block, BlockKind, RESNET18, RESNET50, forward_all, stages};
use super::{Backbone, BatchNorm, NormMode};

pub(super) const ENTRY: Entry<ResNetSimclrConfig> = Entry {
    family: "resnet-simclr",
    about: "ResNet for small images, projection head (TTT++, TTAC)",
    weights: "TTT++ and TTAC checkpoints",
    published: &[
        Published::new("resnet18-cifar", "12 M", |n| published(RESNET18, n)),
        Published::new("resnet50-cifar", "28 M", |n| published(RESNET50, n)),
    ],
};

fn published((block, blocks): (BlockKind, [usize; 4]), num_classes: usize) -> ResNetSimclrConfig {
    ResNetSimclrConfig {
        block,
        blocks,
        width: 64,
        projection: Some(128),
        num_classes,
    }
}

/// Configures a [`ResNetSimclr`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetSimclrConfig {
    /// Kind of the blocks.
    pub block: BlockKind,
    /// Number of blocks in each stage.
    pub blocks: [usize; 4],
    /// Number of channels of the first stage; it doubles from stage to stage.
    pub width: usize,
    /// Number of outputs of the projection head; `None` builds a network without one.
    pub projection: Option<usize>,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

impl ResNetSimclrConfig {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> ResNetSimclr {
        let [layer1, layer2, layer3, layer4] = stages(self.block, self.blocks, self.width, device);
        let features = 8 * self.width * self.block.expansion();
        ResNetSimclr {
            encoder: Encoder {
                conv1: Conv2d::new(3, self.width, 3, 1, device),
                bn1: BatchNorm::new(self.width, device),
                layer1,
                layer2,
                layer3,
                layer4,
            },
            fc: Linear::new(features, self.num_classes, device),
            head: self
                .projection
                .map(|outputs| projection_head(features, outputs, device)),
        }
    }
}

impl Family for ResNetSimclrConfig {
    fn input(&self) -> InputForm {
        InputForm::images(32)
    }
}

/// A residual network with a projection head, as the [module](self) describes it.
#[derive(Module, Debug)]
pub struct ResNetSimclr {
    encoder: Encoder,
    fc: Linear,
    head: Option<ProjectionHead>,
}

#[derive(Module, Debug)]
struct Encoder {
    conv1: Conv2d,
    bn1: BatchNorm,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
}

impl Backbone for ResNetSimclr {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let it = &self.encoder;
        let x = conv_norm(&it.conv1, &it.bn1, images, Then::Relu, norm);
        let stages = [&it.layer1, &it.layer2, &it.layer3, &it.layer4];
        global_average_pool(forward_all(stages, x, norm))
    }

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.fc)
    }

    fn published_key(&self, path: &str) -> String {
        path.replace(".downsample.", ".shortcut.")
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        Some(project(self.head.as_ref()?, features))
    }

    fn has_projection(&self) -> bool {
        self.head.is_some()
    }
}
