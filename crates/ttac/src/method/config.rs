//! Methods by name.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Bn, BnConfig, Method, NormUpdates, Shot, ShotConfig, Statistics, T3a, T3aConfig, Tent,
    TentConfig, Test, Tfa, TfaConfig, Ttac, TtacConfig, TttR, TttRConfig,
};
use crate::backbone::Backbone;
use crate::stats::SourceStatistics;
use crate::{Error, Result, nearest};

/// Names of the methods, each with a line of explanation.
pub const METHOD_NAMES: [(&str, &str); 13] = [
    ("test", "the source network as it is"),
    ("bn", "norm statistics of the target"),
    ("tent", "entropy minimisation over norm scales and shifts"),
    ("t3a", "classifier adjusted by confident target features"),
    ("shot", "information maximisation over all features"),
    (
        "ttt-r",
        "rotation prediction image by image; needs a rotation head",
    ),
    ("tfa", "feature moments aligned with the anchors'"),
    (
        "ttt++",
        "the same with contrastive learning; needs a joint model",
    ),
    ("ttac", "anchored clustering"),
    (
        "ttac+shot",
        "anchored clustering with information maximisation",
    ),
    (
        "ttac-source-free",
        "anchored clustering around the classifier's rows",
    ),
    (
        "ttac-source-free+shot",
        "the same with information maximisation",
    ),
    (
        "ttac+contrastive",
        "anchored clustering with contrastive learning; needs a joint model",
    ),
];

/// Whose constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The authors' program, to the letter.
    Released,
    /// What we advise for a real stream.
    #[default]
    Recommended,
}

/// Which kind of protocol constants are meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// One pass without a queue.
    NoQueue,
    /// One pass with a queue.
    Queue,
    /// Several passes.
    ManyPasses,
}

/// A method with all its constants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "kebab-case")]
pub enum MethodConfig {
    /// See [`Test`].
    Test,
    /// See [`Bn`].
    Bn(BnConfig),
    /// See [`Tent`].
    Tent(TentConfig),
    /// See [`T3a`].
    T3a(T3aConfig),
    /// See [`Shot`].
    Shot(ShotConfig),
    /// See [`TttR`].
    TttR(TttRConfig),
    /// See [`Tfa`].
    Tfa(TfaConfig),
    /// See [`Ttac`].
    Ttac(Box<TtacConfig>),
}

impl MethodConfig {
    /// The method a name stands for, one of [`METHOD_NAMES`].
    pub fn by_name(name: &str, preset: Preset, setting: Setting) -> Result<Self> {
        let ttac = || ttac(preset, setting);
        let with_shot = |config: TtacConfig| TtacConfig {
            information_weight: 2.0 * config.loss_scale,
            ..config
        };
        let source_free = |config: TtacConfig| match preset {
            Preset::Released => config.source_free(),
            Preset::Recommended => TtacConfig {
                loss_scale: RECOMMENDED_SOURCE_FREE_LOSS_SCALE,
                ..config.source_free()
            },
        };
        let boxed = |config: TtacConfig| Self::Ttac(Box::new(config));
        let norm = match preset {
            Preset::Released => NormUpdates::default(),
            Preset::Recommended => RECOMMENDED_NORM,
        };
        Ok(match name {
            "test" => Self::Test,
            "bn" => Self::Bn(BnConfig {
                statistics: match setting {
                    Setting::NoQueue => Statistics::Batch,
                    Setting::Queue | Setting::ManyPasses => Statistics::Running,
                },
                norm,
            }),
            "tent" => Self::Tent(TentConfig::default()),
            "t3a" => Self::T3a(T3aConfig::default()),
            "shot" => Self::Shot(ShotConfig {
                norm,
                ..ShotConfig::default()
            }),
            "ttt-r" => Self::TttR(TttRConfig::default()),
            "tfa" => Self::Tfa(TfaConfig {
                norm,
                ..TfaConfig::default()
            }),
            "ttt++" => Self::Tfa(TfaConfig {
                norm,
                ..TfaConfig::ttt_plus_plus()
            }),
            "ttac" => boxed(ttac()),
            "ttac+shot" => boxed(with_shot(ttac())),
            "ttac-source-free" => boxed(source_free(ttac())),
            "ttac-source-free+shot" => boxed(source_free(with_shot(ttac()))),
            "ttac+contrastive" => boxed(TtacConfig {
                contrastive: true,
                ..ttac()
            }),
            unknown => {
                let names = METHOD_NAMES.map(|(name, _)| name);
                let advice = match nearest(unknown, names) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!("the known ones are `{}`", names.join("`, `")),
                };
                return Err(Error::Invalid {
                    what: "method",
                    problem: format!("unknown `{unknown}`; {advice}"),
                });
            }
        })
    }

    /// The same method with one constant changed: `learning_rate` to `0.02`, or, inside another,
    /// `filter.posterior_threshold` to `0.8`. Values are JSON; text need not be quoted.
    pub fn with_field(&self, path: &str, value: &str) -> Result<Self> {
        let invalid = |problem: String| Error::Invalid {
            what: "method constant",
            problem,
        };
        let mut config = serde_json::to_value(self).expect("a configuration is plain JSON");
        let (parents, last) = path.rsplit_once('.').map_or(("", path), |(p, l)| (p, l));
        let mut place = &mut config;
        for part in parents.split('.').filter(|part| !part.is_empty()) {
            place = place
                .get_mut(part)
                .ok_or_else(|| invalid(format!("no `{part}` in `{path}`")))?;
        }
        let fields = place
            .as_object_mut()
            .ok_or_else(|| invalid(format!("`{parents}` has no fields")))?;
        // Fields that are absent by default are still fields.
        let optional = ["prior_batches", "supports", "gradient_bound"].contains(&last);
        if path == "method" || !(fields.contains_key(last) || optional) {
            let known: Vec<&str> = fields.keys().map(String::as_str).collect();
            let advice = match nearest(last, known.iter().copied()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("the fields are `{}`", known.join("`, `")),
            };
            return Err(invalid(format!("no field `{path}`; {advice}")));
        }
        let value: Value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        fields.insert(last.to_owned(), value);
        serde_json::from_value(config).map_err(|e| invalid(format!("`{path}`: {e}")))
    }

    /// Whether it cannot do without source statistics.
    pub fn needs_anchors(&self) -> bool {
        match self {
            Self::Tfa(_) => true,
            Self::Ttac(config) => config.source == super::SourceKind::Statistics,
            _ => false,
        }
    }

    /// Whether it uses a self-supervised branch, which the source has to be trained for: the Y
    /// protocols.
    pub fn needs_joint_training(&self) -> bool {
        match self {
            Self::TttR(_) => true,
            Self::Tfa(config) => config.contrastive,
            Self::Ttac(config) => config.contrastive,
            _ => false,
        }
    }

    /// The method, ready to adapt a network.
    pub fn init<B: Backbone + 'static>(
        &self,
        network: B,
        source: Option<&SourceStatistics>,
    ) -> Result<Box<dyn Method>> {
        Ok(match self {
            Self::Test => Box::new(Test::new(network)),
            Self::Bn(config) => Box::new(Bn::new(network, *config)),
            Self::Tent(config) => Box::new(Tent::new(network, *config)),
            Self::T3a(config) => Box::new(T3a::new(network, *config)),
            Self::Shot(config) => Box::new(Shot::new(network, *config)),
            Self::TttR(config) => Box::new(TttR::new(network, *config)?),
            Self::Tfa(config) => {
                let source = source.ok_or_else(|| no_anchors("tfa"))?;
                Box::new(Tfa::new(network, source, *config)?)
            }
            Self::Ttac(config) => Box::new(Ttac::new(network, source, (**config).clone())?),
        })
    }
}

// What `recommended` changes was chosen on the held-out corruptions (speckle noise, Gaussian blur, spatter,
// saturate) with a ResNet-20 on CIFAR-10, without queue; `results/cifar10-c/README.md` has the figures.

/// How `recommended` lets norm statistics follow: a warm start in which the source counts like one
/// batch.
const RECOMMENDED_NORM: NormUpdates = NormUpdates {
    momentum: 0.1,
    prior_batches: Some(1.0),
};

/// Weight of the anchored losses in `recommended` without a queue, where each batch has one step only.
/// Twice as much is a little better still, four times as much is worse than the released 0.05.
const RECOMMENDED_LOSS_SCALE: f64 = 0.1;

/// The longest gradient in `recommended`, relative to the parameters. The largest bound of 0.01, 0.02,
/// 0.05 and 0.1 that changes nothing under the held-out corruptions of CIFAR-10; it keeps a small
/// network for digits from going astray, where the first gradients are four times as long.
const RECOMMENDED_GRADIENT_BOUND: f64 = 0.1;

/// Without source statistics the template is all there is of a covariance, and pulls tens of times harder.
const RECOMMENDED_SOURCE_FREE_LOSS_SCALE: f64 = 0.01;

fn ttac(preset: Preset, setting: Setting) -> TtacConfig {
    let released = match setting {
        Setting::NoQueue => TtacConfig::without_queue(),
        Setting::Queue => TtacConfig::default(),
        Setting::ManyPasses => TtacConfig::multi_pass(),
    };
    match preset {
        Preset::Released => released,
        Preset::Recommended => TtacConfig {
            norm: RECOMMENDED_NORM,
            gradient_bound: Some(RECOMMENDED_GRADIENT_BOUND),
            loss_scale: match setting {
                Setting::NoQueue => RECOMMENDED_LOSS_SCALE,
                Setting::Queue | Setting::ManyPasses => released.loss_scale,
            },
            ..released
        },
    }
}

pub(super) fn no_anchors(method: &'static str) -> Error {
    Error::Invalid {
        what: "anchors",
        problem: format!("`{method}` needs source statistics; make them with `ttac anchors`"),
    }
}

pub(super) fn no_head(method: &str, head: &str, objective: &str) -> Error {
    Error::Invalid {
        what: "model",
        problem: format!(
            "`{method}` needs {head}, as `ttac train --objective {objective}` makes it; this network has none"
        ),
    }
}
