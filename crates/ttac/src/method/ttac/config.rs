//! Constants and switches.

use serde::{Deserialize, Serialize};

use crate::method::{NormUpdates, Preset, Setting};
use crate::optim::OptimiserConfig;
use crate::stats::{
    CovarianceKind, Eviction, FilterConfig, FilterMode, KlDirection, SoftMoment, TEMPLATE_DIVISOR,
};
use crate::{Error, Result};

/// Constants and switches of [`Ttac`](super::Ttac). The default is the released program's for CIFAR-10 with a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of an ablation"
)]
pub struct TtacConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// What the learning rate is multiplied by where no norm statistics follow the target, as in a transformer. Statistics that follow
    /// take up much of what a step does to all images alike; without them it stays.
    pub norm_free_rate: f64,
    /// From how many samples in a batch on a step is as long as the learning rate says; that of a smaller batch is shorter in proportion, so
    /// that the way does not depend on how a stream is cut. None: a full step of any batch, as in the released program.
    pub full_step: Option<f64>,
    /// The longest gradient, relative to the length of the parameters it belongs to; a longer one is
    /// cut. None: any length, as in the released program. How long gradients get depends on the
    /// network: those of a small network that knows its compact classes well are many times longer,
    /// relative to its weights, and would throw it off in the first steps.
    pub gradient_bound: Option<f64>,
    /// How strongly every step is followed by one back towards the source: the share of the way is this times the drift, which is the
    /// length of the whole way over that of the parameters. None: not at all, as in the released program.
    pub brake: Option<f64>,
    /// Weight of all anchored losses.
    pub loss_scale: f64,
    /// Visits after which the global statistics forget.
    pub clip: f64,
    /// Visits after which the statistics of a class forget.
    pub class_clip: f64,
    /// Which samples enter the class statistics.
    pub filter: FilterConfig,
    /// Where the posteriors for the filter come from.
    pub posteriors: Posteriors,
    /// When the class part counts.
    pub gate: ClassGate,
    /// Whether there is a class part.
    pub class_part: bool,
    /// What the global part is.
    pub global_part: GlobalPart,
    /// Which divergence.
    pub direction: KlDirection,
    /// How samples are assigned to classes.
    pub assignment: Assignment,
    /// How much of the class covariances is used.
    pub class_covariance: CovarianceKind,
    /// The template added to every covariance is the largest entry of the global one over this.
    pub template_divisor: f64,
    /// Whether source classes get the template twice, as in the released program for CIFAR-100.
    pub double_source_template: bool,
    /// Weight of the loss that makes predictions certain; zero for none.
    pub information_weight: f64,
    /// Which loss that is.
    pub information: Information,
    /// Whether the contrastive loss of joint training goes on.
    pub contrastive: bool,
    /// Whether the outputs of the projection head are aligned too.
    pub align_projection: bool,
    /// Whether the projection head is trained, with `contrastive`.
    pub train_projection: bool,
    /// What the classes are anchored to.
    pub source: SourceKind,
    /// How the running norm statistics follow.
    pub norm: NormUpdates,
}

/// Where the posteriors for the filter come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Posteriors {
    /// A second forward pass with running norm statistics, after they have moved.
    #[default]
    Running,
    /// The forward pass of the features itself, with statistics of the batch.
    Batch,
}

/// When the class part counts. Statistics are kept up to date in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassGate {
    /// In which epochs over the queue.
    pub epochs: EpochGate,
    /// Only with a full queue.
    pub full_queue: bool,
    /// Only for classes with at least so many accepted visits.
    pub visits: f64,
}

/// In which epochs over the queue the class part counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EpochGate {
    /// In all.
    #[default]
    Always,
    /// In those after half of the planned ones.
    SecondHalf,
    /// In those after a given one.
    After(usize),
}

/// The global part of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GlobalPart {
    /// The divergence of the global Gaussians.
    #[default]
    Kl,
    /// Squared distance of means and covariances.
    L2,
    /// The divergence of the mixtures of all classes, with the shares that the classes have in the source. A class that has not come
    /// yet counts as it is in the source, so a run of one class pulls at that class alone.
    ByClass,
    /// None.
    None,
}

/// Which loss makes predictions certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Information {
    /// SHOT's information maximisation, which asks for diverse predictions in every minibatch too.
    #[default]
    Diversity,
    /// ROID's likelihood ratios, in which certain samples that are unlike the average prediction count most. Nothing asks for diverse
    /// predictions within a minibatch, so that a run of one class is not torn apart.
    Novelty,
}

/// How samples are assigned to classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignment {
    /// By filtered pseudo-label.
    #[default]
    Hard,
    /// By responsibility of the target's Gaussians, all samples.
    Soft(SoftMoment),
}

/// What the classes are anchored to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// Statistics of source features.
    #[default]
    Statistics,
    /// The classifier's rows, as long as the target's class means: no source data at all.
    Classifier,
}

impl Default for TtacConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::SGD,
            learning_rate: 0.01,
            norm_free_rate: 1.0,
            full_step: None,
            gradient_bound: None,
            brake: None,
            loss_scale: 0.05,
            clip: 1280.0,
            class_clip: 128.0,
            filter: FilterConfig::default(),
            posteriors: Posteriors::Running,
            gate: ClassGate {
                epochs: EpochGate::SecondHalf,
                ..ClassGate::default()
            },
            class_part: true,
            global_part: GlobalPart::Kl,
            direction: KlDirection::Symmetric,
            assignment: Assignment::Hard,
            class_covariance: CovarianceKind::Full,
            template_divisor: TEMPLATE_DIVISOR,
            double_source_template: false,
            information_weight: 0.0,
            information: Information::Diversity,
            contrastive: false,
            align_projection: false,
            train_projection: true,
            source: SourceKind::Statistics,
            norm: NormUpdates::default(),
        }
    }
}

// What `recommended` changes was chosen on the held-out corruptions (speckle noise, Gaussian blur, spatter,
// saturate) with a ResNet-20 on CIFAR-10, without queue; `results/cifar10-c/README.md` has the figures.

/// Weight of the anchored losses in `recommended` without a queue, where each batch has one step only.
/// Twice as much is a little better still, four times as much is worse than the released 0.05.
const RECOMMENDED_LOSS_SCALE: f64 = 0.1;

/// The longest gradient in `recommended-0.1`, relative to the parameters. The largest bound of 0.01, 0.02,
/// 0.05 and 0.1 that changes nothing under the held-out corruptions of CIFAR-10; it keeps a small
/// network for digits from going astray, where the first gradients are four times as long.
const EARLIER_GRADIENT_BOUND: f64 = 0.1;

/// The learning rate and the longest gradient in `recommended`. Nearly every gradient is longer than the bound, so a step is as long as the two
/// together allow, 0.0008 of the length of the parameters, whatever the network; near the anchors it gets shorter. Chosen on the held-out
/// corruptions among 0.01 to 0.08 and 0.02 to 0.1.
const RECOMMENDED_LEARNING_RATE: f64 = 0.04;
const RECOMMENDED_GRADIENT_BOUND: f64 = 0.02;

/// The part of the learning rate that `recommended` uses without norm statistics. Chosen with a transformer on `shapes10` and a ResNet-26 with group
/// norm on the held-out corruptions, among 1, 1/4 and 1/10.
const RECOMMENDED_NORM_FREE_RATE: f64 = 0.25;

/// From how many samples on a step of `recommended` is a full one. In batches of 64 a quarter of the rate is better than all of it by six points
/// on a stream whose corruptions come and go with classes in runs.
const RECOMMENDED_FULL_STEP: f64 = 256.0;

/// How strongly `recommended` draws back to the source: at a drift of a twentieth, a two-hundredth of the way after each step.
const RECOMMENDED_BRAKE: f64 = 0.1;

/// Without source statistics the template is all there is of a covariance, and pulls tens of times harder.
const RECOMMENDED_SOURCE_FREE_LOSS_SCALE: f64 = 0.01;

impl TtacConfig {
    /// Returns a preset's constants for a kind of protocol.
    pub fn preset(preset: Preset, setting: Setting) -> Self {
        let released = match setting {
            Setting::NoQueue => Self::without_queue(),
            Setting::Queue => Self::default(),
            Setting::ManyPasses => Self::multi_pass(),
        };
        match preset {
            Preset::Released => released,
            Preset::Earlier => Self {
                norm: NormUpdates::of(preset),
                gradient_bound: Some(EARLIER_GRADIENT_BOUND),
                loss_scale: match setting {
                    Setting::NoQueue => RECOMMENDED_LOSS_SCALE,
                    Setting::Queue | Setting::ManyPasses => released.loss_scale,
                },
                ..released
            },
            Preset::Recommended => Self {
                norm: NormUpdates::of(preset),
                global_part: GlobalPart::ByClass,
                learning_rate: RECOMMENDED_LEARNING_RATE,
                norm_free_rate: RECOMMENDED_NORM_FREE_RATE,
                full_step: Some(RECOMMENDED_FULL_STEP),
                gradient_bound: Some(RECOMMENDED_GRADIENT_BOUND),
                brake: Some(RECOMMENDED_BRAKE),
                information: Information::Novelty,
                ..Self::preset(Preset::Earlier, setting)
            },
        }
    }

    /// Adds SHOT's information maximisation, weighted twice like the anchored losses.
    pub fn with_information(self) -> Self {
        Self {
            information_weight: 2.0 * self.loss_scale,
            ..self
        }
    }

    /// Goes without source statistics, with the loss scale of the preset.
    pub(in crate::method) fn source_free_preset(self, preset: Preset) -> Self {
        match preset {
            Preset::Released => self.source_free(),
            Preset::Earlier | Preset::Recommended => Self {
                loss_scale: RECOMMENDED_SOURCE_FREE_LOSS_SCALE,
                ..self.source_free()
            },
        }
    }

    /// Returns the constants of the released program without a queue: confident samples of the very forward pass, classes
    /// with at least 16 visits.
    pub fn without_queue() -> Self {
        Self {
            filter: FilterConfig {
                mode: FilterMode::Confidence,
                ..FilterConfig::default()
            },
            posteriors: Posteriors::Batch,
            gate: ClassGate {
                visits: 16.0,
                ..ClassGate::default()
            },
            ..Self::default()
        }
    }

    /// Returns the constants of the released program over the whole data set: the class part counts from the start.
    pub fn multi_pass() -> Self {
        Self {
            gate: ClassGate::default(),
            filter: FilterConfig {
                eviction: Eviction::Keep,
                ..FilterConfig::default()
            },
            ..Self::default()
        }
    }

    /// Goes without source statistics.
    pub fn source_free(self) -> Self {
        Self {
            source: SourceKind::Classifier,
            global_part: GlobalPart::None,
            ..self
        }
    }

    /// Checks the constants; the error lists everything that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = self.norm.problems();
        let positive = [
            ("learning_rate", self.learning_rate),
            ("norm_free_rate", self.norm_free_rate),
            ("loss_scale", self.loss_scale),
            ("clip", self.clip),
            ("class_clip", self.class_clip),
            ("template_divisor", self.template_divisor),
            ("gradient_bound", self.gradient_bound.unwrap_or(1.0)),
            ("brake", self.brake.unwrap_or(1.0)),
            ("full_step", self.full_step.unwrap_or(1.0)),
        ];
        for (name, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                problems.push(format!("`{name}` must be above zero, found {value}"));
            }
        }
        if let Err(error) = self.filter.validate() {
            problems.push(error.to_string());
        }
        if self.global_part == GlobalPart::ByClass && self.assignment != Assignment::Hard {
            problems.push("a global part by class needs hard assignment".to_owned());
        }
        if self.source == SourceKind::Classifier {
            if self.global_part != GlobalPart::None {
                problems.push("without source statistics there is no global part".to_owned());
            }
            if self.assignment != Assignment::Hard {
                problems.push("without source statistics assignment is hard".to_owned());
            }
        }
        if self.align_projection && self.source == SourceKind::Classifier {
            problems.push("without source statistics projections cannot be aligned".to_owned());
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "ttac configuration",
            problem: problems.join("; "),
        })
    }
}
