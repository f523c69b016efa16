//! ModelNet40-C: `data_CORRUPTION_SEVERITY.npy` and `label.npy`.

use std::path::Path;

use ttac_corrupt::points::PointCorruption;

use super::super::corrupted::invalid;
use super::super::npy::{read_floats, read_labels};
use super::super::problem::{absent, contents, damaged};
use super::{Batch, Dataset, MODELNET40_CLASSES, SampleId, batch, check};
use crate::Result;

const NAME: &str = "modelnet40-c";

/// Clouds of the test split of ModelNet40 under one corruption, in memory.
#[derive(Debug)]
pub struct ModelNet40C {
    points: usize,
    values: Vec<f32>,
    labels: Vec<u8>,
    corruption: String,
}

impl ModelNet40C {
    /// One corruption at one severity; `original` has none.
    pub fn open(root: &Path, corruption: &str, severity: u8) -> Result<Self> {
        let file = if corruption == "original" {
            "data_original.npy".to_owned()
        } else {
            let known: PointCorruption = corruption.parse().map_err(|error| invalid(&error))?;
            format!("data_{known}_{severity}.npy")
        };
        let path = root.join(&file);
        let label_path = root.join("label.npy");
        for (path, file) in [(&path, file.as_str()), (&label_path, "label.npy")] {
            if !path.is_file() {
                let problem = format!("expected `{file}`, {}", contents(root));
                return Err(absent(NAME, root, problem));
            }
        }
        let (shape, values) = read_floats(NAME, &path)?;
        let points = match shape[..] {
            [_, points, 3] if points > 0 => points as usize,
            _ => {
                let problem = format!("expected clouds [n, points, 3], found {shape:?}");
                return Err(damaged(NAME, &path, problem));
            }
        };
        check(NAME, &path, &values, points)?;
        let labels = read_labels(NAME, &label_path, MODELNET40_CLASSES.len())?;
        let count = values.len() / (3 * points);
        if labels.len() != count {
            let problem = format!(
                "expected {count} labels for the clouds, found {}",
                labels.len()
            );
            return Err(damaged(NAME, &label_path, problem));
        }
        Ok(Self {
            points,
            values,
            labels,
            corruption: format!("{corruption} {severity}, from its file"),
        })
    }
}

impl Dataset for ModelNet40C {
    fn name(&self) -> &'static str {
        NAME
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        MODELNET40_CLASSES.map(str::to_owned).to_vec()
    }

    fn labels(&self) -> Result<Vec<usize>> {
        Ok(self.labels.iter().map(|&label| label.into()).collect())
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        Ok(batch(&self.values, &self.labels, self.points, ids))
    }

    fn corruption(&self) -> Option<String> {
        Some(self.corruption.clone())
    }
}
