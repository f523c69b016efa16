//! What a stream remembers besides its session. It is a part of a snapshot.

use serde::{Deserialize, Serialize};

use super::guards::Window;
use crate::api::{Health, Mode};

/// A version that is kept, without its weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptCard {
    /// The version.
    pub version: u64,
    /// The last record of the log that led to it.
    pub sequence: u64,
    /// How many images had been accepted then.
    pub accepted: u64,
    /// How many had been learned from then.
    pub learned: u64,
    /// Whether a whole window passed since without an alarm.
    pub good: bool,
}

/// What a stream remembers besides its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The number of the last record that was applied.
    pub sequence: u64,
    /// The operator's mode.
    pub mode: Mode,
    /// The record that set it; zero for the configuration.
    pub mode_since: u64,
    /// The guards' health.
    pub health: Health,
    /// Images in the log.
    pub accepted: u64,
    /// Images in the log since the last cut, whether they still wait or were dropped by a roll back.
    pub open: usize,
    /// Images that were learned from, or that a closed gate saw.
    pub learned: u64,
    /// Images since the stream began to warm or to cool.
    pub since: u64,
    /// Learn batches.
    pub cuts: u64,
    /// The newest version, whether it answers or not.
    pub newest: u64,
    /// What guards remember.
    pub window: Window,
    /// Images since a guard has been beyond its bound without a break.
    pub beyond: u64,
    /// How many images had been learned from at each roll back by a guard.
    pub rollbacks: Vec<u64>,
    /// How often learning panicked.
    pub panics: u32,
    /// Versions that are kept, oldest first.
    pub kept: Vec<KeptCard>,
    /// Why nothing can be learned any more.
    pub failed: Option<String>,
    /// Images whose values were not on disk, so that they were not learned from after a start.
    pub forgotten: u64,
}

impl Memory {
    /// Starts with nothing.
    pub fn new(mode: Mode) -> Self {
        Self {
            sequence: 0,
            mode,
            mode_since: 0,
            health: Health::Idle,
            accepted: 0,
            open: 0,
            learned: 0,
            since: 0,
            cuts: 0,
            newest: 0,
            window: Window::default(),
            beyond: 0,
            rollbacks: Vec::new(),
            panics: 0,
            kept: Vec::new(),
            failed: None,
            forgotten: 0,
        }
    }
}
