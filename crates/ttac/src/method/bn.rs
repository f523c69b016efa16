//! BN: the norm statistics of the target instead of the source's.

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Preset,
    Setting, Stage,
};
use crate::Result;
use crate::backbone::NormMode;

pub(super) const ENTRY: Entry<BnConfig> = Entry {
    variants: &[Variant {
        name: "bn",
        about: "norm statistics of the target",
        preset: |preset, setting| BnConfig {
            statistics: match (preset, setting) {
                (Preset::Recommended, _) | (_, Setting::Queue | Setting::ManyPasses) => {
                    NormSource::Running
                }
                (_, Setting::NoQueue) => NormSource::Batch,
            },
            norm: NormUpdates::of(preset),
        },
    }],
    needs: |_| Needs {
        layers: Some(Layers::BatchNorms),
        ..Needs::NETWORK
    },
    build: |config, _, _| {
        let learner = LearnerConfig {
            norm: config.norm,
            predicts: config.statistics.mode(),
            ..LearnerConfig::default()
        };
        Ok((learner, Box::new(Bn(config))))
    },
};

/// Which norm statistics predictions use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormSource {
    /// Those of the batch that is predicted, as in the original.
    #[default]
    Batch,
    /// Running ones that follow the stream, as the TTAC paper uses them with a queue.
    Running,
}

impl NormSource {
    pub(super) fn mode(self) -> NormMode<'static> {
        match self {
            Self::Batch => NormMode::Batch,
            Self::Running => NormMode::Running,
        }
    }
}

/// Constants of [`Bn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BnConfig {
    /// Which statistics predictions use.
    pub statistics: NormSource,
    /// How running statistics follow.
    pub norm: NormUpdates,
}

/// Norm statistics of the target (Schneider et al., 2020; Nado et al., 2020).
///
/// # What it does
/// It replaces mean and variance of batch norm by those of the target: of the very batch, or running
/// averages over the stream. No parameter moves.
///
/// # When to use
/// It is cheap, and the largest part of what adaptation wins under noise and blur. It hurts where the shift
/// is mild, where batches are small, and where classes do not come mixed. A network without batch norms
/// has no such statistics, and is refused.
///
/// # State it keeps
/// It keeps the running statistics, with [`NormSource::Running`].
///
/// # References
/// `docs/methods.md`, BN.
#[derive(Clone, Debug)]
pub struct Bn(BnConfig);

impl Method for Bn {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        if self.0.statistics == NormSource::Running {
            learner.follow_norms(batch.images.clone());
        }
        Ok(Learned::nothing())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
