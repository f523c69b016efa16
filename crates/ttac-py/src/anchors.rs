//! Source statistics, as Python sees them.

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use serde_json::Value;
use ttac::SourceStatistics;
use ttac::burn::tensor::Device;
use ttac::data::{Batch, Dataset, InMemory, SampleId, Samples, SetInfo};
use ttac::stats::{AnchorConfig, calibrate, collect};

use crate::arrays::{labels, samples};
use crate::errors::{check_signals, compute, invalid, raise};
use crate::model::Model;
use crate::plain::parse;

/// What a network's features look like on its source images, which the methods with anchors hold on to.
///
/// Anchors belong to the model they were made with, and another model refuses them.
#[pyclass(module = "ttac", frozen)]
pub struct Anchors {
    statistics: SourceStatistics,
}

impl Anchors {
    /// Returns the statistics of the library.
    pub fn library(&self) -> &SourceStatistics {
        &self.statistics
    }
}

#[pymethods]
impl Anchors {
    /// Reads an anchor file.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        compute(py, || {
            let statistics = SourceStatistics::load(&path).map_err(raise)?;
            Ok(Self { statistics })
        })
    }

    /// Writes an anchor file, atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        compute(py, || self.statistics.save(&path).map_err(raise))
    }

    /// Makes the anchors of a model from its source images.
    ///
    /// `batches` is any iterable of `(images, labels)` or of images alone; images are uint8 `[n, height, width, 3]`, or
    /// tensors of PyTorch. All images are kept, as bytes, until the anchors are made. `labels` says whether classes are the
    /// network's own predictions (`predicted`) or those of `batches` (`true`). `held_out`, images that the network was not
    /// trained on, calibrate the gate of the preset `recommended`. `transform` varies the images; without it, they are taken as they are.
    #[staticmethod]
    #[pyo3(signature = (model, batches, *, held_out=None, labels="predicted", transform="none", class_covariance="full", rank=None, batch_size=250, seed=0, name="python"))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn collect(
        model: &Bound<'_, Model>,
        batches: &Bound<'_, PyAny>,
        held_out: Option<&Bound<'_, PyAny>>,
        labels: &str,
        transform: &str,
        class_covariance: &str,
        rank: Option<usize>,
        batch_size: usize,
        seed: u64,
        name: &str,
    ) -> PyResult<Self> {
        let py = model.py();
        if batch_size == 0 {
            return Err(invalid("`batch_size`: expected at least 1, found 0"));
        }
        let config = AnchorConfig {
            transform: parse("transform", Value::from(transform))?,
            labels: parse("labels", Value::from(labels))?,
            class_covariance: parse("class_covariance", Value::from(class_covariance))?,
            rank,
            batch_size,
            seed,
            ..AnchorConfig::default()
        };
        let model = model.get().library();
        let data = gather(model, batches, name)?;
        let held_out = held_out
            .map(|batches| gather(model, batches, name))
            .transpose()?;
        let statistics = compute(py, || {
            let (network, input, device) = (&model.network, &model.input, Device::flex());
            let identity = &model.fingerprint;
            let found = collect(network, identity, input, &data, &config, &device, |_| {});
            let mut statistics = data.outcome(found)?;
            if let Some(held_out) = &held_out {
                let found = calibrate(network, input, held_out, batch_size, &device, |_| {});
                statistics.calibration = Some(held_out.outcome(found)?.0);
            }
            Ok(statistics)
        })?;
        Ok(Self { statistics })
    }

    /// How many source samples each class has.
    #[getter]
    fn counts(&self) -> Vec<u64> {
        self.statistics.counts.clone()
    }

    /// How many features the network has.
    #[getter]
    fn features(&self) -> usize {
        self.statistics.num_features()
    }

    /// The fingerprint of the model that the anchors belong to.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.statistics.origin.backbone
    }

    /// Whether a gate can be used with these anchors.
    #[getter]
    fn is_calibrated(&self) -> bool {
        self.statistics.calibration.is_some()
    }

    fn __repr__(&self) -> String {
        format!(
            "<ttac.Anchors of {} classes, {} features, from {} samples>",
            self.statistics.counts.len(),
            self.statistics.num_features(),
            self.statistics.origin.samples
        )
    }
}

/// Samples in memory whose reading is interrupted by a signal, such as that of Ctrl-C.
struct Listening {
    data: InMemory,
    /// The exception that a signal raised.
    raised: Mutex<Option<PyErr>>,
}

impl Listening {
    /// Returns what was computed from the samples, or the exception that ended it.
    fn outcome<T>(&self, found: ttac::Result<T>) -> PyResult<T> {
        let raised = self.raised.lock().ok().and_then(|mut raised| raised.take());
        match raised {
            Some(exception) => Err(exception),
            None => found.map_err(raise),
        }
    }
}

impl Dataset for Listening {
    fn info(&self) -> &SetInfo {
        self.data.info()
    }

    fn batch(&self, ids: &[SampleId]) -> ttac::Result<Batch> {
        if let Err(exception) = check_signals() {
            if let Ok(mut raised) = self.raised.lock() {
                *raised = Some(exception);
            }
            return Err(ttac::Error::Invalid {
                what: "run",
                problem: "it was interrupted".to_owned(),
            });
        }
        self.data.batch(ids)
    }

    fn labels(&self) -> ttac::Result<Option<Vec<usize>>> {
        self.data.labels()
    }
}

/// Reads all batches of an iterable. Classes are known only if every batch has labels.
fn gather(model: &ttac::Model, batches: &Bound<'_, PyAny>, name: &str) -> PyResult<Listening> {
    let mut all: Option<Samples> = None;
    let mut known: Option<Vec<usize>> = Some(Vec::new());
    for batch in batches.try_iter()? {
        let batch = batch?;
        let (images, given) = images_and_labels(&batch)?;
        let more = samples(&model.input, &images)?;
        known = match (known, given) {
            (Some(mut known), Some(given)) => {
                let given = labels(&given)?;
                if given.len() != more.count() {
                    return Err(invalid(format!(
                        "a batch of {} images has {} labels",
                        more.count(),
                        given.len()
                    )));
                }
                known.extend(given);
                Some(known)
            }
            _ => None,
        };
        match &mut all {
            Some(all) => all.append(more).map_err(raise)?,
            None => all = Some(more),
        }
    }
    let Some(all) = all else {
        return Err(invalid(
            "`batches`: expected at least one batch, found none",
        ));
    };
    let data = InMemory::new(name, model.classes.clone(), all, known).map_err(raise)?;
    Ok(Listening {
        data,
        raised: Mutex::new(None),
    })
}

type Pair<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Takes a batch apart: a tuple or list of two is images and labels, anything else images.
fn images_and_labels<'py>(batch: &Bound<'py, PyAny>) -> PyResult<Pair<'py>> {
    if batch.is_instance_of::<PyTuple>() || batch.is_instance_of::<PyList>() {
        if batch.len()? != 2 {
            return Err(invalid(format!(
                "a batch: expected images, or a pair of images and labels, found {} things",
                batch.len()?
            )));
        }
        return Ok((batch.get_item(0)?, Some(batch.get_item(1)?)));
    }
    Ok((batch.clone(), None))
}
