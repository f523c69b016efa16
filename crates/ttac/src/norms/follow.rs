//! Norm statistics that follow the target image by image.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::ParamId;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::reference::{NormReference, total};
use crate::archive::{Array, Arrays};
use crate::backbone::{Backbone, ImageMoments, NormLayer, NormRule, parameters};
use crate::{Error, Result};

/// By which rule running norm statistics follow the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormFollow {
    /// Batch norms learn with the statistics of the batch, and the stored ones move towards those, batch by batch.
    #[default]
    Batches,
    /// The stored statistics move by images, and learning uses them too.
    Images,
    /// The same class by class, from the source's class statistics, so that a run of one class moves that class alone.
    Classes,
    /// By images while the recent classes are mixed as in the source, by classes while they come in runs, and in between between.
    Auto,
}

/// Images for which the source counts, and after which statistics forget, in the pooled statistics of a rule by class: of a layer that is
/// too wide for statistics by class, and of [`NormFollow::Auto`]. They were measured for pooled statistics, whatever the numbers for a
/// class are.
const POOLED: (f64, f64) = (64.0, 1024.0);

/// How many images tell whether classes come in runs.
const RECENT: usize = 256;

/// The divergence of recent classes from the source's shares, in nats and above what chance makes of it, from which on they begin to count
/// as a run, and from which on they do so fully. A network under a strong shift prefers some classes by up to the first.
const RUN: (f64, f64) = (0.2, 0.4);

/// A [`NormRule`] by which stored statistics follow the images of the target.
///
/// A group is a class, or all images together. With the `n` newest images of a group, whose means are `m_i` and variances `v_i`, and `N` images of
/// the group before them:
///
/// ```text
/// a  = n / (n + min(prior + N, window)),  or  min(1, n share)
/// d  = a (mean_i m_i - M)
/// V <- V + a (mean_i (v_i + (m_i - M)^2) - V) - d^2
/// M <- M + d
/// ```
///
/// The layer uses `m = sum_k s_k M_k` and `v = sum_k s_k (V_k + (M_k - m)^2)`, `s_k` the shares of the classes in the source. Groups start at
/// the moments of the [`NormReference`], so before the first image this is what a re-based network has stored. A layer sees what was
/// normalised by the new statistics of the layers before it.
///
/// Class by class is right while classes come in runs, but where they are mixed it is worse than pooled: under a strong shift many labels
/// are wrong, and the classes that are seldom predicted stay where the source had them. [`NormFollow::Auto`] keeps both. With `w` from 0
/// (the predicted classes of the last images are mixed as in the source) to 1 (they are not) it uses a mixture of the two, `w` the share of
/// the classes; the pooled group follows the images with the share `1 - w` and the total of the classes with the share `w`, so that a run
/// leaves no trace in it either.
#[derive(Debug)]
pub struct Following {
    rule: NormFollow,
    prior: f64,
    window: f64,
    share: Option<f64>,
    batch_gradients: bool,
    shares: Vec<f64>,
    /// How many images the coming pass has.
    count: usize,
    /// Their classes, unless they are to be known after the pass.
    labels: Option<Vec<usize>>,
    /// How much they count as a run, from 0 to 1.
    run: f64,
    initial: Groups,
    now: Mutex<Groups>,
    /// What the images of the pass brought to each layer, until their classes are known.
    kept: Mutex<Vec<Kept>>,
}

/// The moments of images in a layer, rows of means and of variances, `[batch, channels]` each.
type Kept = (ParamId, Vec<f32>, Vec<f32>);

/// The groups of all layers.
#[derive(Clone, Debug, PartialEq)]
struct Groups {
    /// Images of each class so far.
    counts: Vec<f64>,
    /// The classes of the newest images, oldest first; kept by [`NormFollow::Auto`] alone.
    recent: VecDeque<usize>,
    layers: BTreeMap<ParamId, LayerGroups>,
}

/// The groups of one layer.
#[derive(Clone, Debug, PartialEq)]
struct LayerGroups {
    /// The key of the running mean, under which they are saved.
    key: String,
    channels: usize,
    /// `[groups, channels]`.
    means: Vec<f64>,
    /// `[groups, channels]`.
    variances: Vec<f64>,
    /// Mean and variance of all images beside those of the classes, `[channels]` each; kept by [`NormFollow::Auto`] alone.
    pooled: Option<(Vec<f64>, Vec<f64>)>,
}

impl Clone for Following {
    fn clone(&self) -> Self {
        Self {
            rule: self.rule,
            prior: self.prior,
            window: self.window,
            share: self.share,
            batch_gradients: self.batch_gradients,
            shares: self.shares.clone(),
            count: self.count,
            labels: self.labels.clone(),
            run: self.run,
            initial: self.initial.clone(),
            now: Mutex::new(self.groups().clone()),
            kept: Mutex::new(Vec::new()),
        }
    }
}

impl Following {
    /// Starts at the source's moments. The source counts like `prior` images of a group, and after `window` images a group forgets. With
    /// `share`, every image has that share of its group instead.
    pub fn new<B: Backbone>(
        network: &B,
        reference: &NormReference,
        rule: NormFollow,
        (prior, window): (f64, f64),
        share: Option<f64>,
    ) -> Self {
        let ids: BTreeMap<String, ParamId> = parameters(network)
            .into_iter()
            .map(|one| (one.key, one.id))
            .collect();
        let movable = reference.movable().into_iter();
        let layers = movable.filter_map(|(layer, _, _)| {
            let id = *ids.get(&layer.keys.mean)?;
            let all = layer.total(&reference.shares);
            let classes = (layer.means.clone(), layer.variances.clone());
            let ((means, variances), pooled) = match rule {
                NormFollow::Batches | NormFollow::Images => (all, None),
                NormFollow::Classes => (classes, None),
                NormFollow::Auto => (classes, (layer.groups() > 1).then_some(all)),
            };
            let groups = LayerGroups {
                key: layer.keys.mean.clone(),
                channels: layer.channels,
                means,
                variances,
                pooled,
            };
            Some((id, groups))
        });
        let initial = Groups {
            counts: vec![0.0; reference.shares.len()],
            recent: VecDeque::new(),
            layers: layers.collect(),
        };
        Self {
            rule,
            prior,
            window,
            share,
            batch_gradients: false,
            shares: reference.shares.clone(),
            count: 0,
            labels: None,
            run: 0.0,
            now: Mutex::new(initial.clone()),
            kept: Mutex::new(Vec::new()),
            initial,
        }
    }

    /// Says whether gradients pass through the statistics of the batch. They do not unless this is said.
    pub fn with_batch_gradients(self, batch_gradients: bool) -> Self {
        Self {
            batch_gradients,
            ..self
        }
    }

    /// Whether the classes of images make a difference.
    pub fn is_by_class(&self) -> bool {
        matches!(self.rule, NormFollow::Classes | NormFollow::Auto)
    }

    /// Whether the classes of the coming images may be told after the pass, from its own scores. So it is while the recent classes are
    /// mixed: then the classes do not matter to what normalises. Of a run that begins with the coming images the pooled statistics notice
    /// only then, and have moved by one batch.
    pub fn labels_can_wait(&self) -> bool {
        let groups = self.groups();
        self.rule == NormFollow::Auto
            && groups.recent.len() >= RECENT
            && run(&groups.recent, &self.shares) == 0.0
    }

    /// Takes the classes of the images in the coming pass.
    pub fn begin(&mut self, labels: Vec<usize>) {
        if self.rule == NormFollow::Auto {
            self.run = self.remember(&labels);
        }
        self.count = labels.len();
        self.labels = Some(labels);
    }

    /// Announces a pass of so many images whose classes will be told [after it](Self::finish_with).
    pub fn begin_unlabelled(&mut self, count: usize) {
        self.run = 0.0;
        self.count = count;
        self.labels = None;
        self.kept().clear();
    }

    /// Tells the classes of the images of an unlabelled pass, and counts them.
    pub fn finish_with(&mut self, labels: Vec<usize>) {
        let kept = std::mem::take(&mut *self.kept());
        {
            let mut groups = self.groups();
            let Groups { counts, layers, .. } = &mut *groups;
            for (id, means, variances) in &kept {
                if let Some(layer) = layers.get_mut(id) {
                    self.follow_classes(layer, counts, &labels, means, variances);
                }
            }
        }
        self.remember(&labels);
        self.labels = Some(labels);
        self.finish();
    }

    /// Counts the images of the pass that was made.
    pub fn finish(&mut self) {
        let labels = self.labels.take().unwrap_or_default();
        let mut groups = self.groups();
        for class in labels {
            groups.counts[class] += 1.0;
        }
    }

    /// Adds classes to the recent ones, and returns how much these count as a run.
    fn remember(&self, labels: &[usize]) -> f64 {
        let mut groups = self.groups();
        groups.recent.extend(labels);
        let over = groups.recent.len().saturating_sub(RECENT.max(labels.len()));
        groups.recent.drain(..over);
        run(&groups.recent, &self.shares)
    }

    /// Moves the classes' groups of a layer by the images of each.
    fn follow_classes(
        &self,
        layer: &mut LayerGroups,
        counts: &[f64],
        labels: &[usize],
        means: &[f32],
        variances: &[f32],
    ) {
        for (class, &seen) in counts.iter().enumerate() {
            let labels = labels.iter().enumerate();
            let of_class = labels.filter(|(_, label)| **label == class);
            let images: Vec<usize> = of_class.map(|(image, _)| image).collect();
            if !images.is_empty() {
                let step = self.step(images.len() as f64, seen, (self.prior, self.window));
                layer.follow(class, &images, step, means, variances);
            }
        }
    }

    /// Goes back to the source's moments.
    pub fn reset(&mut self) {
        *self.groups() = self.initial.clone();
    }

    /// Adds what was followed to arrays.
    pub fn save(&self, arrays: &mut Arrays) {
        let groups = self.groups();
        let counts = Array::F64(vec![groups.counts.len()], groups.counts.clone());
        arrays.insert("norms.counts", counts);
        let recent = groups.recent.iter().map(|&class| class as u64).collect();
        arrays.insert("norms.recent", Array::U64(recent));
        for layer in groups.layers.values() {
            let mut parts = vec![("means", &layer.means), ("variances", &layer.variances)];
            if let Some((mean, variance)) = &layer.pooled {
                parts.extend([("pooled_mean", mean), ("pooled_variance", variance)]);
            }
            for (part, values) in parts {
                let array = Array::F64(vec![values.len()], values.clone());
                arrays.insert(format!("norms.{}.{part}", layer.key), array);
            }
        }
    }

    /// Reads back what [`save`](Self::save) added, without changing anything yet.
    pub fn read(&self, arrays: &mut Arrays) -> Result<SavedGroups> {
        let mut groups = self.initial.clone();
        let invalid = |problem: &str| Error::Invalid {
            what: "saved norm statistics",
            problem: problem.to_owned(),
        };
        groups.counts = arrays.f64("norms.counts", groups.counts.len())?;
        let Some(Array::U64(recent)) = arrays.0.remove("norms.recent") else {
            return Err(invalid("there are no recent classes"));
        };
        groups.recent = recent.into_iter().map(|class| class as usize).collect();
        if groups
            .recent
            .iter()
            .any(|&class| class >= groups.counts.len())
        {
            return Err(invalid("a recent class is none of the network's"));
        }
        let mut finite = true;
        for layer in groups.layers.values_mut() {
            let mut parts = vec![
                ("means", &mut layer.means),
                ("variances", &mut layer.variances),
            ];
            if let Some((mean, variance)) = &mut layer.pooled {
                parts.extend([("pooled_mean", mean), ("pooled_variance", variance)]);
            }
            for (part, values) in parts {
                *values = arrays.f64(&format!("norms.{}.{part}", layer.key), values.len())?;
                finite &= values.iter().all(|value| value.is_finite());
            }
        }
        if !finite {
            return Err(invalid("some are not finite"));
        }
        Ok(SavedGroups(groups))
    }

    /// Takes the statistics that were [read](Self::read).
    pub fn restore(&mut self, saved: SavedGroups) {
        *self.groups() = saved.0;
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        // A panic elsewhere cannot leave a vector half written.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the share of `count` new images in a group that had `seen` before.
    fn step(&self, count: f64, seen: f64, (prior, window): (f64, f64)) -> f64 {
        match self.share {
            Some(share) => (share * count).min(1.0),
            None => count / (count + (prior + seen).min(window)),
        }
    }
}

/// Statistics from a file, for [`Following::restore`].
pub struct SavedGroups(Groups);

impl NormRule for Following {
    fn batch_gradients(&self) -> bool {
        // The statistics of a batch that is a run of one class say more about the class than about the shift.
        self.batch_gradients && self.run < 0.5
    }

    fn statistics(
        &self,
        layer: &NormLayer,
        moments: &ImageMoments,
    ) -> Option<(Vec<f32>, Vec<f32>)> {
        let id = layer.mean;
        let mut groups = self.groups();
        let Groups { counts, layers, .. } = &mut *groups;
        let layer = layers.get_mut(&id)?;
        let read = |tensor: &Tensor<2>| -> Vec<f32> {
            tensor.to_data().try_to_vec().expect("moments are f32")
        };
        let (means, variances) = (read(&moments.mean), read(&moments.variance));
        let seen: f64 = counts.iter().sum();
        let pooled = self.step(self.count as f64, seen, POOLED);
        let all: Vec<usize> = (0..self.count).collect();
        if layer.means.len() == layer.channels {
            let step = if self.is_by_class() {
                pooled
            } else {
                self.step(all.len() as f64, seen, (self.prior, self.window))
            };
            layer.follow(0, &all, step, &means, &variances);
        } else if let Some(labels) = &self.labels {
            self.follow_classes(layer, counts, labels, &means, &variances);
        } else {
            self.kept().push((id, means.clone(), variances.clone()));
        }
        let by_class = total(&layer.means, &layer.variances, &self.shares, layer.channels);
        let (mean, variance) = match layer.pooled.take() {
            None => by_class,
            Some((mut mean, mut variance)) => {
                let step = pooled * (1.0 - self.run);
                follow(&mut mean, &mut variance, &all, step, &means, &variances);
                let pooled = mixture((mean, variance), &by_class, pooled * self.run);
                let used = mixture(pooled.clone(), &by_class, self.run);
                layer.pooled = Some(pooled);
                used
            }
        };
        let single = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        Some((single(mean), single(variance)))
    }
}

impl LayerGroups {
    /// Moves one group by some images, whose moments are rows of `means` and `variances`, `[batch, channels]`.
    fn follow(
        &mut self,
        group: usize,
        images: &[usize],
        step: f64,
        means: &[f32],
        variances: &[f32],
    ) {
        let place = group * self.channels..(group + 1) * self.channels;
        let (mean, variance) = (&mut self.means[place.clone()], &mut self.variances[place]);
        follow(mean, variance, images, step, means, variances);
    }
}

/// Moves a mean and a variance, `[channels]` each, by some images, whose moments are rows of `means` and `variances`, `[batch, channels]`.
fn follow(
    mean: &mut [f64],
    variance: &mut [f64],
    images: &[usize],
    step: f64,
    means: &[f32],
    variances: &[f32],
) {
    let (count, channels) = (images.len() as f64, mean.len());
    for (channel, (mean, variance)) in mean.iter_mut().zip(variance).enumerate() {
        let (mut first, mut second) = (0.0, 0.0);
        for &image in images {
            let entry = image * channels + channel;
            let offset = f64::from(means[entry]) - *mean;
            first += offset;
            second += f64::from(variances[entry]) + offset * offset;
        }
        let moved = step * first / count;
        *mean += moved;
        *variance = (*variance + step * (second / count - *variance) - moved * moved).max(0.0);
    }
}

/// A mean and a variance, `[channels]` each.
type Moments = (Vec<f64>, Vec<f64>);

/// Returns the moments of a mixture in which the second part has a share.
fn mixture((mut mean, mut variance): Moments, second: &Moments, share: f64) -> Moments {
    let seconds = second.0.iter().zip(&second.1);
    for ((mean, variance), (other, spread)) in mean.iter_mut().zip(&mut variance).zip(seconds) {
        let offset = other - *mean;
        // Written like this, shares of 0 and 1 give either part exactly.
        *mean = (1.0 - share) * *mean + share * other;
        let within = (1.0 - share) * *variance + share * spread;
        *variance = within + share * (1.0 - share) * offset * offset;
    }
    (mean, variance)
}

/// Returns how much recent classes count as a run, from 0 to 1: by their divergence from the shares in the source, less `(K - 1) / 2n`,
/// which is what chance makes of it.
fn run(recent: &VecDeque<usize>, shares: &[f64]) -> f64 {
    if recent.is_empty() {
        return 0.0;
    }
    let samples = recent.len() as f64;
    let mut counts = vec![0.0; shares.len()];
    for &class in recent {
        counts[class] += 1.0;
    }
    let parts = counts.iter().zip(shares).filter(|(count, _)| **count > 0.0);
    // A class that the reference never met would make the divergence infinite.
    let least = 1.0 / (samples * shares.len() as f64);
    let terms = parts.map(|(count, share)| {
        let found = count / samples;
        found * (found / share.max(least)).ln()
    });
    let chance = (shares.len() as f64 - 1.0) / (2.0 * samples);
    let above = terms.sum::<f64>() - chance - RUN.0;
    (above / (RUN.1 - RUN.0)).clamp(0.0, 1.0)
}
