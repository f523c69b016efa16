//! The pass over the source's samples that makes [`SourceStatistics`].

use burn::tensor::{Device, Tensor};
use rand::seq::SliceRandom;

use super::source::{Alignment, Origin, SourceLabels, SourceStatistics};
use super::{Covariance, CovarianceKind, Importance, Moments};
use crate::backbone::{Backbone, NormMode};
use crate::checkpoint::{Augmentation, InputContract};
use crate::data::{Dataset, DatasetExt, Draw, SampleId, augment};
use crate::gate::{Calibration, CalibrationImages};
use crate::norms::ReferenceCollector;
use crate::rng::seeded;
use crate::{Error, Result, best};

/// The constants of [`collect`].
#[derive(Clone, Debug, PartialEq)]
pub struct AnchorConfig {
    /// How the images are varied.
    pub transform: Augmentation,
    /// Where the class of each sample comes from.
    pub labels: SourceLabels,
    /// How much of the class covariances is kept.
    pub class_covariance: CovarianceKind,
    /// How many directions of a full class covariance are kept; the mean of the others becomes a ridge.
    pub rank: Option<usize>,
    /// The number of samples in a batch whose moments are compared for feature alignment.
    pub alignment_batch: usize,
    /// The number of images in a forward pass, which has no influence on the result.
    pub batch_size: usize,
    /// The seed of the order and of the variation.
    pub seed: u64,
    /// How many images a calibration of the gate takes from the source images, for want of better ones; none for zero.
    pub calibration_images: usize,
    /// How many images, as they are, the norms' reference moments are taken from, at most. None for zero.
    pub reference_images: usize,
    /// How many images, as they are, the importance of scales and shifts is taken from, at most. None for zero.
    pub importance_images: usize,
}

impl Default for AnchorConfig {
    /// Returns the released constants, except that images are not varied: that is the safe choice for
    /// weights whose augmentation is [`Augmentation::Unknown`].
    fn default() -> Self {
        Self {
            transform: Augmentation::None,
            labels: SourceLabels::Predicted,
            class_covariance: CovarianceKind::Full,
            rank: None,
            alignment_batch: 1536,
            batch_size: 250,
            seed: 0,
            calibration_images: 10_000,
            reference_images: 10_000,
            importance_images: 2_000,
        }
    }
}

/// Makes the source statistics of a network on a data set, in one pass with running norm statistics.
///
/// `watch` is told the number of images after every forward pass.
pub fn collect<B: Backbone>(
    network: &B,
    fingerprint: &str,
    input: &InputContract,
    data: &dyn Dataset,
    config: &AnchorConfig,
    device: &Device,
    mut watch: impl FnMut(usize),
) -> Result<SourceStatistics> {
    config.transform.check(input)?;
    if config.labels == SourceLabels::True {
        data.check_labelled()?;
    }
    let (classes, features) = (network.num_classes(), network.num_features());
    let mut global = Moments::new(features, CovarianceKind::Full);
    let mut by_class: Vec<Moments> = (0..classes)
        .map(|_| Moments::new(features, config.class_covariance))
        .collect();
    let mut projection: Option<Moments> = None;
    let mut alignment = Aligning::new(config.alignment_batch);
    let mut projection_alignment = Aligning::new(config.alignment_batch);
    // A data set that is sorted by class would give batches that are not alike.
    let mut order: Vec<SampleId> = (0..data.len() as SampleId).collect();
    order.shuffle(&mut seeded(config.seed, 0));
    let draw = Draw {
        seed: config.seed,
        epoch: 0,
        view: 0,
    };
    let mut calibrating = Calibrating::new(config);
    let referring = network.has_batch_norm() && config.reference_images > 0;
    let mut reference = referring.then(|| ReferenceCollector::new(network));
    let mut referred = 0;
    for ids in order.chunks(config.batch_size) {
        let batch = data.batch(ids)?;
        let samples = augment(ids, &batch.samples, config.transform, draw)?;
        let images = input.normalise(&samples, device)?;
        let measured = reference
            .as_mut()
            .filter(|_| referred < config.reference_images);
        let plain = config.transform == Augmentation::None;
        let found = match (&measured, plain) {
            (Some(reference), true) => network.features(images, NormMode::Ruled(reference.rule())),
            _ => network.features(images, NormMode::Running),
        };
        let rows = finite_rows(&found, ids)?;
        let predicted = |features| classes_of(&network.logits(features));
        if let Some(reference) = measured {
            let found = if plain {
                found.clone()
            } else {
                // The anchors are those of varied images, the reference is that of images as they are.
                let images = input.normalise(&batch.samples, device)?;
                network.features(images, NormMode::Ruled(reference.rule()))
            };
            reference.add(&predicted(found));
            referred += ids.len();
        }
        let scores = network.logits(found.clone());
        calibrating.add(&scores, batch.labels.as_deref());
        let labels = match config.labels {
            SourceLabels::True => batch.known_labels(data.name())?.to_vec(),
            SourceLabels::Predicted => classes_of(&scores),
        };
        global.update(&rows);
        for (class, moments) in by_class.iter_mut().enumerate() {
            let members = rows.chunks_exact(features).zip(&labels);
            let members = members.filter(|(_, label)| **label == class);
            let members: Vec<f32> = members.flat_map(|(row, _)| row).copied().collect();
            moments.update(&members);
        }
        alignment.add(&rows, features);
        if let Some(outputs) = network.projection(found) {
            let size = outputs.dims()[1];
            let rows = finite_rows(&outputs, ids)?;
            let moments =
                projection.get_or_insert_with(|| Moments::new(size, CovarianceKind::Full));
            moments.update(&rows);
            projection_alignment.add(&rows, size);
        }
        watch(ids.len());
    }
    check_counts(&by_class, data, config.labels)?;
    let some = &order[..order.len().min(config.importance_images)];
    let importance = Importance::measure(network, input, data, some, device)?;
    let reduce = |moments: &Moments| match config.rank {
        None => moments.gaussian(),
        Some(rank) => moments.gaussian()?.to_low_rank(rank),
    };
    Ok(SourceStatistics {
        origin: Origin {
            backbone: fingerprint.to_owned(),
            data: data.name().to_owned(),
            samples: data.len() as u64,
            transform: config.transform,
            labels: config.labels,
            seed: config.seed,
        },
        global: global.gaussian()?,
        classes: by_class.iter().map(reduce).collect::<Result<_>>()?,
        counts: by_class.iter().map(Moments::count).collect(),
        projection: projection.as_ref().map(Moments::gaussian).transpose()?,
        alignment: alignment.finish(),
        projection_alignment: projection_alignment.finish(),
        norms: reference.map(ReferenceCollector::finish),
        calibration: calibrating.finish(data.name(), classes)?,
        importance,
    })
}

/// Calibrates the gate of a network by images that it was not trained on, as they are. `data` should have labels, which are looked at
/// once, for the limit; `watch` is told the number of images after every forward pass.
pub fn calibrate<B: Backbone>(
    network: &B,
    input: &InputContract,
    data: &dyn Dataset,
    batch_size: usize,
    device: &Device,
    mut watch: impl FnMut(usize),
) -> Result<(Calibration, Vec<f32>)> {
    let mut calibrating = Calibrating {
        images: CalibrationImages::HeldOut,
        most: data.len(),
        logits: Vec::new(),
        labels: Some(Vec::new()),
        count: 0,
    };
    let ids: Vec<SampleId> = (0..data.len() as SampleId).collect();
    for ids in ids.chunks(batch_size) {
        let batch = data.batch(ids)?;
        let images = input.normalise(&batch.samples, device)?;
        let scores = network.forward(images, NormMode::Running);
        calibrating.add(&scores, batch.labels.as_deref());
        watch(ids.len());
    }
    let logits = calibrating.logits.clone();
    let found = calibrating.finish(data.name(), network.num_classes())?;
    let found = found.ok_or_else(|| Error::Invalid {
        what: "calibration",
        problem: format!(
            "{} images are too few, at least {FEWEST_CALIBRATION} are needed",
            data.len()
        ),
    })?;
    Ok((found, logits))
}

/// Fewer images do not calibrate a gate.
const FEWEST_CALIBRATION: usize = 100;

/// The scores of images as they come together.
struct Calibrating {
    images: CalibrationImages,
    most: usize,
    logits: Vec<f32>,
    /// None once images without labels have come.
    labels: Option<Vec<usize>>,
    count: usize,
}

impl Calibrating {
    /// Starts for the images that anchors are made of.
    fn new(config: &AnchorConfig) -> Self {
        Self {
            images: match config.transform {
                Augmentation::None | Augmentation::Unknown => CalibrationImages::TrainingPlain,
                _ => CalibrationImages::TrainingVaried,
            },
            most: config.calibration_images,
            logits: Vec::new(),
            labels: Some(Vec::new()),
            count: 0,
        }
    }

    fn add(&mut self, scores: &Tensor<2>, labels: Option<&[usize]>) {
        if self.count >= self.most {
            return;
        }
        let rows: Vec<f32> = scores.to_data().try_to_vec().expect("scores are f32");
        self.logits.extend(rows);
        self.count += scores.dims()[0];
        self.labels = match (self.labels.take(), labels) {
            (Some(mut known), Some(new)) => {
                known.extend_from_slice(new);
                Some(known)
            }
            _ => None,
        };
    }

    /// Returns the calibration, or none of too few images.
    fn finish(self, data: &str, classes: usize) -> Result<Option<Calibration>> {
        if self.count < FEWEST_CALIBRATION {
            return Ok(None);
        }
        let labels = self.labels.as_deref();
        let found = Calibration::new(self.images, &self.logits, classes, labels)?;
        Ok(Some(Calibration {
            data: data.to_owned(),
            ..found
        }))
    }
}

/// Reads the values; the error names the image that has one that is not finite.
fn finite_rows(features: &Tensor<2>, ids: &[SampleId]) -> Result<Vec<f32>> {
    let [_, size] = features.dims();
    let values: Vec<f32> = features.to_data().try_to_vec().expect("features are f32");
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => Err(Error::Invalid {
            what: "features",
            problem: format!(
                "image {} has a feature that is {}",
                ids[at / size],
                values[at]
            ),
        }),
    }
}

/// Returns the class with the largest score of each row.
pub(super) fn classes_of(logits: &Tensor<2>) -> Vec<usize> {
    let [_, classes] = logits.dims();
    let scores: Vec<f32> = logits.to_data().try_to_vec().expect("scores are f32");
    scores
        .chunks_exact(classes)
        .map(|row| best(row).0)
        .collect()
}

/// Refuses classes with fewer than two samples.
fn check_counts(by_class: &[Moments], data: &dyn Dataset, labels: SourceLabels) -> Result<()> {
    let names = data.classes();
    let few = by_class.iter().enumerate().filter(|(_, m)| m.count() < 2);
    let few: Vec<String> = few
        .map(|(class, moments)| {
            let name = names.get(class).map_or("", String::as_str);
            format!("class {class} ({name}) has {}", moments.count())
        })
        .collect();
    if few.is_empty() {
        return Ok(());
    }
    let remedy = match labels {
        SourceLabels::Predicted => "give more source images, or take classes from the labels",
        SourceLabels::True => "give more source images",
    };
    Err(Error::Invalid {
        what: "source classes",
        problem: format!(
            "{}: at least two samples are needed for statistics; {remedy}",
            few.join(", ")
        ),
    })
}

/// Collects the moments of feature alignment and their natural scales. The first batch is the
/// reference; the others are compared with it, and together they make the moments.
struct Aligning {
    batch: usize,
    waiting: Vec<f32>,
    reference: Option<(Vec<f64>, Vec<f64>)>,
    rest: Option<Moments>,
    covariance_distance: f64,
    mean_distance: f64,
    compared: usize,
}

impl Aligning {
    fn new(batch: usize) -> Self {
        Self {
            batch,
            waiting: Vec::new(),
            reference: None,
            rest: None,
            covariance_distance: 0.0,
            mean_distance: 0.0,
            compared: 0,
        }
    }

    fn add(&mut self, rows: &[f32], size: usize) {
        self.waiting.extend_from_slice(rows);
        let whole = self.batch * size;
        while self.waiting.len() >= whole {
            let rest = self.waiting.split_off(whole);
            let batch = std::mem::replace(&mut self.waiting, rest);
            self.compare(&batch, size);
        }
    }

    fn compare(&mut self, batch: &[f32], size: usize) {
        let mut moments = Moments::new(size, CovarianceKind::Full);
        moments.update(batch);
        let (mean, covariance) = (moments.mean(), unbiased(&moments));
        let Some((reference_mean, reference_covariance)) = &self.reference else {
            self.reference = Some((mean, covariance));
            return;
        };
        let d = size as f64;
        self.mean_distance += distance(&mean, reference_mean) / d;
        self.covariance_distance += distance(&covariance, reference_covariance) / (4.0 * d * d);
        self.compared += 1;
        match &mut self.rest {
            Some(rest) => rest.merge(&moments),
            None => self.rest = Some(moments),
        }
    }

    fn finish(self) -> Option<Alignment> {
        let rest = self.rest?;
        Some(Alignment {
            mean: rest.mean(),
            covariance: unbiased(&rest),
            covariance_scale: self.covariance_distance / self.compared as f64,
            mean_scale: self.mean_distance / self.compared as f64,
            batch: self.batch,
        })
    }
}

fn unbiased(moments: &Moments) -> Vec<f64> {
    let Covariance::Full(mut matrix) = moments.covariance() else {
        unreachable!("alignment keeps full covariances")
    };
    let n = moments.count() as f64;
    for value in &mut matrix {
        *value *= n / (n - 1.0);
    }
    matrix
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}
