//! What the transports and the engine say to each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ttac::data::Samples;
use ttac::input::InputContract;

/// What a refused request is told. Every transport has a status for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is wrong and will be wrong again: HTTP 400, `INVALID_ARGUMENT`.
    #[error("{0}")]
    Invalid(String),
    /// There is no such model, version or stream, or not for this client: HTTP 404, `NOT_FOUND`.
    #[error("{0}")]
    NotFound(String),
    /// A client has used up its share: HTTP 429 with `Retry-After`, `RESOURCE_EXHAUSTED`.
    #[error("{why}; try again in {} s", .after.as_secs().max(1))]
    Quota {
        /// What was used up.
        why: String,
        /// When it may be tried again.
        after: Duration,
    },
    /// The machine is busy, loading or draining: HTTP 503 with `Retry-After`, UNAVAILABLE.
    #[error("{0}")]
    Unavailable(String),
    /// The client's own time limit has passed: HTTP 504, `DEADLINE_EXCEEDED`.
    #[error("the time limit of the request has passed")]
    Deadline,
    /// Our own fault: HTTP 500, INTERNAL. The text names a request id and no internals.
    #[error("{0}")]
    Internal(String),
}

/// Which weights answer: a version in the protocol's sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Version `0`: the network as it was trained.
    Source,
    /// Version `1`: what was learned from the stream.
    Adapted,
}

impl Lane {
    /// Returns the version's name, `0` or `1`.
    pub fn version(self) -> &'static str {
        match self {
            Self::Source => "0",
            Self::Adapted => "1",
        }
    }
}

/// What an operator wants of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The source answers and nothing is learned.
    Off,
    /// The source answers, and what would have been answered is learned and compared.
    #[default]
    Shadow,
    /// A share of the requests, 0 to 1, is answered by the adapted weights.
    Canary(f64),
    /// The adapted weights answer.
    Active,
    /// A pinned version answers and nothing is learned; `None` is the version of now.
    Frozen(Option<u64>),
}

impl Mode {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shadow => "shadow",
            Self::Canary(_) => "canary",
            Self::Active => "active",
            Self::Frozen(_) => "frozen",
        }
    }
}

/// What the guards say of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Nothing was seen yet.
    #[default]
    Idle,
    /// Too few images were seen to judge.
    Warming,
    /// No guard is beyond its bound.
    Healthy,
    /// A guard is beyond its bound, and the last good weights answer.
    Alarmed,
    /// Nothing is learned for a while after a roll back.
    Cooling,
    /// The state cannot be read, or learning panicked twice.
    Failed,
    /// The stream is on disk, and on its way back.
    Loading,
    /// The log is learned from again after a start.
    CatchingUp,
}

impl Health {
    /// Every health.
    pub const ALL: [Self; 8] = [
        Self::Idle,
        Self::Warming,
        Self::Healthy,
        Self::Alarmed,
        Self::Cooling,
        Self::Failed,
        Self::Loading,
        Self::CatchingUp,
    ];

    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Warming => "warming",
            Self::Healthy => "healthy",
            Self::Alarmed => "alarmed",
            Self::Cooling => "cooling",
            Self::Failed => "failed",
            Self::Loading => "loading",
            Self::CatchingUp => "catching-up",
        }
    }
}

/// What became of a request's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They are in the log, and will be learned from.
    Accepted,
    /// Too many batches wait.
    SkippedBacklog,
    /// The client has given its share of the batch.
    SkippedShare,
    /// The same images came before in this window.
    SkippedDuplicate,
    /// Nothing is learned: mode, the request itself, or a full disk.
    Off,
}

impl Fate {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::SkippedBacklog => "skipped-backlog",
            Self::SkippedShare => "skipped-share",
            Self::SkippedDuplicate => "skipped-duplicate",
            Self::Off => "off",
        }
    }
}

/// One request for predictions.
#[derive(Clone, Debug)]
pub struct Request {
    /// The model's name.
    pub model: String,
    /// The lane that the client asks for; `None` for what mode and health decide.
    pub lane: Option<Lane>,
    /// A kept version that has to answer.
    pub at: Option<u64>,
    /// The stream that the images belong to.
    pub stream: String,
    /// The client's id of the request.
    pub id: Option<String>,
    /// Who asks, for shares and quotas.
    pub client: Option<String>,
    /// The images or clouds, of the model's own form and size.
    pub samples: Samples,
    /// Whether they may be learned from.
    pub learn: bool,
    /// Whether the source's classes are asked for too.
    pub source_too: bool,
    /// When the client no longer waits.
    pub deadline: Option<Instant>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug)]
pub struct Reply {
    /// Scores of each class, `[images, classes]`, row-major; probabilities are their softmax.
    pub scores: Vec<f32>,
    /// The same as probabilities.
    pub probabilities: Vec<f32>,
    /// The predicted class of each image.
    pub classes: Vec<usize>,
    /// What the source says, if it was asked.
    pub source_classes: Option<Vec<usize>>,
    /// Which lane answered.
    pub lane: Lane,
    /// How many times the weights that answered were published; zero is the source.
    pub weights_version: u64,
    /// A digest of the weights that answered.
    pub weights: String,
    /// The stream's mode when it answered.
    pub mode: Mode,
    /// The stream's health when it answered.
    pub health: Health,
    /// What becomes of the images.
    pub fate: Fate,
    /// The place of the first image in the stream's log; `None` if it is not there.
    pub sequence: Option<u64>,
    /// How long the request waited for its pass.
    pub queued: Duration,
    /// How long the pass took.
    pub computed: Duration,
}

/// What a model is.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Its name in the configuration.
    pub name: String,
    /// What it expects of its input.
    pub input: InputContract,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// Its architecture.
    pub architecture: String,
    /// The most images of a request.
    pub largest_batch: usize,
    /// Whether requests are answered.
    pub ready: bool,
}

/// What happened in passes of a model's lane, as the protocol's statistics want it.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Passes by the number of images in them, with the time they took.
    pub passes: BTreeMap<usize, (u64, Duration)>,
    /// Requests that were answered, and how long they took in all.
    pub success: (u64, Duration),
    /// Requests that were refused, and how long they took in all.
    pub fail: (u64, Duration),
    /// How long requests waited.
    pub queue: (u64, Duration),
    /// How long passes took, by request.
    pub infer: (u64, Duration),
    /// Images that were answered.
    pub images: u64,
    /// The time of the newest answer, in milliseconds since 1970.
    pub newest: u64,
}

/// A guard of a stream with its value.
#[derive(Clone, Debug)]
pub struct GuardValue {
    /// Its name, one word.
    pub name: String,
    /// Its value of now, if it has one.
    pub value: Option<f64>,
    /// The bound.
    pub bound: f64,
    /// Whether it is beyond the bound.
    pub alarmed: bool,
}

/// A stream as an operator sees it.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// Its name.
    pub stream: String,
    /// The operator's mode.
    pub mode: Mode,
    /// The guards' health.
    pub health: Health,
    /// Images that were accepted.
    pub accepted: u64,
    /// Images that were learned from.
    pub learned: u64,
    /// Images that wait.
    pub pending: u64,
    /// The published version.
    pub version: u64,
    /// Versions that are kept, with the accepted image they were published after and whether they are good.
    pub kept: Vec<(u64, u64, bool)>,
    /// The guards with their values.
    pub guards: Vec<GuardValue>,
    /// Late labels: adapted right and source wrong, the reverse, and the evidence that adapted is better.
    pub labels: (u64, u64, f64),
    /// How many bytes the log has.
    pub log_bytes: u64,
    /// How many bytes of memory the stream takes, about.
    pub memory_bytes: u64,
    /// Alarms by guard since the process started, those of what was learned again among them.
    pub alarms: Vec<(String, u64)>,
    /// Roll backs since then, by guards, labels and operators.
    pub rollbacks: u64,
}

/// A late label of an image that was answered.
#[derive(Clone, Debug)]
pub struct Feedback {
    /// The id of the request.
    pub id: String,
    /// Which image of the request.
    pub index: usize,
    /// The class, by its place.
    pub class: usize,
}

/// Where a roll back goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// The source.
    Source,
    /// The newest good version.
    Good,
    /// A kept version.
    Version(u64),
}

/// Something that happened to a stream, for pages that watch it.
#[derive(Clone, Debug)]
pub struct Event {
    /// Counts events of the stream.
    pub id: u64,
    /// `step`, `state`, `alarm` or `labels`.
    pub kind: &'static str,
    /// A JSON object.
    pub data: String,
}

/// What transports ask of whoever serves models. All calls may block for as long as a pass takes, so that transports make them from threads
/// that may wait.
pub trait Service: Send + Sync + 'static {
    /// Lists the models.
    fn models(&self) -> Vec<ModelInfo>;
    /// Answers a request. Returns when the pass is done, or at the deadline.
    fn infer(&self, request: Request) -> Result<Reply, Refusal>;
    /// Returns what happened in a model's lane.
    fn statistics(&self, model: &str, lane: Lane) -> Result<Statistics, Refusal>;
    /// Lists a model's streams, by name.
    fn streams(&self, model: &str) -> Result<Vec<StreamStatus>, Refusal>;
    /// Sets a stream's mode.
    fn set_mode(&self, model: &str, stream: &str, mode: Mode, by: &str) -> Result<(), Refusal>;
    /// Rolls a stream back.
    fn roll_back(
        &self,
        model: &str,
        stream: &str,
        to: Rollback,
        by: &str,
        reason: &str,
    ) -> Result<(), Refusal>;
    /// Saves a stream.
    fn snapshot(&self, model: &str, stream: &str) -> Result<(), Refusal>;
    /// Forgets a stream and its files.
    fn delete(&self, model: &str, stream: &str, by: &str) -> Result<(), Refusal>;
    /// Takes late labels; returns how many were of known answers and how many were not.
    fn feedback(
        &self,
        model: &str,
        stream: &str,
        labels: &[Feedback],
    ) -> Result<(u64, u64), Refusal>;
    /// Returns the checkpoint of a kept version as bytes.
    fn checkpoint(&self, model: &str, stream: &str, version: u64) -> Result<Vec<u8>, Refusal>;
    /// Returns the events of a stream after an id, waiting at most so long for the first.
    fn events(
        &self,
        model: &str,
        stream: &str,
        after: Option<u64>,
        wait: Duration,
    ) -> Result<Vec<Arc<Event>>, Refusal>;
    /// Whether requests are taken: everything is loaded and nobody asked for the end.
    fn ready(&self) -> bool;
}
