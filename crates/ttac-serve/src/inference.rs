//! From a request that was read to an answer that only has to be written, alike for every transport.

use std::time::Instant;

use crate::api::{Lane, ModelInfo, Refusal, Request};
use crate::failure::Failure;
use crate::front::Front;
use crate::oip::{self, InferRequest, OutputTensor, Parameters};
use crate::tokens::{Caller, Role};

/// An answer that only has to be written.
pub struct Answer {
    /// The lane that answered.
    pub version: &'static str,
    /// The client's id of the request.
    pub id: Option<String>,
    /// Who answered, and what becomes of the samples.
    pub parameters: Parameters,
    /// The outputs that were asked for.
    pub tensors: Vec<OutputTensor>,
}

/// Lets those ask for predictions who may, of models that there are, as long as the server does not end. What a request costs is
/// spent afterwards.
pub fn admit(
    front: &Front,
    caller: &Caller,
    model: &str,
    version: Option<&str>,
) -> Result<(ModelInfo, Option<Lane>), Failure> {
    caller.check(Role::Predict)?;
    let named = crate::calls::named(front, model, version)?;
    if front.draining() {
        return Err(Refusal::Unavailable("the server is about to end".to_owned()).into());
    }
    Ok(named)
}

/// Answers a request on the thread of the caller. A header may name the stream of requests that name none.
pub fn answer(
    front: &Front,
    caller: &Caller,
    (model, lane): (&ModelInfo, Option<Lane>),
    (request, header): (InferRequest, Option<&str>),
    begun: Instant,
) -> Result<Answer, Refusal> {
    let stream = request.stream(header)?;
    caller.check_stream(&stream)?;
    oip::check_outputs(&request.outputs)?;
    let limits = front.limits.for_model(model.largest_batch);
    let samples = oip::samples(request.inputs, &model.input, &limits)?;
    caller.take(samples.count())?;
    let asked = Request {
        model: model.name.clone(),
        lane,
        at: request.at,
        stream: stream.clone(),
        id: request.id.clone(),
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
        if let Err(error) = front.service().snapshot(&model.name, &stream) {
            tracing::warn!(model = model.name, stream, %error, "the stream was not saved at its end");
        }
    }
    Ok(Answer {
        version: reply.lane.version(),
        id: request.id,
        parameters: oip::reply_parameters(&reply, &stream),
        tensors: oip::outputs(&reply, model, &request.outputs, request.binary),
    })
}
