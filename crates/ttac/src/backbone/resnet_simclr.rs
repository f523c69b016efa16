//! ResNets for 32x32 images with a contrastive projection head: the models of TTT++ and TTAC.
//!
//! The stem is a 3x3 convolution without pooling; the stages are those of [`super::resnet`]. Keys
//! `encoder.*`, `fc.*`, `head.*`. The published checkpoints call a projection shortcut `shortcut`
//! where torchvision says `downsample`; `published_key` is that one difference.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use ttac_kernels::global_average_pool;

use super::layers::{Conv2d, Linear, ProjectionHead, Then, conv_norm, project, projection_head};
use super::resnet::{Block, BlockKind, Stages};
use super::{Backbone, BatchNorm, NormMode};

/// Configuration of a [`ResNetSimclr`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetSimclrConfig {
    /// Which block.
    pub block: BlockKind,
    /// Blocks in each stage.
    pub blocks: [usize; 4],
    /// Width of the first stage; it doubles from stage to stage.
    pub width: usize,
    /// Outputs of the projection head, none for a network without one.
    pub projection: Option<usize>,
    /// Number of classes.
    pub num_classes: usize,
}

impl ResNetSimclrConfig {
    /// The network with all weights zero and fresh norms.
    pub fn init(&self, device: &Device) -> ResNetSimclr {
        let Stages {
            layer1,
            layer2,
            layer3,
            layer4,
        } = Stages::new(self.block, self.blocks, self.width, device);
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

/// See the [module](self).
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
        let Encoder {
            conv1,
            bn1,
            layer1,
            layer2,
            layer3,
            layer4,
        } = &self.encoder;
        let mut x = conv_norm(conv1, bn1, images, Then::Relu, norm);
        for block in [layer1, layer2, layer3, layer4].into_iter().flatten() {
            x = block.forward(x, norm);
        }
        global_average_pool(x)
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
        path.replace(".downsample.", ".shortcut.")
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        Some(project(self.head.as_ref()?, features))
    }

    fn has_projection(&self) -> bool {
        self.head.is_some()
    }
}
