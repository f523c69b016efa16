//! TTAC: test-time anchored clustering.

mod clusters;
mod config;
pub(super) mod start;

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::novelty::AveragePrediction;
use super::shot::select;
use super::terms::Terms;
use super::{
    FirstPasses, Head, Layers, Learned, Learner, Lesson, Method, Minibatch, Needs, QueueState,
    Stage, Wants,
};
use crate::backbone::NormMode;
use crate::data::SampleId;
use crate::loss::{cross_entropy, information_maximisation, soft_likelihood_ratios};
use crate::stats::{
    Anchor, Covariance, Gaussian, Measure, Observation, PseudoLabelFilter, RunningGaussian, Update,
    mixture, responsibilities,
};
use crate::{Error, Result};

use clusters::{Anchors, Held, Members, Mixed, Moved, Pull, chosen_rows};
pub use config::{
    Assignment, ClassGate, EpochGate, GlobalPart, Information, Posteriors, SourceKind, TtacConfig,
};

/// How much a certain sample that is unlike the average prediction counts, and the share of a batch in that average: ROID's.
const NOVELTY_SHARPNESS: f64 = 3.0;
const NOVELTY_SHARE: f64 = 0.1;

pub(super) const ENTRY: Entry<TtacConfig> = Entry {
    variants: &[
        Variant {
            name: "ttac",
            about: "anchored clustering",
            preset: TtacConfig::preset,
        },
        Variant {
            name: "ttac+shot",
            about: "anchored clustering with information maximisation",
            preset: |preset, setting| TtacConfig::preset(preset, setting).with_information(),
        },
        Variant {
            name: "ttac-source-free",
            about: "anchored clustering around the classifier's rows",
            preset: |preset, setting| {
                TtacConfig::preset(preset, setting).source_free_preset(preset)
            },
        },
        Variant {
            name: "ttac-source-free+shot",
            about: "the same with information maximisation",
            preset: |preset, setting| {
                let with_information = TtacConfig::preset(preset, setting).with_information();
                with_information.source_free_preset(preset)
            },
        },
        Variant {
            name: "ttac+contrastive",
            about: "anchored clustering with contrastive learning; needs a joint model",
            preset: |preset, setting| TtacConfig {
                contrastive: true,
                ..TtacConfig::preset(preset, setting)
            },
        },
    ],
    needs: |config| Needs {
        anchors: config.source == SourceKind::Statistics,
        layers: (config.source == SourceKind::Classifier).then_some(Layers::LinearClassifier),
        head: config.contrastive.then_some(Head::Projection),
        views: if config.contrastive {
            Wants::Contrastive
        } else {
            Wants::Nothing
        },
        // Without a source the covariances come from the target alone, and a single sample has none.
        fewest_samples: match config.source {
            SourceKind::Statistics => 1,
            SourceKind::Classifier => 2,
        },
        warm_up: config.contrastive,
        first_passes: if config.contrastive {
            FirstPasses {
                norms: 2,
                contrastive: 1,
            }
        } else {
            FirstPasses::default()
        },
        ..Needs::NETWORK
    },
    build: start::build,
};

/// Test-time anchored clustering (Su, Xu and Jia, NeurIPS 2022).
///
/// # What it does
/// It keeps running Gaussians of the target's features, one for each class and one for all, and draws
/// them to those of the source, the anchors. A feature counts for a class if its pseudo-label is
/// steady and confident.
///
/// # When to use
/// Use it where statistics of the source could be taken before the model went out.
///
/// # Objective
/// `lambda * ( mean_k J(anchor_k, target_k) + J(anchor, target) )`, `J` the symmetric divergence of
/// [`crate::stats`]; its gradient with respect to the features is in closed form.
///
/// # State it keeps
/// It keeps the Gaussians, and per sample of the queue an averaged posterior and a trust; the learner keeps
/// weights, momentum and running norm statistics.
///
/// # Deviations
/// `released` is the authors' program: what differs from their paper is listed in `docs/methods.md`, each a
/// switch here. We bound the step of running statistics where one minibatch has more samples of a
/// class than its clip, which the program does not; a step without any loss is skipped, where the
/// program coasts on its momentum.
///
/// # Which logits are scored
/// Those of a forward pass with running norm statistics.
///
/// # References
/// `docs/methods.md`, TTAC.
#[derive(Clone, Debug)]
pub struct Ttac {
    config: TtacConfig,
    anchors: Option<Anchors>,
    /// Rows of the classifier, for prototypes without a source.
    classifier: Vec<f32>,
    state: State,
}

/// Everything learned besides the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    classes: Vec<RunningGaussian>,
    global: RunningGaussian,
    projection: Option<RunningGaussian>,
    filter: PseudoLabelFilter,
    novelty: AveragePrediction,
}

impl Method for Ttac {
    fn begin_epoch(&mut self, _: &Stage) {
        self.state.filter.recover();
    }

    fn forget(&mut self, ids: &[SampleId]) {
        self.state.filter.forget(ids);
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let state: State = from_bytes(state)?;
        let size = |state: &State| (state.classes.len(), state.global.gaussian().mean().len());
        if size(&state) != size(&self.state) {
            let describe = |(classes, features)| format!("{classes} classes, {features} features");
            return Err(Error::Mismatch {
                what: "saved clusters".to_owned(),
                expected: describe(size(&self.state)),
                found: describe(size(&state)),
            });
        }
        self.state.novelty.check_saved(&state.novelty)?;
        self.state = state;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }

    fn learn(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        stage: &Stage,
    ) -> Result<Learned> {
        let views = batch.views.as_ref().filter(|_| self.config.contrastive);
        if stage.lesson == Lesson::Norms {
            // Only views move the norm statistics here, as in the released program.
            if let Some(views) = views {
                learner.follow_norms(views.images.clone());
            }
            return Ok(Learned::nothing());
        }
        let mut terms = Terms::default();
        if let Some(views) = views {
            terms.add_contrastive(learner, views);
        }
        if stage.lesson == Lesson::Contrastive {
            return Ok(terms.step(learner));
        }
        let features = learner.features(batch.images.clone());
        self.learn_from(learner, batch, (features, terms), stage)
    }
}

impl Ttac {
    /// Learns from the features of a minibatch, `[batch, D]`, and from terms that were added before.
    pub(super) fn learn_from(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        (features, mut terms): (Tensor<2>, Terms),
        stage: &Stage,
    ) -> Result<Learned> {
        let posteriors = self.posteriors(learner, batch, &features);
        let observed = self.state.filter.observe(&batch.ids, &posteriors)?;

        let (notes, not_finite) = self.draw_to_anchors(&features, &observed, stage, &mut terms)?;
        self.align_projections(learner, &features, &mut terms)?;
        if self.config.information_weight > 0.0 {
            let logits = learner.network().logits(features.clone());
            self.add_information(logits, &mut terms);
        }
        if !self.config.class_part && self.config.global_part == GlobalPart::None {
            self.train_itself(learner, features, &observed, &mut terms);
        }
        if not_finite.is_some() {
            // A step down such a gradient would destroy the network.
            terms = terms.without_step();
        }
        Ok(Learned {
            accepted: observed.counts.accepted,
            considered: batch.ids.len(),
            anchor_distance: self.anchor_distance(),
            not_finite,
            notes,
            ..terms.step(learner)
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

    /// Computes posteriors of the minibatch for the filter, `[batch, classes]`.
    fn posteriors(
        &self,
        learner: &Learner,
        minibatch: &Minibatch,
        features: &Tensor<2>,
    ) -> Vec<f32> {
        let logits = match self.config.posteriors {
            Posteriors::Running if !learner.learns_by_stored_norms() => {
                let frozen = learner.frozen();
                frozen.forward(minibatch.images.clone(), NormMode::Running)
            }
            Posteriors::Running | Posteriors::Batch => {
                let network = learner.network();
                network.logits(features.clone()).without_autodiff()
            }
        };
        rows(&softmax(logits, 1))
    }

    /// Adds the loss that makes predictions certain, of logits, `[batch, classes]`.
    fn add_information(&mut self, logits: Tensor<2>, terms: &mut Terms) {
        let weight = self.config.information_weight;
        match self.config.information {
            Information::Diversity => {
                let information = information_maximisation(logits);
                terms.add("information_maximisation", information * weight);
            }
            Information::Novelty => {
                let [count, _] = logits.dims();
                let probabilities = rows(&softmax(logits.clone().without_autodiff(), 1));
                let novelty = &mut self.state.novelty;
                let weights = novelty.weigh(&probabilities, NOVELTY_SHARPNESS).weights;
                novelty.follow(&probabilities, NOVELTY_SHARE);
                let total = f64::from(weights.iter().sum::<f32>());
                let weights = TensorData::new(weights, [count, 1]);
                let weights = Tensor::<2>::from_data(weights, &logits.device());
                let ratios = (soft_likelihood_ratios(logits) * weights).sum() / total;
                terms.add("likelihood_ratio", ratios * weight);
            }
        }
    }

    /// Moves the running Gaussians by a minibatch and adds the anchored loss of features, `[batch, D]`. Returns
    /// notes for people, and the name of a gradient that was not finite.
    fn draw_to_anchors(
        &mut self,
        features: &Tensor<2>,
        observed: &Observation,
        stage: &Stage,
        terms: &mut Terms,
    ) -> Result<(Vec<String>, Option<&'static str>)> {
        let values = rows(features);
        let [count, size] = features.dims();
        let mut pull = Pull::new(count, size);
        let members = self.members(&values, observed)?;
        let open = self.gate_is_open(stage);
        let update = self.state.global.prepare(&values, None)?;
        if self.anchors.is_none() {
            // Prototypes take their template from the target's global statistics, this batch included.
            self.state.global.commit(update.clone());
        }
        let (class_value, moved) = self.class_part(&values, &members, open, &mut pull)?;
        let mut global_value = None;
        if let Some(anchors) = &self.anchors {
            if let Some(mixed) = &anchors.mixed {
                global_value = self.mixture_part(anchors.template, mixed, &moved, &mut pull)?;
            } else if self.config.global_part != GlobalPart::None {
                let everyone: Vec<usize> = (0..count).collect();
                let target = update.gaussian.clone().add_template(anchors.template);
                let weight = self.config.loss_scale;
                let anchor = &anchors.global;
                global_value = pull.add(anchor, &target, &update, &values, &everyone, weight)?;
            }
            terms
                .losses
                .extend(global_value.map(|value| ("global", value)));
            self.state.global.commit(update);
        }
        if open {
            terms
                .losses
                .extend(class_value.map(|value| ("class", value)));
        }
        let notes = std::mem::take(&mut pull.notes);
        let not_finite = (!pull.is_finite()).then_some("anchored loss");
        if pull.gradient.iter().any(|&value| value != 0.0) {
            let value = class_value.unwrap_or_default() + global_value.unwrap_or_default();
            terms.join(pull.loss(features.clone(), value));
        }
        Ok((notes, not_finite))
    }

    /// Adds the gradient of the global part by class; returns its value where it is computed. A class counts as it is in the source
    /// until it was visited as often as the class part asks for.
    fn mixture_part(
        &self,
        template: f64,
        mixed: &Mixed,
        moved: &[Moved],
        pull: &mut Pull,
    ) -> Result<Option<f64>> {
        let visited = |count: f64| count >= self.config.gate.visits;
        let classes = self.state.classes.iter().zip(&mixed.classes);
        let parts = classes.zip(&mixed.shares).map(|((target, source), share)| {
            let part = if visited(target.count()) {
                target.gaussian()
            } else {
                source
            };
            (part, *share)
        });
        let parts: Vec<_> = parts.collect();
        let target = mixture(&parts)?.add_template(template);
        let moved: Vec<&Moved> = moved
            .iter()
            .filter(|part| visited(part.update.count))
            .collect();
        let weight = self.config.loss_scale;
        pull.add_mixture(&mixed.anchor, &target, &moved, &mixed.shares, weight)
    }

    /// Moves the class statistics and adds the class part's gradient; returns its value where it is computed, and the classes that
    /// moved.
    fn class_part(
        &mut self,
        values: &[f32],
        members: &Members,
        open: bool,
        pull: &mut Pull,
    ) -> Result<(Option<f64>, Vec<Moved>)> {
        let classes = self.state.classes.len();
        let weight = self.config.loss_scale / classes as f64;
        let mut moved = Vec::new();
        let mut sum = pull.logged.then_some(0.0);
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
                let value = pull.add(&anchor, &target, &update, &chosen, &indices, weight)?;
                sum = sum.zip(value).map(|(sum, value)| sum + value);
            }
            self.state.classes[class].commit(update.clone());
            moved.push(Moved {
                class,
                indices,
                chosen,
                update,
            });
        }
        Ok((sum, moved))
    }

    /// Returns the anchor of a class and the template of its target. Without source statistics the anchor is the
    /// classifier's row, made as long as the target's class mean.
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

    /// Measures how far the means of the classes met so far are from those of their anchors, on average.
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

    /// Decides which rows count for which class.
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

    /// Draws the outputs of the projection head to their anchor, if that is switched on.
    fn align_projections(
        &mut self,
        learner: &Learner,
        features: &Tensor<2>,
        terms: &mut Terms,
    ) -> Result<()> {
        let Some(anchors) = &self.anchors else {
            return Ok(());
        };
        let (Some(anchor), Some(running)) = (&anchors.projection, &mut self.state.projection)
        else {
            return Ok(());
        };
        let outputs = learner.network().projection(features.clone());
        let outputs = outputs.expect("needs were checked");
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
        terms
            .losses
            .extend(found.map(|value| ("projection", value)));
        terms.join(pull.loss(outputs, found.unwrap_or_default()));
        Ok(())
    }

    /// Adds cross-entropy against the accepted pseudo-labels, for the ablation with both parts off.
    fn train_itself(
        &self,
        learner: &Learner,
        features: Tensor<2>,
        observed: &Observation,
        terms: &mut Terms,
    ) {
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
        let logits = learner.network().logits(select(features, &chosen));
        let loss = cross_entropy(logits, &labels) * (2.0 * self.config.loss_scale);
        terms.add("self_training", loss);
    }
}
