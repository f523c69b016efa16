//! The anchors, the members of each class, and the pull on the features.

use burn::tensor::{Tensor, TensorData};
use ttac_kernels::loss_with_gradient;

use super::{GlobalPart, TtacConfig};
use crate::stats::{
    Anchor, Covariance, CovarianceKind, Gaussian, Measure, SourceStatistics, Update, mixture,
};
use crate::{Error, Result};

/// Features from which on values of full divergences, which nothing but the log needs, are not
/// computed: they cost as much as the gradients.
const LOGGED_FEATURES: usize = 512;

/// The source statistics, prepared as anchors.
#[derive(Clone, Debug)]
pub(super) struct Anchors {
    pub classes: Vec<Anchor>,
    pub global: Anchor,
    pub projection: Option<Anchor>,
    pub template: f64,
    pub projection_template: f64,
    /// What the global part by class needs.
    pub mixed: Option<Mixed>,
}

/// The mixture of the source's classes.
#[derive(Clone, Debug)]
pub(super) struct Mixed {
    /// The source's classes without a template.
    pub classes: Vec<Gaussian>,
    /// The share of each class in the source.
    pub shares: Vec<f64>,
    /// The anchor of the mixture.
    pub anchor: Anchor,
}

impl Mixed {
    fn new(source: &SourceStatistics, config: &TtacConfig, template: f64) -> Result<Self> {
        let all: u64 = source.counts.iter().sum();
        let shares = source.counts.iter();
        let shares: Vec<f64> = shares.map(|&count| count as f64 / all as f64).collect();
        let classes = source.classes.iter().map(|class| class_of(class, config));
        let classes: Vec<Gaussian> = classes.collect();
        let parts: Vec<_> = classes.iter().zip(shares.iter().copied()).collect();
        let mixed = mixture(&parts)?.add_template(template);
        Ok(Self {
            anchor: Anchor::new(&mixed, Measure::Kl(config.direction))?,
            classes,
            shares,
        })
    }
}

impl Anchors {
    pub fn new(source: &SourceStatistics, config: &TtacConfig) -> Result<Self> {
        let template = source.global.template(config.template_divisor);
        let doubled = if config.double_source_template {
            2.0
        } else {
            1.0
        };
        let kl = Measure::Kl(config.direction);
        let global_measure = match config.global_part {
            GlobalPart::L2 => Measure::L2,
            GlobalPart::Kl | GlobalPart::ByClass | GlobalPart::None => kl,
        };
        let classes = source.classes.iter().map(|class| {
            let class = class_of(class, config).add_template(doubled * template);
            Anchor::new(&class, kl)
        });
        let mut projection_template = 0.0;
        let projection = if config.align_projection {
            let outputs = source.projection.as_ref().ok_or_else(|| Error::Invalid {
                what: "anchors",
                problem: "they have no statistics of projections; this network has no projection head, or had none when they were made".to_owned(),
            })?;
            projection_template = outputs.template(config.template_divisor);
            let outputs = outputs.clone().add_template(projection_template);
            Some(Anchor::new(&outputs, kl)?)
        } else {
            None
        };
        Ok(Self {
            classes: classes.collect::<Result<_>>()?,
            global: Anchor::new(
                &source.global.clone().add_template(template),
                global_measure,
            )?,
            projection,
            template,
            projection_template,
            mixed: match config.global_part {
                GlobalPart::ByClass => Some(Mixed::new(source, config, template)?),
                _ => None,
            },
        })
    }
}

/// Reduces a source class to as much of its covariance as is used.
pub(super) fn class_of(class: &Gaussian, config: &TtacConfig) -> Gaussian {
    match (config.class_covariance, class.covariance()) {
        (CovarianceKind::Full, Covariance::LowRank { .. } | Covariance::Diagonal(_)) => {
            class.clone()
        }
        (kind, _) => class.to_kind(kind),
    }
}

/// An anchor that is shared by all steps, or one made for a single step.
pub(super) enum Held<'a> {
    Shared(&'a Anchor),
    Own(Box<Anchor>),
}

impl std::ops::Deref for Held<'_> {
    type Target = Anchor;

    fn deref(&self) -> &Anchor {
        match self {
            Self::Shared(anchor) => anchor,
            Self::Own(anchor) => anchor,
        }
    }
}

/// Which rows belong to which class.
pub(super) enum Members {
    /// A label for each accepted row.
    Hard(Vec<Option<usize>>),
    /// Responsibilities, `[classes, rows]`, and the number of rows.
    Soft(Vec<f32>, usize),
}

impl Members {
    /// Returns the rows of a class and their weights, or `None` if the class has no rows.
    pub fn of(&self, class: usize) -> Option<(Vec<usize>, Option<Vec<f32>>)> {
        match self {
            Self::Hard(labels) => {
                let rows = labels.iter().enumerate();
                let rows = rows.filter(|(_, label)| **label == Some(class));
                let rows: Vec<usize> = rows.map(|(row, _)| row).collect();
                (!rows.is_empty()).then_some((rows, None))
            }
            Self::Soft(shares, rows) => {
                let shares = shares[class * rows..][..*rows].to_vec();
                Some(((0..*rows).collect(), Some(shares)))
            }
        }
    }
}

/// A class that a minibatch moved, with the rows that moved it.
pub(super) struct Moved {
    pub class: usize,
    pub indices: Vec<usize>,
    pub chosen: Vec<f32>,
    pub update: Update,
}

/// The gradient with respect to the features, as it comes together.
pub(super) struct Pull {
    pub features: usize,
    pub gradient: Vec<f32>,
    pub notes: Vec<String>,
    /// Whether values of divergences are computed.
    pub logged: bool,
}

impl Pull {
    pub fn new(rows: usize, features: usize) -> Self {
        Self {
            features,
            gradient: vec![0.0; rows * features],
            notes: Vec::new(),
            logged: features <= LOGGED_FEATURES,
        }
    }

    /// Adds the gradient of a weighted divergence; returns its weighted value where values are computed.
    pub fn add(
        &mut self,
        anchor: &Anchor,
        target: &Gaussian,
        update: &Update,
        chosen: &[f32],
        indices: &[usize],
        weight: f64,
    ) -> Result<Option<f64>> {
        let divergence = anchor.divergence(target)?;
        if divergence.ridge_added() > 0.0 {
            let ridge = divergence.ridge_added();
            self.notes.push(format!(
                "a covariance was raised by {ridge:.1e} to be factorised"
            ));
        }
        let rows = divergence.gradient_rows_of(update, chosen);
        self.add_rows(indices, &rows, weight);
        Ok(self.logged.then(|| weight * divergence.value()))
    }

    /// Adds the gradient of a weighted divergence of the mixture of all classes, through the classes that moved; returns its weighted
    /// value where values are computed.
    pub fn add_mixture(
        &mut self,
        anchor: &Anchor,
        target: &Gaussian,
        moved: &[&Moved],
        shares: &[f64],
        weight: f64,
    ) -> Result<Option<f64>> {
        let divergence = anchor.divergence(target)?;
        for part in moved {
            let means = part.update.gaussian.mean().iter().zip(target.mean());
            let offset: Vec<f64> = means.map(|(own, all)| own - all).collect();
            let share = shares[part.class];
            let rows = divergence.gradient_rows_through(&part.update, &part.chosen, share, &offset);
            self.add_rows(&part.indices, &rows, weight);
        }
        Ok(self.logged.then(|| weight * divergence.value()))
    }

    fn add_rows(&mut self, indices: &[usize], rows: &[f32], weight: f64) {
        for (&index, row) in indices.iter().zip(rows.chunks_exact(self.features)) {
            let place = &mut self.gradient[index * self.features..][..self.features];
            for (sum, value) in place.iter_mut().zip(row) {
                *sum += (weight * f64::from(*value)) as f32;
            }
        }
    }

    /// Whether every entry of the gradient is a number.
    pub fn is_finite(&self) -> bool {
        self.gradient.iter().all(|value| value.is_finite())
    }

    /// Makes a loss with this gradient, which autodiff carries back into the network.
    pub fn loss(self, outputs: Tensor<2>, value: f64) -> Tensor<1> {
        let shape = outputs.dims();
        let gradient = Tensor::from_data(TensorData::new(self.gradient, shape), &outputs.device());
        loss_with_gradient(outputs, gradient, value as f32)
    }
}

/// Copies some rows of `values`, `[rows, features]`, in their order.
pub(super) fn chosen_rows(values: &[f32], indices: &[usize], features: usize) -> Vec<f32> {
    let rows = indices
        .iter()
        .map(|&row| &values[row * features..][..features]);
    rows.flatten().copied().collect()
}
