//! A stream shown to a session, batch by batch.

use std::ops::ControlFlow;

use super::{Passes, Reset, StepRecord, Stream};
use crate::backbone::Backbone;
use crate::method::Learned;
use crate::session::{Session, SessionState};
use crate::{Error, Result};

/// Receives a record after each batch; can stop the run.
pub trait Sink {
    /// Receives what happened to a batch; in many passes, after the last pass.
    fn step(&mut self, record: &StepRecord) -> Result<ControlFlow<()>>;

    /// May save the session as it goes on after the batch: `state` takes its state, which costs a copy.
    fn save(&mut self, _state: &dyn Fn() -> Result<SessionState>) -> Result<()> {
        Ok(())
    }

    /// Hears of every epoch of many passes, with the error on the whole set in percent if it was measured.
    fn epoch(&mut self, _epoch: usize, _learned: &Learned, _error_percent: Option<f64>) {}
}

/// Shows a stream to a session under the session's protocol, to the end or until the sink stops it.
///
/// One pass begins at the first batch that the session has not observed, so a session that was restored in the
/// middle goes on there. A guard that stops the session is an error, after the sink has received the batch.
pub fn run<B: Backbone + Sync + 'static>(
    session: &mut Session<B>,
    stream: &Stream<'_>,
    sink: &mut dyn Sink,
) -> Result<()> {
    session
        .protocol()
        .validate_for(stream.plan.config.batch_size)?;
    match session.protocol().passes {
        Passes::One => one_pass(session, stream, sink),
        Passes::Many { epochs, selection } => {
            super::many_passes::many_passes(session, stream, sink, epochs, selection)
        }
    }
}

fn one_pass<B: Backbone + Sync + 'static>(
    session: &mut Session<B>,
    stream: &Stream<'_>,
    sink: &mut dyn Sink,
) -> Result<()> {
    let starts = stream.visit_starts();
    for index in session.batches()..stream.plan.batches.len() {
        let visit = starts.iter().rposition(|&start| start <= index);
        let visit = visit.unwrap_or(0);
        let resets = match session.protocol().reset {
            Reset::Never => false,
            Reset::PerVisit => starts[visit] == index && index > 0,
            Reset::PerBatch => index > 0,
        };
        if resets {
            session.return_to_source();
        }
        let arrivals = &stream.plan.batches[index];
        let batch = stream.batch(arrivals)?;
        let answer = session.observe_known(&batch.ids, &batch.samples)?;
        let record = StepRecord::new(index, visit, arrivals, batch.labels, answer);
        let going_on = sink.step(&record)?;
        sink.save(&|| session.state())?;
        if let Some(reason) = record.stopped {
            return Err(Error::Stopped {
                batch: index,
                reason,
            });
        }
        if going_on.is_break() {
            return Ok(());
        }
    }
    Ok(())
}
