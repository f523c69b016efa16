//! Sessions, as Python sees them.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ttac::checkpoint::{Header, export_bytes};
use ttac::experiment::{GateChoice, SharesChoice};
use ttac::input::InputContract;
use ttac::method::{MethodSpec, Prediction, Preset, method_names};
use ttac::nearest;
use ttac::protocol::{Guard, Protocol, QueueConfig};

use crate::anchors::Anchors;
use crate::answer::Answer;
use crate::arrays::{samples, state_dict};
use crate::errors::{compute, invalid, raise};
use crate::model::Model;
use crate::plain::{from_json, parse, to_json};

/// The keyword arguments that are not constants of a method.
const OPTIONS: [&str; 13] = [
    "model",
    "anchors",
    "method",
    "preset",
    "queue",
    "queue_epochs",
    "minibatch",
    "predict_first",
    "guard",
    "source_gate",
    "shares",
    "arrival_rate",
    "seed",
];

/// A classifier that answers an unlabelled stream and learns from it.
///
/// `method` and `preset` (`recommended`, `recommended-0.1` or `released`) choose the constants, and further keyword arguments change
/// them: `Session(model, method="tent", learning_rate=0.0005)`. Constants inside of others come as a dictionary,
/// `filter={"posterior_threshold": 0.8}`. An unknown name is an error that names the nearest.
///
/// `queue` recent samples are learned from again, `queue_epochs` times for each batch, in steps of `minibatch` samples; with 0
/// each batch is learned from once. `predict_first` answers before it learns. `guard` is what happens when adaptation goes
/// wrong: `warn`, `stop` or `reset`, or a dictionary with bounds. `source_gate` keeps the source in charge while the stream
/// fits it: `auto`, `open` or `off`; the preset `recommended` has `auto`. `shares` corrects answers by the shares of the classes among
/// recent samples: `recent`, `lame` to agree with similar samples of the batch as well, or `off`; the preset `recommended` has `recent`. With `arrival_rate`, in samples per second, batches that come
/// while the session is busy are answered and not learned from. `seed` is that of the order in a queue and of varied copies.
///
/// A session belongs to one thread at a time: a call while another thread is inside is a `RuntimeError`, and changes nothing.
#[pyclass(module = "ttac", frozen)]
pub struct Session {
    inner: Mutex<ttac::Session>,
    /// What does not change, so that it can be read while the session learns.
    header: Header,
    method: MethodSpec,
    input: InputContract,
    warnings: Vec<String>,
}

impl Session {
    fn new(session: ttac::Session, header: &Header) -> Self {
        Self {
            header: header.clone(),
            method: session.method().clone(),
            input: session.source().input.clone(),
            warnings: session.warnings().to_vec(),
            inner: Mutex::new(session),
        }
    }

    /// Enters the session, unless somebody is inside.
    fn enter(&self) -> PyResult<MutexGuard<'_, ttac::Session>> {
        self.inner.try_lock().map_err(|error| {
            PyRuntimeError::new_err(match error {
                TryLockError::WouldBlock => {
                    "another thread is inside this session; nothing was changed\nhint: use a lock, or a session for each stream"
                }
                TryLockError::Poisoned(_) => {
                    "this session failed inside, and cannot go on\nhint: build it again, or load what was saved"
                }
            })
        })
    }
}

/// Reads the constants that are changed, by their paths: dictionaries are gone into.
fn changes(path: &str, value: Value, all: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                changes(&format!("{path}.{name}"), value, all);
            }
        }
        value => all.push((path.to_owned(), value)),
    }
}

/// Refuses the name of no constant, and names the nearest constant or option.
fn check_name(method: &MethodSpec, name: &str) -> PyResult<()> {
    let fields = method.settings.as_object();
    let known = fields.into_iter().flat_map(|fields| fields.keys());
    let known: Vec<&str> = known.map(String::as_str).collect();
    let top = name.split('.').next().unwrap_or(name);
    if known.contains(&top) {
        return Ok(());
    }
    let all = known.iter().copied().chain(OPTIONS);
    let advice = match nearest(top, all) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("it has `{}`", known.join("`, `")),
    };
    let method = &method.name;
    Err(invalid(format!(
        "`{method}` has no setting `{top}`; {advice}"
    )))
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (model, anchors=None, method="ttac", *, preset="recommended", queue=0, queue_epochs=4, minibatch=256, predict_first=false, guard=None, source_gate=None, shares=None, arrival_rate=None, seed=0, **settings))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn build(
        model: &Bound<'_, Model>,
        anchors: Option<&Bound<'_, Anchors>>,
        method: &str,
        preset: &str,
        queue: usize,
        queue_epochs: usize,
        minibatch: usize,
        predict_first: bool,
        guard: Option<&Bound<'_, PyAny>>,
        source_gate: Option<&str>,
        shares: Option<&str>,
        arrival_rate: Option<f64>,
        seed: u64,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let preset: Preset = parse("preset", Value::from(preset))?;
        let protocol = Protocol {
            queue: (queue > 0).then_some(QueueConfig {
                capacity: queue,
                epochs: queue_epochs,
            }),
            minibatch,
            prediction: if predict_first {
                Prediction::PredictFirst
            } else {
                Prediction::AdaptFirst
            },
            guard: match guard.map(to_json).transpose()? {
                None => Guard::default(),
                Some(word @ Value::String(_)) => Guard::with_action(parse("guard", word)?),
                Some(fields) => parse("guard", fields)?,
            },
            gate: GateChoice::config(word("source_gate", source_gate)?, method, preset),
            shares: SharesChoice::config(word("shares", shares)?, method, preset),
            arrival_rate,
            seed,
            ..Protocol::default()
        };
        let mut spec = MethodSpec::preset(method, preset, protocol.setting()).map_err(raise)?;
        let mut changed = Vec::new();
        for (name, value) in settings.into_iter().flatten() {
            let name: String = name.extract()?;
            check_name(&spec, &name)?;
            changes(&name, to_json(&value)?, &mut changed);
        }
        for (path, value) in changed {
            spec = spec.with_value(&path, value).map_err(raise)?;
        }
        let py = model.py();
        let (model, anchors) = (model.get(), anchors.map(|anchors| anchors.get().library()));
        compute(py, || {
            let builder = ttac::Session::builder(model.library());
            let builder = builder.method_spec(&spec).protocol(&protocol);
            let builder = match anchors {
                Some(anchors) => builder.anchors(anchors),
                None => builder,
            };
            Ok(Self::new(builder.build().map_err(raise)?, model.header()))
        })
    }

    /// Loads a session that was saved, with the model and the anchors it was built with.
    #[staticmethod]
    #[pyo3(signature = (path, model, anchors=None))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        model: &Bound<'_, Model>,
        anchors: Option<&Bound<'_, Anchors>>,
    ) -> PyResult<Self> {
        let (model, anchors) = (model.get(), anchors.map(|anchors| anchors.get().library()));
        compute(py, || {
            let session = ttac::Session::load(&path, model.library(), anchors).map_err(raise)?;
            Ok(Self::new(session, model.header()))
        })
    }

    /// Saves all that was learned and is remembered, atomically. `Session.load` goes on with the same bits.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        compute(py, || self.enter()?.save(&path).map_err(raise))
    }

    /// Answers a batch and learns from it.
    ///
    /// Images are uint8 `[n, height, width, 3]`: a NumPy array, or anything with `__dlpack__` or `__array__`; a PyTorch tensor
    /// may be `[n, 3, height, width]`. What is refused changes nothing.
    fn observe(&self, images: &Bound<'_, PyAny>) -> PyResult<Answer> {
        let py = images.py();
        let batch = samples(&self.input, images)?;
        let answer = compute(py, || self.enter()?.observe(&batch).map_err(raise))?;
        Answer::new(py, answer)
    }

    /// Answers a batch as the session does now, learns nothing and changes nothing.
    fn predict(&self, images: &Bound<'_, PyAny>) -> PyResult<Answer> {
        let py = images.py();
        let batch = samples(&self.input, images)?;
        let answer = compute(py, || self.enter()?.predict(&batch).map_err(raise))?;
        Answer::new(py, answer)
    }

    /// Goes back to the start, bit for bit.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        compute(py, || {
            self.enter()?.reset();
            Ok(())
        })
    }

    /// Returns the model with the weights as they are now.
    fn model(&self, py: Python<'_>) -> PyResult<Model> {
        compute(py, || {
            Ok(Model::adapted(&self.header, self.enter()?.model()))
        })
    }

    /// Returns the weights as they are now, with the names of PyTorch's `state_dict`: tensors for `load_state_dict`, or
    /// arrays with `numpy`.
    #[pyo3(signature = (*, numpy=false))]
    fn state_dict<'py>(&self, py: Python<'py>, numpy: bool) -> PyResult<Bound<'py, PyAny>> {
        let bytes = compute(py, || Ok(export_bytes(&self.enter()?.model().network)))?;
        state_dict(py, &bytes, numpy)
    }

    /// How many batches were observed since the start or the last `reset`.
    #[getter]
    fn batches(&self) -> PyResult<usize> {
        Ok(self.enter()?.batches())
    }

    /// How far the parameters have moved from the source, relative to their length; `None` for methods that move none.
    #[getter]
    fn drift(&self) -> PyResult<Option<f64>> {
        Ok(self.enter()?.drift())
    }

    /// The name of the method.
    #[getter]
    fn method(&self) -> &str {
        &self.method.name
    }

    /// Every constant of the method.
    #[getter]
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &self.method.settings)
    }

    /// What somebody should know before the first batch, in sentences.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn __repr__(&self) -> String {
        let Header { architecture, .. } = &self.header;
        format!(
            "<ttac.Session of {} by {}>",
            architecture.name(),
            self.method.name
        )
    }
}

/// Reads a word that an argument may be.
fn word<T: DeserializeOwned>(name: &str, given: Option<&str>) -> PyResult<Option<T>> {
    given.map(|word| parse(name, Value::from(word))).transpose()
}

/// Returns what every method does, by its name.
#[pyfunction]
pub fn methods(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    for (name, about) in method_names() {
        found.set_item(name, about)?;
    }
    Ok(found)
}
