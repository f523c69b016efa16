//! The architectures by name, and the macro that turns the list of families into types.

use std::collections::BTreeMap;

use burn::tensor::Device;

use super::family::{InputForm, OtherSizes};
use super::init::{identify, randomise};
use super::{Architecture, Network};
use crate::error::{Error, Result, nearest};

/// Turns the list of families in `backbone/mod.rs` into code. A line
///
/// ```text
/// pub mod wide_resnet => WideResnet(WideResNetConfig) -> WideResNet;
/// ```
///
/// says that the family lives in `wide_resnet.rs`; that its configuration is the variant `Architecture::WideResnet(WideResNetConfig)`,
/// which JSON knows by `"family": "wide-resnet"`; and that its network is the variant `Network::WideResnet(WideResNet)`. Of
/// `wide_resnet.rs` the macro uses `ENTRY`; the trait `Family`, the function `init` and the field `num_classes` of the
/// configuration; and the trait `Backbone` of the network.
///
/// It makes, in this order: the modules; `Architecture`, with the functions that differ by family (all others are below); `Network`;
/// and `Backbone` for `Network`, where each function calls that of the network inside.
macro_rules! families {
    ($(pub mod $file:ident => $Variant:ident($Config:ident) -> $Backbone:ident;)+) => {
        $(pub mod $file;)+

        /// The configuration of a network: all that is needed to build it, as a checkpoint carries it.
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "family", rename_all = "kebab-case")]
        pub enum Architecture {
            $(
                #[doc = concat!("Describes a network of [`", stringify!($file), "`].")]
                $Variant($file::$Config),
            )+
        }

        impl Architecture {
            /// Lists the architectures that [`by_name`](Self::by_name) knows.
            pub fn published() -> Vec<PublishedArchitecture> {
                std::iter::empty()$(.chain($file::ENTRY.list()))+.collect()
            }

            fn find(name: &str, num_classes: usize) -> Option<Self> {
                $(
                    if let Some(config) = $file::ENTRY.by_name(name, num_classes) {
                        return Some(Self::$Variant(config));
                    }
                )+
                None
            }

            /// Returns the name of the family, as it stands in the JSON of the configuration.
            pub fn family(&self) -> &'static str {
                match self {
                    $(Self::$Variant(_) => $file::ENTRY.family,)+
                }
            }

            /// Returns the number of classes the network tells apart.
            pub fn num_classes(&self) -> usize {
                match self {
                    $(Self::$Variant(config) => config.num_classes,)+
                }
            }

            fn config(&self) -> &dyn family::Family {
                match self {
                    $(Self::$Variant(config) => config,)+
                }
            }

            fn network(&self, device: &burn::tensor::Device) -> Network {
                match self {
                    $(Self::$Variant(config) => Network::$Variant(config.init(device)),)+
                }
            }
        }

        /// A network of any architecture this crate knows.
        #[derive(Module, Debug)]
        pub enum Network {
            $(
                #[doc = concat!("Is a network of [`", stringify!($file), "`].")]
                $Variant($file::$Backbone),
            )+
        }

        impl Backbone for Network {
            fn features(&self, inputs: Tensor<4>, norm: NormMode) -> Tensor<2> {
                match self {
                    $(Self::$Variant(network) => network.features(inputs, norm),)+
                }
            }

            fn classifier(&self) -> Option<&layers::Linear> {
                match self {
                    $(Self::$Variant(network) => network.classifier(),)+
                }
            }

            fn logits(&self, features: Tensor<2>) -> Tensor<2> {
                match self {
                    $(Self::$Variant(network) => network.logits(features),)+
                }
            }

            fn num_classes(&self) -> usize {
                match self {
                    $(Self::$Variant(network) => network.num_classes(),)+
                }
            }

            fn head_weights(&self) -> Option<Tensor<2>> {
                match self {
                    $(Self::$Variant(network) => network.head_weights(),)+
                }
            }

            fn classifier_keys(&self) -> Vec<String> {
                match self {
                    $(Self::$Variant(network) => network.classifier_keys(),)+
                }
            }

            fn num_features(&self) -> usize {
                match self {
                    $(Self::$Variant(network) => network.num_features(),)+
                }
            }

            fn published_key(&self, path: &str) -> String {
                match self {
                    $(Self::$Variant(network) => network.published_key(path),)+
                }
            }

            fn training_logits(&self, inputs: Tensor<4>, draw: u64) -> Tensor<2> {
                match self {
                    $(Self::$Variant(network) => network.training_logits(inputs, draw),)+
                }
            }

            fn has_projection(&self) -> bool {
                match self {
                    $(Self::$Variant(network) => network.has_projection(),)+
                }
            }

            fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
                match self {
                    $(Self::$Variant(network) => network.projection(features),)+
                }
            }

            fn has_rotation(&self) -> bool {
                match self {
                    $(Self::$Variant(network) => network.has_rotation(),)+
                }
            }

            fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>> {
                match self {
                    $(Self::$Variant(network) => network.rotation(images, norm),)+
                }
            }
        }
    };
}

pub(super) use families;

/// An architecture that can be asked for by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedArchitecture {
    /// The name, as in [`Architecture::by_name`].
    pub name: &'static str,
    /// A few words on what it is.
    pub about: &'static str,
    /// The number of parameters, such as `0.27 M`, with as many classes as the published weights have.
    pub parameters: &'static str,
    /// The family it belongs to, as in [`Architecture::family`].
    pub family: &'static str,
    /// Whose published weights have its keys.
    pub weights: &'static str,
}

impl Architecture {
    /// Lists the names that [`by_name`](Self::by_name) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::published().into_iter().map(|known| known.name)
    }

    /// Returns the architecture of a name, for a number of classes.
    pub fn by_name(name: &str, num_classes: usize) -> Result<Self> {
        Self::find(name, num_classes).ok_or_else(|| Error::UnknownArchitecture {
            found: name.to_owned(),
            nearest: nearest(name, Self::names()),
        })
    }

    /// Returns the name under which this configuration was published, or that of its family if it was not.
    pub fn name(&self) -> String {
        let same = |name: &&str| Self::find(name, self.num_classes()).as_ref() == Some(self);
        let name = Self::names().find(same).unwrap_or_else(|| self.family());
        name.to_owned()
    }

    /// Tells what the network takes: images or clouds, and of which size.
    pub fn input(&self) -> InputForm {
        self.config().input()
    }

    /// Returns the architecture with one field of its configuration changed, such as `width` to `8`. Values are JSON; text
    /// need not be quoted.
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

    /// Checks the configuration, and reports everything that is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let mut problems = self.config().problems();
        // A header must not make us allocate without bounds.
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

    /// Builds a network with zero weights, to be filled from a checkpoint.
    pub fn blank(&self, device: &Device) -> Result<Network> {
        self.validate()?;
        Ok(identify(self.network(device)))
    }

    /// Builds a network with random weights, which depend on the seed and nothing else.
    pub fn init(&self, seed: u64, device: &Device) -> Result<Network> {
        Ok(randomise(self.blank(device)?, seed))
    }

    /// Tells whether an import passes over a key of a published file.
    pub(crate) fn ignores(&self, key: &str) -> bool {
        let ignored = self.config().ignored_keys();
        ignored.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Tells which fields the shapes in a file contradict, where the family can read that from shapes.
    pub(crate) fn other_sizes(&self, found: &BTreeMap<String, Vec<usize>>) -> OtherSizes {
        self.config().other_sizes(found)
    }
}
