//! The saved state of a training run between two steps.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::TrainConfig;
use crate::archive::{self, Array, Arrays, Kind};
use crate::backbone::{Architecture, Network, tensors};
use crate::checkpoint::{InputContract, fill};
use crate::optim::Optimiser;
use crate::{Error, Result};

/// The version of the header. A file with another one is refused.
const FORMAT: u32 = 1;

/// The name of the optimiser's bytes.
const OPTIMISER: &str = "optimiser";
/// The prefix of the names of the network's tensors.
const NETWORK: &str = "network.";

/// The header of a saved run, which stands beside the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrainingHeader {
    pub format: u32,
    pub config: TrainConfig,
    pub architecture: Architecture,
    pub input: InputContract,
    /// The name and the size of the data set.
    pub data: (String, usize),
    /// The number of steps that are done.
    pub step: usize,
    pub tally: Tally,
    /// The reports of the epochs that are over, as lines of JSON.
    pub log: Vec<String>,
}

/// Sums over the steps of an epoch. The losses are kept as bits, so that JSON does not round them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tally {
    loss: u64,
    auxiliary: u64,
    pub steps: usize,
    pub right: usize,
    pub images: usize,
}

impl Tally {
    pub fn add(&mut self, loss: f64, auxiliary: f64, (right, images): (usize, usize)) {
        self.loss = (f64::from_bits(self.loss) + loss).to_bits();
        self.auxiliary = (f64::from_bits(self.auxiliary) + auxiliary).to_bits();
        self.steps += 1;
        self.right += right;
        self.images += images;
    }

    pub fn mean_loss(&self) -> f64 {
        f64::from_bits(self.loss) / self.steps as f64
    }

    pub fn mean_auxiliary(&self) -> f64 {
        f64::from_bits(self.auxiliary) / self.steps as f64
    }

    pub fn error_percent(&self) -> f64 {
        100.0 * (1.0 - self.right as f64 / self.images as f64)
    }
}

impl TrainingHeader {
    pub fn new(
        config: TrainConfig,
        architecture: Architecture,
        input: InputContract,
        data: (String, usize),
    ) -> Self {
        Self {
            format: FORMAT,
            config,
            architecture,
            input,
            data,
            step: 0,
            tally: Tally::default(),
            log: Vec::new(),
        }
    }

    /// Writes the run to a file, with the network and the optimiser.
    pub fn save(&self, path: &Path, network: &Network, optimiser: &Optimiser) -> Result<()> {
        let mut arrays = Arrays::default();
        for (key, data) in tensors(network) {
            arrays.insert(format!("{NETWORK}{key}"), data);
        }
        arrays.insert(OPTIMISER, Array::U8(optimiser.save()?));
        archive::save(path, Kind::Training, self, &arrays)
    }

    /// Reads a run from a file, fills the optimiser, and fills the network that `network` makes of the
    /// header.
    pub fn load(
        path: &Path,
        network: impl FnOnce(&Self) -> Result<Network>,
        optimiser: &mut Optimiser,
    ) -> Result<(Self, Network)> {
        let (state, mut arrays) = archive::load::<Self>(path, Kind::Training)?;
        if state.format != FORMAT {
            return Err(Error::Mismatch {
                what: format!("format of `{}`", path.display()),
                expected: FORMAT.to_string(),
                found: state.format.to_string(),
            });
        }
        optimiser.restore(&arrays.u8(OPTIMISER)?)?;
        let network = network(&state)?;
        let network = fill(path, &state.architecture, network, arrays.tensors(NETWORK))?;
        Ok((state, network))
    }
}
