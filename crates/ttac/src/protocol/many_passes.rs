//! Many passes over the whole set, then predictions for all of it.

use std::time::Instant;

use super::{Selection, Sink, StepRecord, Stream};
use crate::backbone::Backbone;
use crate::method::{FirstPasses, Learned, QueueState, Stage};
use crate::session::{Answer, Session, Tally};
use crate::stream::Arrival;
use crate::{Error, Result};

/// Samples in a forward pass where nothing else says so.
pub(super) const PREDICTION_BATCH: usize = 256;

pub(super) fn many_passes<B: Backbone + Sync + 'static>(
    session: &mut Session<B>,
    stream: &Stream<'_>,
    sink: &mut dyn Sink,
    epochs: usize,
    selection: Selection,
) -> Result<()> {
    let arrivals: Vec<Arrival> = stream.plan.batches.concat();
    let mut first = session.adapter().needs().first_passes;
    if first.norms + first.contrastive >= epochs {
        first = FirstPasses::default();
    }
    let mut best: Option<(usize, Vec<StepRecord>)> = None;
    for epoch in 1..=epochs {
        let stage = Stage {
            epoch,
            lesson: first.lesson(epoch),
            epochs,
            queue: QueueState::Everything,
        };
        let start = Instant::now();
        let learned = learn(session, stream, &arrivals, &stage)?;
        let seconds = start.elapsed().as_secs_f64();
        if selection == Selection::Last && epoch < epochs {
            sink.epoch(epoch, &learned, None);
            continue;
        }
        let mut records = predict_all(session, stream)?;
        if let Some(first) = records.first_mut() {
            first.learned = learned.clone();
            first.learning_seconds = seconds;
        }
        let wrong = records.iter().map(StepRecord::wrong).sum::<Option<usize>>();
        let error = wrong.map(|wrong| 100.0 * wrong as f64 / arrivals.len() as f64);
        sink.epoch(epoch, &learned, error);
        let wrong = match (wrong, selection) {
            (Some(wrong), _) => wrong,
            (None, Selection::Last) => 0,
            (None, Selection::OracleBest) => {
                return Err(Error::Invalid {
                    what: "selection",
                    problem: "the best epoch is chosen by labels, and these samples have none"
                        .to_owned(),
                });
            }
        };
        let better = best.as_ref().is_none_or(|(least, _)| wrong < *least);
        if better || selection == Selection::Last {
            best = Some((wrong, records));
        }
    }
    for record in best.map(|(_, records)| records).unwrap_or_default() {
        if sink.step(&record)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Learns for one pass over all samples.
fn learn<B: Backbone + Sync + 'static>(
    session: &mut Session<B>,
    stream: &Stream<'_>,
    arrivals: &[Arrival],
    stage: &Stage,
) -> Result<Learned> {
    let pick = |places: &[usize]| {
        let mut chosen: Vec<Arrival> = places.iter().map(|&place| arrivals[place]).collect();
        // Read domain by domain; the order within a minibatch has no meaning.
        chosen.sort_unstable();
        let batch = stream.batch(&chosen)?;
        Ok((batch.ids, batch.samples))
    };
    session.begin_epoch(stage);
    let mut tally = Tally::default();
    let draw = stage.epoch as u64;
    session.epoch(stage, arrivals.len(), draw, &mut tally, &pick)?;
    let learned = tally.finish();
    let broken = learned.losses.iter().find(|(_, value)| !value.is_finite());
    if let Some((name, value)) = broken {
        return Err(Error::Stopped {
            batch: stage.epoch - 1,
            reason: format!("loss `{name}` became {value} in pass {}", stage.epoch),
        });
    }
    Ok(learned)
}

/// Predicts the whole stream.
fn predict_all<B: Backbone + Sync + 'static>(
    session: &Session<B>,
    stream: &Stream<'_>,
) -> Result<Vec<StepRecord>> {
    let mut records = Vec::new();
    for (index, arrivals) in stream.plan.batches.iter().enumerate() {
        let start = Instant::now();
        let batch = stream.batch(arrivals)?;
        let places: Vec<usize> = (0..arrivals.len()).collect();
        let mut whole: Option<Answer> = None;
        for part in places.chunks(PREDICTION_BATCH) {
            let answer = session.predict(&batch.samples.pick(part))?;
            match &mut whole {
                None => whole = Some(answer),
                Some(whole) => {
                    whole.classes.extend(answer.classes);
                    whole.probabilities.extend(answer.probabilities);
                }
            }
        }
        let mut answer = whole.expect("plans have no empty batches");
        answer.predicting_seconds = start.elapsed().as_secs_f64();
        records.push(StepRecord::new(index, 0, arrivals, batch.labels, answer));
    }
    Ok(records)
}
