//! Comparing a network with what PyTorch computed for the same input.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors};

use super::native::to_data;
use crate::backbone::{Adaptable, Backbone, Network, NormMode, parameters, tensors};
use crate::loss::cross_entropy;
use crate::{Error, Result};

/// A gradient this small beside the largest of all is a zero with rounding on top, such as that of a bias before a batch norm. Its
/// difference is compared with the largest of all, since nothing of its own is there to compare with.
const ZERO_GRADIENT: f32 = 1e-9;

/// How far one tensor is from PyTorch's.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The name of the tensor in the file, such as `eval.logits` or `batch.grad.conv1.weight`.
    pub name: String,
    /// The largest difference over the largest value.
    pub relative: f64,
}

/// Compares a network with a file of PyTorch's results, tensor by tensor in the order of their names.
///
/// The file is safetensors with `x`, the normalised images `[images, 3, height, width]`, and any of these, computed for them:
///
/// | tensor | what |
/// |---|---|
/// | `eval.logits`, `eval.features` | scores, and what the classifier reads, with running statistics |
/// | `eval.loss`, `eval.grad.NAME` | the mean cross-entropy for `labels`, and its gradient by parameter |
/// | `batch.logits`, `batch.features`, `batch.loss`, `batch.grad.NAME` | the same with the batch norms, and nothing else, in training mode |
/// | `batch.after.NAME` | running statistics after that pass |
///
/// `labels`, `[images]` integers, are needed for losses and gradients alone. Other tensors of the file are left alone.
pub fn verify(network: &Network, path: &Path) -> Result<Vec<Difference>> {
    let expected = Expected::read(path)?;
    let mut found = BTreeMap::new();
    for (mode, norm) in [
        ("eval", NormMode::Running),
        ("batch", NormMode::BatchUpdating),
    ] {
        if expected.wants(mode) {
            found.extend(expected.compute(network, mode, norm)?);
        }
    }
    expected.compare(path, &found)
}

/// What a file holds.
struct Expected {
    images: Tensor<4>,
    labels: Vec<usize>,
    results: BTreeMap<String, TensorData>,
}

impl Expected {
    fn read(path: &Path) -> Result<Self> {
        let wrong = |problem: String| Error::Format {
            path: path.to_owned(),
            expected: "safetensors with `x` and what PyTorch computed for it",
            problem,
            hint: Some("`docs/your-own-network.md` has the lines that write it".to_owned()),
        };
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(e.to_string()))?;
        let mut results = BTreeMap::new();
        let (mut images, mut labels) = (None, Vec::new());
        for (name, view) in file.tensors() {
            match (name.as_str(), view.dtype()) {
                ("labels", Dtype::I64) => {
                    let numbers = view.data().as_chunks().0.iter();
                    labels = numbers.map(|&n| i64::from_le_bytes(n) as usize).collect();
                }
                ("x", _) => {
                    images = Some(to_data(&view).map_err(|t| wrong(format!("`x` is {t:?}")))?);
                }
                (name, _) if name.starts_with("eval.") || name.starts_with("batch.") => {
                    let data = to_data(&view).map_err(|t| wrong(format!("`{name}` is {t:?}")))?;
                    results.insert(name.to_owned(), data);
                }
                _ => {}
            }
        }
        let images = images.ok_or_else(|| wrong("it holds no `x`".to_owned()))?;
        let &[count, 3, height, width] = images.shape().as_slice() else {
            let shape = images.shape();
            return Err(wrong(format!(
                "`x` is {shape:?}, expected [images, 3, height, width]"
            )));
        };
        if results.is_empty() {
            return Err(wrong("it holds no result to compare with".to_owned()));
        }
        let of_loss = |name: &String| [".grad.", ".loss"].iter().any(|part| name.contains(part));
        let gradients = results.keys().any(of_loss);
        if gradients && labels.len() != count {
            let found = labels.len();
            return Err(wrong(format!(
                "{found} `labels` for {count} images, which gradients need"
            )));
        }
        let device = burn::tensor::Device::flex();
        let images = Tensor::<4>::from_data(images, &device).reshape([count, 3, height, width]);
        Ok(Self {
            images: images.permute([0, 2, 3, 1]),
            labels,
            results,
        })
    }

    /// Tells whether the file holds anything of a mode.
    fn wants(&self, mode: &str) -> bool {
        self.results.keys().any(|name| name.starts_with(mode))
    }

    /// Computes what the file may hold of a mode, by name.
    fn compute(
        &self,
        network: &Network,
        mode: &str,
        norm: NormMode,
    ) -> Result<BTreeMap<String, TensorData>> {
        let classes = network.num_classes();
        if let Some(label) = self.labels.iter().find(|&&label| label >= classes) {
            return Err(Error::Mismatch {
                what: "`labels`".to_owned(),
                expected: format!("numbers below {classes}, the classes of the network"),
                found: label.to_string(),
            });
        }
        let mut found = BTreeMap::new();
        // Scores without gradients take another way through the kernels: both are compared.
        let plain = network.clone().valid();
        let features = plain.features(self.images.clone(), norm);
        let logits = plain.logits(features.clone());
        if !self.labels.is_empty() {
            let loss = cross_entropy(logits.clone(), &self.labels);
            found.insert(format!("{mode}.loss"), loss.to_data());
        }
        found.insert(format!("{mode}.features"), features.to_data());
        found.insert(format!("{mode}.logits"), logits.to_data());
        for (name, value) in tensors(&plain) {
            found.insert(format!("{mode}.after.{name}"), value);
        }
        let gradients = format!("{mode}.grad.");
        if self.results.keys().any(|name| name.starts_with(&gradients)) {
            let trained = network.clone().trainable(Adaptable::All);
            let images = Tensor::from_inner(self.images.clone());
            let loss = cross_entropy(trained.forward(images, norm), &self.labels);
            let names = parameters(&trained)
                .into_iter()
                .map(|one| (one.id, one.key));
            let mut collect = Collect {
                gradients: &GradientsParams::from_grads(loss.backward(), &trained),
                names: names.collect(),
                prefix: gradients,
                found: &mut found,
            };
            trained.visit(&mut collect);
        }
        Ok(found)
    }

    fn compare(
        &self,
        path: &Path,
        found: &BTreeMap<String, TensorData>,
    ) -> Result<Vec<Difference>> {
        let largest = |data: &TensorData| data.iter::<f32>().fold(0f32, |max, v| max.max(v.abs()));
        let mut differences = Vec::new();
        for (name, expected) in &self.results {
            let missing = || Error::Mismatch {
                what: format!("`{name}` of `{}`", path.display()),
                expected: format!(
                    "{:?} in this network",
                    found.get(name).map(TensorData::shape)
                ),
                found: format!("{:?}", expected.shape()),
            };
            let ours = found.get(name).ok_or_else(missing)?;
            if ours.num_elements() != expected.num_elements() {
                return Err(missing());
            }
            let mut scale = largest(expected);
            if let Some((mode, _)) = name.split_once(".grad.") {
                let prefix = format!("{mode}.grad.");
                let all = self
                    .results
                    .iter()
                    .filter(|(name, _)| name.starts_with(&prefix));
                let all = all.fold(0f32, |max, (_, data)| max.max(largest(data)));
                if scale < ZERO_GRADIENT * all {
                    scale = all;
                }
            }
            let pairs = ours.iter::<f32>().zip(expected.iter::<f32>());
            // A comparison with something that is no number is never small.
            let difference = pairs.fold(0f64, |max, (a, b)| {
                let difference = f64::from(a) - f64::from(b);
                if difference.is_nan() {
                    f64::INFINITY
                } else {
                    max.max(difference.abs())
                }
            });
            let relative = if difference == 0.0 {
                0.0
            } else {
                difference / f64::from(scale)
            };
            differences.push(Difference {
                name: name.clone(),
                relative,
            });
        }
        Ok(differences)
    }
}

/// Collects gradients by the names of their parameters. A parameter that no gradient reaches is left out.
struct Collect<'a> {
    gradients: &'a GradientsParams,
    names: BTreeMap<burn::module::ParamId, String>,
    prefix: String,
    found: &'a mut BTreeMap<String, TensorData>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (Some(name), Some(gradient)) =
            (self.names.get(&param.id), self.gradients.get::<D>(param.id))
        else {
            return;
        };
        let name = format!("{}{name}", self.prefix);
        self.found.insert(name, gradient.to_data());
    }
}
