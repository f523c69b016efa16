//! What became of every key when weights were loaded.

use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::TensorData;

use crate::backbone::Parameter;

/// The outcome of matching a file's tensors with a network's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Keys that were found with the right shape.
    pub loaded: usize,
    /// Keys of the network that the file does not have, with their shapes.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Keys of the file that the network does not have, with their shapes.
    pub unexpected: Vec<(String, Vec<usize>)>,
    /// Keys with another shape: key, expected, found.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Keys with values that are not numbers, and how many.
    pub not_finite: Vec<(String, usize)>,
    /// Keys that carry nothing a network needs (`num_batches_tracked`).
    pub ignored: usize,
}

impl LoadReport {
    /// Matches tensors with parameters, and keeps the ones that fit.
    pub(crate) fn sort(
        parameters: &[Parameter],
        mut found: BTreeMap<String, TensorData>,
    ) -> (Self, BTreeMap<String, TensorData>) {
        let mut report = Self::default();
        let mut fitting = BTreeMap::new();
        for parameter in parameters {
            let Some(data) = found.remove(&parameter.key) else {
                let missing = (parameter.key.clone(), parameter.shape.clone());
                report.missing.push(missing);
                continue;
            };
            if data.shape().as_slice() != parameter.shape {
                report.misshapen.push((
                    parameter.key.clone(),
                    parameter.shape.clone(),
                    data.shape().to_vec(),
                ));
                continue;
            }
            let broken = data
                .iter::<f32>()
                .filter(|value| !value.is_finite())
                .count();
            if broken > 0 {
                report.not_finite.push((parameter.key.clone(), broken));
                continue;
            }
            report.loaded += 1;
            fitting.insert(parameter.key.clone(), data);
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

    /// Whether every parameter was found, and nothing else.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshapen.is_empty()
            && self.not_finite.is_empty()
    }

    /// What to try, judging by what is wrong.
    pub fn hint(&self) -> Option<String> {
        let classifier = |key: &str| key.starts_with("fc.") || key.starts_with("linear.");
        let hint = if self.is_complete() {
            return None;
        } else if !self.not_finite.is_empty() {
            "the weights themselves are damaged: take an earlier checkpoint"
        } else if self.loaded == 0 {
            "no key fits: is this the right architecture?"
        } else if let Some((_, _, found)) =
            self.misshapen.iter().find(|(key, _, _)| classifier(key))
            && self.misshapen.iter().all(|(key, _, _)| classifier(key))
        {
            return Some(format!(
                "the file's classifier has {} classes: say so with `--classes {}`",
                found[0], found[0]
            ));
        } else if self.unexpected.is_empty()
            && self.misshapen.is_empty()
            && self.missing.iter().all(|(key, _)| key.starts_with("head."))
        {
            "only the self-supervised head is missing: build the network without it with \
             `--set projection=null` or `--set rotation=null`"
        } else {
            "check the architecture and its `--set` fields; `--allow-partial` loads what fits and \
             leaves the rest at its initial values"
        };
        Some(hint.to_owned())
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
