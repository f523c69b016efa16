//! What became of every key when weights were loaded.

use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::TensorData;

use crate::backbone::{Backbone, parameters};

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
    /// Key prefix of the network's classifier.
    pub classifier: &'static str,
    /// Side of the network's patches, if it is a transformer.
    patch: Option<usize>,
}

impl LoadReport {
    /// Matches tensors with a network's parameters, and keeps the ones that fit.
    pub(crate) fn sort<B: Backbone>(
        network: &B,
        mut found: BTreeMap<String, TensorData>,
    ) -> (Self, BTreeMap<String, TensorData>) {
        let parameters = parameters(network);
        let patches = parameters.iter();
        let patches = patches.filter(|p| p.key == "patch_embed.proj.weight");
        let mut report = Self {
            classifier: network.classifier_key(),
            patch: patches.map(|p| p.shape[2]).next(),
            ..Self::default()
        };
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
        let classifier = |key: &str| {
            let rest = key.strip_prefix(self.classifier);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let hint = if self.is_complete() {
            return None;
        } else if !self.not_finite.is_empty() {
            "the weights themselves are damaged: take an earlier checkpoint"
        } else if self.loaded == 0 {
            "no key fits: is this the right architecture?"
        } else if let Some(advice) = self.transformer_hint() {
            return Some(advice);
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
            && self.missing.iter().all(|(key, _)| classifier(key))
        {
            "the file has no classifier: `--allow-partial` loads the rest and leaves the classifier \
             at its initial values"
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

    /// What the shapes say about a transformer of other sizes.
    fn transformer_hint(&self) -> Option<String> {
        let found = |key: &str, axis: usize| {
            let mut wrong = self.misshapen.iter();
            let (_, expected, found) = wrong.find(|(name, _, _)| name == key)?;
            let same_rank = expected.len() == found.len();
            (same_rank && found[axis] != expected[axis]).then(|| found[axis])
        };
        let block_of = |key: &str| -> Option<usize> {
            let rest = key.strip_prefix("blocks.")?;
            rest.split_once('.')?.0.parse().ok()
        };
        let mut fields = Vec::new();
        if let Some(width) = found("cls_token", 2) {
            fields.push(format!("width={width}"));
        }
        if let Some(patch) = found("patch_embed.proj.weight", 2) {
            fields.push(format!("patch={patch}"));
        }
        if let Some(mlp) = found("blocks.0.mlp.fc1.weight", 0) {
            fields.push(format!("mlp={mlp}"));
        }
        let more = self.unexpected.iter().filter_map(|(key, _)| block_of(key));
        let fewer = self.missing.iter().filter_map(|(key, _)| block_of(key));
        if let Some(depth) = more.max().map(|last| last + 1).or(fewer.min()) {
            fields.push(format!("depth={depth}"));
        }
        // Tokens are the patches of a square and the class token.
        let patch = found("patch_embed.proj.weight", 2).or(self.patch);
        if let (Some(tokens), Some(patch)) = (found("pos_embed", 1), patch) {
            let side = tokens.saturating_sub(1).isqrt();
            if side * side + 1 == tokens {
                fields.push(format!("image_size={}", side * patch));
            }
        }
        if fields.is_empty() {
            return None;
        }
        let heads = if fields[0].starts_with("width") {
            "; the number of `heads`, which no shape tells, has to be set too"
        } else {
            ""
        };
        Some(format!(
            "the file holds a transformer of other sizes: say so with `--set {}`{heads}",
            fields.join(" --set ")
        ))
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
