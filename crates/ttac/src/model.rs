//! A trained network with all that a session has to know about it.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, TensorData};

use crate::Result;
use crate::backbone::{Backbone, Network, load_tensors, tensors};
use crate::checkpoint::{Checkpoint, Objective, fingerprint};
use crate::input::InputContract;

/// A trained classifier, ready to be adapted: the network, what it expects of its input, and its classes.
///
/// [`Model::load`] reads a checkpoint; [`Model::new`] takes a backbone of one's own.
#[derive(Clone, Debug)]
pub struct Model<B: Backbone = Network> {
    /// The network.
    pub network: B,
    /// What the network expects of its input.
    pub input: InputContract,
    /// Names of the classes, in the order of the scores.
    pub classes: Vec<String>,
    /// The name of the architecture, for protocol cards.
    pub architecture: String,
    /// What the network was trained for.
    pub objective: Objective,
    /// Identifies the trained network. Anchors and saved sessions carry it, and another network refuses them.
    pub fingerprint: String,
}

impl Model {
    /// Reads a checkpoint from a file.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        Ok(Self::from(&Checkpoint::load(path, device)?))
    }
}

impl From<&Checkpoint> for Model {
    fn from(checkpoint: &Checkpoint) -> Self {
        let header = &checkpoint.header;
        Self {
            fingerprint: fingerprint(&header.architecture, &checkpoint.network),
            network: checkpoint.network.clone(),
            input: header.input.clone(),
            classes: header.classes.clone(),
            architecture: header.architecture.name(),
            objective: header.objective,
        }
    }
}

impl<B: Backbone> Model<B> {
    /// Takes a trained network of any type. `architecture` names it in protocol cards; the fingerprint is computed
    /// from that name and from all weights.
    pub fn new(architecture: &str, network: B, input: InputContract, classes: Vec<String>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(architecture.as_bytes());
        for (key, data) in tensors(&network) {
            hasher.update(key.as_bytes());
            hasher.update(data.as_bytes());
        }
        Self {
            network,
            input,
            classes,
            architecture: architecture.to_owned(),
            objective: Objective::Plain,
            fingerprint: hasher.finalize().to_hex()[..16].to_owned(),
        }
    }

    /// Returns the same model with other weights, as [`Session::model`](crate::Session::model) does after
    /// adaptation. The fingerprint stays that of the source.
    pub fn with_weights(&self, weights: &BTreeMap<String, TensorData>) -> Self {
        Self {
            network: load_tensors(self.network.clone(), weights),
            ..self.clone()
        }
    }
}
