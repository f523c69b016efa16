//! What the source network says about images of the source, and the limit that follows.

use serde::{Deserialize, Serialize};

use super::payoffs::{FEWEST_OF_GROUP, PayoffGroup, groups};
use super::scores::{
    Output, Score, compared, entropy, nearness, outputs, position, sorted, sorted_by_class, thinned,
};
use crate::{Error, Result, best};

/// Fewer images than this make no calibration.
const FEWEST_IMAGES: usize = 100;

/// The most scores that are kept for a class.
const MOST_OF_CLASS: usize = 1_000;

/// The most scores that are kept for all classes together.
const MOST_POOLED: usize = 10_000;

/// What is added to the limit if there are no labels.
const UNLABELLED_TOLERANCE: f64 = 0.05;

/// The highest limit. A payoff is at most one, so that nothing could be seen beyond a limit of one.
const HIGHEST_LIMIT: f64 = 0.9;

/// Above this limit only large shifts are seen: CIFAR-10 corruptions of the highest severity have mean payoffs of
/// 0.6 to 0.85, except for one with 0.46.
const BLUNT_LIMIT: f64 = 0.6;

/// How many classes a warning names before it counts the rest.
const MOST_NAMED: usize = 10;

/// Where the images of a calibration came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CalibrationImages {
    /// Images as they are, which the network was not trained on.
    HeldOut,
    /// Images the network was trained on, varied as in training.
    TrainingVaried,
    /// Images the network was trained on, as they are.
    TrainingPlain,
}

impl CalibrationImages {
    /// Returns what is added to the limit, because the energies of images a network was trained on are not those of
    /// new images. The values kept clean CIFAR-10 streams from opening the gate of a ResNet-20.
    pub fn tolerance(self) -> f64 {
        match self {
            Self::HeldOut => 0.0,
            Self::TrainingVaried => 0.05,
            Self::TrainingPlain => 0.10,
        }
    }

    /// Says in words what the images are.
    pub fn describe(self) -> &'static str {
        match self {
            Self::HeldOut => "held-out images",
            Self::TrainingVaried => "training images varied as in training",
            Self::TrainingPlain => "training images as they are",
        }
    }
}

/// What the source network says about images of the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The name of the data the images are from, for people.
    pub data: String,
    /// Where the images came from.
    pub images: CalibrationImages,
    /// How many images there were.
    pub samples: u64,
    /// Whether the groups are of true classes; otherwise they are of predicted ones.
    pub labelled: bool,
    /// How many images were predicted to be of each class.
    pub counts: Vec<u64>,
    /// What is known of each score that the gate bets on: the energy, the doubt, and the sureness unless the images were
    /// varied as in training. A network is surer of images as they are than of varied ones, so that these say nothing
    /// about how sure it may be.
    pub measures: Vec<Measure>,
    /// The entropies of the predictions in ascending order, in nats: all of them, or 10,000 evenly spaced ones.
    pub entropies: Vec<f32>,
    /// Logits that are less than this apart are taken for those of one image shown again. It is the 1% quantile of
    /// the Euclidean distance between an image and the next one of the same predicted class, and zero if there are
    /// fewer than 100 such pairs.
    pub nearness: f64,
}

/// One score of source images. It turns the logits of an image into a payoff and holds the limit above which payoffs speak of a shift.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// What is measured.
    pub score: Score,
    /// The scores of each predicted class in ascending order: all of them, or 1,000 evenly spaced ones.
    pub scores: Vec<Vec<f32>>,
    /// The scores of all classes in ascending order: all of them, or 10,000 evenly spaced ones.
    pub pooled: Vec<f32>,
    /// The mean payoffs that the limit was made of.
    pub groups: Vec<PayoffGroup>,
    /// The limit `c`: the largest `mean + 2 standard_error` of a group, plus the tolerance of the images, plus 0.05
    /// without labels; at most 0.9.
    pub limit: f64,
}

impl Calibration {
    /// Calibrates the gate by the logits of the source network in evaluation, one row of `num_classes` for each
    /// image, and by their true classes if these are known.
    ///
    /// The payoff of an image is [`Measure::payoff`]; its own score is among those it is compared with. Each
    /// class is a group. The mean of a class with fewer than 50 images is moved towards the mean of all such classes,
    /// the more the less is known about it, and its standard error is that of the moved mean, plus the part that comes
    /// from the scores it is compared with. If all such classes together have fewer than 50 images, they join the group
    /// of the largest mean.
    pub fn new(
        images: CalibrationImages,
        logits: &[f32],
        num_classes: usize,
        labels: Option<&[usize]>,
    ) -> Result<Self> {
        check(logits, num_classes, labels)?;
        let classes = logits.chunks_exact(num_classes).map(|row| best(row).0);
        let mut counts = vec![0; num_classes];
        for class in classes {
            counts[class] += 1;
        }
        let unlabelled = labels.map_or(UNLABELLED_TOLERANCE, |_| 0.0);
        let tolerance = images.tolerance() + unlabelled;
        let entropies = sorted(logits.chunks_exact(num_classes).map(entropy));
        let scores: &[Score] = match images {
            CalibrationImages::TrainingVaried => &[Score::Energy, Score::Doubt],
            _ => &[Score::Energy, Score::Doubt, Score::Sureness],
        };
        let measure = |score| Measure::new(score, logits, num_classes, labels, tolerance);
        Ok(Self {
            data: String::new(),
            images,
            samples: (logits.len() / num_classes) as u64,
            labelled: labels.is_some(),
            counts,
            entropies: thinned(&entropies, MOST_POOLED),
            measures: scores.iter().map(|&score| measure(score)).collect(),
            nearness: nearness(logits, num_classes),
        })
    }

    /// Checks a calibration that was read from a file; the error lists everything that is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        if self.counts.len() < 2 {
            problems.push(format!(
                "expected counts of two or more classes, found {}",
                self.counts.len()
            ));
        }
        if self.measures.is_empty() {
            problems.push("there is no score to bet on".to_owned());
        }
        if !self.entropies.iter().all(|found| found.is_finite()) || !self.entropies.is_sorted() {
            problems.push("the entropies are not finite ones in ascending order".to_owned());
        }
        for measure in &self.measures {
            problems.extend(measure.problems(&self.counts, self.samples));
        }
        if !(self.nearness.is_finite() && self.nearness >= 0.0) {
            problems.push(format!(
                "`nearness` must be at least 0, found {}",
                self.nearness
            ));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(invalid(problems.join("; ")))
    }

    /// Returns the groups of classes that mean payoffs were estimated for. They are the same for all scores.
    fn groups(&self) -> &[PayoffGroup] {
        self.measures.first().map_or(&[], |measure| &measure.groups)
    }

    /// Returns the highest limit of a score.
    pub fn limit(&self) -> f64 {
        let limits = self.measures.iter().map(|measure| measure.limit);
        limits.fold(0.0, f64::max)
    }

    /// Returns the classes whose mean payoffs are estimated with the help of other classes, in ascending order: those
    /// with a shrunk mean, and those that share a group.
    pub fn pooled_classes(&self) -> Vec<usize> {
        let helped = |group: &&PayoffGroup| group.shrunk || group.classes.len() > 1;
        let shared = self.groups().iter().filter(helped);
        let mut classes: Vec<usize> = shared.flat_map(|group| group.classes.clone()).collect();
        classes.sort_unstable();
        classes
    }

    /// Says in words what makes this calibration weaker than one of many labelled, held-out images.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let pooled = self.pooled_classes();
        if !pooled.is_empty() {
            warnings.push(format!(
                "the mean payoffs of these classes are estimated with the help of the others, because there are \
                 classes with fewer than {FEWEST_OF_GROUP} calibration images, so that a long run of one of them may \
                 open the gate: {}",
                listed(&pooled)
            ));
        }
        let known = |class: &usize| {
            self.groups()
                .iter()
                .any(|group| group.classes.contains(class))
        };
        let absent: Vec<usize> = (0..self.counts.len())
            .filter(|class| !known(class))
            .collect();
        if self.labelled && !absent.is_empty() {
            warnings.push(format!(
                "some classes have no calibration image, so that a long run of one of them may open the gate: {}",
                listed(&absent)
            ));
        }
        if !self.labelled {
            warnings.push(format!(
                "the calibration images have no labels, so that a class the network is often wrong about is not \
                 known; the limit is {UNLABELLED_TOLERANCE:.2} higher for that, and small shifts are missed"
            ));
        }
        if self.images != CalibrationImages::HeldOut {
            warnings.push(format!(
                "the calibration is of {}, whose energies are not those of new images; the limit is {:.2} higher for \
                 that, and mild corruptions are mostly missed: 500 held-out images would be better",
                self.images.describe(),
                self.images.tolerance()
            ));
        }
        // One sharp score is enough.
        let limits = self.measures.iter().map(|measure| measure.limit);
        let lowest = limits.fold(HIGHEST_LIMIT, f64::min);
        if lowest > BLUNT_LIMIT {
            warnings.push(format!(
                "the limit of {lowest:.2} is so high that only large shifts will be seen; more calibration images lower it"
            ));
        }
        warnings
    }
}

impl Measure {
    /// Sorts the scores of images, one row of logits each, and finds the limit.
    fn new(
        score: Score,
        logits: &[f32],
        num_classes: usize,
        labels: Option<&[usize]>,
        tolerance: f64,
    ) -> Self {
        let outputs = outputs(score, logits, num_classes);
        let scores = sorted_by_class(&outputs, num_classes);
        let pooled = sorted(outputs.iter().map(|output| output.score));
        let mut measure = Self {
            score,
            scores: scores
                .iter()
                .map(|own| thinned(own, MOST_OF_CLASS))
                .collect(),
            pooled: thinned(&pooled, MOST_POOLED),
            groups: Vec::new(),
            limit: 0.0,
        };
        let mut payoffs = vec![Vec::new(); num_classes];
        for (index, output) in outputs.iter().enumerate() {
            let class = labels.map_or(output.class, |labels| labels[index]);
            payoffs[class].push(measure.position(output).powi(2));
        }
        let list = |class| compared(&measure.scores, &measure.pooled, class).len();
        let lists: Vec<usize> = (0..num_classes).map(list).collect();
        measure.groups = groups(&payoffs, &lists);
        let bounds = measure.groups.iter();
        let highest = bounds.map(|group| group.mean + 2.0 * group.standard_error);
        measure.limit = (highest.fold(0.0, f64::max) + tolerance).min(HIGHEST_LIMIT);
        measure
    }

    /// Lists what is wrong with scores that were read from a file.
    fn problems(&self, counts: &[u64], samples: u64) -> Vec<String> {
        let mut problems = Vec::new();
        let ascending =
            |scores: &[f32]| scores.iter().all(|score| score.is_finite()) && scores.is_sorted();
        let whole = |scores: &[f32], count: u64, most: usize| {
            ascending(scores) && scores.len() as u64 == count.min(most as u64)
        };
        let name = self.score;
        if self.scores.len() != counts.len() {
            problems.push(format!(
                "expected {name:?} of {} classes, found {}",
                counts.len(),
                self.scores.len()
            ));
        }
        for (class, (scores, &count)) in self.scores.iter().zip(counts).enumerate() {
            if !whole(scores, count, MOST_OF_CLASS) {
                problems.push(format!(
                    "the scores of class {class} ({name:?}) are not {count} finite ones in ascending order, of which at \
                     most {MOST_OF_CLASS} are kept"
                ));
            }
        }
        if samples == 0 || !whole(&self.pooled, samples, MOST_POOLED) {
            problems.push(format!(
                "the scores of all classes ({name:?}) are not {samples} finite ones in ascending order, of which at most \
                 {MOST_POOLED} are kept"
            ));
        }
        if !(self.limit > 0.0 && self.limit <= HIGHEST_LIMIT) {
            problems.push(format!(
                "`limit` ({name:?}) must be above 0 and at most {HIGHEST_LIMIT}, found {}",
                self.limit
            ));
        }
        problems
    }

    /// Returns the payoff `g = u^2` of one image, where `u` is the position of its score `s` among the `n_k` scores
    /// of its predicted class,
    /// `u = (#{scores < s} + #{scores <= s} + 1) / 2 / (n_k + 1)`.
    /// A class with fewer than 20 scores is compared with those of all classes. Logits that are not all finite have
    /// the highest payoff, one.
    ///
    /// # Panics
    ///
    /// If there are not as many logits as classes.
    pub fn payoff(&self, logits: &[f32]) -> f64 {
        assert_eq!(logits.len(), self.scores.len(), "one logit for each class");
        if logits.iter().all(|logit| logit.is_finite()) {
            self.position(&Output::new(self.score, logits)).powi(2)
        } else {
            1.0
        }
    }

    /// Returns the position of a score among those of its predicted class, or of all classes if it has too few.
    fn position(&self, output: &Output) -> f64 {
        position(&self.scores, &self.pooled, output)
    }
}

/// Refuses what makes no calibration.
fn check(logits: &[f32], num_classes: usize, labels: Option<&[usize]>) -> Result<()> {
    if num_classes < 2 {
        return Err(invalid(format!(
            "expected a network of at least 2 classes, found {num_classes}"
        )));
    }
    if !logits.len().is_multiple_of(num_classes) {
        return Err(invalid(format!(
            "expected rows of {num_classes} logits, found {} numbers; give the logits of whole images",
            logits.len()
        )));
    }
    let images = logits.len() / num_classes;
    if images < FEWEST_IMAGES {
        return Err(invalid(format!(
            "expected at least {FEWEST_IMAGES} images, found {images}; give more, and 2,000 if there are as many"
        )));
    }
    if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
        return Err(invalid(format!(
            "expected finite logits, found {} in class {} of image {}; check the weights of the network and its input",
            logits[at],
            at % num_classes,
            at / num_classes
        )));
    }
    let Some(labels) = labels else { return Ok(()) };
    if labels.len() != images {
        return Err(invalid(format!(
            "expected {images} labels, one for each image, found {}; give all or none",
            labels.len()
        )));
    }
    if let Some(image) = labels.iter().position(|&label| label >= num_classes) {
        return Err(invalid(format!(
            "expected labels below {num_classes}, found {} at image {image}; check that labels count from 0 and belong \
             to this network",
            labels[image]
        )));
    }
    Ok(())
}

/// Names classes; of many, the first ones.
fn listed(classes: &[usize]) -> String {
    let named: Vec<String> = classes
        .iter()
        .take(MOST_NAMED)
        .map(usize::to_string)
        .collect();
    let rest = classes.len().saturating_sub(MOST_NAMED);
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    format!("{}{more}", named.join(", "))
}

/// Makes the error of a calibration.
fn invalid(problem: String) -> Error {
    Error::Invalid {
        what: "calibration",
        problem,
    }
}
