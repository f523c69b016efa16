//! DGCNN (Wang et al., 2019) for clouds of points: four edge convolutions on graphs of nearest neighbours that are made
//! anew in the space of each layer's input, a pooled embedding, a classifier of three layers.
//!
//! Keys as in the authors' PyTorch program: `conv{1..5}.0.weight`, `bn{1..7}`, `linear{1,2,3}`. (Its `conv1.1` is `bn1` by another
//! name.) Every activation is a leaky ReLU of slope 0.2.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData, activation::leaky_relu};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use ttac_kernels::{ConvOptions, LeakyNormOptions, Neighbours, cloud_pool, conv2d, edge_conv};

use super::family::{Entry, Family, InputForm, Published};
use super::layers::{Linear, Parameterless};
use super::{Backbone, BatchNorm, ImageMoments, NormMode};
use crate::rng::seeded;

pub(super) const ENTRY: Entry<DgcnnConfig> = Entry {
    family: "dgcnn",
    about: "graphs of nearest neighbours among points",
    weights: "the authors' PyTorch program (Wang et al.)",
    published: &[Published::new("dgcnn", "1.8 M", |num_classes| {
        DgcnnConfig {
            k: 20,
            width: 64,
            embedding: 1024,
            feature: CloudFeature::Penultimate,
            num_classes,
        }
    })],
};

/// Slope of the activations below zero.
const SLOPE: f32 = 0.2;

/// Configures a [`Dgcnn`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DgcnnConfig {
    /// Number of neighbours of a point, itself included.
    pub k: usize,
    /// Number of channels of the first two edge convolutions; the others have twice and four times as many.
    pub width: usize,
    /// Number of channels of the embedding that is pooled; the layers behind it have half and a quarter of it.
    pub embedding: usize,
    /// The activation that counts as the feature of a cloud.
    #[serde(default)]
    pub feature: CloudFeature,
    /// Number of classes the network tells apart.
    pub num_classes: usize,
}

/// Which activation of a [`Dgcnn`] is its feature. Which one the paper aligns is not published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloudFeature {
    /// The feature is the input of the last layer, `embedding / 4` long, so that the classifier is linear.
    #[default]
    Penultimate,
    /// The feature is the pooled embedding, maximum and mean, `2 embedding` long. Three layers lie between it and the scores; their
    /// norms always use their running statistics.
    Pooled,
}

impl DgcnnConfig {
    /// Builds the network with all weights zero and fresh norms.
    pub(super) fn init(&self, device: &Device) -> Dgcnn {
        let (w, e) = (self.width, self.embedding);
        let edge = |inputs: usize, outputs: usize| {
            let zeros = Tensor::zeros([outputs, 2 * inputs, 1, 1], device);
            let weight = Param::from_tensor(zeros);
            (EdgeWeight { weight }, Parameterless)
        };
        let norm = |channels: usize| BatchNorm::new(channels, device);
        Dgcnn {
            conv1: edge(3, w),
            bn1: norm(w),
            conv2: edge(w, w),
            bn2: norm(w),
            conv3: edge(w, 2 * w),
            bn3: norm(2 * w),
            conv4: edge(2 * w, 4 * w),
            bn4: norm(4 * w),
            conv5: (
                PointWeight {
                    weight: Param::from_tensor(Tensor::zeros([e, 8 * w, 1], device)),
                },
                Parameterless,
            ),
            bn5: norm(e),
            linear1: MatrixWeight {
                weight: Param::from_tensor(Tensor::zeros([e / 2, 2 * e], device)),
            },
            bn6: norm(e / 2),
            linear2: Linear::new(e / 2, e / 4, device),
            bn7: norm(e / 4),
            linear3: Linear::new(e / 4, self.num_classes, device),
            k: self.k,
            pooled: self.feature == CloudFeature::Pooled,
        }
    }
}

impl Family for DgcnnConfig {
    fn input(&self) -> InputForm {
        InputForm::Clouds {
            points: 1024,
            fewest: self.k,
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.k > 255 {
            problems.push(format!("`k` must be 1 to 255, found {}", self.k));
        }
        if !self.embedding.is_multiple_of(4) {
            problems.push(format!(
                "`embedding` must be a multiple of 4, found {}",
                self.embedding
            ));
        }
        problems
    }

    /// The authors' program holds each of its first five norms twice, as `bn1` and as `conv1.1`.
    fn ignored_keys(&self) -> &'static [&'static str] {
        &["conv1.1.", "conv2.1.", "conv3.1.", "conv4.1.", "conv5.1."]
    }
}

/// Holds the weight of an edge convolution.
#[derive(Module, Debug)]
pub struct EdgeWeight {
    /// `[out_channels, 2 in_channels, 1, 1]`.
    pub weight: Param<Tensor<4>>,
}

/// Holds the weight of a linear layer without a bias that is applied to every point.
#[derive(Module, Debug)]
pub struct PointWeight {
    /// `[out_channels, in_channels, 1]`.
    pub weight: Param<Tensor<3>>,
}

/// Holds the weight of a linear layer without a bias that is applied to a cloud's embedding.
#[derive(Module, Debug)]
pub struct MatrixWeight {
    /// `[outputs, inputs]`.
    pub weight: Param<Tensor<2>>,
}

/// A network on graphs of nearest neighbours, as the [module](self) describes it.
#[derive(Module, Debug)]
pub struct Dgcnn {
    conv1: (EdgeWeight, Parameterless),
    bn1: BatchNorm,
    conv2: (EdgeWeight, Parameterless),
    bn2: BatchNorm,
    conv3: (EdgeWeight, Parameterless),
    bn3: BatchNorm,
    conv4: (EdgeWeight, Parameterless),
    bn4: BatchNorm,
    conv5: (PointWeight, Parameterless),
    bn5: BatchNorm,
    linear1: MatrixWeight,
    bn6: BatchNorm,
    linear2: Linear,
    bn7: BatchNorm,
    linear3: Linear,
    k: usize,
    pooled: bool,
}

impl Dgcnn {
    /// Computes the maximum and the mean of the embedding over the points: `[batch, points, 1, 3]` to `[batch, 2 embedding]`.
    pub fn embed(&self, clouds: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let [batch, points, _, axes] = clouds.dims();
        let mut x: Tensor<3> = clouds.reshape([batch, points, axes]);
        let mut levels = Vec::with_capacity(4);
        for (conv, layer) in [
            (&self.conv1, &self.bn1),
            (&self.conv2, &self.bn2),
            (&self.conv3, &self.bn3),
            (&self.conv4, &self.bn4),
        ] {
            x = edges(&conv.0, layer, x, self.k, norm);
            levels.push(x.clone());
        }
        let all = Tensor::cat(levels, 2); // [batch, points, 8 width]
        let [outputs, inputs, _] = self.conv5.0.weight.dims();
        let weight = self.conv5.0.weight.val().reshape([outputs, inputs, 1, 1]);
        let once = ConvOptions::square(1, 0);
        let embedded = conv2d(all.reshape([1, batch, points, inputs]), weight, once);
        let layer = &self.bn5;
        let affine = (layer.weight.val(), layer.bias.val());
        let tracked = embedded.is_autodiff();
        let (weight, bias, statistics) =
            layer.running().for_mode(norm, affine, tracked, |through| {
                let rows = embedded.clone().reshape([batch, points, 1, outputs]);
                ImageMoments::of_images(&rows, through)
            });
        let out = cloud_pool(
            embedded.reshape([batch, points, outputs]),
            weight,
            bias,
            statistics,
            leaky(layer),
        );
        layer
            .running()
            .follow(out.mean, out.variance, batch * points, norm);
        out.y
    }

    /// Computes the input of the last layer: `[batch, 2 embedding]` to `[batch, embedding / 4]`. With `dropout`, which draws them, half
    /// of the values of both layers are dropped.
    fn hidden(
        &self,
        pooled: Tensor<2>,
        norm: NormMode,
        mut dropout: Option<ChaCha8Rng>,
    ) -> Tensor<2> {
        let x = pooled.matmul(self.linear1.weight.val().transpose());
        let x = drop_half(activate(&self.bn6, x, norm), dropout.as_mut());
        let x = self.linear2.forward(x);
        drop_half(activate(&self.bn7, x, norm), dropout.as_mut())
    }
}

fn leaky(layer: &BatchNorm) -> LeakyNormOptions {
    LeakyNormOptions {
        epsilon: layer.epsilon as f32,
        slope: SLOPE,
    }
}

/// Applies an edge convolution on the graph of nearest neighbours in its own input, `[batch, points, in]` to `[batch, points, out]`.
fn edges(
    conv: &EdgeWeight,
    layer: &BatchNorm,
    x: Tensor<3>,
    k: usize,
    norm: NormMode,
) -> Tensor<3> {
    let [batch, points, _] = x.dims();
    let [outputs, width, _, _] = conv.weight.dims();
    let neighbours = Neighbours::nearest(&x, k);
    let affine = (layer.weight.val(), layer.bias.val());
    let (weight, bias, statistics) =
        layer
            .running()
            .for_mode(norm, affine, x.is_autodiff(), |_| {
                // Edges are never stored, so no gradient passes through their statistics.
                edge_moments(conv, layer, &x, k)
            });
    let out = edge_conv(
        x,
        conv.weight.val().reshape([outputs, width]),
        &neighbours,
        weight,
        bias,
        statistics,
        leaky(layer),
    );
    layer
        .running()
        .follow(out.mean, out.variance, batch * points * k, norm);
    out.y
}

/// Computes the moments of every cloud's edges before they are normalised. The op never stores edges, so each cloud goes through it
/// alone, and what it normalises by are the moments.
fn edge_moments(conv: &EdgeWeight, layer: &BatchNorm, x: &Tensor<3>, k: usize) -> ImageMoments {
    let [batch, _, _] = x.dims();
    let [outputs, width, _, _] = conv.weight.dims();
    let x = x.clone().without_autodiff();
    let weight = conv.weight.val().without_autodiff();
    let weight = weight.reshape([outputs, width]);
    let [scale, shift] = [&layer.weight, &layer.bias].map(|affine| affine.val().without_autodiff());
    let moments = (0..batch).map(|cloud| {
        let alone = x.clone().slice_dim(0, cloud..cloud + 1);
        let neighbours = Neighbours::nearest(&alone, k);
        let out = edge_conv(
            alone,
            weight.clone(),
            &neighbours,
            scale.clone(),
            shift.clone(),
            None,
            leaky(layer),
        );
        (out.mean.unsqueeze::<2>(), out.variance.unsqueeze::<2>())
    });
    let (mean, variance): (Vec<_>, Vec<_>) = moments.unzip();
    ImageMoments {
        mean: Tensor::cat(mean, 0),
        variance: Tensor::cat(variance, 0),
    }
}

/// Normalises vectors, `[batch, channels]`, and applies the activation.
fn activate(layer: &BatchNorm, x: Tensor<2>, norm: NormMode) -> Tensor<2> {
    let [batch, channels] = x.dims();
    let x = layer.forward(x.reshape([batch, 1, 1, channels]), None, false, norm);
    leaky_relu(x.reshape([batch, channels]), f64::from(SLOPE))
}

/// Sets half of the values to zero and doubles the others. Without random numbers it changes nothing.
fn drop_half(x: Tensor<2>, random: Option<&mut ChaCha8Rng>) -> Tensor<2> {
    let Some(random) = random else {
        return x;
    };
    let [batch, channels] = x.dims();
    let mut bit = || {
        if random.next_u32() >> 31 == 0 {
            0.0_f32
        } else {
            2.0
        }
    };
    let mask: Vec<f32> = (0..batch * channels).map(|_| bit()).collect();
    let mask = Tensor::from_data(TensorData::new(mask, [batch, channels]), &x.device());
    x * mask
}

impl Backbone for Dgcnn {
    fn features(&self, clouds: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let pooled = self.embed(clouds, norm);
        if self.pooled {
            return pooled;
        }
        self.hidden(pooled, norm, None)
    }

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.linear3)
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        let features = if self.pooled {
            self.hidden(features, NormMode::Running, None)
        } else {
            features
        };
        self.linear3.forward(features)
    }

    fn training_logits(&self, clouds: Tensor<4>, draw: u64) -> Tensor<2> {
        let norm = NormMode::BatchUpdating;
        let random = seeded(draw, 0);
        let hidden = self.hidden(self.embed(clouds, norm), norm, Some(random));
        self.linear3.forward(hidden)
    }

    fn num_features(&self) -> usize {
        if self.pooled {
            self.linear1.weight.lazy_shape()[1]
        } else {
            self.linear3.weight.lazy_shape()[1]
        }
    }
}
