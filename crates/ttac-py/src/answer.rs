//! What a session answers, as Python sees it.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The predictions of a batch, and what became of it.
#[pyclass(module = "ttac", frozen, get_all)]
pub struct Answer {
    /// The predicted class of each sample, int64 `[samples]`.
    classes: Py<PyArray1<i64>>,
    /// The probability of each class for each sample, float32 `[samples, classes]`.
    probabilities: Py<PyArray2<f32>>,
    /// The scores that the probabilities are the softmax of, float32 `[samples, classes]`.
    scores: Py<PyArray2<f32>>,
    /// What was learned from the batch.
    learned: Py<Learned>,
    /// What somebody should know, in sentences.
    warnings: Vec<String>,
    /// What the gate decided; `None` without a gate.
    gate: Option<Py<Gate>>,
    /// What the guard found and did; `None` if nothing was wrong.
    alarm: Option<String>,
    /// Whether the batch arrived while the session was busy, so that nothing was learned from it; only with `arrival_rate`.
    late: bool,
    /// Seconds of learning.
    learning_seconds: f64,
    /// Seconds of predicting; part of the learning where one pass does both.
    predicting_seconds: f64,
}

/// What was learned from a batch.
#[pyclass(module = "ttac", frozen, get_all)]
pub struct Learned {
    /// Optimiser steps.
    updates: usize,
    /// Loss terms by name, as weighted in the sum; means over the steps.
    losses: Py<PyDict>,
    /// Samples whose pseudo-label was accepted.
    accepted: usize,
    /// Samples that were asked for a pseudo-label.
    considered: usize,
    /// Mean distance of the stream's class means from their anchors; `None` for methods without such clusters.
    anchor_distance: Option<f64>,
    /// The gradient that was not finite, so that its step was left out; `None` if all were.
    not_finite: Option<String>,
}

/// What the gate decided on a batch.
#[pyclass(module = "ttac", frozen, get_all)]
pub struct Gate {
    /// Whether the gate is open after the batch, so that the method learns.
    open: bool,
    /// The image of the batch at which the gate opened, from zero.
    opened: Option<usize>,
    /// The image of the batch at which the gate closed, from zero.
    closed: Option<usize>,
}

impl Answer {
    /// Takes over an answer of the library.
    pub fn new(py: Python<'_>, answer: ttac::Answer) -> PyResult<Self> {
        let (samples, classes) = (answer.classes.len(), answer.num_classes);
        let table = |values: Vec<f32>| -> PyResult<Py<PyArray2<f32>>> {
            let array = values.into_pyarray(py).reshape([samples, classes])?;
            Ok(array.unbind())
        };
        let predicted: Vec<i64> = answer.classes.iter().map(|&class| class as i64).collect();
        let gate = answer.gate.map(|verdict| {
            let ttac::gate::Verdict {
                open,
                opened,
                closed,
                ..
            } = verdict;
            let gate = Gate {
                open,
                opened,
                closed,
            };
            Py::new(py, gate)
        });
        Ok(Self {
            classes: predicted.into_pyarray(py).unbind(),
            probabilities: table(answer.probabilities)?,
            scores: table(answer.scores)?,
            learned: Py::new(py, Learned::new(py, &answer.learned)?)?,
            warnings: answer.warnings,
            gate: gate.transpose()?,
            alarm: answer.alarm.map(|alarm| alarm.reason),
            late: answer.late,
            learning_seconds: answer.learning_seconds,
            predicting_seconds: answer.predicting_seconds,
        })
    }
}

#[pymethods]
impl Answer {
    /// The probability of each predicted class, float32 `[samples]`.
    #[getter]
    fn confidence<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.probabilities.bind(py).call_method1("max", (1,))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.classes.bind(py).len()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<ttac.Answer of {} samples, {} updates, {} warnings>",
            self.__len__(py)?,
            self.learned.get().updates,
            self.warnings.len()
        ))
    }
}

impl Learned {
    fn new(py: Python<'_>, learned: &ttac::method::Learned) -> PyResult<Self> {
        let losses = PyDict::new(py);
        for (name, value) in &learned.losses {
            losses.set_item(name, value)?;
        }
        Ok(Self {
            updates: learned.updates,
            losses: losses.unbind(),
            accepted: learned.accepted,
            considered: learned.considered,
            anchor_distance: learned.anchor_distance,
            not_finite: learned.not_finite.map(str::to_owned),
        })
    }
}

#[pymethods]
impl Learned {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<ttac.Learned: {} updates, losses {}>",
            self.updates,
            self.losses.bind(py).repr()?
        ))
    }
}

#[pymethods]
impl Gate {
    fn __repr__(&self) -> String {
        let state = if self.open { "open" } else { "closed" };
        format!("<ttac.Gate: {state}>")
    }
}
