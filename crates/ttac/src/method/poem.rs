//! POEM: entropies of predictions are drawn to where they are on images of the source, as far as a bet says that they are not.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes, value};
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Stage,
};
use crate::backbone::Adaptable;
use crate::loss::entropies;
use crate::optim::OptimiserConfig;
use crate::stats::SourceStatistics;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<PoemConfig> = Entry {
    variants: &[Variant {
        name: "poem",
        about: "entropies matched to the source's, as far as a bet against it wins",
        preset: |preset, _| PoemConfig {
            norm: NormUpdates::of_batches(preset),
            ..PoemConfig::default()
        },
    }],
    needs: |_| Needs {
        layers: Some(Layers::Norms),
        anchors: true,
        ..Needs::NETWORK
    },
    build: |config, network, anchors| {
        config.validate()?;
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let PoemConfig {
            optimiser,
            learning_rate,
            norm,
            ..
        } = config;
        let learner = LearnerConfig {
            adapts: Adaptable::LowerAffine,
            ..LearnerConfig::affine(optimiser, learning_rate, norm, reference)
        };
        let method = Poem {
            config,
            classes: network.num_classes(),
            source: SourceEntropies(entropies_of(anchors)?),
            bet: Bet::default(),
        };
        Ok((learner, Box::new(method)))
    },
};

/// Constants of [`Poem`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoemConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.00025 for ImageNet.
    pub learning_rate: f64,
    /// How fast the bet changes.
    pub bet_rate: f64,
    /// How high the bet can get before it changes in the other direction only, below two.
    pub highest_bet: f64,
    /// How many samples have to come before anything is learned.
    pub first_samples: u64,
    /// Whether only certain samples are learned from, the surer the more, as for ImageNet.
    pub weighting: bool,
    /// With `weighting`, a sample is certain if its entropy is below this share of the largest one, `ln K`.
    pub entropy_margin: f64,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for PoemConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::SGD,
            learning_rate: 1e-3,
            bet_rate: 1.0 / (8.0 * 3.0_f64.sqrt()),
            highest_bet: 1.8,
            first_samples: 100,
            weighting: false,
            entropy_margin: 0.4,
            norm: NormUpdates::default(),
        }
    }
}

impl PoemConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = self.norm.problems();
        if !(0.0..=100.0).contains(&self.bet_rate) {
            problems.push(format!(
                "`bet_rate` must be 0 to 100, found {}",
                self.bet_rate
            ));
        }
        // From two on a single sample could lose everything.
        if !(0.0..2.0).contains(&self.highest_bet) {
            problems.push(format!(
                "`highest_bet` must be at least 0 and below 2, found {}",
                self.highest_bet
            ));
        }
        Error::invalid_if_any("method constant", &problems)
    }
}

/// Returns the entropies of the source's predictions on images of the source. Anchors that do not have them are refused.
fn entropies_of(anchors: Option<&SourceStatistics>) -> Result<Vec<f32>> {
    let calibration = anchors.and_then(|anchors| anchors.calibration.as_ref());
    let found = calibration.map(|calibration| calibration.entropies.clone());
    found
        .filter(|entropies| entropies.len() > 1)
        .ok_or_else(|| Error::Invalid {
            what: "anchors",
            problem: "`poem` needs to know how certain the network is of images of the source, and these anchors do not say so; \
                  anchors made by this version with a calibration do"
                .to_owned(),
        })
}

/// Protected online entropy matching (Bar, Shaer and Romano, 2024).
///
/// # What it does
/// It bets, sample by sample, that entropies of predictions are not distributed as on images of the source. While that is a losing bet it
/// stays near zero, and nothing is asked of the network. When it wins, the entropy of each sample gets a target by which they would be
/// distributed as on the source again, and the scales and shifts of the norms take a step towards the targets. Norms of the last stage
/// stay as they are.
///
/// # When to use
/// Use it where the stream may be fine: then it hardly moves. It cannot tell a shift from classes that come in runs.
///
/// # Objective
/// `1/2 mean_i (H(p_i) - F^-1(u'_i))^2` with `u' = e u^2 / 2 + (1 - e / 2) u` and `u = F(H(p))`, `F` the distribution of entropies on the
/// source. The bet `e` follows `g = (u - 1/2) / (1 + e (u - 1/2))` by `e <- e + bet_rate g / sqrt(sum of all g^2)`.
///
/// # State it keeps
/// It keeps the bet, the sum of squares, how many samples came, and what the bet would have won; the learner keeps scales, shifts and
/// momentum.
///
/// # Deviations
/// One forward pass is made where the authors' program makes two of the same images by the same weights. The distribution is that of the
/// calibration in the anchors, which their program takes from a quarter of the clean test images. While the bet is
/// zero a sample has its own entropy as its target, even beyond the largest entropy on the source.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under adapt-first those of another pass.
///
/// # References
/// `docs/methods.md`, POEM.
#[derive(Clone, Debug)]
pub struct Poem {
    config: PoemConfig,
    classes: usize,
    source: SourceEntropies,
    bet: Bet,
}

/// Entropies on images of the source, in ascending order; at least two.
#[derive(Clone, Debug)]
struct SourceEntropies(Vec<f32>);

impl SourceEntropies {
    /// Returns the share of the source below an entropy, 0 to 1: linear between the entropies of the source, which are taken for evenly
    /// spaced quantiles. Where several are equal it is the middle of their shares.
    fn share(&self, entropy: f64) -> f64 {
        let values = &self.0;
        let last = values.len() - 1;
        let below = values.partition_point(|&value| f64::from(value) < entropy);
        let not_above = values.partition_point(|&value| f64::from(value) <= entropy);
        let place = if not_above > below {
            (below + not_above - 1) as f64 / 2.0
        } else if below == 0 || below > last {
            below.min(last) as f64
        } else {
            let (low, high) = (f64::from(values[below - 1]), f64::from(values[below]));
            (below - 1) as f64 + (entropy - low) / (high - low)
        };
        place / last as f64
    }

    /// Returns the entropy below which this share of the source lies.
    fn quantile(&self, share: f64) -> f64 {
        let last = self.0.len() - 1;
        let place = share.clamp(0.0, 1.0) * last as f64;
        let below = (place as usize).min(last - 1);
        let (low, high) = (f64::from(self.0[below]), f64::from(self.0[below + 1]));
        low + (place - below as f64) * (high - low)
    }
}

/// A bet that entropies are not those of the source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Bet {
    /// Above zero it is won by entropies that are too high.
    stake: f64,
    /// Sum of the squared directions it was moved in.
    squares: f64,
    /// Samples so far.
    samples: u64,
    /// What a capital of one would have become.
    wealth: f64,
}

impl Default for Bet {
    fn default() -> Self {
        Self {
            stake: 0.0,
            squares: 0.0,
            samples: 0,
            wealth: 1.0,
        }
    }
}

/// Beyond this a capital does not grow, so that it stays a number.
const MOST_WEALTH: f64 = 1e200;

impl Bet {
    /// Returns where a share of the source would be if the bet were right, 0 to 1.
    fn corrected(&self, share: f64) -> f64 {
        self.stake * share * share / 2.0 + (1.0 - self.stake / 2.0) * share
    }

    /// Sees the share of the source below the entropy of a sample.
    fn observe(&mut self, share: f64, config: &PoemConfig) {
        let excess = share - 0.5;
        let gain = 1.0 + self.stake * excess;
        self.wealth = (self.wealth * gain).min(MOST_WEALTH);
        self.samples += 1;
        let direction = excess / gain;
        let outwards = self.stake.abs() > config.highest_bet && direction * self.stake > 0.0;
        if !outwards && direction != 0.0 {
            self.squares += direction * direction;
            self.stake += config.bet_rate * direction / self.squares.sqrt();
        }
    }
}

impl Poem {
    /// Returns the entropy that each sample should have, sample by sample as the bet changes.
    fn targets(&mut self, found: &[f32]) -> Vec<f32> {
        let targets = found.iter().map(|&entropy| {
            if !entropy.is_finite() {
                return entropy;
            }
            let share = self.source.share(f64::from(entropy));
            let target = if self.bet.stake == 0.0 {
                entropy
            } else {
                self.source.quantile(self.bet.corrected(share)) as f32
            };
            self.bet.observe(share, &self.config);
            target
        });
        targets.collect()
    }

    /// Returns the weight of each sample in the loss.
    fn weights(&self, found: &[f32]) -> Vec<f32> {
        if !self.config.weighting {
            return vec![1.0; found.len()];
        }
        let bound = self.config.entropy_margin * (self.classes as f64).ln();
        let certain = |&entropy: &f32| f64::from(entropy) < bound;
        let count = found.iter().filter(|entropy| certain(entropy)).count();
        // The mean is over the certain samples alone.
        let scale = found.len() as f64 / count.max(1) as f64;
        let weight = |entropy: &f32| {
            if certain(entropy) {
                (scale * (bound - f64::from(*entropy)).exp()) as f32
            } else {
                0.0
            }
        };
        found.iter().map(weight).collect()
    }

    /// Takes a step, if enough samples came; returns the logits before it and what was learned.
    fn step(&mut self, learner: &mut Learner, images: &Tensor<4>) -> (Tensor<2>, Learned) {
        let logits = learner.training_scores(images.clone());
        let uncertainty = entropies(logits.clone());
        let found = rows(&uncertainty);
        let targets = self.targets(&found);
        let early = self.bet.samples < self.config.first_samples;
        let moved = targets.iter().zip(&found).filter(|(to, from)| to != from);
        let mut learned = Learned {
            accepted: moved.count(),
            considered: found.len(),
            ..Learned::nothing()
        };
        if early || learned.accepted == 0 {
            // Nobody asks for gradients, and only a backward pass frees what the forward pass recorded.
            let _ = uncertainty.sum().backward();
        } else {
            let device = uncertainty.device();
            let column = |values: Vec<f32>| {
                let count = values.len();
                Tensor::<2>::from_data(TensorData::new(values, [count, 1]), &device)
            };
            let way = uncertainty - column(targets);
            let loss = (way.square() * column(self.weights(&found))).mean() * 0.5;
            learned.losses.push(("entropy", value(&loss)));
            learned.updates = 1;
            learner.step(&loss);
        }
        (logits.without_autodiff(), learned)
    }
}

impl Method for Poem {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, &batch.images).1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, &batch.images);
        Ok((learner.scores(before, &batch.images, order), learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.bet)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.bet = from_bytes(state)?;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> SourceEntropies {
        SourceEntropies(vec![0.0, 0.125, 0.125, 0.125, 0.5, 1.0])
    }

    fn method() -> Poem {
        Poem {
            config: PoemConfig::default(),
            classes: 3,
            source: source(),
            bet: Bet::default(),
        }
    }

    #[test]
    fn shares_and_quantiles_are_linear_in_between() {
        let source = source();
        for (entropy, share) in [
            (-1.0, 0.0),
            (0.0, 0.0),
            (0.0625, 0.1),
            // Three are equal: the place of the middle one.
            (0.125, 0.4),
            (0.75, 0.9),
            (2.0, 1.0),
        ] {
            assert!((source.share(entropy) - share).abs() < 1e-6, "{entropy}");
        }
        for (share, entropy) in [(0.0, 0.0), (0.1, 0.0625), (0.7, 0.3125), (1.0, 1.0)] {
            assert!((source.quantile(share) - entropy).abs() < 1e-6, "{share}");
        }
    }

    #[test]
    fn a_bet_on_the_middle_never_starts() {
        let mut bet = Bet::default();
        for _ in 0..1000 {
            bet.observe(0.5, &PoemConfig::default());
        }
        let expected = Bet {
            samples: 1000,
            ..Bet::default()
        };
        assert_eq!(bet, expected);
    }

    #[test]
    fn a_correction_maps_shares_onto_themselves_in_their_order() {
        for stake in [-2.0, -1.8, -0.3, 0.0, 0.7, 1.8, 2.0] {
            let bet = Bet {
                stake,
                ..Bet::default()
            };
            assert_eq!(bet.corrected(0.0), 0.0);
            assert!((bet.corrected(1.0) - 1.0).abs() < 1e-15);
            let shares: Vec<f64> = (0..=100)
                .map(|n| bet.corrected(f64::from(n) / 100.0))
                .collect();
            // At a stake of two the slope at one end is zero.
            assert!(shares.is_sorted_by(|a, b| a <= b), "{stake}: {shares:?}");
        }
        assert_eq!(Bet::default().corrected(0.3), 0.3);
    }

    #[test]
    fn without_a_bet_every_sample_is_its_own_target() {
        // The entropies of the middle of the source, and one beyond all of them.
        assert_eq!(method().targets(&[5.0]), [5.0]);
        let mut middle = method();
        middle.source = SourceEntropies(vec![0.0, 1.0]);
        assert_eq!(middle.targets(&[0.5; 300]), [0.5; 300]);
        assert_eq!(middle.bet.stake, 0.0);
    }

    #[test]
    fn a_bet_wins_on_high_entropies_and_asks_for_lower_ones() {
        let mut method = method();
        let targets = method.targets(&[0.7; 400]);
        let Bet { stake, wealth, .. } = method.bet;
        assert!(stake > 1.0 && wealth > 1e10, "{:?}", method.bet);
        // It goes on until it is just above the highest.
        assert!(stake < PoemConfig::default().highest_bet + 0.1);
        assert!(
            targets[399] < 0.7 && targets[399] >= 0.0,
            "{}",
            targets[399]
        );
        let same = Bet::default();
        assert_eq!(same.corrected(0.9), 0.9);
    }

    #[test]
    fn what_is_not_a_number_is_not_bet_on() {
        let mut method = method();
        let targets = method.targets(&[f32::NAN]);
        assert!(targets[0].is_nan());
        assert_eq!(method.bet, Bet::default());
    }

    #[test]
    fn bad_constants_are_all_named() {
        let config = PoemConfig {
            bet_rate: -1.0,
            highest_bet: 2.0,
            ..PoemConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in ["bet_rate", "highest_bet"] {
            assert!(message.contains(name), "{message}");
        }
    }
}
