//! Answers without learning, from any thread.

use burn::tensor::Device;

use super::Answer;
use crate::Result;
use crate::data::Samples;
use crate::input::InputContract;
use crate::method::Snapshot;

/// Answers as a [`Session`](super::Session) did when the predictor was taken, whatever the session learns
/// afterwards. It is immutable, cheap to clone, and can be shared between threads.
#[derive(Clone)]
pub struct Predictor {
    pub(super) snapshot: Snapshot,
    pub(super) input: InputContract,
    pub(super) device: Device,
}

impl Predictor {
    /// Returns a predictor whose answer to a sample does not depend on the other samples of a batch, if the session
    /// [`predicts_alone`](super::Session::predicts_alone): where answers are corrected by the shares of the classes among recent samples,
    /// only samples that were observed count.
    pub fn alone(self) -> Self {
        Self {
            snapshot: self.snapshot.alone(),
            ..self
        }
    }

    /// Answers a batch of samples.
    pub fn predict(&self, samples: &Samples) -> Result<Answer> {
        let images = self.input.normalise(samples, &self.device)?;
        Ok(Answer::of_scores(self.snapshot.predict(images)))
    }
}

/// A predictor goes wherever it is needed.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Predictor>();
};
