//! Words for what a protocol card says.

use serde::Serialize;

use crate::protocol::{Passes, Prediction, RunRecord};

/// Describes the protocol of a run in one line, as the footnote of its row.
pub(super) fn describe(record: &RunRecord) -> String {
    let card = &record.card;
    let protocol = &card.protocol;
    let learning = match (protocol.passes, protocol.queue) {
        (Passes::Many { epochs, .. }, _) => format!("{epochs} passes"),
        (Passes::One, None) => "no queue".to_owned(),
        (Passes::One, Some(queue)) => {
            format!("queue {}, {} epochs", queue.capacity, queue.epochs)
        }
    };
    let order = match protocol.prediction {
        Prediction::AdaptFirst => "adapt-first",
        Prediction::PredictFirst => "predict-first",
    };
    let (preset, objective) = (name(&card.preset), name(&card.source_objective));
    let anchors = card.anchors.as_ref().map_or(String::new(), |anchors| {
        let transform = name(&anchors.transform);
        format!(", anchors of {} images with {transform}", anchors.samples)
    });
    let gate = protocol.gate.map_or_else(String::new, |gate| {
        let calibration = card
            .anchors
            .as_ref()
            .and_then(|anchors| anchors.calibration.as_ref());
        let by = calibration.map_or_else(String::new, |found| {
            format!(
                " by {} images of {} ({})",
                found.samples,
                found.data,
                name(&found.images)
            )
        });
        format!(", gate at {} images{by}", gate.alarm)
    });
    let shares = match protocol.shares {
        None => "",
        Some(shares) if shares.agreement.is_none() => ", recent class shares",
        Some(_) => ", recent class shares and neighbours",
    };
    let oracle = if card.oracle {
        ", chosen by test labels (an oracle)"
    } else {
        ""
    };
    let changes = match card.changes() {
        changes if changes.is_empty() => String::new(),
        changes => format!(" with `{}`", changes.join("`, `")),
    };
    format!(
        "{} ({preset}{changes}), {}, {learning}, {order}, batches of {}{anchors}{gate}{shares}; {} trained {objective}, fingerprint {}{oracle}",
        card.method, card.family, card.stream.batch_size, card.architecture, card.model
    )
}

/// Names the value of an enum as files spell it.
fn name(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
