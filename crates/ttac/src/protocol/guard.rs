//! Noticing when adaptation goes wrong.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::method::Learned;
use crate::{Error, Result};

/// Batches between two looks at the parameters and at the source's view of the stream, which both take time.
const LOOK_INTERVAL: usize = 8;

/// How many samples of a batch the source predicts when the guard looks at its view.
pub(crate) const SOURCE_SAMPLES: usize = 64;

/// Fewer predictions than this are never judged: with two classes, eight equal ones are no news.
const FEWEST_JUDGED: usize = 32;

/// What happens when adaptation goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardAction {
    /// A warning is written down and adaptation goes on.
    #[default]
    Warn,
    /// Adaptation stops with an error.
    Stop,
    /// The method goes back to the source and goes on from there.
    Reset,
}

/// The bounds of healthy adaptation, and what happens beyond them.
///
/// A guard looks at four things: whether losses, scores and parameters are finite; how many classes the last
/// predictions fell into; how many classes the source itself sees in the stream, since norm statistics of a single
/// class scatter an adapted network's predictions; and how far the parameters moved from the source. It needs no
/// labels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Guard {
    /// What happens beyond the bounds. Something that is not finite is never just a warning: the method is reset.
    pub action: GuardAction,
    /// How many of the newest predictions are judged together. Fewer are judged while the stream is young, but at
    /// least 32, and at least four for each class if the window has room for that.
    pub window: usize,
    /// The least entropy of the classes predicted in the window, as a share of the largest it could have,
    /// `ln(min(classes, predictions))`.
    pub entropy_floor: f64,
    /// The largest distance of the parameters from the source, relative to their length.
    pub drift_limit: f64,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            action: GuardAction::Warn,
            window: 256,
            entropy_floor: 0.3,
            drift_limit: 1.0,
        }
    }
}

impl Guard {
    /// Returns the default bounds with another action.
    pub fn with_action(action: GuardAction) -> Self {
        Self {
            action,
            ..Self::default()
        }
    }

    /// Checks the bounds; the error lists everything that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        if self.window < FEWEST_JUDGED {
            problems.push(format!(
                "`window` must be at least {FEWEST_JUDGED}, found {}",
                self.window
            ));
        }
        if !(0.0..=1.0).contains(&self.entropy_floor) {
            problems.push(format!(
                "`entropy_floor` must be 0 to 1, found {}",
                self.entropy_floor
            ));
        }
        if self.drift_limit.is_nan() || self.drift_limit <= 0.0 {
            problems.push(format!(
                "`drift_limit` must be above zero, found {}",
                self.drift_limit
            ));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "guard",
            problem: problems.join("; "),
        })
    }
}

/// What a guard found, and what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// What was wrong, in words.
    pub reason: String,
    /// What the guard did about it.
    pub action: GuardAction,
}

/// What a guard remembers from batch to batch. It is part of a session's saved state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The newest predicted classes.
    predicted: Window,
    /// The classes of samples that were shown to the source, now and then.
    source: Window,
    /// Whether the last look at the parameters found them too far away.
    drifted: bool,
}

/// The newest classes of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    /// Oldest first.
    recent: VecDeque<u32>,
    /// Whether the last judgement was a collapse, so that it is reported once and not at every batch.
    collapsed: bool,
}

/// What is looked at now and then.
pub(crate) struct Look {
    /// How far the parameters have moved; `None` for methods that move none.
    pub drift: Option<f64>,
    /// The classes that the source predicts for some samples of the batch.
    pub source: Vec<usize>,
}

/// What a batch showed of a method's health.
pub(crate) struct Signs<'a> {
    /// The number of the batch.
    pub batch: usize,
    /// How many classes the network has.
    pub classes: usize,
    pub learned: &'a Learned,
    pub predicted: &'a [usize],
    /// Whether all scores are numbers.
    pub finite_scores: bool,
}

impl Watch {
    /// Judges a batch. `look` is asked now and then.
    pub(crate) fn judge(
        &mut self,
        guard: &Guard,
        signs: &Signs<'_>,
        look: impl FnOnce() -> Look,
    ) -> Option<Alarm> {
        let mut broken = not_finite(signs);
        let mut problems = Vec::new();
        let collapse = self
            .predicted
            .collapse(guard, signs.classes, signs.predicted);
        problems.extend(collapse.map(|found| format!("the last predictions fell into {found}")));
        if signs.batch.is_multiple_of(LOOK_INTERVAL) {
            let Look { drift, source } = look();
            let drift = drift.unwrap_or_default();
            if !drift.is_finite() {
                broken.push("parameters are not finite".to_owned());
            }
            let far = drift > guard.drift_limit;
            if far && !self.drifted {
                problems.push(format!(
                    "parameters are {drift:.2} of their length away from the source"
                ));
            }
            self.drifted = far;
            let collapse = self.source.collapse(guard, signs.classes, &source);
            problems.extend(collapse.map(|found| {
                format!("the source itself sees {found}, which is no stream to adapt to")
            }));
        }
        let action = match guard.action {
            GuardAction::Warn if !broken.is_empty() => GuardAction::Reset,
            action => action,
        };
        broken.extend(problems);
        if broken.is_empty() {
            return None;
        }
        Some(Alarm {
            reason: broken.join("; "),
            action,
        })
    }

    /// Forgets everything, as after a return to the source.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Window {
    /// Adds classes; says so if the window has just fallen into too few.
    fn collapse(&mut self, guard: &Guard, classes: usize, newest: &[usize]) -> Option<String> {
        self.recent.extend(newest.iter().map(|&class| class as u32));
        let surplus = self.recent.len().saturating_sub(guard.window);
        self.recent.drain(..surplus);
        let found = self.few_classes(guard, classes);
        let known = std::mem::replace(&mut self.collapsed, found.is_some());
        found.filter(|_| !known)
    }

    /// Describes the window if it has too few classes.
    fn few_classes(&self, guard: &Guard, classes: usize) -> Option<String> {
        let count = self.recent.len();
        let enough = guard.window.min(FEWEST_JUDGED.max(4 * classes));
        if count < enough || classes < 2 {
            return None;
        }
        let mut counts = vec![0_usize; classes];
        for &class in &self.recent {
            counts[class as usize] += 1;
        }
        let shares = counts.iter().filter(|&&count| count > 0);
        let entropy: f64 = shares
            .map(|&part| part as f64 / count as f64)
            .map(|share| -share * share.ln())
            .sum();
        let share = entropy.abs() / (classes.min(count) as f64).ln();
        let used = counts.iter().filter(|&&count| count > 0).count();
        (share < guard.entropy_floor).then(|| {
            format!(
                "{used} of {classes} classes in {count} samples (entropy {share:.2} of its largest)"
            )
        })
    }
}

/// Names what is not a number in a batch.
fn not_finite(signs: &Signs<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    let losses = signs.learned.losses.iter();
    for (name, value) in losses.filter(|(_, value)| !value.is_finite()) {
        broken.push(format!("loss `{name}` became {value}"));
    }
    if let Some(name) = signs.learned.not_finite {
        broken.push(format!("the gradient of the {name} is not finite"));
    }
    if !signs.finite_scores {
        broken.push("scores are not finite".to_owned());
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look that finds nothing.
    const NOTHING: Look = Look {
        drift: None,
        source: Vec::new(),
    };

    fn signs<'a>(learned: &'a Learned, predicted: &'a [usize], classes: usize) -> Signs<'a> {
        Signs {
            batch: 1,
            classes,
            learned,
            predicted,
            finite_scores: true,
        }
    }

    #[test]
    fn only_enough_predictions_of_few_classes_are_a_collapse() {
        let (guard, learned) = (Guard::default(), Learned::nothing());
        let judge = |predicted: &[usize]| {
            let signs = signs(&learned, predicted, 10);
            Watch::default().judge(&guard, &signs, || NOTHING)
        };
        let balanced: Vec<usize> = (0..100).map(|i| i % 10).collect();
        assert_eq!(judge(&balanced), None);
        let alarm = judge(&[3; 100]).unwrap();
        assert_eq!(alarm.action, GuardAction::Warn);
        assert!(alarm.reason.contains("1 of 10 classes"), "{}", alarm.reason);
        assert_eq!(judge(&[3; 30]), None, "too few to judge");
    }

    #[test]
    fn small_batches_of_many_classes_are_judged_by_the_window() {
        let (guard, learned) = (Guard::default(), Learned::nothing());
        let mut watch = Watch::default();
        let one_class = [7; 64];
        let alarms: Vec<bool> = (0..6)
            .map(|_| {
                let signs = signs(&learned, &one_class, 1000);
                watch.judge(&guard, &signs, || NOTHING).is_some()
            })
            .collect();
        assert_eq!(
            alarms,
            [false, false, false, true, false, false],
            "said once, when the window is full"
        );
        let mut healthy = Watch::default();
        for batch in 0..20_usize {
            let mixed: Vec<usize> = (0..64).map(|i| (batch * 64 + i) * 379 % 1000).collect();
            let signs = signs(&learned, &mixed, 1000);
            assert_eq!(healthy.judge(&guard, &signs, || NOTHING), None);
        }
    }

    #[test]
    fn a_stream_of_one_class_is_noticed_by_the_source_even_if_predictions_scatter() {
        let (guard, learned) = (Guard::default(), Learned::nothing());
        let scattered: Vec<usize> = (0..64).map(|i| i % 10).collect();
        let look = |class: usize| {
            move || Look {
                drift: None,
                source: vec![class; SOURCE_SAMPLES],
            }
        };
        let mut watch = Watch::default();
        let first = Signs {
            batch: 0,
            ..signs(&learned, &scattered, 10)
        };
        let alarm = watch.judge(&guard, &first, look(3)).unwrap();
        assert!(
            alarm.reason.contains("the source itself sees 1 of 10"),
            "{}",
            alarm.reason
        );
        let between = signs(&learned, &scattered, 10);
        assert_eq!(watch.judge(&guard, &between, look(3)), None, "not looked");
        let again = Signs { batch: 8, ..first };
        assert_eq!(watch.judge(&guard, &again, look(3)), None, "said already");
    }

    #[test]
    fn what_is_not_finite_is_never_just_a_warning() {
        let guard = Guard::default();
        let loss = Learned::one_step(vec![("entropy", f64::NAN)]);
        let gradient = Learned {
            not_finite: Some("anchored loss"),
            ..Learned::nothing()
        };
        for (learned, expected) in [
            (&loss, "loss `entropy` became NaN"),
            (&gradient, "gradient of the anchored loss"),
        ] {
            let alarm = Watch::default()
                .judge(&guard, &signs(learned, &[0], 10), || NOTHING)
                .unwrap();
            assert_eq!(alarm.action, GuardAction::Reset);
            assert!(alarm.reason.contains(expected), "{}", alarm.reason);
        }
        let learned = Learned::nothing();
        let scores = Signs {
            finite_scores: false,
            ..signs(&learned, &[0], 10)
        };
        let alarm = Watch::default().judge(&guard, &scores, || NOTHING).unwrap();
        assert!(alarm.reason.contains("scores are not finite"));
        let parameters = Signs {
            batch: 8,
            ..signs(&learned, &[0], 10)
        };
        let stop = Guard::with_action(GuardAction::Stop);
        let alarm = Watch::default().judge(&stop, &parameters, || Look {
            drift: Some(f64::NAN),
            source: Vec::new(),
        });
        let alarm = alarm.unwrap();
        assert_eq!(alarm.action, GuardAction::Stop);
        assert!(alarm.reason.contains("parameters are not finite"));
    }

    #[test]
    fn impossible_bounds_are_all_named() {
        let wrong = Guard {
            window: 3,
            entropy_floor: 2.0,
            drift_limit: f64::NAN,
            ..Guard::default()
        };
        let error = wrong.validate().unwrap_err().to_string();
        for name in ["window", "entropy_floor", "drift_limit"] {
            assert!(error.contains(name), "{error}");
        }
    }
}
