//! Weights that answer: immutable, and known by a version and a digest.

use ttac::backbone::tensors;
use ttac::data::Samples;
use ttac::{Answer, Model, Predictor, Result, Session};

/// A set of weights that answers requests.
pub struct Weights {
    /// How many times weights had been published when these were; zero is the source.
    pub version: u64,
    /// A digest of the weights.
    pub digest: String,
    predictor: Predictor,
}

impl Weights {
    /// Takes the weights that a session answers by now. The answer to an image does not depend on those beside it.
    pub fn of(session: &Session, version: u64) -> Self {
        let digest = if session.source_answers() {
            digest(session.source())
        } else {
            digest(&session.model())
        };
        Self {
            version,
            digest,
            predictor: session.predictor().alone(),
        }
    }

    /// Takes the weights of a network as it was trained.
    pub fn of_source(model: &Model) -> Result<Self> {
        let session = Session::builder(model).method("test").build()?;
        Ok(Self::of(&session, 0))
    }

    /// Answers some images.
    pub fn predict(&self, samples: &Samples) -> Result<Answer> {
        self.predictor.predict(samples)
    }
}

fn digest(model: &Model) -> String {
    let mut hasher = blake3::Hasher::new();
    for (key, data) in tensors(&model.network) {
        hasher.update(key.as_bytes());
        hasher.update(data.as_bytes());
    }
    format!("b3:{}", &hasher.finalize().to_hex()[..16])
}
