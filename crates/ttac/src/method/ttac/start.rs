//! Where anchored clustering starts: the anchors, and running Gaussians before any target sample.

use super::clusters::{Anchors, class_of};
use super::{Assignment, SourceKind, State, Ttac, TtacConfig};
use crate::backbone::Adaptable;
use crate::method::entry::Built;
use crate::method::learner::rows;
use crate::method::novelty::AveragePrediction;
use crate::method::{Classifier, Head, Layers, LearnerConfig};
use crate::stats::{
    CovarianceKind, Gaussian, PseudoLabelFilter, RunningGaussian, SoftMoment, SourceStatistics,
};
use crate::{Error, Result};

/// Builds the method around a trained network, with its anchors unless it goes without.
pub(super) fn build(
    config: TtacConfig,
    network: &dyn Classifier,
    source: Option<&SourceStatistics>,
) -> Result<Built> {
    let (learner, method) = start(config, network, source)?;
    Ok((learner, Box::new(method)))
}

/// Says how the network learns, and where the clusters start.
pub(in crate::method) fn start(
    config: TtacConfig,
    network: &dyn Classifier,
    source: Option<&SourceStatistics>,
) -> Result<(LearnerConfig, Ttac)> {
    config.validate()?;
    let (classes, features) = (network.num_classes(), network.num_features());
    check_memory(config.class_covariance, classes, features)?;
    let filter = PseudoLabelFilter::new(config.filter.clone(), classes)?;
    let novelty = AveragePrediction::uniform(classes);
    let zeros = Gaussian::zeros(features, CovarianceKind::Full);
    let global = RunningGaussian::new(&zeros, Some(config.clip))?;
    let (anchors, state) = match config.source {
        SourceKind::Classifier => {
            let zeros = Gaussian::zeros(features, config.class_covariance);
            let class = RunningGaussian::new(&zeros, Some(config.class_clip))?;
            let state = State {
                classes: vec![class; classes],
                global,
                projection: None,
                filter,
                novelty,
            };
            (None, state)
        }
        SourceKind::Statistics => {
            let source = source.expect("needs were checked");
            check_sizes(source, classes, features)?;
            if config.align_projection && !network.has(Head::Projection) {
                return Err(Error::NoHead {
                    method: "ttac".to_owned(),
                    head: Head::Projection,
                });
            }
            let (anchors, classes, projection) = from_statistics(&config, source)?;
            let state = State {
                classes,
                global,
                projection,
                filter,
                novelty,
            };
            (Some(anchors), state)
        }
    };
    let learning_rate = if network.has_layers(Layers::BatchNorms) {
        config.learning_rate
    } else {
        config.learning_rate * config.norm_free_rate
    };
    let learner = LearnerConfig {
        adapts: if config.contrastive && config.train_projection {
            Adaptable::FeaturesAndHeads
        } else {
            Adaptable::Features
        },
        full_step: config.full_step,
        gradient_bound: config.gradient_bound,
        brake: config.brake,
        norm: config.norm,
        ..LearnerConfig::stepping(config.optimiser, learning_rate)
    };
    let method = Ttac {
        config,
        anchors,
        classifier: network
            .head_weights()
            .as_ref()
            .map(rows)
            .unwrap_or_default(),
        state,
    };
    Ok((learner, method))
}

/// Prepares the anchors; target classes start at the source's, projections at nothing.
fn from_statistics(
    config: &TtacConfig,
    source: &SourceStatistics,
) -> Result<(Anchors, Vec<RunningGaussian>, Option<RunningGaussian>)> {
    let anchors = Anchors::new(source, config)?;
    let moment = match config.assignment {
        Assignment::Soft(moment) => moment,
        Assignment::Hard => SoftMoment::default(),
    };
    let classes = source.classes.iter().map(|class| {
        let running = RunningGaussian::new(&class_of(class, config), Some(config.class_clip))?;
        Ok(running.with_soft_moment(moment))
    });
    let classes = classes.collect::<Result<_>>()?;
    let projection = anchors.projection.as_ref().map(|anchor| {
        let zeros = Gaussian::zeros(anchor.dimension(), CovarianceKind::Full);
        RunningGaussian::new(&zeros, Some(config.clip))
    });
    let projection = projection.transpose()?;
    Ok((anchors, classes, projection))
}

/// The most memory that the covariances of all classes may take, in bytes. What adaptation takes besides is a few times as much.
const MOST_BYTES: usize = 4 << 30;

/// Refuses covariances that would fill the machine's memory, before any is taken.
fn check_memory(kind: CovarianceKind, classes: usize, features: usize) -> Result<()> {
    let values = features.saturating_mul(features).saturating_mul(classes);
    let bytes = values.saturating_mul(size_of::<f64>());
    if kind == CovarianceKind::Diagonal || bytes <= MOST_BYTES {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "method constant",
        problem: format!(
            "full covariances of {classes} classes and {features} features take {} GB; `class_covariance` `diagonal` keeps their \
             diagonals alone",
            bytes >> 30
        ),
    })
}

fn check_sizes(source: &SourceStatistics, classes: usize, features: usize) -> Result<()> {
    let found = (source.classes.len(), source.num_features());
    if found == (classes, features) {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: "anchors and model".to_owned(),
        expected: format!("{classes} classes and {features} features in the model"),
        found: format!(
            "{} classes and {} features in the anchors",
            found.0, found.1
        ),
    })
}
