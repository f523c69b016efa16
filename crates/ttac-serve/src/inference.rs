//! From a request that was read to the reply of the service, alike for every transport.

use std::time::Instant;

use crate::api::{Lane, ModelInfo, Refusal, Reply, Request};
use crate::front::Front;
use crate::oip::{self, InferRequest};
use crate::tokens::{Caller, Role};

/// Answers a request on the thread of the caller.
pub fn answer(
    front: &Front,
    caller: &Caller,
    (model, lane): (&ModelInfo, Option<Lane>),
    (request, stream): (InferRequest, &str),
    begun: Instant,
) -> Result<Reply, Refusal> {
    caller.check_stream(stream)?;
    oip::check_outputs(&request.outputs)?;
    let limits = front.limits.for_model(model.largest_batch);
    let samples = oip::samples(request.inputs, &model.input, &limits)?;
    caller.take(samples.count())?;
    let asked = Request {
        model: model.name.clone(),
        lane,
        at: request.at,
        stream: stream.to_owned(),
        id: request.id,
        client: caller.name().map(str::to_owned),
        samples,
        // Who may not teach is answered all the same.
        learn: request.learn && caller.has(Role::Learn),
        source_too: request
            .outputs
            .iter()
            .any(|output| output.name == "source_class"),
        deadline: request.timeout.map(|timeout| begun + timeout),
    };
    let reply = front.service().infer(asked)?;
    front.counters.answer(&model.name, &reply, begun.elapsed());
    if request.sequence_end {
        // The answer is good whether or not the stream could be saved.
        if let Err(error) = front.service().snapshot(&model.name, stream) {
            tracing::warn!(model = model.name, stream, %error, "the stream was not saved at its end");
        }
    }
    Ok(reply)
}
