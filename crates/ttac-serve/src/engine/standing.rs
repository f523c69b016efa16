//! Who answers: what a stream shows to those who predict.

use std::sync::Arc;

use super::weights::Weights;
use crate::api::{GuardValue, Health, Lane, Mode, Refusal};

/// A version that can be gone back to.
#[derive(Clone)]
pub struct KeptWeights {
    /// The weights.
    pub weights: Arc<Weights>,
    /// How many images had been accepted when it was published.
    pub accepted: u64,
    /// Whether a whole window passed since without an alarm.
    pub good: bool,
}

/// A stream as those who answer see it, swapped as a whole.
#[derive(Clone)]
pub struct Standing {
    /// The operator's mode.
    pub mode: Mode,
    /// The guards' health.
    pub health: Health,
    /// The network as it was trained.
    pub source: Arc<Weights>,
    /// What was published last, or gone back to.
    pub published: Arc<Weights>,
    /// Versions that are kept, oldest first.
    pub kept: Vec<KeptWeights>,
    /// The guards with their values.
    pub guards: Vec<GuardValue>,
    /// Images that were learned from, or that a closed gate saw.
    pub learned: u64,
    /// Why nothing can be learned any more, if the stream has failed.
    pub failed: Option<String>,
}

impl Standing {
    /// Chooses who answers a request. `draw`, 0 to 1, is the same for the same request.
    pub fn choose(
        &self,
        lane: Option<Lane>,
        at: Option<u64>,
        draw: f64,
    ) -> Result<(Lane, Arc<Weights>), Refusal> {
        if let Some(version) = at {
            let weights = self.version(version)?;
            let lane = if version == 0 {
                Lane::Source
            } else {
                Lane::Adapted
            };
            return Ok((lane, weights));
        }
        let source = || (Lane::Source, Arc::clone(&self.source));
        let adapted = || (Lane::Adapted, Arc::clone(&self.published));
        Ok(match lane {
            Some(Lane::Source) => source(),
            Some(Lane::Adapted) => adapted(),
            None => match (self.mode, self.health) {
                (_, Health::Failed) | (Mode::Off | Mode::Shadow, _) => source(),
                (Mode::Frozen(pinned), _) => match pinned {
                    Some(version) => {
                        let weights = self.version(version);
                        (
                            Lane::Adapted,
                            weights.unwrap_or_else(|_| Arc::clone(&self.published)),
                        )
                    }
                    None => adapted(),
                },
                (_, Health::Idle | Health::Warming | Health::Loading)
                | (Mode::Canary(_), Health::Cooling) => source(),
                (Mode::Canary(share), _) if draw >= share => source(),
                (Mode::Canary(_) | Mode::Active, _) => adapted(),
            },
        })
    }

    /// Finds a version that is still there.
    pub fn version(&self, version: u64) -> Result<Arc<Weights>, Refusal> {
        let kept = self.kept.iter().map(|kept| &kept.weights);
        let mut all = [&self.source, &self.published].into_iter().chain(kept);
        if let Some(weights) = all.find(|weights| weights.version == version) {
            return Ok(Arc::clone(weights));
        }
        let mut known: Vec<u64> = self.kept.iter().map(|kept| kept.weights.version).collect();
        known.extend([0, self.published.version]);
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.iter().map(u64::to_string).collect();
        Err(Refusal::NotFound(format!(
            "version {version} is not kept; those that are: {}",
            known.join(", ")
        )))
    }

    /// Whether images that arrive now may be learned from.
    pub fn learns(&self) -> bool {
        let by_mode = !matches!(self.mode, Mode::Off | Mode::Frozen(_));
        by_mode && !matches!(self.health, Health::Failed | Health::Loading)
    }
}
