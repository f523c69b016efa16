//! What became of every key when weights were loaded, and what to try if they did not fit.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use burn::tensor::TensorData;

use crate::backbone::{Architecture, Backbone, Network, OtherSizes, load_tensors, parameters};
use crate::{Error, Result};

/// The outcome of matching a file's tensors with a network's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Number of keys that were found with the right shape.
    pub loaded: usize,
    /// Keys of the network that the file does not have, with their shapes.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Keys of the file that the network does not have, with their shapes.
    pub unexpected: Vec<(String, Vec<usize>)>,
    /// Keys with another shape: key, expected shape, found shape.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Keys with values that are NaN or infinite, and how many.
    pub not_finite: Vec<(String, usize)>,
    /// Number of keys that carry nothing a network needs (`num_batches_tracked`).
    pub ignored: usize,
    /// Keys of the tensors of the network's classifier.
    pub classifier: Vec<String>,
    /// Fields of the architecture that the file's shapes contradict.
    pub other_sizes: OtherSizes,
}

/// What to try when weights do not fit. Displayed, it is a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The weights themselves hold NaN or infinite values.
    Damaged,
    /// No key of the file fits the network.
    OtherArchitecture,
    /// The file fits the same architecture with other fields.
    OtherSizes(OtherSizes),
    /// The file's classifier has this number of classes.
    OtherClasses(usize),
    /// The file has everything but the classifier.
    NoClassifier,
    /// The file has everything but the self-supervised head.
    NoHead,
    /// Something else is wrong.
    Unclear,
}

/// Returns the network with a file's tensors in it. Every parameter has to be there with its shape, and nothing else.
pub(crate) fn fill(
    path: &Path,
    architecture: &Architecture,
    network: Network,
    found: BTreeMap<String, TensorData>,
) -> Result<Network> {
    let (report, fitting) = LoadReport::sort(architecture, &network, found);
    if !report.is_complete() {
        return Err(report.into_error(path, architecture));
    }
    Ok(load_tensors(network, &fitting))
}

impl LoadReport {
    /// Matches tensors with a network's parameters, and keeps the ones that fit.
    pub(super) fn sort(
        architecture: &Architecture,
        network: &Network,
        mut found: BTreeMap<String, TensorData>,
    ) -> (Self, BTreeMap<String, TensorData>) {
        let shapes = found.iter();
        let shapes = shapes.map(|(key, data)| (key.clone(), data.shape().to_vec()));
        let mut report = Self {
            classifier: network.classifier_keys(),
            other_sizes: architecture.other_sizes(&shapes.collect()),
            ..Self::default()
        };
        let mut fitting = BTreeMap::new();
        for parameter in parameters(network) {
            let (key, expected) = (parameter.key, parameter.shape);
            let Some(data) = found.remove(&key) else {
                report.missing.push((key, expected));
                continue;
            };
            let shape = data.shape().to_vec();
            let broken = data.iter::<f32>().filter(|value| !value.is_finite());
            let broken = broken.count();
            if shape != expected {
                report.misshapen.push((key, expected, shape));
            } else if broken > 0 {
                report.not_finite.push((key, broken));
            } else {
                report.loaded += 1;
                fitting.insert(key, data);
            }
        }
        for (key, data) in found {
            if key.ends_with("num_batches_tracked") {
                report.ignored += 1;
            } else {
                report.unexpected.push((key, data.shape().to_vec()));
            }
        }
        (report, fitting)
    }

    pub(super) fn into_error(self, path: &Path, architecture: &Architecture) -> Error {
        Error::Weights {
            path: path.to_owned(),
            architecture: architecture.name(),
            report: Box::new(self),
        }
    }

    /// Tells whether every parameter was found, and nothing else.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshapen.is_empty()
            && self.not_finite.is_empty()
    }

    /// Judges by what is wrong what to try; `None` if nothing is wrong.
    pub fn advice(&self) -> Option<Advice> {
        let in_classifier = |key: &str| self.classifier.iter().any(|known| known == key);
        let only_missing = self.unexpected.is_empty() && self.misshapen.is_empty();
        let all_missing =
            |is: &dyn Fn(&str) -> bool| only_missing && self.missing.iter().all(|(key, _)| is(key));
        let mut misshapen = self.misshapen.iter();
        Some(if self.is_complete() {
            return None;
        } else if !self.not_finite.is_empty() {
            Advice::Damaged
        } else if self.loaded == 0 {
            Advice::OtherArchitecture
        } else if !self.other_sizes.fields.is_empty() {
            Advice::OtherSizes(self.other_sizes.clone())
        } else if let Some((_, _, found)) = self.misshapen.first()
            && let Some(&count) = found.first()
            && misshapen.all(|(key, _, _)| in_classifier(key))
        {
            Advice::OtherClasses(count)
        } else if all_missing(&in_classifier) {
            Advice::NoClassifier
        } else if all_missing(&|key| key.starts_with("head.")) {
            Advice::NoHead
        } else {
            Advice::Unclear
        })
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("the weights themselves are damaged: take an earlier checkpoint"),
            Self::OtherArchitecture => f.write_str("no key fits: is this the right architecture?"),
            Self::OtherSizes(OtherSizes { fields, untold }) => {
                let fields = fields.iter().map(|(field, value)| format!("`{field}` {value}"));
                let fields = fields.collect::<Vec<_>>().join(", ");
                write!(f, "the file holds a network of other sizes: {fields}")?;
                for field in untold {
                    write!(f, "; no shape tells `{field}`, which has to be set too")?;
                }
                Ok(())
            }
            Self::OtherClasses(count) => {
                write!(f, "the file's classifier has {count} classes: build the network with as many")
            }
            Self::NoClassifier => f.write_str(
                "the file has no classifier: a partial import loads the rest and leaves the classifier at its initial values",
            ),
            Self::NoHead => f.write_str(
                "only the self-supervised head is missing: build the network without it, with `projection` or `rotation` null",
            ),
            Self::Unclear => f.write_str(
                "check the architecture and its fields; a partial import loads what fits and leaves the rest at its initial values",
            ),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  loaded      {} tensors", self.loaded)?;
        if self.ignored > 0 {
            write!(f, " ({} batch counters ignored)", self.ignored)?;
        }
        for (key, shape) in &self.missing {
            write!(f, "\n  missing     {key} {shape:?}")?;
        }
        for (key, shape) in &self.unexpected {
            write!(f, "\n  unexpected  {key} {shape:?}")?;
        }
        for (key, expected, found) in &self.misshapen {
            write!(
                f,
                "\n  shape       {key} expected {expected:?}, found {found:?}"
            )?;
        }
        for (key, count) in &self.not_finite {
            write!(
                f,
                "\n  not finite  {key} {count} values are NaN or infinite"
            )?;
        }
        Ok(())
    }
}
