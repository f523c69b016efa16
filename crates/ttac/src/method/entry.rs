//! The one list of methods, and what each file says about its method.

use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::classifier::{Classifier, Head, Layers};
use super::{FirstPasses, LearnerConfig, Method};
use crate::data::BatchAugmentation;
use crate::stats::SourceStatistics;
use crate::{Error, Result};

/// Every method of this crate, file by file, in the order of tables and help texts.
static METHODS: &[&dyn AnyEntry] = &[
    &super::test::ENTRY,
    &super::bn::ENTRY,
    &super::tent::ENTRY,
    &super::rpl::ENTRY,
    &super::eta::ENTRY,
    &super::sar::ENTRY,
    &super::deyo::ENTRY,
    &super::poem::ENTRY,
    &super::roid::ENTRY,
    &super::cotta::ENTRY,
    &super::rmt::ENTRY,
    &super::rotta::ENTRY,
    &super::petta::ENTRY,
    &super::note::ENTRY,
    &super::tribe::ENTRY,
    &super::lame::ENTRY,
    &super::memo::ENTRY,
    &super::t3a::ENTRY,
    &super::shot::ENTRY,
    &super::ttt_r::ENTRY,
    &super::tfa::ENTRY,
    &super::ttac::ENTRY,
    &super::ttac_plus_plus::ENTRY,
];

/// Which set of constants a method starts from: the authors' program or ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The constants of the authors' program, to the letter.
    Released,
    /// The constants we advise, for a stream that may be fine: norms are re-based and follow images or classes, and a gate keeps the
    /// source in charge until it stops fitting.
    #[default]
    Recommended,
    /// The constants we advised before there was a gate: they adapt from the first batch to the last.
    #[serde(rename = "recommended-0.1")]
    Earlier,
}

/// Which kind of protocol constants are meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The stream is seen in one pass without a queue.
    NoQueue,
    /// The stream is seen in one pass with a queue.
    Queue,
    /// The set is seen in several passes.
    ManyPasses,
}

/// Which varied copies a method has to be handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// No copies.
    Nothing,
    /// Two SimCLR views of as many images, drawn on their own from the queue.
    Contrastive,
    /// This many cropped, flipped and turned copies of each image.
    Turned(usize),
    /// This many copies of the batch, each varied in one way for all of its images.
    Augmented(usize, BatchAugmentation),
    /// One copy of each image, cut into this many patches along each side, which change places.
    Shuffled(usize),
    /// A weakly and a strongly varied copy of each image, as in FixMatch.
    WeakAndStrong {
        /// Whether images may be flipped.
        flips: bool,
    },
    /// Copies of each image that are mixed with small changes of itself, as in AugMix.
    Mixed {
        /// How many of each image.
        copies: usize,
        /// Whether images may be flipped.
        flips: bool,
    },
}

/// What a method needs, as data, so that protocols and checks need not ask the method itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each read by its name"
)]
pub struct Needs {
    /// Whether it changes an answer at all. If not, there is nothing for a gate to hold back.
    pub adapts: bool,
    /// Whether it cannot do without source statistics.
    pub anchors: bool,
    /// The self-supervised head that the source has to be trained with; with one, the protocol is of the Y family.
    pub head: Option<Head>,
    /// The layers that the network has to have.
    pub layers: Option<Layers>,
    /// Which varied copies it has to be handed.
    pub views: Wants,
    /// The fewest samples it can learn from at a time.
    pub fewest_samples: usize,
    /// Whether it can learn from the same sample again, from a queue.
    pub rehearses: bool,
    /// Whether it makes use of an epoch zero over the queue, before the steps.
    pub warm_up: bool,
    /// How it begins several passes over the whole set. Where there are no more passes than these, all of them
    /// learn everything.
    pub first_passes: FirstPasses,
}

impl Needs {
    /// A method that needs the network alone and can learn from a queue.
    pub const NETWORK: Self = Self {
        adapts: true,
        anchors: false,
        head: None,
        layers: None,
        views: Wants::Nothing,
        fewest_samples: 1,
        rehearses: true,
        warm_up: false,
        first_passes: FirstPasses {
            norms: 0,
            contrastive: 0,
        },
    };

    /// Says what is missing, if the network or the anchors do not serve the method called `name`.
    pub fn check(
        &self,
        name: &str,
        network: &dyn Classifier,
        anchors: Option<&SourceStatistics>,
    ) -> Result<()> {
        if self.anchors && anchors.is_none() {
            return Err(Error::NoAnchors {
                method: name.to_owned(),
            });
        }
        if let Some(head) = self.head.filter(|&head| !network.has(head)) {
            return Err(Error::NoHead {
                method: name.to_owned(),
                head,
            });
        }
        if let Some(layers) = self.layers.filter(|&layers| !network.has_layers(layers)) {
            return Err(Error::NoLayers {
                method: name.to_owned(),
                layers,
            });
        }
        Ok(())
    }
}

/// A published name of a method, with its constants.
pub struct Variant<C> {
    /// The name, in lower case.
    pub name: &'static str,
    /// One line of explanation.
    pub about: &'static str,
    /// Returns a preset's constants for a kind of protocol.
    pub preset: fn(Preset, Setting) -> C,
}

/// What a file says about its method. `C` is the type of its constants.
pub struct Entry<C: 'static> {
    /// The names it is known by; most methods have one.
    pub variants: &'static [Variant<C>],
    /// Says what the method needs with these constants.
    pub needs: fn(&C) -> Needs,
    /// Builds the method for a network, with its source statistics if there are any. The needs have been checked.
    pub build: fn(C, &dyn Classifier, Option<&SourceStatistics>) -> Result<Built>,
}

/// A method and how its network learns.
pub type Built = (LearnerConfig, Box<dyn Method>);

/// An [`Entry`] whose constants are plain JSON, so that entries of all methods fit into one list.
pub(super) trait AnyEntry: Sync {
    fn names(&self) -> Vec<(&'static str, &'static str)>;
    fn preset(&self, name: &str, preset: Preset, setting: Setting) -> Option<Value>;
    /// Reads constants and writes them again, complete.
    fn complete(&self, settings: &Value) -> Result<Value, String>;
    fn needs(&self, settings: &Value) -> Result<Needs, String>;
    fn build(
        &self,
        settings: &Value,
        network: &dyn Classifier,
        anchors: Option<&SourceStatistics>,
    ) -> Result<Built>;
}

/// Writes constants as JSON, with the digits that a file would show: single precision has fewer.
///
/// # Panics
/// If the constants are not plain JSON, which all of this crate are.
pub(super) fn plain(constants: &impl Serialize) -> Value {
    let text = serde_json::to_string(constants).expect("constants are plain JSON");
    serde_json::from_str(&text).expect("JSON was just written")
}

fn read<C: DeserializeOwned>(settings: &Value) -> Result<C, String> {
    C::deserialize(settings).map_err(|e| e.to_string())
}

impl<C: Serialize + DeserializeOwned + 'static> AnyEntry for Entry<C> {
    fn names(&self) -> Vec<(&'static str, &'static str)> {
        let variants = self.variants.iter();
        variants
            .map(|variant| (variant.name, variant.about))
            .collect()
    }

    fn preset(&self, name: &str, preset: Preset, setting: Setting) -> Option<Value> {
        let variant = self.variants.iter().find(|variant| variant.name == name)?;
        let constants = (variant.preset)(preset, setting);
        Some(plain(&constants))
    }

    fn complete(&self, settings: &Value) -> Result<Value, String> {
        Ok(plain(&read::<C>(settings)?))
    }

    fn needs(&self, settings: &Value) -> Result<Needs, String> {
        Ok((self.needs)(&read(settings)?))
    }

    fn build(
        &self,
        settings: &Value,
        network: &dyn Classifier,
        anchors: Option<&SourceStatistics>,
    ) -> Result<Built> {
        let constants = read(settings).map_err(|problem| Error::Invalid {
            what: "method constant",
            problem,
        })?;
        (self.build)(constants, network, anchors)
    }
}

/// Lists the names of all methods, each with a line of explanation.
pub fn method_names() -> Vec<(&'static str, &'static str)> {
    METHODS.iter().flat_map(|entry| entry.names()).collect()
}

/// Tells whether a method changes an answer at all. An unknown name is an error where the method is built.
pub(crate) fn adapts(name: &str) -> bool {
    let of_default = |entry: &dyn AnyEntry| {
        let settings = entry.preset(name, Preset::default(), Setting::NoQueue)?;
        entry.needs(&settings).ok()
    };
    find(name)
        .ok()
        .and_then(of_default)
        .is_none_or(|needs| needs.adapts)
}

/// Finds the entry of a name.
pub(super) fn find(name: &str) -> Result<&'static dyn AnyEntry> {
    let is_named = |entry: &&&dyn AnyEntry| entry.names().iter().any(|(known, _)| *known == name);
    if let Some(entry) = METHODS.iter().find(is_named) {
        return Ok(*entry);
    }
    let known: Vec<&str> = method_names().into_iter().map(|(name, _)| name).collect();
    Err(Error::Invalid {
        what: "method",
        problem: format!(
            "unknown `{name}`; {}",
            crate::error::suggestion(name, &known)
        ),
    })
}
