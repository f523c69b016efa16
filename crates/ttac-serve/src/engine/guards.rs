//! What guards look at, and when a stream is beyond its bounds.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use ttac::Answer;

use crate::api::GuardValue;
use crate::config::GuardBounds;

/// The source is sure of a class from this probability on.
const SURE: f32 = 0.9;

/// Agreement with the source is judged from so many images on of which the source is sure.
const FEWEST_SURE: u64 = 20;

/// Agreement falls when it is so far below its best.
const FALL: f64 = 0.05;

/// A float that comes back from JSON with the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct Exact(pub f64);

impl From<u64> for Exact {
    fn from(bits: u64) -> Self {
        Self(f64::from_bits(bits))
    }
}

impl From<Exact> for u64 {
    fn from(exact: Exact) -> Self {
        exact.0.to_bits()
    }
}

/// What a learn batch showed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shown {
    images: u64,
    /// The sum of the entropies of the predictions.
    entropy: Exact,
    /// How often each class was predicted.
    predicted: Vec<u32>,
    /// How often the candidate and the source predicted each class of the images that both scored.
    candidate: Vec<u32>,
    source: Vec<u32>,
    /// Images of which the source is sure, and those among them of which the candidate says the same.
    sure: u64,
    agreed: u64,
}

/// What guards remember of the newest images. It is a part of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The newest learn batches, oldest first.
    shown: VecDeque<Shown>,
    /// The least distance from the anchors since the last reset.
    least_distance: Option<Exact>,
    /// The newest distance.
    distance: Option<Exact>,
    /// The best agreement with the source since the last reset.
    best_agreement: Option<Exact>,
    /// The newest distance of the parameters.
    drift: Option<Exact>,
}

/// What a learn batch and the candidate that it led to are judged by.
pub struct Signs<'a> {
    /// The answers to the batch before it was learned from.
    pub answer: &'a Answer,
    /// The candidate's answers to some of its images.
    pub candidate: &'a Answer,
    /// The source's answers to the same images.
    pub source: &'a Answer,
    /// How far the parameters have moved.
    pub drift: Option<f64>,
}

impl Window {
    /// Looks at a learn batch.
    pub fn look(&mut self, bounds: &GuardBounds, signs: &Signs<'_>) {
        let classes = signs.answer.num_classes;
        let rows = signs.source.probabilities.chunks_exact(classes);
        let pairs = signs.source.classes.iter().zip(&signs.candidate.classes);
        let (mut sure, mut agreed) = (0, 0);
        for (row, (source, candidate)) in rows.zip(pairs) {
            if row[*source] >= SURE {
                sure += 1;
                agreed += u64::from(source == candidate);
            }
        }
        self.shown.push_back(Shown {
            images: signs.answer.classes.len() as u64,
            entropy: Exact(entropies(&signs.answer.probabilities)),
            predicted: counts(&signs.answer.classes, classes),
            candidate: counts(&signs.candidate.classes, classes),
            source: counts(&signs.source.classes, classes),
            sure,
            agreed,
        });
        // The window is as short as it can be while it is full.
        while let Some(oldest) = self.shown.front() {
            if self.images() - oldest.images < bounds.window as u64 {
                break;
            }
            self.shown.pop_front();
        }
        self.drift = signs.drift.map(Exact);
        self.distance = signs
            .answer
            .learned
            .anchor_distance
            .map(Exact)
            .or(self.distance);
        if let Some(Exact(new)) = self.distance {
            let least = self
                .least_distance
                .map_or(new, |Exact(least)| least.min(new));
            self.least_distance = Some(Exact(least));
        }
        if let Some(new) = self.agreement().filter(|_| self.is_full(bounds)) {
            let best = self.best_agreement.map_or(new, |Exact(best)| best.max(new));
            self.best_agreement = Some(Exact(best));
        }
    }

    /// Whether there are as many images as are judged together.
    pub fn is_full(&self, bounds: &GuardBounds) -> bool {
        self.images() >= bounds.window as u64
    }

    /// Returns the guards with their values. Those that need a full window have none before.
    pub fn judge(&self, bounds: &GuardBounds) -> Vec<GuardValue> {
        let full = self.is_full(bounds);
        let when_full = |value: Option<f64>| value.filter(|_| full);
        let marginal = when_full(self.marginal(|shown| &shown.predicted));
        let source = self.marginal(|shown| &shown.source);
        let candidate = self.marginal(|shown| &shown.candidate);
        let of_source =
            when_full(candidate.zip(source).map(
                |(mine, source)| {
                    if source > 0.0 { mine / source } else { 1.0 }
                },
            ));
        let agreement = when_full(self.agreement());
        let best = self.best_agreement.map(|Exact(best)| best);
        let falls = agreement
            .zip(best)
            .is_some_and(|(now, best)| now < best - FALL);
        let entropy = when_full(self.entropy());
        let distance = self.distance.zip(self.least_distance);
        let distance = distance.map(
            |(Exact(now), Exact(least))| {
                if least > 0.0 { now / least } else { 1.0 }
            },
        );
        let drift = self.drift.map(|Exact(drift)| drift);
        let least = |name: &str, value: Option<f64>, bound: f64| GuardValue {
            name: name.to_owned(),
            value,
            bound,
            // What is not a number is beyond any bound.
            alarmed: value.is_some_and(|value| value.is_nan() || value < bound),
        };
        let most = |name: &str, value: Option<f64>, bound: f64| GuardValue {
            name: name.to_owned(),
            value,
            bound,
            alarmed: value.is_some_and(|value| value.is_nan() || value > bound),
        };
        let mut entropy = least("entropy", entropy, bounds.entropy);
        entropy.alarmed &= falls;
        vec![
            least("marginal", marginal, bounds.marginal),
            least("marginal-of-source", of_source, bounds.marginal_of_source),
            entropy,
            most("drift", drift, bounds.drift),
            most("anchors", when_full(distance), bounds.anchors),
            least("agreement", agreement, bounds.agreement),
        ]
    }

    /// Forgets everything, as after a roll back.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn images(&self) -> u64 {
        self.shown.iter().map(|shown| shown.images).sum()
    }

    /// The entropy of predicted classes, as a share of the largest it could have.
    fn marginal(&self, of: impl Fn(&Shown) -> &Vec<u32>) -> Option<f64> {
        let mut sums = Vec::new();
        for shown in &self.shown {
            let counts = of(shown);
            sums.resize(counts.len().max(sums.len()), 0_u64);
            for (sum, &count) in sums.iter_mut().zip(counts) {
                *sum += u64::from(count);
            }
        }
        let all: u64 = sums.iter().sum();
        let most = (sums.len() as f64).min(all as f64);
        if most < 2.0 {
            return None;
        }
        let shares = sums.iter().map(|&count| count as f64 / all as f64);
        let entropy: f64 = shares
            .filter(|&share| share > 0.0)
            .map(|share| -share * share.ln())
            .sum();
        Some(entropy / most.ln())
    }

    /// The mean entropy of a prediction, as a share of the largest.
    fn entropy(&self) -> Option<f64> {
        let classes = self.shown.back()?.predicted.len();
        let sum: f64 = self.shown.iter().map(|shown| shown.entropy.0).sum();
        (classes > 1).then(|| sum / self.images() as f64 / (classes as f64).ln())
    }

    fn agreement(&self) -> Option<f64> {
        let sure: u64 = self.shown.iter().map(|shown| shown.sure).sum();
        let agreed: u64 = self.shown.iter().map(|shown| shown.agreed).sum();
        (sure >= FEWEST_SURE).then(|| agreed as f64 / sure as f64)
    }
}

fn counts(predicted: &[usize], classes: usize) -> Vec<u32> {
    let mut counts = vec![0; classes];
    for &class in predicted {
        counts[class] += 1;
    }
    counts
}

fn entropies(probabilities: &[f32]) -> f64 {
    let positive = probabilities.iter().filter(|&&p| p > 0.0);
    positive.map(|&p| -f64::from(p) * f64::from(p).ln()).sum()
}

#[cfg(test)]
mod tests {
    use ttac::burn::tensor::Device;
    use ttac::data::{Images, Samples};
    use ttac::{Model, Session};

    use super::*;

    /// Answers of the shipped network, whose numbers are then replaced.
    fn answer(classes: &[usize], sure: f32) -> Answer {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../assets/shapes10/model.safetensors"
        );
        let model = Model::load(path.as_ref(), &Device::flex()).unwrap();
        let session = Session::builder(&model).method("test").build().unwrap();
        let image = Samples::from(Images {
            height: 32,
            width: 32,
            pixels: vec![0; 32 * 32 * 3],
        });
        let mut answer = session.predict(&image).unwrap();
        answer.classes = classes.to_vec();
        answer.probabilities = Vec::new();
        for &class in classes {
            let mut row = vec![(1.0 - sure) / 9.0; 10];
            row[class] = sure;
            answer.probabilities.extend(row);
        }
        answer
    }

    fn bounds() -> GuardBounds {
        GuardBounds {
            window: 40,
            ..GuardBounds::default()
        }
    }

    fn alarmed(window: &Window) -> Vec<String> {
        let guards = window.judge(&bounds()).into_iter();
        guards
            .filter(|guard| guard.alarmed)
            .map(|guard| guard.name)
            .collect()
    }

    #[test]
    fn an_ordinary_stream_is_within_all_bounds() {
        let mixed = answer(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 0.95);
        let mut window = Window::default();
        for _ in 0..12 {
            let signs = Signs {
                answer: &mixed,
                candidate: &mixed,
                source: &mixed,
                drift: Some(0.1),
            };
            window.look(&bounds(), &signs);
            assert_eq!(alarmed(&window), [""; 0]);
        }
        assert_eq!(window.images(), 40);
    }

    #[test]
    fn each_guard_sees_what_it_is_there_for() {
        let mixed = answer(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 0.95);
        let one = answer(&[3; 10], 0.95);
        let other = answer(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 0], 0.95);
        let judged = |answer: &Answer, candidate: &Answer, drift: f64| {
            let mut window = Window::default();
            for _ in 0..4 {
                assert_eq!(
                    window
                        .judge(&bounds())
                        .iter()
                        .filter(|g| g.alarmed && g.name != "drift")
                        .count(),
                    0
                );
                window.look(
                    &bounds(),
                    &Signs {
                        answer,
                        candidate,
                        source: &mixed,
                        drift: Some(drift),
                    },
                );
            }
            alarmed(&window)
        };
        assert_eq!(judged(&mixed, &other, 0.1), ["agreement"]);
        assert_eq!(
            judged(&one, &one, 0.1),
            ["marginal", "marginal-of-source", "agreement"]
        );
        assert_eq!(judged(&mixed, &mixed, 1.5), ["drift"]);
        assert_eq!(judged(&mixed, &mixed, f64::NAN), ["drift"]);
    }

    #[test]
    fn a_window_comes_back_from_its_text_with_the_same_bits() {
        let mixed = answer(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 0.123_456_7);
        let mut window = Window::default();
        let signs = Signs {
            answer: &mixed,
            candidate: &mixed,
            source: &mixed,
            drift: Some(std::f64::consts::PI / 7.0),
        };
        window.look(&bounds(), &signs);
        let text = serde_json::to_string(&window).unwrap();
        assert_eq!(serde_json::from_str::<Window>(&text).unwrap(), window);
    }
}
