//! Data sets by name, as arrays.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1, PyArray4, PyArrayMethods};
use pyo3::prelude::*;
use serde_json::Value;
use ttac::data::{DatasetExt, OpenOptions, SampleId, Split, default_root, open};

use crate::errors::{compute, raise};
use crate::plain::parse;

type Loaded<'py> = (Bound<'py, PyArray4<u8>>, Option<Bound<'py, PyArray1<i64>>>);

/// Reads images of a data set that the command knows by name, with their labels where they are known.
///
/// Images are uint8 `[n, height, width, 3]`, labels int64 `[n]`. `shapes10` is drawn by code and needs no files; other sets
/// lie in `root`. At most `count` images are read, the first ones; `size` is their side where the set has none of its own.
#[pyfunction]
#[pyo3(signature = (name, split="test", *, root=None, corruption=None, severity=None, seed=0, count=None, size=32))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub fn load_data<'py>(
    py: Python<'py>,
    name: &str,
    split: &str,
    root: Option<PathBuf>,
    corruption: Option<String>,
    severity: Option<u8>,
    seed: u64,
    count: Option<usize>,
    size: usize,
) -> PyResult<Loaded<'py>> {
    let split: Split = parse("split", Value::from(split))?;
    let options = OpenOptions {
        severity: severity.or_else(|| corruption.as_ref().map(|_| 5)),
        corruption,
        corruption_seed: seed,
        unlabelled: true,
        ..OpenOptions::new(size)
    };
    let (images, labels) = compute(py, || {
        let root = root.unwrap_or_else(|| default_root().join(name));
        let data = open(name, &root, split, &options).map_err(raise)?;
        let count = count.map_or(data.len(), |count| count.min(data.len()));
        let ids: Vec<SampleId> = (0..count as SampleId).collect();
        let batch = data.batch(&ids).map_err(raise)?;
        Ok((batch.samples.into_images().map_err(raise)?, batch.labels))
    })?;
    let shape = [images.count(), images.height, images.width, 3];
    let labels = labels.map(|labels| {
        let labels: Vec<i64> = labels.iter().map(|&label| label as i64).collect();
        labels.into_pyarray(py)
    });
    Ok((images.pixels.into_pyarray(py).reshape(shape)?, labels))
}
