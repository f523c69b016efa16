//! Norm statistics that are kept beside a network, so that a student and its teacher each have their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use burn::module::ParamId;
use burn::tensor::{Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::backbone::{
    Backbone, ImageMoments, NormKeeper, NormLayer, ParameterKind, parameters, tensors,
};

/// How kept statistics `m` and `v` move in a pass, before the layer normalises by them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KeptRule {
    /// Robust batch norm (Yuan et al., 2023): with mean `m_b` and biased variance `v_b` of the batch and the share `s`
    ///
    /// ```text
    /// m <- (1 - s) m + s m_b        v <- (1 - s) v + s v_b
    /// ```
    Robust {
        /// The share of a batch.
        share: f64,
    },
    /// Balanced batch norm (Su et al., 2024), which keeps `M_k` and `V_k` for each of `K` classes. With the `n` images of a class in the
    /// batch, whose means are `m_i` and variances `v_i`, the share `s` of an image and the common part `g`
    ///
    /// ```text
    /// a  = min(s, 1/n)
    /// d  = a sum_i (m_i - M_k)
    /// u  = a sum_i (v_i + (m_i - M_k)^2)
    /// M_k <- M_k + (1 - g) d                  V_k <- V_k + (1 - g) (u - a n V_k - d^2)    for the classes that came
    /// M_k <- M_k + g mean(d)                  V_k <- V_k + g (mean(u - d^2) - mean(a n) V_k)    for all classes
    /// m = mean_k M_k                          v = mean_k V_k + sum_k (M_k - m)^2 / (K - 1)
    /// ```
    ///
    /// where the means in the fourth line are over the classes that came.
    Balanced {
        /// The share of an image in the statistics of its class.
        share: f64,
        /// The part of every movement that all classes take.
        common: f64,
    },
}

/// The stored statistics of a source network, by the identities of its buffers.
#[derive(Clone, Debug)]
pub(crate) struct SourceNorms(BTreeMap<ParamId, SourceBuffer>);

#[derive(Clone, Debug)]
struct SourceBuffer {
    key: String,
    values: Vec<f32>,
}

impl SourceNorms {
    /// Reads the stored statistics of a network.
    pub fn of<B: Backbone>(network: &B) -> Self {
        let values = tensors(network);
        let buffers = parameters(network).into_iter();
        let buffers = buffers.filter(|one| one.kind == ParameterKind::Buffer);
        let read = |one: crate::backbone::Parameter| {
            let values = values[&one.key].try_to_vec();
            let values = values.expect("running statistics are f32");
            let key = one.key;
            (one.id, SourceBuffer { key, values })
        };
        Self(buffers.map(read).collect())
    }
}

/// The statistics that one of several networks with the same parameters has. They are the source's until the first pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptNorms(BTreeMap<String, Kept>);

/// The statistics of one layer, which stands under the key of its running mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The key of the running variance.
    variance: String,
    /// `[groups, channels]`: one group, or one for each class.
    means: Vec<f32>,
    /// `[groups, channels]`.
    variances: Vec<f32>,
}

/// The classes of the images in a pass, for a rule that asks for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassLabels<'a> {
    /// The class of every image.
    pub labels: &'a [usize],
    /// How many classes there are.
    pub classes: usize,
}

impl KeptNorms {
    /// Returns the keeper for a pass with [`NormMode::Kept`](crate::backbone::NormMode::Kept), in which the statistics move by a rule.
    pub fn keeper<'a>(
        &'a mut self,
        source: &'a SourceNorms,
        rule: KeptRule,
        labels: PassLabels<'a>,
    ) -> Keeper<'a> {
        Keeper {
            source,
            rule,
            labels,
            layers: Mutex::new(&mut self.0),
        }
    }

    /// Returns running means and variances by key: `m` and `v` of every layer, of statistics that are not by class. It is empty before
    /// the first pass.
    pub fn buffers(&self) -> BTreeMap<String, TensorData> {
        let mut found = BTreeMap::new();
        for (key, kept) in &self.0 {
            let vector = |values: &Vec<f32>| TensorData::new(values.clone(), [values.len()]);
            found.insert(key.clone(), vector(&kept.means));
            found.insert(kept.variance.clone(), vector(&kept.variances));
        }
        found
    }
}

/// Moves [`KeptNorms`] in one pass.
#[derive(Debug)]
pub(crate) struct Keeper<'a> {
    source: &'a SourceNorms,
    rule: KeptRule,
    labels: PassLabels<'a>,
    layers: Mutex<&'a mut BTreeMap<String, Kept>>,
}

impl NormKeeper for Keeper<'_> {
    fn statistics(&self, layer: &NormLayer, moments: &ImageMoments) -> (Tensor<1>, Tensor<1>) {
        // A panic elsewhere cannot leave a vector half written.
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let (mean, variance) = (&self.source.0[&layer.mean], &self.source.0[&layer.variance]);
        let groups = match self.rule {
            KeptRule::Robust { .. } => 1,
            KeptRule::Balanced { .. } => self.labels.classes,
        };
        let kept = layers.entry(mean.key.clone()).or_insert_with(|| Kept {
            variance: variance.key.clone(),
            means: mean.values.repeat(groups),
            variances: variance.values.repeat(groups),
        });
        match self.rule {
            KeptRule::Robust { share } => kept.follow_batch(share, moments),
            KeptRule::Balanced { share, common } => {
                kept.follow_classes((share, common), self.labels, moments)
            }
        }
    }
}

impl Kept {
    /// Moves by [`KeptRule::Robust`]; returns mean and variance.
    fn follow_batch(&mut self, share: f64, moments: &ImageMoments) -> (Tensor<1>, Tensor<1>) {
        let device = moments.mean.device();
        let (mean, variance) = moments.clone().of_batch();
        let old = |values: &[f32]| Tensor::<1>::from_floats(values, &device) * (1.0 - share);
        let mean = old(&self.means) + mean * share;
        let variance = old(&self.variances) + variance * share;
        self.means = read(&mean);
        self.variances = read(&variance);
        (mean, variance)
    }

    /// Moves by [`KeptRule::Balanced`], with the share of an image and the common part; returns mean and variance.
    fn follow_classes(
        &mut self,
        (share, common): (f64, f64),
        PassLabels { labels, classes }: PassLabels<'_>,
        moments: &ImageMoments,
    ) -> (Tensor<1>, Tensor<1>) {
        let device = moments.mean.device();
        let [images, channels] = moments.mean.dims();
        assert_eq!(images, labels.len(), "images and labels of a pass");
        let came: Vec<usize> = labels
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let absent: Vec<usize> = (0..classes).filter(|class| !came.contains(class)).collect();
        let place = |label: &usize| came.binary_search(label).expect("it is among them");
        let places: Vec<usize> = labels.iter().map(place).collect();
        let mut counts = vec![0.0; came.len()];
        for &place in &places {
            counts[place] += 1.0;
        }
        let shares: Vec<f64> = counts.iter().map(|count| share.min(1.0 / count)).collect();
        let matrix = |values: Vec<f64>, columns: usize| {
            let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            let rows = values.len() / columns.max(1);
            Tensor::<2>::from_data(TensorData::new(values, [rows, columns]), &device)
        };
        // The sum over the images of each class, times the share of one.
        let mut weights = vec![0.0; came.len() * images];
        for (image, &place) in places.iter().enumerate() {
            weights[place * images + image] = shares[place];
        }
        let weights = matrix(weights, images); // [came, images]
        let pairs = shares.iter().zip(&counts);
        let moved = matrix(pairs.map(|(share, count)| share * count).collect(), 1); // [came, 1]

        let rows = |values: &[f32], classes: &[usize]| {
            let rows = classes
                .iter()
                .flat_map(|&class| &values[class * channels..][..channels]);
            let rows = TensorData::new(rows.copied().collect(), [classes.len(), channels]);
            Tensor::<2>::from_data(rows, &device)
        };
        let (means, variances) = (rows(&self.means, &came), rows(&self.variances, &came));
        let own: Vec<i64> = places.iter().map(|&place| place as i64).collect();
        let plain = device.clone().without_autodiff();
        let own = Tensor::<1, Int>::from_data(TensorData::new(own, [images]), &plain);
        let offset = moments.mean.clone() - means.clone().select(0, own);
        let squares = moments.variance.clone() + offset.clone().square();
        let step = weights.clone().matmul(offset); // [came, channels]
        let spread = weights.matmul(squares) - step.clone().square();
        let means = means + step.clone() * (1.0 - common);
        let widened = spread.clone() - moved.clone() * variances.clone();
        let variances = variances + widened * (1.0 - common);
        // From here on the classes that did not come stand behind those that did.
        let mut all = [
            (means, rows(&self.means, &absent)),
            (variances, rows(&self.variances, &absent)),
        ]
        .map(|(came, absent)| Tensor::cat(vec![came, absent], 0));
        if common > 0.0 {
            let [means, variances] = all;
            let kept = 1.0 - moved.mean().into_scalar::<f32>() * common as f32;
            all = [
                means + step.mean_dim(0) * common,
                variances * kept + spread.mean_dim(0) * common,
            ];
        }
        let [means, variances] = all;
        let order: Vec<usize> = came.into_iter().chain(absent).collect();
        for (values, new) in [(&mut self.means, &means), (&mut self.variances, &variances)] {
            let new = read(new);
            for (&class, row) in order.iter().zip(new.chunks_exact(channels)) {
                values[class * channels..][..channels].copy_from_slice(row);
            }
        }
        let mean = means.clone().mean_dim(0);
        let between = (means - mean.clone()).square().sum_dim(0);
        // A single class does not differ from others.
        let between = between / (classes.max(2) - 1) as f64;
        let variance = variances.mean_dim(0) + between;
        (mean.reshape([channels]), variance.reshape([channels]))
    }
}

fn read<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().expect("statistics are f32")
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::backbone::NormRule;
    use crate::norms::{Following, LayerMoments, NormFollow, NormKeys, NormReference};

    fn layer() -> NormLayer {
        NormLayer {
            weight: None,
            bias: None,
            mean: ParamId::from(1),
            variance: ParamId::from(2),
            epsilon: 1e-5,
        }
    }

    /// One channel with a mean of 0 and a variance of 1.
    fn source() -> SourceNorms {
        let buffer = |id: u64, key: &str, value: f32| {
            let key = key.to_owned();
            let values = vec![value];
            (ParamId::from(id), SourceBuffer { key, values })
        };
        let buffers = [buffer(1, "mean", 0.0), buffer(2, "variance", 1.0)];
        SourceNorms(buffers.into_iter().collect())
    }

    /// Shows images of a single pixel to the layer; returns mean and variance.
    fn pass(norms: &mut KeptNorms, rule: KeptRule, values: &[f32], labels: PassLabels) -> [f32; 2] {
        let shape = [values.len(), 1];
        let mean = Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex());
        let moments = ImageMoments {
            variance: Tensor::zeros(shape, &Device::flex()),
            mean,
        };
        let source = source();
        let keeper = norms.keeper(&source, rule, labels);
        let (mean, variance) = keeper.statistics(&layer(), &moments);
        [mean.into_scalar(), variance.into_scalar()]
    }

    const BALANCED: KeptRule = KeptRule::Balanced {
        share: 0.01,
        common: 0.0,
    };

    fn near(found: &[f32], expected: &[f32]) {
        // Sums of three numbers in single precision.
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(
            differences.fold(0.0, f32::max) < 1e-6,
            "{found:?}, not {expected:?}"
        );
    }

    fn labelled(labels: &[usize], classes: usize) -> PassLabels<'_> {
        PassLabels { labels, classes }
    }

    #[test]
    fn classes_move_by_their_own_images_in_any_order() {
        let mut norms = KeptNorms::default();
        let labels = labelled(&[0, 0, 1], 2);
        let used = pass(&mut norms, BALANCED, &[1.0, 3.0, 10.0], labels);
        near(&used, &[0.07, 1.531]);
        near(&norms.0["mean"].means, &[0.04, 0.1]);
        near(&norms.0["mean"].variances, &[1.0784, 1.98]);
        let mut turned = KeptNorms::default();
        let labels = labelled(&[1, 0, 0], 2);
        near(
            &pass(&mut turned, BALANCED, &[10.0, 3.0, 1.0], labels),
            &used,
        );
    }

    #[test]
    fn a_run_of_one_class_leaves_the_others() {
        let mut norms = KeptNorms::default();
        for _ in 0..50 {
            pass(&mut norms, BALANCED, &[5.0; 64], labelled(&[2; 64], 4));
        }
        let kept = &norms.0["mean"];
        for class in [0, 1, 3] {
            assert_eq!((kept.means[class], kept.variances[class]), (0.0, 1.0));
        }
        assert!((kept.means[2] - 5.0).abs() < 1e-3, "{kept:?}");
    }

    #[test]
    fn many_images_of_a_class_are_its_statistics() {
        let mut norms = KeptNorms::default();
        let values: Vec<f32> = (0..200).map(|image| (image % 2) as f32).collect();
        pass(&mut norms, BALANCED, &values, labelled(&[0; 200], 2));
        let kept = &norms.0["mean"];
        // Two hundred summands, each rounded.
        assert!((kept.means[0] - 0.5).abs() < 1e-5 && (kept.variances[0] - 0.25).abs() < 1e-5);
    }

    #[test]
    fn a_single_class_has_no_variance_of_means() {
        let mut norms = KeptNorms::default();
        let found = pass(&mut norms, BALANCED, &[1.0, 3.0], labelled(&[0, 0], 1));
        near(&found, &[0.04, 1.0784]);
    }

    /// By hand: `d = (0.04, 0.1)`, `u - d^2 = (0.0984, 0.99)`, `a n = (0.02, 0.01)`, and half of each goes to all classes.
    #[test]
    fn a_common_part_moves_all_classes() {
        let mut norms = KeptNorms::default();
        let rule = KeptRule::Balanced {
            share: 0.01,
            common: 0.5,
        };
        let labels = labelled(&[0, 0, 1], 3);
        pass(&mut norms, rule, &[1.0, 3.0, 10.0], labels);
        let kept = &norms.0["mean"];
        near(&kept.means, &[0.02 + 0.035, 0.05 + 0.035, 0.035]);
        let own = [1.0 + 0.5 * (0.0984 - 0.02), 1.0 + 0.5 * (0.99 - 0.01), 1.0];
        let expected = own.map(|v| v + 0.5 * (0.5442 - 0.015 * v));
        near(&kept.variances, &expected);
    }

    #[test]
    fn robust_statistics_are_used_after_they_moved() {
        let mut norms = KeptNorms::default();
        let rule = KeptRule::Robust { share: 0.05 };
        let found = pass(&mut norms, rule, &[1.0, 1.0], labelled(&[], 0));
        near(&found, &[0.05, 0.95]);
        near(&norms.0["mean"].means, &[0.05]);
    }

    /// The norms that follow images by class move in the same way; they weigh classes by the source's shares, and divide the spread of their
    /// means by the number of classes: 1.5292 + 0.0009 instead of 1.5292 + 0.0018.
    #[test]
    fn following_by_class_is_the_same_movement() {
        let architecture = crate::backbone::Architecture::by_name("resnet20-cifar", 2).unwrap();
        let architecture = architecture.with_field("depth", "8").unwrap();
        let network = architecture.init(0, &Device::flex()).unwrap();
        let of = |end: &str| {
            let mut parts = parameters(&network).into_iter();
            parts.find(|one| one.key == format!("bn1.{end}")).unwrap()
        };
        let channels = of("running_mean").shape[0];
        let reference = NormReference {
            images: 2,
            shares: vec![0.5; 2],
            layers: vec![LayerMoments {
                keys: NormKeys {
                    weight: Some(of("weight").key),
                    bias: Some(of("bias").key),
                    mean: of("running_mean").key,
                    variance: of("running_var").key,
                },
                epsilon: 1e-5,
                channels,
                means: vec![0.0; 2 * channels],
                variances: vec![1.0; 2 * channels],
            }],
        };
        let rule = NormFollow::Classes;
        let mut following = Following::new(&network, &reference, rule, (64.0, 1024.0), Some(0.01));
        following.begin(vec![0, 0, 1]);
        let values = [1.0, 3.0, 10.0].map(|value| vec![value; channels]).concat();
        let shape = [3, channels];
        let moments = ImageMoments {
            mean: Tensor::from_data(TensorData::new(values, shape), &Device::flex()),
            variance: Tensor::zeros(shape, &Device::flex()),
        };
        let asked = NormLayer {
            mean: of("running_mean").id,
            variance: of("running_var").id,
            ..layer()
        };
        let (mean, variance) = following.statistics(&asked, &moments).unwrap();
        near(&[mean[0], variance[0]], &[0.07, 1.5301]);
    }
}
