//! The architectures by name, and a network of any of them.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::dgcnn::{CloudFeature, Dgcnn, DgcnnConfig};
use super::init::{identify, randomise};
use super::resnet::{BlockKind, ResNet, ResNetConfig};
use super::resnet_cifar::{ResNetCifar, ResNetCifarConfig};
use super::resnet_simclr::{ResNetSimclr, ResNetSimclrConfig};
use super::resnet26::{NormKind, ResNet26, ResNet26Config, RotationHead};
use super::vit::{VisionTransformer, VitConfig};
use super::wide_resnet::{WideResNet, WideResNetConfig};
use super::{Backbone, NormMode};
use crate::error::{Error, Result, nearest};

/// The configuration of a network: all that is needed to build it, as written in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "kebab-case")]
pub enum Architecture {
    /// He et al. for 32x32 images, option-A shortcuts.
    ResnetCifar(ResNetCifarConfig),
    /// ResNet for 32x32 images with a projection head (TTT++, TTAC).
    ResnetSimclr(ResNetSimclrConfig),
    /// Pre-activation ResNet with a rotation head (TTT-R).
    Resnet26(ResNet26Config),
    /// Wide residual network for 32x32 images.
    WideResnet(WideResNetConfig),
    /// ResNet for 224x224 images, torchvision's form.
    Resnet(ResNetConfig),
    /// Vision transformer, timm's form.
    Vit(VitConfig),
    /// Dynamic graphs of nearest neighbours, for clouds of points.
    Dgcnn(DgcnnConfig),
}

const RESNET18: (BlockKind, [usize; 4]) = (BlockKind::Basic, [2, 2, 2, 2]);
const RESNET50: (BlockKind, [usize; 4]) = (BlockKind::Bottleneck, [3, 4, 6, 3]);
/// Width, blocks and heads.
const VIT_TINY: [usize; 3] = [192, 12, 3];
const VIT_SMALL: [usize; 3] = [384, 12, 6];
const VIT_BASE: [usize; 3] = [768, 12, 12];

impl Architecture {
    /// The names [`by_name`](Self::by_name) knows, each with a line of explanation.
    pub const NAMES: [(&'static str, &'static str); 18] = [
        ("resnet20-cifar", "He et al. for 32x32, 0.27 M parameters"),
        ("resnet32-cifar", "He et al. for 32x32, 0.46 M parameters"),
        ("resnet44-cifar", "He et al. for 32x32, 0.66 M parameters"),
        ("resnet56-cifar", "He et al. for 32x32, 0.85 M parameters"),
        ("resnet110-cifar", "He et al. for 32x32, 1.7 M parameters"),
        ("resnet18-cifar", "basic blocks for 32x32, projection head"),
        (
            "resnet50-cifar",
            "bottlenecks for 32x32, projection head (TTT++, TTAC)",
        ),
        (
            "resnet26",
            "pre-activation, group norm, rotation head (TTT-R)",
        ),
        ("wrn-28-10", "wide ResNet for 32x32, 36 M parameters"),
        ("wrn-40-2", "wide ResNet for 32x32, 2.2 M parameters"),
        ("resnet18", "torchvision's, 224x224"),
        ("resnet50", "torchvision's, 224x224"),
        ("vit-tiny-4", "transformer for 32x32, 5.4 M parameters"),
        ("vit-small-4", "transformer for 32x32, 21 M parameters"),
        ("vit-tiny-16", "timm's, 224x224, 5.7 M parameters"),
        ("vit-small-16", "timm's, 224x224, 22 M parameters"),
        ("vit-base-16", "timm's, 224x224, 86 M parameters"),
        ("dgcnn", "clouds of points, 1.8 M parameters"),
    ];

    /// The architecture a name stands for, with a number of classes.
    pub fn by_name(name: &str, num_classes: usize) -> Result<Self> {
        let resnet_cifar = |depth| {
            Self::ResnetCifar(ResNetCifarConfig {
                depth,
                width: 16,
                projection: None,
                num_classes,
            })
        };
        let resnet_simclr = |(block, blocks)| {
            Self::ResnetSimclr(ResNetSimclrConfig {
                block,
                blocks,
                width: 64,
                projection: Some(128),
                num_classes,
            })
        };
        let wide_resnet = |depth, widen| {
            Self::WideResnet(WideResNetConfig {
                depth,
                stem: 16,
                widen,
                num_classes,
            })
        };
        let resnet = |(block, blocks)| {
            Self::Resnet(ResNetConfig {
                block,
                blocks,
                width: 64,
                num_classes,
            })
        };
        let vit = |[width, depth, heads]: [usize; 3], image_size, patch| {
            Self::Vit(VitConfig {
                image_size,
                patch,
                width,
                depth,
                heads,
                mlp: 4 * width,
                num_classes,
            })
        };
        Ok(match name {
            "resnet20-cifar" => resnet_cifar(20),
            "resnet32-cifar" => resnet_cifar(32),
            "resnet44-cifar" => resnet_cifar(44),
            "resnet56-cifar" => resnet_cifar(56),
            "resnet110-cifar" => resnet_cifar(110),
            "resnet18-cifar" => resnet_simclr(RESNET18),
            "resnet50-cifar" => resnet_simclr(RESNET50),
            "resnet26" => Self::Resnet26(ResNet26Config {
                depth: 26,
                width: 16,
                norm: NormKind::Group,
                rotation: Some(RotationHead::Layer2),
                num_classes,
            }),
            "wrn-28-10" => wide_resnet(28, 10),
            "wrn-40-2" => wide_resnet(40, 2),
            "resnet18" => resnet(RESNET18),
            "resnet50" => resnet(RESNET50),
            "vit-tiny-4" => vit(VIT_TINY, 32, 4),
            "vit-small-4" => vit(VIT_SMALL, 32, 4),
            "vit-tiny-16" => vit(VIT_TINY, 224, 16),
            "vit-small-16" => vit(VIT_SMALL, 224, 16),
            "vit-base-16" => vit(VIT_BASE, 224, 16),
            "dgcnn" => Self::Dgcnn(DgcnnConfig {
                k: 20,
                width: 64,
                embedding: 1024,
                feature: CloudFeature::Penultimate,
                num_classes,
            }),
            unknown => {
                return Err(Error::UnknownArchitecture {
                    found: unknown.to_owned(),
                    nearest: nearest(unknown, Self::NAMES.map(|(name, _)| name)),
                });
            }
        })
    }

    /// The same architecture with one field of its configuration changed, e.g. `width` to `8`.
    /// Values are JSON; text need not be quoted.
    pub fn with_field(&self, field: &str, value: &str) -> Result<Self> {
        let invalid = |problem: String| Error::InvalidArchitecture {
            problems: vec![problem],
        };
        let mut config = serde_json::to_value(self).expect("a configuration is plain JSON");
        let object = config.as_object_mut().expect("a configuration is a map");
        if field == "family" || !object.contains_key(field) {
            let known = object.keys().filter(|key| *key != "family");
            let known = known.cloned().collect::<Vec<_>>().join("`, `");
            return Err(invalid(format!(
                "no field `{field}`; the fields are `{known}`"
            )));
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        object.insert(field.to_owned(), value);
        let changed: Self =
            serde_json::from_value(config).map_err(|e| invalid(format!("`{field}`: {e}")))?;
        changed.validate()?;
        Ok(changed)
    }

    /// Number of classes.
    pub fn num_classes(&self) -> usize {
        match self {
            Self::ResnetCifar(c) => c.num_classes,
            Self::ResnetSimclr(c) => c.num_classes,
            Self::Resnet26(c) => c.num_classes,
            Self::WideResnet(c) => c.num_classes,
            Self::Resnet(c) => c.num_classes,
            Self::Vit(c) => c.num_classes,
            Self::Dgcnn(c) => c.num_classes,
        }
    }

    /// Side of the square images the architecture was designed for; for clouds their points.
    pub fn image_size(&self) -> usize {
        match self {
            Self::Resnet(_) => 224,
            Self::Vit(c) => c.image_size,
            Self::Dgcnn(_) => 1024,
            _ => 32,
        }
    }

    /// That side, where images of another size do not fit: a transformer learns its positions, a
    /// convolution takes any.
    pub fn fixed_image_size(&self) -> Option<usize> {
        match self {
            Self::Vit(c) => Some(c.image_size),
            _ => None,
        }
    }

    /// The fewest points of a cloud, if it takes clouds and not images.
    pub fn fewest_points(&self) -> Option<usize> {
        match self {
            Self::Dgcnn(c) => Some(c.k),
            _ => None,
        }
    }

    /// The published name, where this is a published configuration; else the family's.
    pub fn name(&self) -> String {
        let named = Self::NAMES.iter().map(|(name, _)| *name);
        let same = |name: &&str| Self::by_name(name, self.num_classes()).is_ok_and(|a| a == *self);
        if let Some(name) = named.into_iter().find(same) {
            return name.to_owned();
        }
        let config = serde_json::to_value(self).expect("a configuration is plain JSON");
        config["family"].as_str().unwrap_or_default().to_owned()
    }

    /// Checks the configuration, and reports all that is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let mut problems = match self {
            Self::ResnetCifar(c) => c.problems(),
            Self::Resnet26(c) => c.problems(),
            Self::WideResnet(c) => c.problems(),
            Self::Vit(c) => c.problems(),
            Self::Dgcnn(c) => c.problems(),
            Self::ResnetSimclr(_) | Self::Resnet(_) => Vec::new(),
        };
        // Guards against a header that would make us allocate the moon.
        let config = serde_json::to_value(self).expect("a configuration is plain JSON");
        for (field, value) in config.as_object().into_iter().flatten() {
            let numbers = match value {
                serde_json::Value::Array(values) => values.iter().collect(),
                value => vec![value],
            };
            for number in numbers.into_iter().filter_map(serde_json::Value::as_u64) {
                if !(1..=100_000).contains(&number) {
                    problems.push(format!("`{field}` must be 1 to 100000, found {number}"));
                }
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::InvalidArchitecture { problems })
        }
    }

    /// A network with zero weights, to be filled from a checkpoint.
    pub fn blank(&self, device: &Device) -> Result<Network> {
        self.validate()?;
        Ok(identify(match self {
            Self::ResnetCifar(c) => Network::ResNetCifar(c.init(device)),
            Self::ResnetSimclr(c) => Network::ResNetSimclr(c.init(device)),
            Self::Resnet26(c) => Network::ResNet26(c.init(device)),
            Self::WideResnet(c) => Network::WideResNet(c.init(device)),
            Self::Resnet(c) => Network::ResNet(c.init(device)),
            Self::Vit(c) => Network::VisionTransformer(c.init(device)),
            Self::Dgcnn(c) => Network::Dgcnn(c.init(device)),
        }))
    }

    /// A network with fresh random weights.
    pub fn init(&self, seed: u64, device: &Device) -> Result<Network> {
        Ok(randomise(self.blank(device)?, seed))
    }
}

/// A network of any architecture.
#[derive(Module, Debug)]
pub enum Network {
    /// See [`super::resnet_cifar`].
    ResNetCifar(ResNetCifar),
    /// See [`super::resnet_simclr`].
    ResNetSimclr(ResNetSimclr),
    /// See [`super::resnet26`].
    ResNet26(ResNet26),
    /// See [`super::wide_resnet`].
    WideResNet(WideResNet),
    /// See [`super::resnet`].
    ResNet(ResNet),
    /// See [`super::vit`].
    VisionTransformer(VisionTransformer),
    /// See [`super::dgcnn`].
    Dgcnn(Dgcnn),
}

/// Calls a method of the network inside.
macro_rules! inner {
    ($self:ident, $network:ident => $call:expr) => {
        match $self {
            Self::ResNetCifar($network) => $call,
            Self::ResNetSimclr($network) => $call,
            Self::ResNet26($network) => $call,
            Self::WideResNet($network) => $call,
            Self::ResNet($network) => $call,
            Self::VisionTransformer($network) => $call,
            Self::Dgcnn($network) => $call,
        }
    };
}

impl Backbone for Network {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        inner!(self, network => network.features(images, norm))
    }

    fn training_logits(&self, images: Tensor<4>, draw: u64) -> Tensor<2> {
        inner!(self, network => network.training_logits(images, draw))
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        inner!(self, network => network.logits(features))
    }

    fn head_weights(&self) -> Tensor<2> {
        inner!(self, network => network.head_weights())
    }

    fn num_features(&self) -> usize {
        inner!(self, network => network.num_features())
    }

    fn num_classes(&self) -> usize {
        inner!(self, network => network.num_classes())
    }

    fn classifier_key(&self) -> &'static str {
        inner!(self, network => network.classifier_key())
    }

    fn published_key(&self, path: &str) -> String {
        inner!(self, network => network.published_key(path))
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        inner!(self, network => network.projection(features))
    }

    fn has_projection(&self) -> bool {
        inner!(self, network => network.has_projection())
    }

    fn has_rotation(&self) -> bool {
        inner!(self, network => network.has_rotation())
    }

    fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>> {
        inner!(self, network => network.rotation(images, norm))
    }
}
