//! TTAC++: anchored clustering, with a strongly varied copy of each image that has to be answered as the image itself.

use burn::tensor::Tensor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::entry::{Entry, Needs, Variant};
use super::shot::{confident, select};
use super::terms::Terms;
use super::ttac::{self, start::start};
use super::{
    Learned, Learner, Lesson, Method, Minibatch, Posteriors, Preset, Stage, Ttac, TtacConfig, Wants,
};
use crate::backbone::NormMode;
use crate::data::SampleId;
use crate::loss::cross_entropy;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<TtacPlusPlusConfig> = Entry {
    variants: &[
        Variant {
            name: "ttac++",
            about: "anchored clustering with self-training on strongly varied copies",
            preset: |preset, setting| {
                TtacPlusPlusConfig::of(TtacConfig::preset(preset, setting), preset)
            },
        },
        Variant {
            name: "ttac++-source-free",
            about: "the same around the classifier's rows",
            preset: |preset, setting| {
                let clusters = TtacConfig::preset(preset, setting).source_free_preset(preset);
                TtacPlusPlusConfig::of(clusters, preset)
            },
        },
    ],
    needs: |config| Needs {
        views: Wants::WeakAndStrong {
            flips: config.strong.flips,
        },
        // The joint pass of the original moves the norm statistics once before the steps.
        warm_up: config.strong.pass == StrongPass::Joint,
        ..(ttac::ENTRY.needs)(&config.clusters)
    },
    build: |config, network, source| {
        config.validate()?;
        let (learner, clusters) = start(config.clusters, network, source)?;
        let strong = config.strong;
        Ok((learner, Box::new(TtacPlusPlus { strong, clusters })))
    },
};

/// Constants of [`TtacPlusPlus`]: those of [`TtacConfig`], and beside them `strong`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TtacPlusPlusConfig {
    /// The constants of anchored clustering. In JSON they stand beside `strong`, not within a field of their own.
    #[serde(flatten)]
    pub clusters: TtacConfig,
    /// How strongly varied copies are learned from.
    pub strong: StrongConfig,
}

impl<'de> Deserialize<'de> for TtacPlusPlusConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut fields = serde_json::Map::deserialize(deserializer)?;
        let strong = fields.remove("strong").map(serde_json::from_value);
        let clusters = TtacConfig::deserialize(Value::Object(fields));
        Ok(Self {
            clusters: clusters.map_err(Error::custom)?,
            strong: strong
                .transpose()
                .map_err(Error::custom)?
                .unwrap_or_default(),
        })
    }
}

/// How [`TtacPlusPlus`] learns from strongly varied copies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StrongConfig {
    /// Weight of the cross-entropy.
    pub weight: f64,
    /// An image teaches its copy if its largest probability is above this. Above one, none does.
    pub confidence_threshold: f32,
    /// In which forward pass the copies are.
    pub pass: StrongPass,
    /// Where the labels come from: the very forward pass, or one with running norm statistics.
    pub labels: Posteriors,
    /// Whether images may be flipped. Where left and right mean something, as in digits, they must not.
    pub flips: bool,
}

impl Default for StrongConfig {
    fn default() -> Self {
        Self {
            weight: 1.0,
            confidence_threshold: 0.95,
            pass: StrongPass::Joint,
            labels: Posteriors::Batch,
            flips: true,
        }
    }
}

/// In which forward pass the strongly varied copies are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StrongPass {
    /// They are in one batch with the images, so that norm statistics are those of both.
    #[default]
    Joint,
    /// They have a pass of their own, with statistics of their own, and do not move the stored ones. Stored statistics would not do: the
    /// gradient would ask for shifts and scales that the next statistics undo, and destroys the network within a few steps.
    Apart,
}

impl TtacPlusPlusConfig {
    /// `recommended` takes labels by stored statistics, and the weight of the authors' program. It was tried on the held-out corruptions with a
    /// ResNet-20 on CIFAR-10, without a queue; `docs/methods.md` has the figures.
    fn of(clusters: TtacConfig, preset: Preset) -> Self {
        let labels = match preset {
            Preset::Released => Posteriors::Batch,
            Preset::Earlier | Preset::Recommended => Posteriors::Running,
        };
        let strong = StrongConfig {
            labels,
            ..StrongConfig::default()
        };
        Self { clusters, strong }
    }

    /// Checks the constants; the error lists everything that is wrong with those of the copies.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let StrongConfig {
            weight,
            confidence_threshold,
            ..
        } = self.strong;
        if !(0.0..=1e6).contains(&weight) {
            problems.push(format!(
                "`strong.weight` must be 0 to 1000000, found {weight}"
            ));
        }
        if !(0.0..=2.0).contains(&confidence_threshold) {
            problems.push(format!(
                "`strong.confidence_threshold` must be 0 to 2, found {confidence_threshold}"
            ));
        }
        if self.clusters.contrastive {
            problems.push(
                "`contrastive` is for `ttac+contrastive`; strongly varied copies take its place here"
                    .to_owned(),
            );
        }
        Error::invalid_if_any("method constant", &problems)
    }
}

/// TTAC++ (Su, Xu and Jia, 2024): anchored clustering with FixMatch (Sohn et al., 2020) beside it.
///
/// # What it does
/// It is TTAC, and besides it learns from a strongly varied copy of each image: cropped, with two changes of colours or place, and with a
/// grey square in it. Where the prediction of the image itself is confident, the copy has to get the same class. The image itself is
/// flipped in half of the cases, and nothing else.
///
/// # When to use
/// Use it like TTAC, where about twice its cost is no matter: it answers better.
///
/// # Objective
/// TTAC's, plus `weight / n * sum_{i: max p_i > t} CE(z'_i, argmax p_i)` over `n` images, `z'` the scores of the copies.
///
/// # State it keeps
/// It keeps what TTAC keeps.
///
/// # Deviations
/// `released` is the authors' program: images and copies make one batch, whose statistics all norms use, and labels come from that
/// pass. `recommended` takes labels by stored statistics. `pass = apart` gives the copies a pass with statistics of their own. Where no image is
/// confident there is nothing to learn from the copies.
///
/// # Which logits are scored
/// Those of a forward pass of the unchanged images with running norm statistics.
///
/// # References
/// `docs/methods.md`, TTAC++.
#[derive(Clone, Debug)]
pub struct TtacPlusPlus {
    strong: StrongConfig,
    clusters: Ttac,
}

impl TtacPlusPlus {
    /// Finds the confident images and their classes.
    fn confident(
        &self,
        learner: &Learner,
        images: &Tensor<4>,
        features: &Tensor<2>,
    ) -> (Vec<usize>, Vec<usize>) {
        let logits = match self.strong.labels {
            Posteriors::Batch => {
                let network = learner.network();
                network.logits(features.clone()).without_autodiff()
            }
            Posteriors::Running => {
                let frozen = learner.frozen();
                frozen.forward(images.clone(), NormMode::Running)
            }
        };
        let threshold = self.strong.confidence_threshold;
        confident(&logits, threshold)
    }
}

impl Method for TtacPlusPlus {
    fn learn(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        stage: &Stage,
    ) -> Result<Learned> {
        let views = batch.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`ttac++` needs weakly and strongly varied copies of its images".to_owned(),
        })?;
        let count = batch.ids.len();
        let both = views.images.clone();
        let weak = both.clone().slice_dim(0, 0..count);
        let joint = self.strong.pass == StrongPass::Joint;
        if stage.lesson == Lesson::Norms {
            learner.follow_norms(if joint { both } else { weak });
            return Ok(Learned::nothing());
        }
        let all = learner.features(if joint { both.clone() } else { weak.clone() });
        let features = all.clone().slice_dim(0, 0..count);
        let (rows, labels) = self.confident(learner, &weak, &features);
        let mut terms = Terms::default();
        if !rows.is_empty() && self.strong.weight > 0.0 {
            let network = learner.network();
            let copies = if joint {
                all.slice_dim(0, count..2 * count)
            } else {
                let strong = Tensor::from_inner(both.slice_dim(0, count..2 * count));
                network.features(strong, NormMode::Batch)
            };
            // The mean is over all images, confident or not.
            let share = rows.len() as f64 / count as f64;
            let logits = network.logits(select(copies, &rows));
            let loss = cross_entropy(logits, &labels) * (self.strong.weight * share);
            terms.add("strong", loss);
        }
        let shown = Minibatch {
            ids: batch.ids.clone(),
            images: weak,
            views: None,
        };
        self.clusters
            .learn_from(learner, &shown, (features, terms), stage)
    }

    fn begin_epoch(&mut self, stage: &Stage) {
        self.clusters.begin_epoch(stage);
    }

    fn forget(&mut self, ids: &[SampleId]) {
        self.clusters.forget(ids);
    }

    fn state(&self) -> Vec<u8> {
        self.clusters.state()
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.clusters.restore(state)
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stand_beside_those_of_anchored_clustering() {
        let config = TtacPlusPlusConfig::default();
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(written["learning_rate"], 0.01);
        assert_eq!(written["strong"]["weight"], 1.0);
        let read: TtacPlusPlusConfig = serde_json::from_value(written).unwrap();
        assert_eq!(read, config);
        for unknown in [r#"{"stronk": 1}"#, r#"{"strong": {"wait": 1}}"#] {
            assert!(serde_json::from_str::<TtacPlusPlusConfig>(unknown).is_err());
        }
    }

    #[test]
    fn bad_constants_are_all_named() {
        let mut config = TtacPlusPlusConfig::default();
        config.strong.weight = -1.0;
        config.strong.confidence_threshold = 3.0;
        config.clusters.contrastive = true;
        let message = config.validate().unwrap_err().to_string();
        for name in ["weight", "confidence_threshold", "contrastive"] {
            assert!(message.contains(name), "{message}");
        }
    }
}
