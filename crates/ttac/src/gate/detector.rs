//! The two detectors of the gate, and what it remembers from batch to batch.

use serde::{Deserialize, Serialize};

use super::Calibration;
use super::scores::distance;
use crate::{Error, Result};

/// The shares `l_j` of the money that the four games bet.
const SHARES: [f64; 4] = [0.2, 0.4, 0.6, 0.8];

/// An open gate that is far from closing looks at one image of so many, because the source's scores, which nobody else needs while it is
/// open, cost a forward pass.
const OPEN_STRIDE: u64 = 8;

/// Evidence never grows beyond this, so that it stays finite.
const MOST_EVIDENCE: f64 = 1e30;

/// Whether a gate is closed or open at the start of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateStart {
    /// The source answers until the stream is seen to have left it.
    #[default]
    Closed,
    /// Adaptation begins at once, and stops when the stream is seen to be fine.
    Open,
}

/// How sure the gate has to be before it opens or closes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateConfig {
    /// Whether the gate is closed or open at the start of a stream.
    pub start: GateStart,
    /// The evidence at which a closed gate opens. On a stream that is fine, at least this many images pass on average
    /// until a false alarm.
    pub alarm: f64,
    /// The evidence at which an open gate closes. On a stream whose payoffs stay above the limit on average, at least
    /// this many images pass on average until a false return.
    pub back: f64,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            start: GateStart::Closed,
            alarm: 1e5,
            back: 1e4,
        }
    }
}

impl GateConfig {
    /// Checks the settings; the error lists everything that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        for (name, value, least) in [("alarm", self.alarm, 100.0), ("back", self.back, 10.0)] {
            if !(least..=MOST_EVIDENCE).contains(&value) {
                problems.push(format!(
                    "`{name}` must be {least} to {MOST_EVIDENCE:e}, found {value}"
                ));
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "gate",
            problem: problems.join("; "),
        })
    }
}

/// What the gate decided after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the gate is open after the batch.
    pub open: bool,
    /// The image of the batch, counted from zero, at which the gate opened; the newest if it did more than once.
    pub opened: Option<usize>,
    /// The image of the batch, counted from zero, at which the gate closed; the newest if it did more than once.
    pub closed: Option<usize>,
}

/// What a gate remembers from batch to batch. It is part of a session's saved state, and a saved state is restored bit
/// for bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Saved", try_from = "Saved")]
pub struct GateState {
    /// Whether the gate is open.
    open: bool,
    /// The four `R_j` of each score while the gate is closed, and the four `B_j` while it is open; none before the first bet.
    games: Vec<[f64; 4]>,
    /// The logits of the first image of the current run of almost equal ones.
    run: Option<Vec<f32>>,
    /// How many images were seen.
    images: u64,
    /// How many of them made a bet. An open gate may not look at all of them.
    bets: u64,
    /// How many of them left the gate closed.
    closed: u64,
}

impl GateState {
    /// Returns the state at the start of a stream.
    pub fn new(config: &GateConfig) -> Self {
        Self {
            open: config.start == GateStart::Open,
            games: Vec::new(),
            run: None,
            images: 0,
            bets: 0,
            closed: 0,
        }
    }

    /// Returns whether the gate is open.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Returns how many images were seen.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// Returns how many images made a bet; the others were almost equal to one before, or came while an open gate did not look.
    pub fn bets(&self) -> u64 {
        self.bets
    }

    /// Returns how many images left the gate closed. If each image is a batch, these are the images that the source
    /// answers. In larger batches the verdict after the batch decides for all of its images, so that the two numbers
    /// may differ by a part of a batch at each switch.
    pub fn images_closed(&self) -> u64 {
        self.closed
    }

    /// Returns the evidence for a change: the mean of the `R_j` of all scores of a closed gate, which opens when it reaches
    /// [`GateConfig::alarm`]; of an open one the least mean of the `B_j` of a score, and it closes when that reaches
    /// [`GateConfig::back`].
    pub fn evidence(&self) -> f64 {
        let means = || {
            let mean = |games: &[f64; 4]| games.iter().sum::<f64>() / games.len() as f64;
            self.games.iter().map(mean)
        };
        if self.games.is_empty() {
            0.0
        } else if self.open {
            means().fold(f64::INFINITY, f64::min)
        } else {
            means().sum::<f64>() / self.games.len() as f64
        }
    }

    /// Returns whether the gate would look at the image that comes `after` so many others, if nothing that comes before changed its mind.
    ///
    /// A closed gate looks at every image, and so does an open one whose evidence has come half of the way to closing: to the square
    /// root of [`GateConfig::back`]. Until then it looks at every eighth.
    pub fn looks(&self, config: &GateConfig, after: usize) -> bool {
        !self.open
            || self.evidence() >= config.back.sqrt()
            || (self.images + after as u64).is_multiple_of(OPEN_STRIDE)
    }

    /// Watches the source network's logits of a batch of `count` images in the order of the stream, before the batch is answered.
    /// `logits` is asked for the row of an image, counted from zero, if the gate [looks](Self::looks) at it. How a stream is cut into
    /// batches makes no difference to the state.
    ///
    /// An image whose logits are nearer than [`Calibration::nearness`] to those of the first image of the current run,
    /// or equal to them, is taken for the same image and makes no bet. Any other image starts a new run and bets with
    /// its payoffs `g`, one for each score. With `c` the limit of the score and `l_j` of 0.2, 0.4, 0.6 and 0.8, the evidence becomes
    ///
    /// ```text
    /// closed:  R_j <- min((R_j + 1) (1 + l_j / c (g - c)), 1e30)          opens when the mean of all R_j reaches alarm
    /// open:    B_j <- min((B_j + 1) (1 + l_j / (1 - c) (c - g)), 1e30)    closes when mean_j B_j of every score reaches back
    /// ```
    ///
    /// and all of it is forgotten when the gate opens or closes. Logits that are not all finite have the payoff one
    /// and start no run, so that each such image bets.
    ///
    /// # Panics
    ///
    /// If the calibration is of another number of classes than a row.
    pub fn observe(
        &mut self,
        config: &GateConfig,
        calibration: &Calibration,
        count: usize,
        mut logits: impl FnMut(usize) -> Vec<f32>,
    ) -> Verdict {
        let (mut opened, mut closed) = (None, None);
        for image in 0..count {
            let looks = self.looks(config, 0);
            self.images += 1;
            if !looks {
                continue;
            }
            let row = logits(image);
            assert_eq!(
                row.len(),
                calibration.counts.len(),
                "classes of the batch and of the calibration"
            );
            if !self.repeats(&row, calibration.nearness) {
                self.bet(calibration, &row);
                self.run = row.iter().all(|logit| logit.is_finite()).then_some(row);
                let bound = if self.open { config.back } else { config.alarm };
                if self.evidence() >= bound {
                    self.open = !self.open;
                    self.games.fill([0.0; 4]);
                    *(if self.open { &mut opened } else { &mut closed }) = Some(image);
                }
            }
            self.closed += u64::from(!self.open);
        }
        Verdict {
            open: self.open,
            opened,
            closed,
        }
    }

    /// Returns whether an image belongs to the current run.
    fn repeats(&self, row: &[f32], nearness: f64) -> bool {
        self.run.as_ref().is_some_and(|first| {
            let distance = distance(first, row);
            first.len() == row.len() && (distance < nearness || distance == 0.0)
        })
    }

    /// Bets once in each game of each score.
    fn bet(&mut self, calibration: &Calibration, row: &[f32]) {
        self.bets += 1;
        self.games.resize(calibration.measures.len(), [0.0; 4]);
        for (games, measure) in self.games.iter_mut().zip(&calibration.measures) {
            let (payoff, limit) = (measure.payoff(row), measure.limit);
            let gain = if self.open {
                (limit - payoff) / (1.0 - limit)
            } else {
                (payoff - limit) / limit
            };
            for (money, share) in games.iter_mut().zip(SHARES) {
                *money = ((*money + 1.0) * (1.0 + share * gain)).min(MOST_EVIDENCE);
            }
        }
    }
}

/// A state as it is saved: its numbers are written as their bits, because a decimal number may not come back the same.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    open: bool,
    games_bits: Vec<[u64; 4]>,
    run_bits: Option<Vec<u32>>,
    images: u64,
    bets: u64,
    closed: u64,
}

impl From<GateState> for Saved {
    fn from(state: GateState) -> Self {
        let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
        Self {
            open: state.open,
            games_bits: state
                .games
                .iter()
                .map(|games| games.map(f64::to_bits))
                .collect(),
            run_bits: state.run.map(bits),
            images: state.images,
            bets: state.bets,
            closed: state.closed,
        }
    }
}

impl TryFrom<Saved> for GateState {
    type Error = String;

    fn try_from(saved: Saved) -> Result<Self, String> {
        let row = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
        let state = Self {
            open: saved.open,
            games: saved
                .games_bits
                .iter()
                .map(|games| games.map(f64::from_bits))
                .collect(),
            run: saved.run_bits.map(row),
            images: saved.images,
            bets: saved.bets,
            closed: saved.closed,
        };
        let mut evidence = state.games.iter().flatten();
        if let Some(found) = evidence.find(|money| !(0.0..=MOST_EVIDENCE).contains(*money)) {
            return Err(format!(
                "the evidence of a gate must be 0 to {MOST_EVIDENCE:e}, found {found}"
            ));
        }
        if state.bets.max(state.closed) > state.images {
            return Err(format!(
                "a gate that saw {} images cannot have made {} bets and been closed for {}",
                state.images, state.bets, state.closed
            ));
        }
        Ok(state)
    }
}
