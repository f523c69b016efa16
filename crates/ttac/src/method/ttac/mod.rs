//! TTAC: test-time anchored clustering.

mod clusters;
mod config;

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::learner::{from_bytes, rows, to_bytes, value};
use super::shot::select;
use super::{FirstPasses, Learned, Learner, Lesson, Method, Minibatch, QueueState, Stage, Wants};
use crate::archive::Arrays;
use crate::backbone::{Adaptable, Backbone, NormMode, tensors};
use crate::data::SampleId;
use crate::loss::{contrastive, cross_entropy, information_maximisation};
use crate::stats::{
    Anchor, Covariance, CovarianceKind, Gaussian, Measure, Observation, PseudoLabelFilter,
    RunningGaussian, SoftMoment, SourceStatistics, Update, responsibilities,
};
use crate::{Error, Result};

use clusters::{Anchors, Held, Members, Pull, chosen_rows, class_of};
pub use config::{
    Assignment, ClassGate, EpochGate, GlobalPart, Posteriors, SourceKind, TtacConfig,
};

/// Test-time anchored clustering (Su, Xu and Jia, NeurIPS 2022).
///
/// # What it does
/// Keeps running Gaussians of the target's features, one for each class and one for all, and draws
/// them to those of the source, the anchors. A feature counts for a class if its pseudo-label is
/// steady and confident.
///
/// # When to use
/// Where statistics of the source could be taken before the model went out.
///
/// # Objective
/// `lambda * ( mean_k J(anchor_k, target_k) + J(anchor, target) )`, `J` the symmetric divergence of
/// [`crate::stats`]; its gradient with respect to the features is in closed form.
///
/// # State it keeps
/// Weights, momentum, running norm statistics; the Gaussians; per sample of the queue an averaged
/// posterior and a trust.
///
/// # Deviations
/// `released` is the authors' program: what differs from their paper is listed in METHODS 11, each a
/// switch here. We bound the step of running statistics where one minibatch has more samples of a
/// class than its clip, which the program does not; a step without any loss is skipped, where the
/// program coasts on its momentum.
///
/// # Which logits are scored
/// A forward pass with running norm statistics.
///
/// # References
/// METHODS 6 to 8.
#[derive(Clone, Debug)]
pub struct Ttac<B: Backbone> {
    config: TtacConfig,
    name: &'static str,
    learner: Learner<B>,
    anchors: Option<Anchors>,
    /// Rows of the classifier, for prototypes without a source.
    classifier: Vec<f32>,
    state: State,
    initial: State,
}

/// Everything learned besides the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    classes: Vec<RunningGaussian>,
    global: RunningGaussian,
    projection: Option<RunningGaussian>,
    filter: PseudoLabelFilter,
}

impl<B: Backbone> Ttac<B> {
    /// Of a trained network, with its anchors unless it goes without.
    pub fn new(network: B, source: Option<&SourceStatistics>, config: TtacConfig) -> Result<Self> {
        config.validate()?;
        let (classes, features) = (network.num_classes(), network.num_features());
        if config.contrastive && !network.has_projection() {
            return Err(super::config::no_head(
                "ttac",
                "a projection head",
                "simclr",
            ));
        }
        let filter = PseudoLabelFilter::new(config.filter.clone(), classes)?;
        let zeros = Gaussian::zeros(features, CovarianceKind::Full);
        let global = RunningGaussian::new(&zeros, Some(config.clip))?;
        let class_clip = Some(config.class_clip);
        let (anchors, state) = match config.source {
            SourceKind::Classifier => {
                let zeros = Gaussian::zeros(features, config.class_covariance);
                let class = RunningGaussian::new(&zeros, class_clip)?;
                let state = State {
                    classes: vec![class; classes],
                    global,
                    projection: None,
                    filter,
                };
                (None, state)
            }
            SourceKind::Statistics => {
                let source = source.ok_or_else(|| super::config::no_anchors("ttac"))?;
                check_sizes(source, classes, features)?;
                let anchors = Anchors::new(source, &config)?;
                let moment = match config.assignment {
                    Assignment::Soft(moment) => moment,
                    Assignment::Hard => SoftMoment::default(),
                };
                let start = |class: &Gaussian| {
                    let running = RunningGaussian::new(class, class_clip)?;
                    Ok(running.with_soft_moment(moment))
                };
                let kept = source.classes.iter().map(|class| class_of(class, &config));
                let projection = anchors.projection.as_ref().map(|anchor| {
                    let zeros = Gaussian::zeros(anchor.dimension(), CovarianceKind::Full);
                    RunningGaussian::new(&zeros, Some(config.clip))
                });
                let state = State {
                    classes: kept.map(|class| start(&class)).collect::<Result<_>>()?,
                    global,
                    projection: projection.transpose()?,
                    filter,
                };
                (Some(anchors), state)
            }
        };
        let which = if config.contrastive && config.train_projection {
            Adaptable::FeaturesAndHeads
        } else {
            Adaptable::Features
        };
        let classifier = rows(&network.head_weights());
        let (optimiser, rate) = (config.optimiser, config.learning_rate);
        Ok(Self {
            name: name_of(&config),
            learner: Learner::new(network, which, optimiser, rate, config.norm)
                .with_gradient_bound(config.gradient_bound),
            config,
            anchors,
            classifier,
            initial: state.clone(),
            state,
        })
    }

    /// Whether the class part counts at this stage.
    fn gate_is_open(&self, stage: &Stage) -> bool {
        let gate = &self.config.gate;
        let epoch = match gate.epochs {
            EpochGate::Always => true,
            EpochGate::SecondHalf => stage.epoch > stage.epochs / 2,
            EpochGate::After(epoch) => stage.epoch > epoch,
        };
        let full = matches!(stage.queue, QueueState::Full | QueueState::Everything);
        self.config.class_part && epoch && (full || !gate.full_queue)
    }

    /// Posteriors of the minibatch for the filter, `[batch, classes]`.
    fn posteriors(&self, minibatch: &Minibatch, features: &Tensor<2>) -> Vec<f32> {
        let logits = match self.config.posteriors {
            Posteriors::Running => {
                let frozen = self.learner.frozen();
                frozen.forward(minibatch.images.clone(), NormMode::Running)
            }
            Posteriors::Batch => {
                let network = self.learner.network();
                network.logits(features.clone()).without_autodiff()
            }
        };
        rows(&softmax(logits, 1))
    }

    /// Moves the class statistics; value and gradient of the class part, before its weight.
    fn class_part(
        &mut self,
        values: &[f32],
        members: &Members,
        open: bool,
        pull: &mut Pull,
    ) -> Result<f64> {
        let classes = self.state.classes.len();
        let weight = self.config.loss_scale / classes as f64;
        let mut sum = 0.0;
        for class in 0..classes {
            let Some((indices, weights)) = members.of(class) else {
                continue;
            };
            let chosen = chosen_rows(values, &indices, pull.features);
            let running = &self.state.classes[class];
            let update = running.prepare(&chosen, weights.as_deref())?;
            if open && update.count >= self.config.gate.visits {
                let (anchor, template) = self.class_anchor(class, &update)?;
                let target = update.gaussian.clone().add_template(template);
                sum += pull.add(&anchor, &target, &update, &chosen, &indices, weight)?;
            }
            self.state.classes[class].commit(update);
        }
        Ok(sum)
    }

    /// The anchor of a class and the template of its target.
    fn class_anchor(&self, class: usize, update: &Update) -> Result<(Held<'_>, f64)> {
        if let Some(anchors) = &self.anchors {
            return Ok((Held::Shared(&anchors.classes[class]), anchors.template));
        }
        let template = self
            .state
            .global
            .gaussian()
            .template(self.config.template_divisor);
        let features = update.delta.len();
        let row = &self.classifier[class * features..][..features];
        let length =
            |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let of_mean = length(&mut update.gaussian.mean().iter().copied());
        let of_row = length(&mut row.iter().map(|&v| f64::from(v)));
        let scale = of_mean / of_row.max(f64::MIN_POSITIVE);
        let mean = row.iter().map(|&v| f64::from(v) * scale).collect();
        let covariance = Covariance::Diagonal(vec![template; features]);
        let prototype = Gaussian::new(mean, covariance)?.to_kind(self.config.class_covariance);
        let measure = Measure::Kl(self.config.direction);
        Ok((
            Held::Own(Box::new(Anchor::new(&prototype, measure)?)),
            template,
        ))
    }
}

fn name_of(config: &TtacConfig) -> &'static str {
    match (
        config.source,
        config.contrastive,
        config.information_weight > 0.0,
    ) {
        (SourceKind::Classifier, _, false) => "ttac-source-free",
        (SourceKind::Classifier, _, true) => "ttac-source-free+shot",
        (_, true, _) => "ttac+contrastive",
        (_, false, true) => "ttac+shot",
        (_, false, false) => "ttac",
    }
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

/// Losses as they come together.
#[derive(Default)]
struct Terms {
    sum: Option<Tensor<1>>,
    losses: Vec<(&'static str, f64)>,
}

impl Terms {
    fn add(&mut self, name: &'static str, loss: Tensor<1>) {
        self.losses.push((name, value(&loss)));
        self.join(loss);
    }

    fn join(&mut self, loss: Tensor<1>) {
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
}

impl<B: Backbone + 'static> Method for Ttac<B> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn wants(&self) -> Wants {
        if self.config.contrastive {
            Wants::Contrastive
        } else {
            Wants::Nothing
        }
    }

    fn warms_up(&self) -> bool {
        self.config.contrastive
    }

    fn first_passes(&self) -> FirstPasses {
        if self.config.contrastive {
            FirstPasses {
                norms: 2,
                contrastive: 1,
            }
        } else {
            FirstPasses::default()
        }
    }

    fn begin_epoch(&mut self, _: &Stage) {
        self.state.filter.recover();
    }

    fn learn(&mut self, minibatch: &Minibatch, stage: &Stage) -> Result<Learned> {
        let mut terms = Terms::default();
        if let Some(views) = minibatch.views.as_ref().filter(|_| self.config.contrastive) {
            let mode = self.learner.updating();
            let network = self.learner.network();
            let features = network.features(Tensor::from_inner(views.images.clone()), mode);
            let projections = network.projection(features).expect("checked when made");
            terms.add("contrastive", contrastive(projections));
        }
        match stage.lesson {
            // The running norm statistics have moved; the released program does no more here.
            Lesson::Norms => return Ok(Learned::nothing()),
            Lesson::Contrastive => {
                if let Some(loss) = &terms.sum {
                    self.learner.step(loss);
                }
                return Ok(Learned::one_step(terms.losses));
            }
            Lesson::All => {}
        }
        let mode = self.learner.updating();
        let images = Tensor::from_inner(minibatch.images.clone());
        let features = self.learner.network().features(images, mode);
        let values = rows(&features);
        let posteriors = self.posteriors(minibatch, &features);
        let observed = self.state.filter.observe(&minibatch.ids, &posteriors)?;
        let mut pull = Pull::new(minibatch.ids.len(), features.dims()[1]);

        // The classes.
        let members = self.members(&values, &observed)?;
        let open = self.gate_is_open(stage);
        let everyone: Vec<usize> = (0..minibatch.ids.len()).collect();
        let update = self.state.global.prepare(&values, None)?;
        if self.anchors.is_none() {
            // Prototypes take their template from the target's global statistics, this batch included.
            self.state.global.commit(update.clone());
        }
        let class_value = self.class_part(&values, &members, open, &mut pull)?;

        // All together.
        let mut global_value = 0.0;
        if let Some(anchors) = &self.anchors {
            if self.config.global_part != GlobalPart::None {
                let target = update.gaussian.clone().add_template(anchors.template);
                let weight = self.config.loss_scale;
                global_value = pull.add(
                    &anchors.global,
                    &target,
                    &update,
                    &values,
                    &everyone,
                    weight,
                )?;
                terms.losses.push(("global", global_value));
            }
            self.state.global.commit(update);
        }
        if open {
            terms.losses.push(("class", class_value));
        }
        let notes = std::mem::take(&mut pull.notes);
        if pull.gradient.iter().any(|&value| value != 0.0) {
            terms.join(pull.loss(features.clone(), class_value + global_value));
        }

        // What else there may be.
        self.align_projections(&features, &mut terms)?;
        if self.config.information_weight > 0.0 {
            let logits = self.learner.network().logits(features.clone());
            let information = information_maximisation(logits) * self.config.information_weight;
            terms.add("information_maximisation", information);
        }
        if !self.config.class_part && self.config.global_part == GlobalPart::None {
            self.train_itself(features, &observed, &mut terms);
        }
        let updates = match &terms.sum {
            Some(loss) => {
                self.learner.step(loss);
                1
            }
            None => 0,
        };
        Ok(Learned {
            updates,
            losses: terms.losses,
            accepted: observed.counts.accepted,
            considered: minibatch.ids.len(),
            anchor_distance: self.anchor_distance(),
            notes,
        })
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().forward(images, NormMode::Running)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().features(images, NormMode::Running)
    }

    fn forget(&mut self, ids: &[SampleId]) {
        self.state.filter.forget(ids);
    }

    fn reset(&mut self) {
        self.learner.reset();
        self.state = self.initial.clone();
    }

    fn drift(&self) -> Option<f64> {
        Some(self.learner.drift())
    }

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.learner.frozen())
    }

    fn save(&self, arrays: &mut Arrays) -> Result<()> {
        arrays.insert("statistics", to_bytes(&self.state));
        self.learner.save(arrays)
    }

    fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        self.state = from_bytes(&arrays.u8("statistics")?)?;
        self.learner.load(arrays)
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

impl<B: Backbone> Ttac<B> {
    /// How far the means of the classes met so far are from their anchors', on average.
    fn anchor_distance(&self) -> Option<f64> {
        let pairs = self
            .state
            .classes
            .iter()
            .zip(&self.anchors.as_ref()?.classes);
        let distances: Vec<f64> = pairs
            .filter(|(class, _)| class.count() > 0.0)
            .map(|(class, anchor)| {
                let pairs = class.gaussian().mean().iter().zip(anchor.mean());
                pairs.map(|(t, s)| (t - s).powi(2)).sum::<f64>().sqrt()
            })
            .collect();
        (!distances.is_empty()).then(|| distances.iter().sum::<f64>() / distances.len() as f64)
    }

    /// Who belongs to which class.
    fn members(&self, values: &[f32], observed: &Observation) -> Result<Members> {
        let (Assignment::Soft(_), Some(anchors)) = (self.config.assignment, &self.anchors) else {
            return Ok(Members::Hard(observed.accepted_labels()));
        };
        let targets = self.state.classes.iter();
        let targets = targets.map(|class| class.gaussian().clone().add_template(anchors.template));
        let targets: Vec<Gaussian> = targets.collect();
        let shares = responsibilities(&targets, values)?;
        let rows = shares.len() / targets.len();
        Ok(Members::Soft(shares, rows))
    }

    fn align_projections(&mut self, features: &Tensor<2>, terms: &mut Terms) -> Result<()> {
        let Some(anchors) = &self.anchors else {
            return Ok(());
        };
        let (Some(anchor), Some(running)) = (&anchors.projection, &mut self.state.projection)
        else {
            return Ok(());
        };
        let outputs = self.learner.network().projection(features.clone());
        let outputs = outputs.expect("checked when made");
        let values = rows(&outputs);
        let [count, size] = outputs.dims();
        let mut pull = Pull::new(count, size);
        let update = running.prepare(&values, None)?;
        let target = update
            .gaussian
            .clone()
            .add_template(anchors.projection_template);
        let everyone: Vec<usize> = (0..count).collect();
        let weight = self.config.loss_scale;
        let found = pull.add(anchor, &target, &update, &values, &everyone, weight)?;
        running.commit(update);
        terms.losses.push(("projection", found));
        terms.join(pull.loss(outputs, found));
        Ok(())
    }

    /// Both parts are off: cross-entropy against the accepted pseudo-labels.
    fn train_itself(&self, features: Tensor<2>, observed: &Observation, terms: &mut Terms) {
        let accepted: Vec<(usize, usize)> = observed
            .accepted_labels()
            .into_iter()
            .enumerate()
            .filter_map(|(row, label)| Some((row, label?)))
            .collect();
        if accepted.is_empty() {
            return;
        }
        let (chosen, labels): (Vec<usize>, Vec<usize>) = accepted.into_iter().unzip();
        let logits = self.learner.network().logits(select(features, &chosen));
        let loss = cross_entropy(logits, &labels) * (2.0 * self.config.loss_scale);
        terms.add("self_training", loss);
    }
}
