//! The sections of a configuration, each with its defaults and its checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ttac::experiment::{GateChoice, SharesChoice, Spec};
use ttac::method::Preset;

use super::{Config, amount};
use crate::api::Mode;

/// The fewest images that a slow stream learns from.
pub const FEWEST_LEARNED: usize = 16;

/// A mode by its word; the share of a canary is a key of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeName {
    /// The source answers and nothing is learned.
    Off,
    /// The source answers, and what would have been answered is learned and compared.
    #[default]
    Shadow,
    /// A share of the requests is answered by the adapted weights.
    Canary,
    /// The adapted weights answer.
    Active,
    /// The version of the start answers and nothing is learned.
    Frozen,
}

/// Who moves a stream from shadow to canary to active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promote {
    /// An operator does.
    #[default]
    Manual,
    /// Late labels do, once they are evidence enough.
    Labels,
}

/// `[model.NAME]`: a network, and how its streams are learned from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// The checkpoint.
    pub file: PathBuf,
    /// Its source statistics, for the methods that need them.
    pub anchors: Option<PathBuf>,
    /// The name of the method.
    pub method: String,
    /// Which constants it starts from.
    pub preset: Preset,
    /// Constants that are changed, by their path.
    pub set: BTreeMap<String, Value>,
    /// Images of a learn batch.
    pub batch: usize,
    /// How many recent images are learned from again with every batch; none for 0.
    pub queue: usize,
    /// Epochs over the queue for each batch.
    pub epochs: Option<usize>,
    /// Whether a gate keeps the source in charge while the stream fits it.
    pub gate: Option<GateChoice>,
    /// Whether answers are corrected by the shares of the classes among recent images.
    pub shares: Option<SharesChoice>,
    /// Seeds the order in which a queue is learned from, and all varied copies.
    pub seed: u64,
    /// The mode of streams that nobody has set another for.
    pub mode: ModeName,
    /// The share of requests that the adapted weights answer in the mode `canary`.
    pub canary_share: f64,
    /// Who moves streams from shadow to canary to active.
    pub promote: Promote,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            file: PathBuf::new(),
            anchors: None,
            method: "ttac".to_owned(),
            preset: Preset::default(),
            set: BTreeMap::new(),
            batch: 128,
            queue: 0,
            epochs: None,
            gate: None,
            shares: None,
            seed: 0,
            mode: ModeName::default(),
            canary_share: 0.05,
            promote: Promote::default(),
        }
    }
}

impl ModelConfig {
    /// Returns what `ttac adapt --predict-first` would be asked for.
    pub fn spec(&self) -> Spec {
        Spec {
            anchors: self.anchors.clone(),
            method: self.method.clone(),
            preset: self.preset,
            set: self.set.clone(),
            queue: self.queue.max(1),
            no_queue: self.queue == 0,
            epochs: self.epochs,
            minibatch: if self.queue == 0 {
                Spec::default().minibatch
            } else {
                Spec::default().minibatch.min(self.queue)
            },
            predict_first: true,
            gate: self.gate,
            shares: self.shares,
            batch_size: self.batch,
            seed: self.seed,
            ..Spec::new(&self.file, "")
        }
    }

    /// Returns the mode that a new stream starts with.
    pub fn mode(&self) -> Mode {
        match self.mode {
            ModeName::Off => Mode::Off,
            ModeName::Shadow => Mode::Shadow,
            ModeName::Canary => Mode::Canary(self.canary_share),
            ModeName::Active => Mode::Active,
            ModeName::Frozen => Mode::Frozen(None),
        }
    }

    /// Returns the fewest images that a learn batch has where nobody waits for more.
    pub fn fewest(&self) -> usize {
        FEWEST_LEARNED.min(self.batch)
    }

    pub(super) fn relative_to(&mut self, folder: &Path) {
        if !self.file.as_os_str().is_empty() {
            self.file = folder.join(&self.file);
        }
        self.anchors = self.anchors.take().map(|anchors| folder.join(anchors));
    }

    pub(super) fn problems(&self, name: &str, config: &Config) -> Vec<String> {
        let mut problems = Vec::new();
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
            problems.push(format!(
                "the name of a model is 1 to 64 letters, digits, `-`, `_` and `.`, found `{name}`"
            ));
        }
        if self.file.as_os_str().is_empty() {
            problems.push("`file` is missing: the checkpoint of the network".to_owned());
        }
        if !(1..=4096).contains(&self.batch) {
            problems.push(format!("`batch` must be 1 to 4096, found {}", self.batch));
        }
        share("canary_share", self.canary_share, &mut problems);
        if self.batch > config.guards.window {
            problems.push(format!(
                "`batch` must be at most `window` of `[guards]`, {}, found {}",
                config.guards.window, self.batch
            ));
        }
        problems
    }
}

/// `[learn]`: when and what is learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearnConfig {
    /// After this time a slow stream learns from fewer images than a batch, but from at least 16.
    #[serde(with = "amount::duration")]
    pub flush_after: Duration,
    /// Learn batches that may wait. More is answered and not learned.
    pub backlog: usize,
    /// The share of a learn batch that one client may give, where there are others.
    pub client_share: f64,
    /// The share of the images that are scored by the other weights too.
    pub compare_share: f64,
    /// The share of the time that the update threads work.
    pub duty: f64,
}

impl Default for LearnConfig {
    fn default() -> Self {
        Self {
            flush_after: Duration::from_mins(1),
            backlog: 4,
            client_share: 0.25,
            compare_share: 0.1,
            duty: 1.0,
        }
    }
}

impl LearnConfig {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=1000).contains(&self.backlog) {
            problems.push(format!(
                "[learn] `backlog` must be 1 to 1000, found {}",
                self.backlog
            ));
        }
        if self.flush_after < Duration::from_millis(10) {
            problems.push(format!(
                "[learn] `flush_after` must be at least 10ms, found {:?}",
                self.flush_after
            ));
        }
        for (name, value) in [("client_share", self.client_share), ("duty", self.duty)] {
            if !(value > 0.0 && value <= 1.0) {
                problems.push(format!(
                    "[learn] `{name}` must be above 0 and at most 1, found {value}"
                ));
            }
        }
        share("compare_share", self.compare_share, &mut problems);
        problems
    }
}

/// What a crash may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// What was accepted survives the death of the process.
    #[default]
    Process,
    /// What was accepted survives the loss of power.
    Power,
    /// No image is written to disk. A crash falls back to the newest snapshot.
    None,
}

/// `[state]`: what is kept on disk and in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StateConfig {
    /// The folder; none keeps everything in memory, and forgets it at the end.
    pub folder: Option<PathBuf>,
    /// A stream that changed is saved this often.
    #[serde(with = "amount::duration")]
    pub snapshot_every: Duration,
    /// And after this many learn batches.
    pub snapshot_batches: u64,
    /// And after so much log.
    #[serde(with = "amount::bytes")]
    pub snapshot_log: u64,
    /// What a crash may cost.
    pub durability: Durability,
    /// How many good versions of a stream are kept.
    pub keep_good: usize,
    /// Memory for streams. When it is full, no further stream is taken.
    #[serde(with = "amount::bytes")]
    pub memory: u64,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            folder: None,
            snapshot_every: Duration::from_mins(1),
            snapshot_batches: 64,
            snapshot_log: 512_000_000,
            durability: Durability::default(),
            keep_good: 4,
            memory: 2_000_000_000,
        }
    }
}

impl StateConfig {
    pub(super) fn relative_to(&mut self, folder: &Path) {
        self.folder = self.folder.take().map(|state| folder.join(state));
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=1000).contains(&self.keep_good) {
            problems.push(format!(
                "[state] `keep_good` must be 1 to 1000, found {}",
                self.keep_good
            ));
        }
        for (name, value) in [
            ("snapshot_batches", self.snapshot_batches),
            ("snapshot_log", self.snapshot_log),
            ("memory", self.memory),
        ] {
            if value == 0 {
                problems.push(format!("[state] `{name}` must be above 0"));
            }
        }
        problems
    }
}

/// `[threads]`: who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadsConfig {
    /// Threads that predict; by default half the cores.
    pub predict: Option<usize>,
    /// Threads that learn; by default the other half.
    pub update: Option<usize>,
    /// Whether threads that learn run only when no other program wants the core. On a machine that others keep busy nothing is learned then.
    pub idle: bool,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self {
            predict: None,
            update: None,
            idle: true,
        }
    }
}

impl ThreadsConfig {
    /// Returns how many threads predict and how many learn on a machine with so many cores.
    pub fn on(self, cores: usize) -> (usize, usize) {
        let predict = self.predict.unwrap_or((cores / 2).max(1));
        let rest = cores.saturating_sub(predict).max(1);
        (predict, self.update.unwrap_or(rest))
    }

    pub(super) fn problems(self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in [("predict", self.predict), ("update", self.update)] {
            if value.is_some_and(|value| !(1..=1024).contains(&value)) {
                problems.push(format!("[threads] `{name}` must be 1 to 1024"));
            }
        }
        problems
    }
}

/// `[guards]`: the bounds of healthy learning, and for how long a stream is watched before it is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardBounds {
    /// The newest images that are judged together.
    pub window: usize,
    /// Images before a stream is healthy, since the start or a roll back.
    pub warming: u64,
    /// Images after a roll back of which nothing is learned.
    pub cooling: u64,
    /// The least entropy of the predicted classes, as a share of the largest.
    pub marginal: f64,
    /// The least share of the source's own entropy of classes on the same images.
    pub marginal_of_source: f64,
    /// The least mean entropy of a prediction, as a share of the largest; only while agreement with the source falls.
    pub entropy: f64,
    /// The largest distance of the parameters from the source, relative to their length.
    pub drift: f64,
    /// The largest distance from the anchors, in multiples of its least since the last reset.
    pub anchors: f64,
    /// The least agreement with the source where the source is at least 0.9 sure.
    pub agreement: f64,
    /// This many roll backs by guards within `rollback_window` images end in the mode `shadow`.
    pub rollbacks: usize,
    /// See `rollbacks`.
    pub rollback_window: u64,
}

impl Default for GuardBounds {
    fn default() -> Self {
        Self {
            window: 1024,
            warming: 1024,
            cooling: 2048,
            marginal: 0.3,
            marginal_of_source: 0.5,
            entropy: 0.02,
            drift: 1.0,
            anchors: 2.0,
            agreement: 0.8,
            rollbacks: 3,
            rollback_window: 50_000,
        }
    }
}

impl GuardBounds {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.window < 16 {
            problems.push(format!(
                "[guards] `window` must be at least 16, found {}",
                self.window
            ));
        }
        if self.rollbacks == 0 {
            problems.push("[guards] `rollbacks` must be at least 1".to_owned());
        }
        for (name, value) in [
            ("marginal", self.marginal),
            ("marginal_of_source", self.marginal_of_source),
            ("entropy", self.entropy),
            ("agreement", self.agreement),
        ] {
            share(name, value, &mut problems);
        }
        for (name, value) in [("drift", self.drift), ("anchors", self.anchors)] {
            if value.is_nan() || value <= 0.0 {
                problems.push(format!("[guards] `{name}` must be above 0, found {value}"));
            }
        }
        problems
    }
}

fn share(name: &str, value: f64, problems: &mut Vec<String>) {
    if !(0.0..=1.0).contains(&value) {
        problems.push(format!("`{name}` must be 0 to 1, found {value}"));
    }
}
