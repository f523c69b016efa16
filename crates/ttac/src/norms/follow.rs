//! Norm statistics that follow the target image by image.

use std::collections::BTreeMap;
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
}

/// Images for which the source counts, and after which statistics forget, where a layer is too wide for statistics by class: measured for
/// pooled statistics, whatever the numbers for a class are.
const POOLED: (f64, f64) = (64.0, 1024.0);

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
#[derive(Debug)]
pub struct Following {
    by_class: bool,
    prior: f64,
    window: f64,
    share: Option<f64>,
    batch_gradients: bool,
    shares: Vec<f64>,
    /// The classes of the images in the coming pass.
    labels: Vec<usize>,
    initial: Groups,
    now: Mutex<Groups>,
}

/// The groups of all layers.
#[derive(Clone, Debug, PartialEq)]
struct Groups {
    /// Images of each class so far.
    counts: Vec<f64>,
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
}

impl Clone for Following {
    fn clone(&self) -> Self {
        Self {
            by_class: self.by_class,
            prior: self.prior,
            window: self.window,
            share: self.share,
            batch_gradients: self.batch_gradients,
            shares: self.shares.clone(),
            labels: self.labels.clone(),
            initial: self.initial.clone(),
            now: Mutex::new(self.groups().clone()),
        }
    }
}

impl Following {
    /// Starts at the source's moments. `by_class` is [`NormFollow::Classes`]; the source counts like `prior` images of a group, and
    /// after `window` images a group forgets. With `share`, every image has that share of its group instead.
    pub fn new<B: Backbone>(
        network: &B,
        reference: &NormReference,
        by_class: bool,
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
            let (means, variances) = if by_class {
                (layer.means.clone(), layer.variances.clone())
            } else {
                layer.total(&reference.shares)
            };
            let groups = LayerGroups {
                key: layer.keys.mean.clone(),
                channels: layer.channels,
                means,
                variances,
            };
            Some((id, groups))
        });
        let initial = Groups {
            counts: vec![0.0; reference.shares.len()],
            layers: layers.collect(),
        };
        Self {
            by_class,
            prior,
            window,
            share,
            batch_gradients: false,
            shares: reference.shares.clone(),
            labels: Vec::new(),
            now: Mutex::new(initial.clone()),
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
        self.by_class
    }

    /// Takes the classes of the images in the coming pass.
    pub fn begin(&mut self, labels: Vec<usize>) {
        self.labels = labels;
    }

    /// Counts the images of the pass that was made.
    pub fn finish(&mut self) {
        let labels = std::mem::take(&mut self.labels);
        let mut groups = self.groups();
        for class in labels {
            groups.counts[class] += 1.0;
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
        for layer in groups.layers.values() {
            let parts = [("means", &layer.means), ("variances", &layer.variances)];
            for (part, values) in parts {
                let array = Array::F64(vec![values.len()], values.clone());
                arrays.insert(format!("norms.{}.{part}", layer.key), array);
            }
        }
    }

    /// Reads back what [`save`](Self::save) added, without changing anything yet.
    pub fn read(&self, arrays: &mut Arrays) -> Result<SavedGroups> {
        let mut groups = self.initial.clone();
        groups.counts = arrays.f64("norms.counts", groups.counts.len())?;
        for layer in groups.layers.values_mut() {
            let size = layer.means.len();
            layer.means = arrays.f64(&format!("norms.{}.means", layer.key), size)?;
            layer.variances = arrays.f64(&format!("norms.{}.variances", layer.key), size)?;
        }
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        let layers = groups.layers.values();
        if layers
            .into_iter()
            .any(|layer| !finite(&layer.means) || !finite(&layer.variances))
        {
            return Err(Error::Invalid {
                what: "saved norm statistics",
                problem: "some are not finite".to_owned(),
            });
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
        self.batch_gradients
    }

    fn statistics(
        &self,
        layer: &NormLayer,
        moments: &ImageMoments,
    ) -> Option<(Vec<f32>, Vec<f32>)> {
        let mut groups = self.groups();
        let Groups { counts, layers } = &mut *groups;
        let layer = layers.get_mut(&layer.mean)?;
        let read = |tensor: &Tensor<2>| -> Vec<f32> {
            tensor.to_data().try_to_vec().expect("moments are f32")
        };
        let (means, variances) = (read(&moments.mean), read(&moments.variance));
        if layer.means.len() == layer.channels {
            let constants = if self.by_class {
                POOLED
            } else {
                (self.prior, self.window)
            };
            let all: Vec<usize> = (0..self.labels.len()).collect();
            let step = self.step(all.len() as f64, counts.iter().sum(), constants);
            layer.follow(0, &all, step, &means, &variances);
        } else {
            for (class, &seen) in counts.iter().enumerate() {
                let labels = self.labels.iter().enumerate();
                let of_class = labels.filter(|(_, label)| **label == class);
                let images: Vec<usize> = of_class.map(|(image, _)| image).collect();
                if !images.is_empty() {
                    let step = self.step(images.len() as f64, seen, (self.prior, self.window));
                    layer.follow(class, &images, step, &means, &variances);
                }
            }
        }
        let (mean, variance) = total(&layer.means, &layer.variances, &self.shares, layer.channels);
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
        let count = images.len() as f64;
        for channel in 0..self.channels {
            let place = group * self.channels + channel;
            let (mean, variance) = (self.means[place], self.variances[place]);
            let (mut first, mut second) = (0.0, 0.0);
            for &image in images {
                let entry = image * self.channels + channel;
                let offset = f64::from(means[entry]) - mean;
                first += offset;
                second += f64::from(variances[entry]) + offset * offset;
            }
            let moved = step * first / count;
            self.means[place] = mean + moved;
            let followed = variance + step * (second / count - variance) - moved * moved;
            self.variances[place] = followed.max(0.0);
        }
    }
}
