//! Test-time training methods, one file each.
//!
//! A [`Method`] learns from minibatches of unlabelled samples and scores them. It never sees a label:
//! [`Minibatch`] has none. Which samples are shown, how often and in which order, and when predictions are taken,
//! is the business of a [`Session`](crate::Session) and of the [protocols](crate::protocol).
//!
//! Each file holds one method, its settings and its `ENTRY`; the list [`method_names`] is made of those. Formulas
//! and constants are in `docs/methods.md`.

mod adapter;
mod bn;
mod classifier;
mod cotta;
mod deyo;
mod direction;
mod ensemble;
pub mod entry;
mod eta;
mod lame;
mod learner;
mod memo;
mod memory;
mod note;
mod novelty;
pub(crate) mod parameters;
mod petta;
mod poem;
mod prior;
mod rmt;
mod roid;
mod rotta;
mod rpl;
mod sar;
mod settings;
mod sharpness;
mod shot;
mod stage;
mod t3a;
mod teacher;
mod tent;
mod terms;
mod test;
mod tfa;
mod tribe;
mod ttac;
mod ttac_plus_plus;
mod ttt_r;

use burn::tensor::Tensor;

pub use adapter::{Adapter, Snapshot};
pub use bn::{Bn, BnConfig, NormSource};
pub use classifier::{Classifier, Head, Layers};
pub use cotta::{Cotta, CottaConfig};
pub use deyo::{Deyo, DeyoConfig};
pub use ensemble::ContinualFilter;
pub use entry::{Needs, Preset, Setting, Wants, method_names};
pub use eta::{Eta, EtaConfig};
pub use lame::{Affinity, Lame, LameConfig};
pub use learner::{Learner, LearnerConfig, NormUpdates};
pub use memo::{Memo, MemoConfig};
pub use note::{Note, NoteConfig};
pub use petta::{Petta, PettaConfig, TeacherLoss};
pub use poem::{Poem, PoemConfig};
pub use rmt::{Rmt, RmtConfig};
pub use roid::{Roid, RoidConfig};
pub use rotta::{Rotta, RottaConfig, TimelyMemory};
pub use rpl::{Rpl, RplConfig};
pub use sar::{Sar, SarConfig};
pub use settings::MethodSpec;
pub use shot::{Shot, ShotConfig};
pub use stage::{FirstPasses, Learned, Lesson, Minibatch, Prediction, QueueState, Stage, Views};
pub use t3a::{T3a, T3aConfig};
pub use tent::{Tent, TentConfig};
pub use test::{Unadapted, UnadaptedConfig};
pub use tfa::{Tfa, TfaConfig};
pub use tribe::{Tribe, TribeConfig};
pub use ttac::{
    Assignment, ClassGate, EpochGate, GlobalPart, Information, Posteriors, SourceKind, Ttac,
    TtacConfig,
};
pub use ttac_plus_plus::{StrongConfig, StrongPass, TtacPlusPlus, TtacPlusPlusConfig};
pub use ttt_r::{TttR, TttRConfig};

use crate::Result;
use crate::backbone::NormMode;
use crate::data::SampleId;

/// The scores of an arriving batch, `[batch, classes]`, and what was learned from it.
pub type Observed = Result<(Tensor<2>, Learned)>;

/// A way to adapt a network to unlabelled data.
///
/// The network belongs to the [`Learner`], which every function is handed; a method holds only what it keeps
/// besides the network. Most methods write [`learn`](Self::learn) and [`boxed_clone`](Self::boxed_clone) alone.
pub trait Method: Send + Sync {
    /// Learns from a minibatch.
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, stage: &Stage)
    -> Result<Learned>;

    /// Scores normalised samples with a network, `[batch, classes]`, and changes nothing.
    fn predict(&self, network: &dyn Classifier, mode: NormMode, images: Tensor<4>) -> Tensor<2> {
        network.forward(images, mode)
    }

    /// Whether the scores of a sample do not depend on the other samples that are predicted with it, where norms use stored statistics.
    fn predicts_alone(&self) -> bool {
        true
    }

    /// Returns the network that predictions are made by, without gradients: the learner's, or a teacher of it.
    fn answering(&self, learner: &Learner) -> Box<dyn Classifier + Send + Sync> {
        learner.frozen()
    }

    /// Learns from an arriving batch and scores it, in the given order. Methods override this that do both image
    /// by image, or that use one forward pass for both.
    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let scores = |method: &Self, learner: &Learner| {
            let network = method.answering(learner);
            method.predict(network.as_ref(), learner.predicts(), batch.images.clone())
        };
        let before = (order == Prediction::PredictFirst).then(|| scores(self, learner));
        let learned = self.learn(learner, batch, &Stage::SINGLE)?;
        Ok((before.unwrap_or_else(|| scores(self, learner)), learned))
    }

    /// Hears that an epoch over the queue, over the set, or a single arriving batch begins.
    fn begin_epoch(&mut self, _stage: &Stage) {}

    /// Hears that these samples left the queue and will not come again.
    fn forget(&mut self, _ids: &[SampleId]) {}

    /// Encodes what the method keeps besides the network.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes back what [`state`](Self::state) encoded; on an error the method stays as it was.
    fn restore(&mut self, _state: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Clones the method and everything it keeps.
    fn boxed_clone(&self) -> Box<dyn Method>;
}
