//! RMT: a student and its teacher agree by a symmetric loss, while a projector draws features to the class means of the source.

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData, activation::log_softmax, activation::relu};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use ttac_kernels::loss_with_gradient;

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes, value};
use super::teacher::Teacher;
use super::terms::Terms;
use super::{
    Classifier, Head, Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed,
    Prediction, Stage, Wants,
};
use crate::backbone::layers::Linear;
use crate::backbone::{Adaptable, NormMode, parameter_id};
use crate::data::BatchAugmentation;
use crate::loss::symmetric_cross_entropies;
use crate::optim::{Optimiser, OptimiserConfig};
use crate::rng::Purpose;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<RmtConfig> = Entry {
    variants: &[Variant {
        name: "rmt",
        about: "a slow teacher and the source's class means, by symmetric losses",
        preset: |_, _| RmtConfig::default(),
    }],
    needs: |config| config.needs(),
    build: |config, network, anchors| {
        config.validate()?;
        let anchors = anchors.expect("needs were checked");
        let (classes, features) = (network.num_classes(), network.num_features());
        if (anchors.classes.len(), anchors.num_features()) != (classes, features) {
            return Err(Error::Mismatch {
                what: "anchors and model".to_owned(),
                expected: format!("{classes} classes and {features} features in the model"),
                found: format!(
                    "{} classes and {} features in the anchors",
                    anchors.classes.len(),
                    anchors.num_features()
                ),
            });
        }
        let means = anchors.classes.iter();
        let means = means.flat_map(|class| class.mean().iter().map(|&value| value as f32));
        let projector = config.random_projector(features);
        let method = Rmt::new(config, means.collect(), features, &projector);
        Ok((config.learner(), Box::new(method)))
    },
};

/// Constants of [`Rmt`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmtConfig {
    /// The optimiser; Adam for CIFAR, SGD for ImageNet.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.01 for ImageNet.
    pub learning_rate: f64,
    /// How the copy of each batch is varied.
    pub augmentation: BatchAugmentation,
    /// Share of the student in the teacher after each step.
    pub teacher_share: f64,
    /// Weight of the contrastive loss.
    pub contrastive_weight: f64,
    /// What similarities in the contrastive loss are divided by.
    pub temperature: f64,
    /// The width of the projector's two layers.
    pub projection: usize,
    /// Seeds the projector's first weights.
    pub seed: u64,
}

impl Default for RmtConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            augmentation: BatchAugmentation::FULL,
            teacher_share: 0.001,
            contrastive_weight: 1.0,
            temperature: 0.1,
            projection: 128,
            seed: 0,
        }
    }
}

impl RmtConfig {
    /// Says what the method needs with these constants.
    pub fn needs(&self) -> Needs {
        Needs {
            anchors: true,
            views: Wants::Augmented(1, self.augmentation),
            // Statistics of a single image say nothing of the others.
            fewest_samples: 2,
            ..Needs::NETWORK
        }
    }

    /// Says how the network learns.
    pub fn learner(&self) -> LearnerConfig {
        LearnerConfig {
            adapts: Adaptable::All,
            predicts: NormMode::Batch,
            ..LearnerConfig::stepping(self.optimiser, self.learning_rate)
        }
    }

    fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        if !(0.0..=1.0).contains(&self.teacher_share) {
            problems.push(format!(
                "`teacher_share` must be 0 to 1, found {}",
                self.teacher_share
            ));
        }
        if !(0.0..=1e6).contains(&self.contrastive_weight) {
            problems.push(format!(
                "`contrastive_weight` must be 0 to 1000000, found {}",
                self.contrastive_weight
            ));
        }
        if !(self.temperature > 0.0 && self.temperature <= 100.0) {
            problems.push(format!(
                "`temperature` must be above 0 and at most 100, found {}",
                self.temperature
            ));
        }
        if !(1..=65_536).contains(&self.projection) {
            problems.push(format!(
                "`projection` must be 1 to 65536, found {}",
                self.projection
            ));
        }
        Error::invalid_if_any("method constant", &problems)
    }

    /// Draws the weights of a projector, uniform within one over the square root of a layer's inputs as PyTorch does.
    fn random_projector(&self, features: usize) -> Vec<f32> {
        let mut rng = Purpose::new(*b"rmt draws its projector.").stream(self.seed, 0);
        let layers = [features, self.projection].into_iter();
        let values = layers.flat_map(|inputs| {
            let bound = 1.0 / (inputs as f32).sqrt();
            let count = (inputs + 1) * self.projection;
            let draw = |_| rng.random_range(-bound..bound);
            (0..count).map(draw).collect::<Vec<f32>>()
        });
        values.collect()
    }
}

/// Robust mean teaching (Döbler, Marsden and Yang, 2023), without data of the source.
///
/// # What it does
/// It trains all weights of a student to answer as its teacher does, on the images and on a varied copy of them, by a loss that is the same in
/// both directions. The teacher is an average of the student over time. Besides, a contrastive loss draws the features of an
/// image, those of its copy and the nearest class mean of the source together. All networks use the statistics of the batch.
///
/// # When to use
/// It is made for long streams whose domains change; a batch costs three forward and two backward passes. It needs batches in which classes are mixed.
///
/// # Objective
/// `mean_i (SCE(z_i, t_i) + SCE(z'_i, t_i)) / 2 + contrastive_weight * L`, `t` the teacher's logits, `z'` those of the copy; `L` is the
/// contrastive loss over three views of each image.
///
/// # State it keeps
/// It keeps the weights of the teacher and of the projector, and the moments of the projector's optimiser; the learner keeps the student's.
///
/// # Deviations
/// The published figures replay labelled images of the source and begin with a warm-up on 50,000 of them; this is the variant without
/// either, which the authors' program has too. Anchors give the class means.
///
/// # Which logits are scored
/// The sum of the student's and the teacher's: under predict-first those of the passes it learns from, as in the original; under
/// adapt-first those of passes after the step.
///
/// # References
/// `docs/methods.md`, RMT.
#[derive(Clone, Debug)]
pub struct Rmt {
    config: RmtConfig,
    features: usize,
    /// Class means of the source, `[K, D]`, row-major.
    means: Vec<f32>,
    teacher: Teacher,
    projector: Projector,
    optimiser: Optimiser,
}

/// What is saved.
#[derive(Serialize, Deserialize)]
struct State {
    teacher: Teacher,
    projector: Vec<f32>,
    optimiser: Vec<u8>,
}

/// Two linear layers with a ReLU between them.
#[derive(Module, Debug)]
struct Projector {
    first: Linear,
    second: Linear,
}

impl Projector {
    /// Takes weights and biases of both layers, one after the other.
    ///
    /// # Panics
    /// If they are not as many as the layers have.
    fn of(values: &[f32], features: usize, width: usize) -> Self {
        let device = Device::flex().autodiff();
        let mut rest = values;
        let mut take = |count: usize| {
            let (own, others) = rest.split_at(count);
            rest = others;
            own.to_vec()
        };
        let mut layer = |name: &str, inputs: usize| {
            let weight = TensorData::new(take(width * inputs), [width, inputs]);
            let weight = Tensor::from_data(weight, &device).require_grad();
            let bias = TensorData::new(take(width), [width]);
            let bias = Tensor::from_data(bias, &device).require_grad();
            let id = |part| parameter_id(&format!("rmt.{name}.{part}"));
            Linear {
                weight: Param::initialized(id("weight"), weight),
                bias: Param::initialized(id("bias"), bias),
            }
        };
        let (first, second) = (layer("first", features), layer("second", width));
        assert!(rest.is_empty(), "more values than parameters");
        Self { first, second }
    }

    /// Returns weights and biases of both layers, one after the other.
    fn values(&self) -> Vec<f32> {
        let layers = [&self.first, &self.second].into_iter();
        let values = layers.flat_map(|layer| {
            let weight = rows(&layer.weight.val().inner());
            let bias = layer.bias.val().inner().to_data();
            let bias: Vec<f32> = bias.try_to_vec().expect("parameters are f32");
            weight.into_iter().chain(bias)
        });
        values.collect()
    }

    fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        self.second.forward(relu(self.first.forward(features)))
    }
}

/// Computes the contrastive loss over views of the same images, all first views before all second ones and so on, `[views * images, width]`:
/// the mean over all rows of `-mean_p ln( exp(s_ip) / sum_{j != i} exp(s_ij) )` over the other views `p` of the same image, with
/// `s = u u' / temperature` and `u` the rows at length one.
fn over_views(rows: Tensor<2>, images: usize, temperature: f64) -> Tensor<1> {
    let [count, _] = rows.dims();
    let length = rows.clone().square().sum_dim(1).sqrt();
    // PyTorch's `normalize` divides by at least 1e-12; so does this.
    let unit = rows / length.clamp_min(1e-12);
    let similarity = unit.clone().matmul(unit.transpose()) / temperature;
    let device = similarity.device();
    let matrix = |value: &dyn Fn(usize, usize) -> f32| {
        let places = 0..count * count;
        let values: Vec<f32> = places.map(|at| value(at / count, at % count)).collect();
        Tensor::<2>::from_data(TensorData::new(values, [count, count]), &device)
    };
    // Far enough below every similarity for exp to give zero.
    let not_itself = matrix(&|i, j| if i == j { -1e9 } else { 0.0 });
    let positive = matrix(&|i, j| f32::from(u8::from(i != j && i % images == j % images)));
    let positives = (count / images).saturating_sub(1) * count;
    let log_share = log_softmax(similarity + not_itself, 1);
    (log_share * positive).sum() / -(positives as f64)
}

impl Rmt {
    /// Builds the method from the class means of the source, `[K, D]`, and the projector's weights: a matrix `[width, D]`, its bias, a
    /// matrix `[width, width]`, its bias, each row-major.
    ///
    /// # Panics
    /// If there are not as many values as that.
    pub fn new(config: RmtConfig, means: Vec<f32>, features: usize, projector: &[f32]) -> Self {
        Self {
            projector: Projector::of(projector, features, config.projection),
            optimiser: config.optimiser.init(),
            config,
            features,
            means,
            teacher: Teacher::default(),
        }
    }

    /// Returns the class mean of the source nearest to each feature by its cosine, `[batch, D]`.
    fn nearest_means(&self, features: &Tensor<2>) -> Vec<f32> {
        let values = rows(features);
        let cosine = |mean: &[f32], feature: &[f32]| {
            let product: f64 = mean
                .iter()
                .zip(feature)
                .map(|(a, b)| f64::from(a * b))
                .sum();
            let squares: f64 = mean.iter().map(|&value| f64::from(value).powi(2)).sum();
            // The length of the feature is the same for all means.
            product / squares.sqrt().max(1e-12)
        };
        let nearest = values.chunks_exact(self.features).flat_map(|feature| {
            let means = self.means.chunks_exact(self.features);
            let best = means.max_by(|a, b| cosine(a, feature).total_cmp(&cosine(b, feature)));
            best.unwrap_or_default().to_vec()
        });
        nearest.collect()
    }

    /// Adds the contrastive loss of the features of images and of their copies, and steps the projector along.
    fn contrast(&mut self, features: &Tensor<2>, copies: &Tensor<2>, terms: &mut Terms) {
        let [count, size] = features.dims();
        // The projector is small and stays on the processor, wherever the network is.
        let mut views = self.nearest_means(features);
        for view in [features, copies] {
            views.extend(rows(view));
        }
        let views = TensorData::new(views, [3 * count, size]);
        // The gradient with respect to features is taken on its own, so that the projector can take its part of the same pass.
        let views = Tensor::<2>::from_data(views, &Device::flex().autodiff()).require_grad();
        let projected = self.projector.forward(views.clone());
        let loss = over_views(projected, count, self.config.temperature);
        let loss = loss * self.config.contrastive_weight;
        let amount = value(&loss);
        let mut gradients = loss.backward();
        let gradient = views.grad_remove(&mut gradients);
        let gradients = GradientsParams::from_grads(gradients, &self.projector);
        let rate = self.config.learning_rate;
        let projector = self.projector.clone();
        self.projector = self.optimiser.step_along(rate, projector, gradients);
        let Some(gradient) = gradient else {
            return;
        };
        let gradient = gradient.slice_dim(0, count..3 * count).to_data();
        let gradient = Tensor::from_data(gradient, &features.device());
        let both = Tensor::cat(vec![features.clone(), copies.clone()], 0);
        terms.losses.push(("contrastive", amount));
        terms.join(loss_with_gradient(both, gradient, amount as f32));
    }

    /// Takes a step; returns the scores before it and what was learned.
    fn step(&mut self, learner: &mut Learner, batch: &Minibatch) -> Result<(Tensor<2>, Learned)> {
        let views = batch.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`rmt` needs a varied copy of its images".to_owned(),
        })?;
        let teacher = self.teacher.network(learner);
        let lesson = teacher.forward(batch.images.clone(), NormMode::Batch);
        let network = learner.network();
        let pass = |images: &Tensor<4>| {
            let features = network.features(Tensor::from_inner(images.clone()), NormMode::Batch);
            let logits = network.logits(features.clone());
            (features, logits)
        };
        let (features, logits) = pass(&batch.images);
        let (copies, varied) = pass(&views.images);
        let target = Tensor::from_inner(lesson.clone());
        let own = symmetric_cross_entropies(logits.clone(), target.clone());
        let agreement = (own + symmetric_cross_entropies(varied, target)).mean() / 2.0;
        let mut terms = Terms::default();
        terms.add("agreement", agreement);
        if self.config.contrastive_weight > 0.0 {
            self.contrast(&features, &copies, &mut terms);
        }
        let learned = terms.step(learner);
        self.teacher.follow(learner, self.config.teacher_share);
        Ok((logits.without_autodiff() + lesson, learned))
    }
}

impl Method for Rmt {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, batch)?.1)
    }

    fn answering(&self, learner: &Learner) -> Box<dyn Classifier + Send + Sync> {
        Box::new(Together {
            student: learner.frozen(),
            teacher: self.teacher.network(learner),
        })
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, batch)?;
        let scores = match order {
            Prediction::PredictFirst => before,
            Prediction::AdaptFirst => {
                let both = self.answering(learner);
                both.forward(batch.images.clone(), learner.predicts())
            }
        };
        Ok((scores, learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&State {
            teacher: self.teacher.clone(),
            projector: self.projector.values(),
            optimiser: self.optimiser.save().expect("an optimiser can be saved"),
        })
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let state: State = from_bytes(state)?;
        let (expected, found) = (self.projector.values().len(), state.projector.len());
        if expected != found {
            return Err(Error::Mismatch {
                what: "saved projector".to_owned(),
                expected: format!("{expected} weights"),
                found: format!("{found} weights"),
            });
        }
        self.optimiser.restore(&state.optimiser)?;
        self.teacher = state.teacher;
        self.projector = Projector::of(&state.projector, self.features, self.config.projection);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

/// A student and its teacher, whose scores are added. Everything else is the student's.
struct Together {
    student: Box<dyn Classifier + Send + Sync>,
    teacher: Box<dyn Classifier + Send + Sync>,
}

impl Classifier for Together {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        self.student.features(images, norm)
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.student.logits(features)
    }

    fn forward(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let student = self.student.forward(images.clone(), norm);
        student + self.teacher.forward(images, norm)
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        self.student.projection(features)
    }

    fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>> {
        self.student.rotation(images, norm)
    }

    fn head_weights(&self) -> Option<Tensor<2>> {
        self.student.head_weights()
    }

    fn num_features(&self) -> usize {
        self.student.num_features()
    }

    fn num_classes(&self) -> usize {
        self.student.num_classes()
    }

    fn has_layers(&self, layers: Layers) -> bool {
        self.student.has_layers(layers)
    }

    fn has(&self, head: Head) -> bool {
        self.student.has(head)
    }
}
