use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Domains, invalid_if_any};
use crate::{Error, Result};

/// In which order the samples of a visit arrive. In files it is a word, `shuffled`, `in-order`, `correlated:0.1`, `sorted` (class after
/// class), `note:0.1`, `online-shift:500000` or `imbalanced:100`, or all its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Order {
    /// As in the data set; domains that are mixed take turns.
    InOrder {},
    /// In a random order.
    Shuffled {},
    /// Classes come and go. The visit is cut into slots; for every class, a draw from a symmetric
    /// Dirichlet distribution says which share of its samples falls into which slot. The smaller the
    /// concentration, the longer a class stays: at 10 the slots are much alike, at 0.1 most samples
    /// of a class fall into one or two.
    Correlated {
        /// Concentration of the Dirichlet distribution, 0.001 to 1,000,000.
        concentration: f64,
        /// How many slots; as many as classes if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slots: Option<usize>,
        /// The order within a slot.
        #[serde(default)]
        within: Within,
    },
    /// Classes come and go as NOTE (Gong et al., 2022) has it: like a correlated stream, but chunks that are full take no more, and none
    /// is nearly empty.
    Note {
        /// Concentration of the Dirichlet distribution, 0.001 to 1,000,000.
        concentration: f64,
    },
    /// One class after the other prevails for a while, as in SAR (Niu et al., 2023). Each of as many stretches as there are classes
    /// draws samples with replacement, so that some come again and some never.
    OnlineShift {
        /// How many times as likely the prevailing class is as any other one, at least 1.
        ratio: f64,
        /// How many samples a stretch draws; a hundred if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        draws: Option<usize>,
    },
    /// Classes of very different sizes, each smaller than the one before by the same factor, in the order of a correlated stream with
    /// runs: the stream GLI of TRIBE (Su et al., 2024).
    Imbalanced {
        /// How many times as many samples the first class has as the last, at least 1.
        factor: f64,
        /// Concentration of the Dirichlet distribution; 0.1 if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        concentration: Option<f64>,
        /// Whether every domain draws anew which class has which size.
        #[serde(default)]
        varied: bool,
    },
    /// Classes in other proportions than in the data set, in a random order: the largest part of the
    /// data that has these proportions, or the [`Subset`]'s count of it.
    LabelShift {
        /// The proportions, the same in every visit.
        proportions: Proportions,
    },
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |problem: String| Error::Invalid {
            what: "order",
            problem,
        };
        let correlated = |concentration| Self::Correlated {
            concentration,
            slots: None,
            within: Within::default(),
        };
        let note = |concentration| Self::Note { concentration };
        let online_shift = |ratio| Self::OnlineShift { ratio, draws: None };
        let imbalanced = |factor| Self::Imbalanced {
            factor,
            concentration: None,
            varied: false,
        };
        if let Some((word, number)) = text.split_once(':') {
            let made: Option<&dyn Fn(f64) -> Self> = match word {
                "correlated" => Some(&correlated),
                "note" => Some(&note),
                "online-shift" => Some(&online_shift),
                "imbalanced" => Some(&imbalanced),
                _ => None,
            };
            if let Some(made) = made {
                let number = number.parse();
                return Ok(made(number.map_err(|e| invalid(format!("`{text}`: {e}")))?));
            }
        }
        match text {
            "note" => Ok(note(0.1)),
            "online-shift" => Ok(online_shift(500_000.0)),
            "imbalanced" => Ok(imbalanced(100.0)),
            "shuffled" => Ok(Self::Shuffled {}),
            "in-order" => Ok(Self::InOrder {}),
            "correlated" => Ok(correlated(0.1)),
            // A single slot holds one run of every class.
            "sorted" => Ok(Self::Correlated {
                concentration: 1.0,
                slots: Some(1),
                within: Within::Runs,
            }),
            _ => Err(invalid(format!(
                "expected `shuffled`, `in-order`, `sorted`, `correlated`, `note`, `online-shift` or `imbalanced`, the last four perhaps with `:NUMBER`, found `{text}`"
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Order {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The same fields as [`Order`], which serde fills.
        #[derive(Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
        enum Fields {
            InOrder {},
            Shuffled {},
            Correlated {
                concentration: f64,
                #[serde(default)]
                slots: Option<usize>,
                #[serde(default)]
                within: Within,
            },
            Note {
                concentration: f64,
            },
            OnlineShift {
                ratio: f64,
                #[serde(default)]
                draws: Option<usize>,
            },
            Imbalanced {
                factor: f64,
                #[serde(default)]
                concentration: Option<f64>,
                #[serde(default)]
                varied: bool,
            },
            LabelShift {
                proportions: Proportions,
            },
        }
        let written = serde_json::Value::deserialize(deserializer)?;
        if let Some(word) = written.as_str() {
            return word.parse().map_err(serde::de::Error::custom);
        }
        let fields = Fields::deserialize(written).map_err(serde::de::Error::custom)?;
        Ok(match fields {
            Fields::InOrder {} => Self::InOrder {},
            Fields::Shuffled {} => Self::Shuffled {},
            Fields::Correlated {
                concentration,
                slots,
                within,
            } => Self::Correlated {
                concentration,
                slots,
                within,
            },
            Fields::Note { concentration } => Self::Note { concentration },
            Fields::OnlineShift { ratio, draws } => Self::OnlineShift { ratio, draws },
            Fields::Imbalanced {
                factor,
                concentration,
                varied,
            } => Self::Imbalanced {
                factor,
                concentration,
                varied,
            },
            Fields::LabelShift { proportions } => Self::LabelShift { proportions },
        })
    }
}

impl Order {
    /// Returns whether the order depends on the classes of the samples.
    pub fn needs_labels(&self) -> bool {
        !matches!(self, Self::InOrder {} | Self::Shuffled {})
    }
}

/// The order within a slot of a correlated stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Within {
    /// Class after class, as published for temporally correlated streams.
    #[default]
    Runs,
    /// At random.
    Shuffled,
}

/// Proportions of the classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proportions {
    /// One number for every class; their sum is 1.
    Given(Vec<f64>),
    /// Drawn from a symmetric Dirichlet distribution of this concentration.
    Dirichlet(f64),
}

impl Default for Order {
    fn default() -> Self {
        Self::Shuffled {}
    }
}

impl Order {
    fn problems(&self) -> Vec<String> {
        let concentration = |value: f64| {
            let fits = (1e-3..=1e6).contains(&value);
            let problem = || {
                format!("`concentration`: expected a number from 0.001 to 1000000, found {value}")
            };
            (!fits).then(problem)
        };
        match self {
            Self::InOrder {} | Self::Shuffled {} => Vec::new(),
            Self::Correlated {
                concentration: value,
                slots,
                ..
            } => {
                let none =
                    (*slots == Some(0)).then(|| "`slots`: expected at least 1, found 0".to_owned());
                concentration(*value).into_iter().chain(none).collect()
            }
            Self::OnlineShift { ratio, draws } => {
                let none =
                    (*draws == Some(0)).then(|| "`draws`: expected at least 1, found 0".to_owned());
                at_least_one("ratio", *ratio)
                    .into_iter()
                    .chain(none)
                    .collect()
            }
            Self::Imbalanced {
                factor,
                concentration: value,
                ..
            } => {
                let given = value.and_then(concentration);
                at_least_one("factor", *factor)
                    .into_iter()
                    .chain(given)
                    .collect()
            }
            Self::Note {
                concentration: value,
            }
            | Self::LabelShift {
                proportions: Proportions::Dirichlet(value),
            } => concentration(*value).into_iter().collect(),
            Self::LabelShift {
                proportions: Proportions::Given(values),
            } => {
                let mut problems = Vec::new();
                for (class, value) in values.iter().enumerate() {
                    if !(0.0..=1.0).contains(value) {
                        problems.push(format!(
                            "proportion of class {class}: expected a number from 0 to 1, found {value}"
                        ));
                    }
                }
                let sum: f64 = values.iter().sum();
                if problems.is_empty() && (sum - 1.0).abs() > 1e-6 {
                    problems.push(format!("proportions: expected a sum of 1, found {sum}"));
                }
                problems
            }
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOrder {} => f.write_str("in order"),
            Self::Shuffled {} => f.write_str("shuffled"),
            Self::Correlated {
                slots: Some(1),
                within: Within::Runs,
                ..
            } => f.write_str("sorted by class"),
            Self::Correlated { concentration, .. } => {
                write!(f, "correlated (concentration {concentration})")
            }
            Self::Note { concentration } => {
                write!(f, "NOTE's chunks (concentration {concentration})")
            }
            Self::OnlineShift { ratio, .. } => {
                write!(f, "one class after the other prevails (ratio {ratio})")
            }
            Self::Imbalanced { factor, .. } => {
                write!(f, "imbalanced (factor {factor}), correlated")
            }
            Self::LabelShift { .. } => f.write_str("label shift, shuffled"),
        }
    }
}

/// Names a number that has to be at least one and is not.
fn at_least_one(name: &str, value: f64) -> Option<String> {
    let fits = (1.0..=1e12).contains(&value);
    (!fits).then(|| format!("`{name}`: expected a number from 1 to 1e12, found {value}"))
}

/// A part of every domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subset {
    /// How many samples of every domain.
    pub count: usize,
    /// Which ones.
    #[serde(default)]
    pub choose: Choose,
}

/// How a subset is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choose {
    /// The first ones of the data set, as `ttac eval --subset` does.
    #[default]
    First,
    /// At random, the same ones in every domain of the same size. For data sets sorted by class.
    Random,
}

/// What kind of stream is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StreamConfig {
    /// Where the samples come from.
    pub domains: Domains,
    /// In which order they arrive.
    #[serde(default)]
    pub order: Order,
    /// How many arrive at a time.
    #[serde(default = "default_batch_size")]
    pub batch_size: usize,
    /// A part of every domain instead of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subset: Option<Subset>,
    /// Seed of everything random.
    #[serde(default)]
    pub seed: u64,
}

fn default_batch_size() -> usize {
    256
}

impl StreamConfig {
    /// Takes all samples of the domains, shuffled with seed 0, in batches of 256.
    pub fn new(domains: Domains) -> Self {
        Self {
            domains,
            order: Order::default(),
            batch_size: default_batch_size(),
            subset: None,
            seed: 0,
        }
    }

    /// Sets the order of arrival.
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets how many samples arrive at a time.
    pub fn with_batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size;
        self
    }

    /// Takes a part of every domain.
    pub fn with_subset(mut self, count: usize, choose: Choose) -> Self {
        self.subset = Some(Subset { count, choose });
        self
    }

    /// Sets the seed of everything random.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Checks whether there can be such a stream; the error lists everything that is wrong.
    pub fn validate(&self) -> Result<()> {
        let mut problems = self.domains.problems();
        problems.extend(self.order.problems());
        if self.batch_size == 0 {
            problems.push("`batch-size`: expected at least 1, found 0".to_owned());
        }
        if self.subset.is_some_and(|subset| subset.count == 0) {
            problems.push("`subset`: expected a count of at least 1, found 0".to_owned());
        }
        invalid_if_any(&problems)
    }
}
