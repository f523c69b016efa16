//! The pass over the source's samples that makes [`SourceStatistics`].

use burn::tensor::{Device, Tensor, TensorData};

use super::aligning::Aligning;
use super::source::{Origin, SourceLabels, SourceStatistics};
use super::{AnchorChunks, CovarianceKind, Importance, Moments};
use crate::backbone::{Backbone, NormMode};
use crate::checkpoint::{Augmentation, InputContract};
use crate::data::{Dataset, DatasetExt, Draw, SampleId, augment};
use crate::gate::{Calibration, CalibrationImages};
use crate::norms::ReferenceCollector;
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

/// Returns how images of anchors are varied.
pub(super) fn draw(config: &AnchorConfig) -> Draw {
    Draw {
        seed: config.seed,
        epoch: 0,
        view: 0,
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
    watch: impl FnMut(usize),
) -> Result<SourceStatistics> {
    let own = |_| Ok(None);
    collect_with(
        network,
        fingerprint,
        input,
        data,
        config,
        device,
        watch,
        own,
    )
}

/// Makes the source statistics in the same way, of features that may have been computed elsewhere: `elsewhere` is asked for those of every
/// chunk of [`AnchorChunks`] from [`first_elsewhere`](AnchorChunks::first_elsewhere) on, and what it does not have is computed here.
#[expect(clippy::too_many_arguments, reason = "those of `collect` and one more")]
pub fn collect_with<B: Backbone>(
    network: &B,
    fingerprint: &str,
    input: &InputContract,
    data: &dyn Dataset,
    config: &AnchorConfig,
    device: &Device,
    mut watch: impl FnMut(usize),
    mut elsewhere: impl FnMut(usize) -> Result<Option<Vec<f32>>>,
) -> Result<SourceStatistics> {
    config.transform.check(input)?;
    if config.labels == SourceLabels::True {
        data.check_labelled()?;
    }
    let chunks = AnchorChunks::new(data, config);
    let first_elsewhere = chunks.first_elsewhere(network, config);
    let mut collecting = Collecting::new(network, input, data, config, device);
    for chunk in 0..chunks.count() {
        let given = if chunk < first_elsewhere {
            None
        } else {
            elsewhere(chunk)?
        };
        let given = given.map(|rows| Given::new(rows, chunks.ids(chunk).len(), network, data));
        let given = given.transpose()?;
        for (index, ids) in chunks.ids(chunk).chunks(config.batch_size).enumerate() {
            match &given {
                Some(given) => collecting.add_given(given, index * config.batch_size, ids)?,
                None => collecting.add_images(ids)?,
            }
            watch(ids.len());
        }
    }
    collecting.finish(fingerprint, &chunks.order)
}

/// Features of a chunk that were computed elsewhere.
struct Given {
    rows: Vec<f32>,
    size: usize,
    /// The labels of all images of the data set, if it has any.
    labels: Option<Vec<usize>>,
}

impl Given {
    fn new<B: Backbone>(
        rows: Vec<f32>,
        images: usize,
        network: &B,
        data: &dyn Dataset,
    ) -> Result<Self> {
        let size = network.num_features();
        if rows.len() != images * size {
            return Err(Error::Mismatch {
                what: "features of a chunk".to_owned(),
                expected: format!("{images} images of {size} features"),
                found: format!("{} numbers", rows.len()),
            });
        }
        Ok(Self {
            rows,
            size,
            labels: data.labels()?,
        })
    }
}

/// Everything that is collected, image by image.
struct Collecting<'a, B> {
    network: &'a B,
    input: &'a InputContract,
    data: &'a dyn Dataset,
    config: &'a AnchorConfig,
    device: &'a Device,
    global: Moments,
    by_class: Vec<Moments>,
    projection: Option<Moments>,
    alignment: Aligning,
    projection_alignment: Aligning,
    calibrating: Calibrating,
    reference: Option<ReferenceCollector>,
    /// How many images the reference was taken from.
    referred: usize,
}

impl<'a, B: Backbone> Collecting<'a, B> {
    fn new(
        network: &'a B,
        input: &'a InputContract,
        data: &'a dyn Dataset,
        config: &'a AnchorConfig,
        device: &'a Device,
    ) -> Self {
        let (classes, features) = (network.num_classes(), network.num_features());
        let referring = network.has_batch_norm() && config.reference_images > 0;
        Self {
            network,
            input,
            data,
            config,
            device,
            global: Moments::new(features, CovarianceKind::Full),
            by_class: (0..classes)
                .map(|_| Moments::new(features, config.class_covariance))
                .collect(),
            projection: None,
            alignment: Aligning::new(config.alignment_batch),
            projection_alignment: Aligning::new(config.alignment_batch),
            calibrating: Calibrating::new(config),
            reference: referring.then(|| ReferenceCollector::new(network)),
            referred: 0,
        }
    }

    /// Computes the features of some images and adds them.
    fn add_images(&mut self, ids: &[SampleId]) -> Result<()> {
        let (network, config) = (self.network, self.config);
        let batch = self.data.batch(ids)?;
        let samples = augment(ids, &batch.samples, config.transform, draw(config))?;
        let images = self.input.normalise(&samples, self.device)?;
        let measured = self
            .reference
            .as_mut()
            .filter(|_| self.referred < config.reference_images);
        let plain = config.transform == Augmentation::None;
        let found = match (&measured, plain) {
            (Some(reference), true) => network.features(images, NormMode::Ruled(reference.rule())),
            _ => network.features(images, NormMode::Running),
        };
        let rows = finite_rows(&found, ids)?;
        if let Some(reference) = measured {
            let found = if plain {
                found.clone()
            } else {
                // The anchors are those of varied images, the reference is that of images as they are.
                let images = self.input.normalise(&batch.samples, self.device)?;
                network.features(images, NormMode::Ruled(reference.rule()))
            };
            reference.add(&classes_of(&network.logits(found)));
            self.referred += ids.len();
        }
        self.add(found, &rows, batch.labels.as_deref(), ids)
    }

    /// Adds features that were computed elsewhere, from one row of a chunk on.
    fn add_given(&mut self, given: &Given, first: usize, ids: &[SampleId]) -> Result<()> {
        let rows = &given.rows[first * given.size..][..ids.len() * given.size];
        let data = TensorData::new(rows.to_vec(), [ids.len(), given.size]);
        let found = Tensor::from_data(data, self.device);
        let labels = given.labels.as_ref();
        let labels = labels.map(|all| ids.iter().map(|&id| all[id as usize]).collect::<Vec<_>>());
        finite_rows(&found, ids)?;
        self.add(found, rows, labels.as_deref(), ids)
    }

    /// Adds features, as a tensor and as its rows.
    fn add(
        &mut self,
        found: Tensor<2>,
        rows: &[f32],
        labels: Option<&[usize]>,
        ids: &[SampleId],
    ) -> Result<()> {
        let (network, features) = (self.network, found.dims()[1]);
        let scores = network.logits(found.clone());
        self.calibrating.add(&scores, labels);
        let classes = match (self.config.labels, labels) {
            (SourceLabels::True, Some(labels)) => labels.to_vec(),
            // Whether there are labels was checked before.
            _ => classes_of(&scores),
        };
        self.global.update(rows);
        for (class, moments) in self.by_class.iter_mut().enumerate() {
            let members = rows.chunks_exact(features).zip(&classes);
            let members = members.filter(|(_, label)| **label == class);
            let members: Vec<f32> = members.flat_map(|(row, _)| row).copied().collect();
            moments.update(&members);
        }
        self.alignment.add(rows, features);
        if let Some(outputs) = network.projection(found) {
            let size = outputs.dims()[1];
            let rows = finite_rows(&outputs, ids)?;
            let moments = self
                .projection
                .get_or_insert_with(|| Moments::new(size, CovarianceKind::Full));
            moments.update(&rows);
            self.projection_alignment.add(&rows, size);
        }
        Ok(())
    }

    /// Makes the statistics of everything that was added, in this order.
    fn finish(self, fingerprint: &str, order: &[SampleId]) -> Result<SourceStatistics> {
        let (data, config) = (self.data, self.config);
        check_counts(&self.by_class, data, config.labels)?;
        let some = &order[..order.len().min(config.importance_images)];
        let importance = Importance::measure(self.network, self.input, data, some, self.device)?;
        let reduce = |moments: &Moments| match config.rank {
            None => moments.gaussian(),
            Some(rank) => moments.gaussian()?.to_low_rank(rank),
        };
        let classes = self.network.num_classes();
        Ok(SourceStatistics {
            origin: Origin {
                backbone: fingerprint.to_owned(),
                data: data.name().to_owned(),
                samples: data.len() as u64,
                transform: config.transform,
                labels: config.labels,
                seed: config.seed,
            },
            global: self.global.gaussian()?,
            classes: self.by_class.iter().map(reduce).collect::<Result<_>>()?,
            counts: self.by_class.iter().map(Moments::count).collect(),
            projection: self
                .projection
                .as_ref()
                .map(Moments::gaussian)
                .transpose()?,
            alignment: self.alignment.finish(),
            projection_alignment: self.projection_alignment.finish(),
            norms: self.reference.map(ReferenceCollector::finish),
            calibration: self.calibrating.finish(data.name(), classes)?,
            importance,
        })
    }
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
pub(super) fn finite_rows(features: &Tensor<2>, ids: &[SampleId]) -> Result<Vec<f32>> {
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
