//! The one way to adapt: a [`Session`] takes one stream of samples, without a data set and without labels.
//!
//! The command, grids, services and bindings are shells around it. A batch's way from here to the gradient of the
//! anchored loss: [`Session::observe`] normalises it by the model's
//! [`InputContract`](crate::input::InputContract) and hands it to the [`Adapter`], which
//! calls [`Method::learn`](crate::method::Method::learn); there the network's features meet the
//! [statistics](crate::stats) whose closed-form gradient goes back into the network.

mod answer;
mod builder;
mod learning;
mod predictor;
mod state;

use std::path::Path;

use burn::tensor::{Device, Tensor};

pub use answer::Answer;
pub use builder::SessionBuilder;
use learning::Asked;
pub(crate) use learning::Tally;
pub use predictor::Predictor;
pub(crate) use state::RunState;
pub use state::{STATE_FORMAT, SessionState};

use crate::archive::Arrays;
use crate::backbone::{Backbone, Network, NormMode};
use crate::data::{SampleId, Samples};
use crate::gate::{Calibration, GateState};
use crate::method::{Adapter, MethodSpec, Needs, Snapshot};
use crate::model::Model;
use crate::protocol::{Alarm, GuardAction, Look, Protocol, Queue, SOURCE_SAMPLES, Signs};
use crate::stats::SourceStatistics;
use crate::{Error, Result};

use state::{StateHeader, has, nest, unnest};

/// A classifier that answers an unlabelled stream and learns from it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use ttac::data::{OpenOptions, Split, open};
/// use ttac::{Model, Session, SourceStatistics};
/// # use ttac::burn;
///
/// # fn main() -> ttac::Result<()> {
/// # let shipped = std::path::Path::new("../../assets/shapes10");
/// let model = Model::load(&shipped.join("model.safetensors"), &Device::flex())?;
/// let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors"))?;
/// let mut session = Session::builder(&model).anchors(&anchors).method("ttac").build()?;
///
/// let stream = open("shapes10", shipped, Split::Test, &OpenOptions::new(32))?;
/// let samples = stream.batch(&[0, 1, 2, 3, 4, 5, 6, 7])?.samples;
/// let answer = session.observe(&samples)?;
/// assert_eq!(answer.classes.len(), 8);
///
/// // A predictor goes on answering as the session does now, on any thread.
/// let predictor = session.predictor();
/// assert_eq!(predictor.predict(&samples)?.classes, session.predict(&samples)?.classes);
/// # Ok(())
/// # }
/// ```
pub struct Session<B: Backbone = Network> {
    model: Model<B>,
    /// The source network on the session's device, whose view of the stream the gate and the guard ask for.
    source: B,
    /// What the gate compares the source's scores with; `None` without a gate.
    calibration: Option<Calibration>,
    /// Whether the norms start from the reference moments of the anchors.
    uses_reference: bool,
    /// What somebody should know before the first batch.
    warnings: Vec<String>,
    device: Device,
    method: MethodSpec,
    protocol: Protocol,
    adapter: Adapter,
    state: RunState,
    /// The method as it was before the newest learning step, which answers late batches.
    published: Option<Box<Adapter>>,
}

/// Writes a part of a header for comparison and for messages.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("headers are plain JSON")
}

/// Refuses a saved session of which a part is another than this session's.
fn check_same(what: &str, expected: &str, found: &str) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: format!("{what} of the saved session"),
        expected: expected.to_owned(),
        found: found.to_owned(),
    })
}

impl<B: Backbone + Sync + 'static> Session<B> {
    /// Starts to build a session around a trained model.
    pub fn builder(model: &Model<B>) -> SessionBuilder<'_, B> {
        SessionBuilder::new(model)
    }

    /// Answers a batch and learns from it.
    ///
    /// Samples of the wrong kind or size, an empty batch and coordinates that are not numbers are refused before
    /// anything changes: the session goes on as if the call had not been made.
    pub fn observe(&mut self, samples: &Samples) -> Result<Answer> {
        let first = self.state.samples;
        let ids: Vec<SampleId> = (first..first + samples.count() as u64).collect();
        self.observe_known(&ids, samples)
    }

    /// Answers and learns as [`observe`](Self::observe) does, for samples whose identity is known: a sample that
    /// comes again has to have the same id again.
    pub fn observe_known(&mut self, ids: &[SampleId], samples: &Samples) -> Result<Answer> {
        if let Some(reason) = &self.state.stopped {
            return Err(Error::Stopped {
                batch: self.state.batches.saturating_sub(1),
                reason: reason.clone(),
            });
        }
        let images = self.check(ids, samples)?;
        let late = match &mut self.state.clock {
            Some(clock) => clock.arrive(ids.len()),
            None => false,
        };
        let mut answer = if late {
            self.answer_late(images)
        } else {
            let mut answer = match self.ask_gate(&images) {
                Asked::Closed(answer) => *answer,
                Asked::Open(verdict, asking_seconds) => {
                    if self.state.clock.is_some() {
                        self.published = Some(Box::new(self.adapter.clone()));
                    }
                    let answer = self.arrive(ids, samples, images.clone())?;
                    Answer {
                        gate: verdict,
                        predicting_seconds: answer.predicting_seconds + asking_seconds,
                        ..answer
                    }
                }
            };
            if let Some(clock) = &mut self.state.clock {
                clock.work(answer.learning_seconds + answer.predicting_seconds);
            }
            answer.alarm = self.judge(&answer, &images);
            answer
        };
        let batch = self.state.batches;
        self.state.batches += 1;
        self.state.samples += ids.len() as u64;
        if let Some(alarm) = &answer.alarm {
            answer.warnings.push(match alarm.action {
                GuardAction::Warn | GuardAction::Stop => format!("batch {batch}: {}", alarm.reason),
                GuardAction::Reset => {
                    format!("batch {batch}: {}; reset to the source", alarm.reason)
                }
            });
        }
        Ok(answer)
    }

    /// Answers a batch, learns nothing and changes nothing.
    pub fn predict(&self, samples: &Samples) -> Result<Answer> {
        let images = self.model.input.normalise(samples, &self.device)?;
        Ok(Answer::of_scores(if self.source_answers() {
            self.source.forward(images, NormMode::Running)
        } else {
            self.adapter.predict(images)
        }))
    }

    /// Whether the source answers, because there is a gate and it is closed.
    pub fn source_answers(&self) -> bool {
        let gate = self.state.gate.as_ref();
        gate.is_some_and(|gate| !gate.is_open())
    }

    /// Returns what the gate remembers, if there is one.
    pub fn gate(&self) -> Option<&GateState> {
        self.state.gate.as_ref()
    }

    /// Whether the norms start from the reference moments of the anchors.
    pub(crate) fn uses_reference(&self) -> bool {
        self.uses_reference
    }

    /// Lists what somebody should know before the first batch: what was asked for and cannot be had, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether a predictor of the session can answer each sample [`alone`](Predictor::alone). If not, one sample of a batch changes
    /// the answers to the others, as with norms that use the statistics of the batch.
    pub fn predicts_alone(&self) -> bool {
        self.adapter.predicts_alone()
    }

    /// Takes a predictor that goes on answering as the session does now.
    pub fn predictor(&self) -> Predictor {
        Predictor {
            snapshot: if self.source_answers() {
                Snapshot::of_source(self.source.clone())
            } else {
                self.adapter.snapshot()
            },
            input: self.model.input.clone(),
            device: self.device.clone(),
        }
    }

    /// Goes back to the start, bit for bit: the source's weights, an empty queue, no memory of any batch.
    pub fn reset(&mut self) {
        self.return_to_source();
        self.state = RunState::new(&self.protocol);
    }

    /// Returns the model with the weights as they are now.
    pub fn model(&self) -> Model<B> {
        self.model.with_weights(&self.adapter.weights())
    }

    /// Returns the model the session started from.
    pub fn source(&self) -> &Model<B> {
        &self.model
    }

    /// Returns the method and all its constants.
    pub fn method(&self) -> &MethodSpec {
        &self.method
    }

    /// Returns the protocol the session runs under.
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// Returns how many batches were observed since the start or the last [`reset`](Self::reset).
    pub fn batches(&self) -> usize {
        self.state.batches
    }

    /// Measures how far the parameters have moved from the source, relative to their length; `None` for methods
    /// that move none.
    pub fn drift(&self) -> Option<f64> {
        self.adapter.drift()
    }

    /// Returns everything the session has learned and remembers.
    pub fn state(&self) -> Result<SessionState> {
        let mut arrays = Arrays::default();
        let mut method = Arrays::default();
        self.adapter.save(&mut method)?;
        nest("method.", method, &mut arrays);
        if let Some(published) = &self.published {
            let mut before = Arrays::default();
            published.save(&mut before)?;
            nest("published.", before, &mut arrays);
        }
        self.state.queue.save(&mut arrays);
        let RunState {
            clock,
            watch,
            gate,
            batches,
            samples,
            stopped,
            ..
        } = self.state.clone();
        let header = StateHeader {
            format: STATE_FORMAT,
            model: self.model.fingerprint.clone(),
            method: self.method.clone(),
            protocol: self.protocol.clone(),
            clock,
            watch,
            gate,
            batches,
            samples,
            stopped,
            attached: std::collections::BTreeMap::new(),
        };
        Ok(SessionState { header, arrays })
    }

    /// Takes a state back. A state of another model, method or protocol is refused, and the session stays as it
    /// was.
    pub fn restore(&mut self, state: &SessionState) -> Result<()> {
        let StateHeader {
            model,
            method,
            protocol,
            ..
        } = &state.header;
        check_same("model", &self.model.fingerprint, model)?;
        check_same("method", &json(&self.method), &json(method))?;
        check_same("protocol", &json(&self.protocol), &json(protocol))?;
        let mut arrays = state.arrays.clone();
        let mut own = unnest("method.", &mut arrays);
        let published = if has("published.", &arrays) {
            let mut before = unnest("published.", &mut arrays);
            let mut adapter = self.adapter.clone();
            adapter.load(&mut before)?;
            Some(Box::new(adapter))
        } else {
            None
        };
        let capacity = self.protocol.queue.map_or(0, |queue| queue.capacity);
        let queue = Queue::load(capacity, &mut arrays)?;
        self.adapter.load(&mut own)?;
        self.published = published;
        let header = state.header.clone();
        self.state = RunState {
            queue,
            clock: header.clock,
            watch: header.watch,
            gate: header.gate,
            batches: header.batches,
            samples: header.samples,
            stopped: header.stopped,
        };
        Ok(())
    }

    /// Saves the session to a file, atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.state()?.save(path)
    }

    /// Loads a session that was saved, with the model and the anchors it was built with.
    pub fn load(path: &Path, model: &Model<B>, anchors: Option<&SourceStatistics>) -> Result<Self> {
        let state = SessionState::load(path)?;
        // Before the method is built, which may lack something that only the right model has.
        check_same("model", &model.fingerprint, &state.header.model)?;
        let builder = Self::builder(model)
            .method_spec(&state.header.method)
            .protocol(&state.header.protocol);
        let builder = match anchors {
            Some(anchors) => builder.anchors(anchors),
            None => builder,
        };
        let mut session = builder.build()?;
        session.restore(&state)?;
        Ok(session)
    }

    /// Looks at the health of the method, and does what the guard says.
    fn judge(&mut self, answer: &Answer, images: &Tensor<4>) -> Option<Alarm> {
        let signs = Signs {
            batch: self.state.batches,
            classes: answer.num_classes,
            learned: &answer.learned,
            predicted: answer.uncorrected.as_ref().unwrap_or(&answer.classes),
            finite_scores: answer.is_finite(),
        };
        let (guard, adapter, source) = (&self.protocol.guard, &self.adapter, &self.source);
        let closed = self.source_answers();
        let look = || Look {
            // Nothing moves while the source answers.
            drift: adapter.drift().filter(|_| !closed),
            source: if closed {
                let count = answer.classes.len().min(SOURCE_SAMPLES);
                answer.classes[..count].to_vec()
            } else {
                let count = images.dims()[0].min(SOURCE_SAMPLES);
                let some = images.clone().slice_dim(0, 0..count);
                Answer::of_scores(source.forward(some, NormMode::Running)).classes
            },
        };
        let alarm = self.state.watch.judge(guard, &signs, look)?;
        match alarm.action {
            GuardAction::Warn => {}
            GuardAction::Stop => self.state.stopped = Some(alarm.reason.clone()),
            GuardAction::Reset => self.return_to_source(),
        }
        Some(alarm)
    }

    /// Goes back to the source, but goes on counting batches and samples.
    pub(crate) fn return_to_source(&mut self) {
        self.adapter.reset();
        self.state.queue.clear();
        self.state.watch.clear();
        self.state.gate = self.protocol.gate.as_ref().map(GateState::new);
        self.published = None;
    }

    /// Returns what the method has to be handed.
    pub fn needs(&self) -> Needs {
        self.adapter.needs()
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        &self.adapter
    }
}
