//! The moments of source images in front of every batch norm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use burn::module::ParamId;
use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use crate::backbone::{
    Backbone, ImageMoments, NormLayer, NormRule, load_tensors, parameters, tensors,
};
use crate::{Error, Result};

/// The most numbers that the class statistics of all layers may have together, means and variances counted as one. It bounds them to
/// 32 MB in a file and 64 MB in memory, whatever the network.
const MOST_CLASS_VALUES: usize = 4 << 20;

/// The moments of one batch norm's input over the reference images.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerMoments {
    /// The keys of scale, shift, running mean and running variance in the checkpoint.
    pub keys: NormKeys,
    /// The number that the layer adds to the variance.
    pub epsilon: f64,
    /// Number of channels.
    pub channels: usize,
    /// The mean of every group, `[groups, channels]`. There is a group for every class, or a single one where the layer has
    /// too many channels for that.
    pub means: Vec<f64>,
    /// The biased variance of every group around its mean, `[groups, channels]`.
    pub variances: Vec<f64>,
}

/// The keys of a batch norm's tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormKeys {
    /// The scale; `None` where it is computed, so that the layer cannot be re-based.
    pub weight: Option<String>,
    /// The shift, likewise.
    pub bias: Option<String>,
    /// The running mean.
    pub mean: String,
    /// The running variance.
    pub variance: String,
}

impl LayerMoments {
    /// Returns the number of groups: as many as classes, or one.
    pub fn groups(&self) -> usize {
        self.means.len() / self.channels
    }

    /// Returns mean and variance over all groups, `[channels]` each, by the law of total variance:
    /// `m = sum_k s_k m_k`, `v = sum_k s_k (v_k + (m_k - m)^2)` with the shares `s_k` of the groups.
    pub fn total(&self, shares: &[f64]) -> (Vec<f64>, Vec<f64>) {
        total(&self.means, &self.variances, shares, self.channels)
    }
}

/// Joins the moments of groups with their shares; with one group the shares are not looked at.
pub(super) fn total(
    means: &[f64],
    variances: &[f64],
    shares: &[f64],
    channels: usize,
) -> (Vec<f64>, Vec<f64>) {
    if means.len() == channels {
        return (means.to_vec(), variances.to_vec());
    }
    let mut mean = vec![0.0; channels];
    for (row, share) in means.chunks_exact(channels).zip(shares) {
        for (sum, value) in mean.iter_mut().zip(row) {
            *sum += share * value;
        }
    }
    let mut variance = vec![0.0; channels];
    let groups = means
        .chunks_exact(channels)
        .zip(variances.chunks_exact(channels));
    for ((means, variances), share) in groups.zip(shares) {
        for channel in 0..channels {
            let offset = means[channel] - mean[channel];
            variance[channel] += share * (variances[channel] + offset * offset);
        }
    }
    (mean, variance)
}

/// How far the running statistics of a checkpoint are from those of the reference images, in one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerOffset {
    /// The key of the running mean.
    pub layer: String,
    /// The root mean square over the channels of the difference of means, in running deviations.
    pub mean_offset: f64,
    /// The mean over the channels of the logarithm of the reference variance over the running one.
    pub log_variance_ratio: f64,
}

/// The moments of source images, as they are, in front of every batch norm of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct NormReference {
    /// How many images.
    pub images: u64,
    /// The share of every predicted class among them, `[classes]`.
    pub shares: Vec<f64>,
    /// The layers in the order in which they run.
    pub layers: Vec<LayerMoments>,
}

impl NormReference {
    /// The fewest images for moments worth re-basing on.
    pub const FEWEST_IMAGES: u64 = 1000;

    /// Returns the network with every batch norm re-based on the reference, which leaves what it computes with stored statistics
    /// unchanged up to rounding:
    ///
    /// ```text
    /// shift <- shift + scale (m_ref - mean) / sqrt(variance + epsilon)
    /// scale <- scale sqrt((v_ref + epsilon) / (variance + epsilon))
    /// mean  <- m_ref          variance <- v_ref
    /// ```
    ///
    /// A norm whose scale or shift is computed, or belongs to another norm too, stays as it is.
    pub fn rebase<B: Backbone>(&self, network: B) -> Result<B> {
        let values = tensors(&network);
        let read = |key: &str, channels: usize| -> Result<Vec<f64>> {
            let found = values
                .get(key)
                .and_then(|data| data.try_to_vec::<f32>().ok());
            let found = found.filter(|values| values.len() == channels);
            let found = found.ok_or_else(|| Error::Mismatch {
                what: "reference moments and model".to_owned(),
                expected: format!("`{key}` of {channels} channels in the model"),
                found: "none of that size".to_owned(),
            })?;
            Ok(found.into_iter().map(f64::from).collect())
        };
        let mut moved = BTreeMap::new();
        for (layer, weight, bias) in self.movable() {
            let keys = &layer.keys;
            let (mean, variance) = layer.total(&self.shares);
            let read = |key| read(key, layer.channels);
            let (scale, shift) = (read(weight)?, read(bias)?);
            let (old_mean, old_variance) = (read(&keys.mean)?, read(&keys.variance)?);
            let mut scales = Vec::with_capacity(layer.channels);
            let mut shifts = Vec::with_capacity(layer.channels);
            for channel in 0..layer.channels {
                let old = (old_variance[channel] + layer.epsilon).sqrt();
                let new = (variance[channel] + layer.epsilon).sqrt();
                shifts.push(
                    shift[channel] + scale[channel] * (mean[channel] - old_mean[channel]) / old,
                );
                scales.push(scale[channel] * new / old);
            }
            let single =
                |values: &[f64]| -> Vec<f32> { values.iter().map(|&v| v as f32).collect() };
            for (key, new) in [
                (weight, &scales),
                (bias, &shifts),
                (&keys.mean, &mean),
                (&keys.variance, &variance),
            ] {
                let shape = values[key].shape().clone();
                moved.insert(key.to_owned(), TensorData::new(single(new), shape));
            }
        }
        Ok(load_tensors(network, &moved))
    }

    /// Measures how far the running statistics of a network are from the reference, layer by layer.
    pub fn offsets<B: Backbone>(&self, network: &B) -> Vec<LayerOffset> {
        let values = tensors(network);
        let read = |key: &str| -> Vec<f64> {
            let found = values
                .get(key)
                .and_then(|data| data.try_to_vec::<f32>().ok());
            found
                .unwrap_or_default()
                .into_iter()
                .map(f64::from)
                .collect()
        };
        let layers = self.layers.iter().map(|layer| {
            let (mean, variance) = layer.total(&self.shares);
            let (old_mean, old_variance) = (read(&layer.keys.mean), read(&layer.keys.variance));
            let (mut squares, mut logs) = (0.0, 0.0);
            for channel in 0..layer.channels.min(old_mean.len()) {
                let old = old_variance[channel] + layer.epsilon;
                squares += (mean[channel] - old_mean[channel]).powi(2) / old;
                logs += ((variance[channel] + layer.epsilon) / old).ln();
            }
            let channels = layer.channels as f64;
            LayerOffset {
                layer: layer.keys.mean.clone(),
                mean_offset: (squares / channels).sqrt(),
                log_variance_ratio: logs / channels,
            }
        });
        layers.collect()
    }

    /// Lists the layers that can be re-based, with the keys of their scales and shifts: those whose scale and shift are tensors of their
    /// own.
    pub(super) fn movable(&self) -> Vec<(&LayerMoments, &str, &str)> {
        let keys = |layer: &LayerMoments| [layer.keys.weight.clone(), layer.keys.bias.clone()];
        let mut seen = BTreeSet::new();
        let all = self.layers.iter().flat_map(keys).flatten();
        let shared: BTreeSet<String> = all.filter(|key| !seen.insert(key.clone())).collect();
        let layers = self.layers.iter().filter_map(|layer| {
            let (weight, bias) = (layer.keys.weight.as_ref()?, layer.keys.bias.as_ref()?);
            let own = !shared.contains(weight) && !shared.contains(bias);
            own.then_some((layer, weight.as_str(), bias.as_str()))
        });
        layers.collect()
    }
}

/// A [`NormRule`] that leaves the statistics as they are and writes down what every image brings to every layer.
#[derive(Debug, Default)]
pub struct Measuring(Mutex<Vec<(NormLayer, ImageMoments)>>);

impl Measuring {
    fn take(&self) -> Vec<(NormLayer, ImageMoments)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl NormRule for Measuring {
    fn statistics(
        &self,
        layer: &NormLayer,
        moments: &ImageMoments,
    ) -> Option<(Vec<f32>, Vec<f32>)> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((*layer, moments.clone()));
        None
    }
}

/// Adds up the moments of reference images, batch by batch.
pub struct ReferenceCollector {
    rule: Measuring,
    keys: BTreeMap<ParamId, String>,
    classes: usize,
    counts: Vec<u64>,
    layers: Vec<Sums>,
}

/// Sums over the images of each class at one layer.
struct Sums {
    layer: NormLayer,
    channels: usize,
    /// The images of each class that came to the layer; more than there are where the layer runs several times.
    visits: Vec<f64>,
    /// The sum of the images' means, `[classes, channels]`.
    means: Vec<f64>,
    /// The sum of the images' second moments, `variance + mean^2`, `[classes, channels]`.
    squares: Vec<f64>,
}

impl ReferenceCollector {
    /// Starts for a network.
    pub fn new<B: Backbone>(network: &B) -> Self {
        let classes = network.num_classes();
        let found = parameters(network).into_iter();
        Self {
            rule: Measuring::default(),
            keys: found.map(|one| (one.id, one.key)).collect(),
            classes,
            counts: vec![0; classes],
            layers: Vec::new(),
        }
    }

    /// Returns the rule for a pass with [`NormMode::Ruled`](crate::backbone::NormMode::Ruled), after which
    /// [`add`](Self::add) says which classes the images had.
    pub fn rule(&self) -> &Measuring {
        &self.rule
    }

    /// Adds what the rule saw in the newest pass, whose images are of these classes.
    pub fn add(&mut self, classes: &[usize]) {
        for &class in classes {
            self.counts[class] += 1;
        }
        for (layer, moments) in self.rule.take() {
            let [images, channels] = moments.mean.dims();
            assert_eq!(images, classes.len(), "images and classes of a pass");
            let place = self
                .layers
                .iter()
                .position(|sums| sums.layer.mean == layer.mean);
            let place = place.unwrap_or_else(|| {
                self.layers.push(Sums {
                    layer,
                    channels,
                    visits: vec![0.0; self.classes],
                    means: vec![0.0; self.classes * channels],
                    squares: vec![0.0; self.classes * channels],
                });
                self.layers.len() - 1
            });
            self.layers[place].add(&moments, classes);
        }
    }

    /// Returns the reference. Classes without any image take the moments of all.
    pub fn finish(self) -> NormReference {
        let images: u64 = self.counts.iter().sum();
        let shares = self.counts.iter();
        let shares: Vec<f64> = shares.map(|&n| n as f64 / images.max(1) as f64).collect();
        // The last layers know most of the classes, so they come first.
        let mut room = MOST_CLASS_VALUES;
        let mut by_class = vec![false; self.layers.len()];
        for (place, sums) in self.layers.iter().enumerate().rev() {
            let size = self.classes * sums.channels;
            if size <= room {
                room -= size;
                by_class[place] = true;
            }
        }
        let keys = &self.keys;
        let layers = self.layers.iter().zip(by_class);
        let layers = layers.map(|(sums, by_class)| sums.finish(keys, by_class, self.classes));
        NormReference {
            images,
            shares,
            layers: layers.collect(),
        }
    }
}

impl Sums {
    fn add(&mut self, moments: &ImageMoments, classes: &[usize]) {
        let rows = |tensor: &burn::tensor::Tensor<2>| -> Vec<f32> {
            tensor.to_data().try_to_vec().expect("moments are f32")
        };
        let (means, variances) = (rows(&moments.mean), rows(&moments.variance));
        let images = means
            .chunks_exact(self.channels)
            .zip(variances.chunks_exact(self.channels));
        for ((means, variances), &class) in images.zip(classes) {
            self.visits[class] += 1.0;
            let start = class * self.channels;
            for channel in 0..self.channels {
                let mean = f64::from(means[channel]);
                self.means[start + channel] += mean;
                self.squares[start + channel] += mean * mean + f64::from(variances[channel]);
            }
        }
    }

    fn finish(
        &self,
        keys: &BTreeMap<ParamId, String>,
        by_class: bool,
        classes: usize,
    ) -> LayerMoments {
        let visits: f64 = self.visits.iter().sum();
        let column = |sums: &[f64], channel: usize| -> f64 {
            sums.iter().skip(channel).step_by(self.channels).sum()
        };
        // Mean and variance from sums.
        let moments = |visits: f64, mean: f64, square: f64| {
            let mean = mean / visits.max(1.0);
            (mean, (square / visits.max(1.0) - mean * mean).max(0.0))
        };
        let pooled: Vec<(f64, f64)> = (0..self.channels)
            .map(|channel| {
                let sums = [&self.means, &self.squares].map(|sums| column(sums, channel));
                moments(visits, sums[0], sums[1])
            })
            .collect();
        let (means, variances) = if by_class {
            let entry = |index: usize| {
                let (class, channel) = (index / self.channels, index % self.channels);
                if self.visits[class] == 0.0 {
                    return pooled[channel];
                }
                moments(self.visits[class], self.means[index], self.squares[index])
            };
            (0..classes * self.channels).map(entry).unzip()
        } else {
            pooled.into_iter().unzip()
        };
        let key = |id: ParamId| keys.get(&id).cloned().unwrap_or_default();
        LayerMoments {
            keys: NormKeys {
                weight: self.layer.weight.map(key),
                bias: self.layer.bias.map(key),
                mean: key(self.layer.mean),
                variance: key(self.layer.variance),
            },
            epsilon: self.layer.epsilon,
            channels: self.channels,
            means,
            variances,
        }
    }
}
