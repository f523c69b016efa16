//! The Open Inference Protocol as pure functions: bytes to requests, requests to samples, replies to bytes.
//!
//! REST and gRPC differ in how they write a request; from [`InferRequest`] on they are the same.

mod body;
mod json;
mod metadata;
mod output;
mod request;
mod response;
mod samples;
mod tensor;

pub use body::{Encoding, TooMuch, compress, decompress, split};
pub use json::{check_depth, read_request};
pub use metadata::{
    BatchStatistics, ConfigTensor, Described, EXTENSIONS, Indexed, InferenceStatistics, Measured,
    Metadata, ModelConfig, ModelStatistics, Reshape, SERVER, VERSION, config, index, inputs,
    metadata, statistics,
};
pub use output::{Column, OutputTensor, check_outputs, outputs};
pub use request::{InferRequest, Parameter, Parameters, WantedOutput};
pub(crate) use request::{MOST_INPUTS, MOST_OUTPUTS, MOST_PARAMETERS, MOST_TEXTS, text, truth};
pub use response::{Encoded, encode, reply_parameters};
pub use samples::{Limits, raw_input, samples};
pub use tensor::{Tensor, Values, texts_of};

use crate::api::Refusal;

/// Says that a request is wrong.
pub(crate) fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::Invalid(text.into())
}
