//! A request as every transport understands it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Tensor, invalid};
use crate::api::Refusal;

/// The longest name of a stream, in bytes.
const LONGEST_STREAM: usize = 128;

/// The longest id of a request, in bytes.
const LONGEST_ID: usize = 256;

/// The most inputs that are read, so that a request of too many is told what is expected.
pub const MOST_INPUTS: usize = 8;

/// The most outputs that are asked for.
pub const MOST_OUTPUTS: usize = 32;

/// The most parameters of a request or a tensor.
pub const MOST_PARAMETERS: usize = 64;

/// The most texts of an input.
pub const MOST_TEXTS: usize = 4096;

/// Parameters by name.
pub type Parameters = BTreeMap<String, Parameter>;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// True or false.
    Truth(bool),
    /// A whole number.
    Integer(i128),
    /// Another number.
    Real(f64),
    /// A text.
    Text(String),
}

impl Parameter {
    fn describe(&self) -> String {
        match self {
            Self::Truth(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Real(value) => value.to_string(),
            Self::Text(value) => format!("`{value}`"),
        }
    }
}

/// An output that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedOutput {
    /// Its name.
    pub name: String,
    /// Whether its values come behind the JSON.
    pub binary: bool,
    /// How many of the best classes it is to name, if it is asked for classes.
    pub classification: Option<usize>,
}

/// A request for predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct InferRequest {
    /// The client's id, which comes back with the answer.
    pub id: Option<String>,
    /// The stream that it names itself; see [`stream`](Self::stream).
    pub own_stream: Option<String>,
    /// Whether this is the last request of its stream for a while.
    pub sequence_end: bool,
    /// Whether the samples may be learned from.
    pub learn: bool,
    /// A kept version that has to answer.
    pub at: Option<u64>,
    /// How long the client waits.
    pub timeout: Option<Duration>,
    /// Whether outputs are binary that do not say it themselves.
    pub binary: bool,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The outputs that are asked for; empty for the usual ones.
    pub outputs: Vec<WantedOutput>,
}

impl InferRequest {
    /// Makes a request of its parameters, and of tensors that were read already.
    pub fn new(
        id: Option<String>,
        parameters: &Parameters,
        inputs: Vec<Tensor>,
        outputs: Vec<WantedOutput>,
    ) -> Result<Self, Refusal> {
        let id = id.filter(|id| !id.is_empty());
        if let Some(long) = id.as_ref().filter(|id| id.len() > LONGEST_ID) {
            let found = long.len();
            return Err(invalid(format!(
                "id: expected at most {LONGEST_ID} bytes, found {found}"
            )));
        }
        let own_stream = match text(parameters, "stream")? {
            Some(stream) => Some(stream),
            None => sequence(parameters)?,
        };
        if let Some(stream) = &own_stream {
            check_stream(stream)?;
        }
        let timeout = whole(parameters, "timeout")?.filter(|&timeout| timeout > 0);
        Ok(Self {
            id,
            own_stream,
            sequence_end: truth(parameters, "sequence_end")?.unwrap_or(false),
            learn: truth(parameters, "learn")?.unwrap_or(true),
            at: whole(parameters, "at")?,
            timeout: timeout.map(Duration::from_micros),
            binary: truth(parameters, "binary_data_output")?.unwrap_or(false),
            inputs,
            outputs,
        })
    }

    /// Returns the stream of the request: its own, else that of a header, else `default`.
    pub fn stream(&self, header: Option<&str>) -> Result<String, Refusal> {
        match (&self.own_stream, header) {
            (Some(own), _) => Ok(own.clone()),
            (None, Some(header)) => check_stream(header).map(|()| header.to_owned()),
            (None, None) => Ok("default".to_owned()),
        }
    }
}

impl WantedOutput {
    /// Reads what the parameters of an output say.
    pub fn new(name: String, parameters: &Parameters, binary: bool) -> Result<Self, Refusal> {
        let classification = whole(parameters, "classification")?.filter(|&classes| classes > 0);
        Ok(Self {
            name,
            binary: truth(parameters, "binary_data")?.unwrap_or(binary),
            classification: classification.map(|classes| classes as usize),
        })
    }
}

/// Refuses names that no stream can have.
pub fn check_stream(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > LONGEST_STREAM {
        let found = name.len();
        return Err(invalid(format!(
            "stream: expected a name of 1 to {LONGEST_STREAM} bytes, found {found}"
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(invalid(
            "stream: expected a name without control characters",
        ));
    }
    Ok(())
}

/// Reads the protocol's own name for a stream, a number or a text; zero says that there is none.
fn sequence(parameters: &Parameters) -> Result<Option<String>, Refusal> {
    match parameters.get("sequence_id") {
        None | Some(Parameter::Integer(0)) => Ok(None),
        Some(Parameter::Integer(number)) => Ok(Some(number.to_string())),
        Some(Parameter::Text(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(unexpected("sequence_id", "a whole number or a text", other)),
    }
}

/// Reads a parameter that is true or false.
pub fn truth(parameters: &Parameters, name: &str) -> Result<Option<bool>, Refusal> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Truth(value)) => Ok(Some(*value)),
        Some(other) => Err(unexpected(name, "true or false", other)),
    }
}

/// Reads a parameter that is a whole number.
pub fn whole(parameters: &Parameters, name: &str) -> Result<Option<u64>, Refusal> {
    let expected = "a whole number that is not negative";
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Integer(value)) => u64::try_from(*value)
            .map(Some)
            .map_err(|_| unexpected(name, expected, &Parameter::Integer(*value))),
        Some(other) => Err(unexpected(name, expected, other)),
    }
}

/// Reads a parameter that is a text.
pub fn text(parameters: &Parameters, name: &str) -> Result<Option<String>, Refusal> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Text(value)) => Ok(Some(value.clone())),
        Some(other) => Err(unexpected(name, "a text", other)),
    }
}

fn unexpected(name: &str, expected: &str, found: &Parameter) -> Refusal {
    let found = found.describe();
    invalid(format!(
        "parameter `{name}`: expected {expected}, found {found}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(parameters: &[(&str, Parameter)]) -> Result<InferRequest, Refusal> {
        let parameters = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        InferRequest::new(None, &parameters.collect(), Vec::new(), Vec::new())
    }

    fn text(text: &str) -> Parameter {
        Parameter::Text(text.to_owned())
    }

    #[test]
    fn a_stream_is_named_by_four_ways_in_their_order() {
        let named = |parameters: &[(&str, Parameter)], header| {
            request(parameters).unwrap().stream(header).unwrap()
        };
        let number = ("sequence_id", Parameter::Integer(1 << 63));
        let stream = ("stream", text("cam"));
        assert_eq!(named(&[number.clone(), stream], Some("h")), "cam");
        assert_eq!(named(&[number], Some("h")), "9223372036854775808");
        let none = ("sequence_id", Parameter::Integer(0));
        assert_eq!(named(&[none], Some("h")), "h");
        assert_eq!(named(&[], None), "default");
        for wrong in ["", "a\nb", &"x".repeat(129)] {
            assert!(request(&[("stream", text(wrong))]).is_err(), "{wrong}");
            assert!(request(&[]).unwrap().stream(Some(wrong)).is_err());
        }
    }

    #[test]
    fn parameters_of_the_wrong_type_are_named() {
        for (name, value) in [
            ("learn", text("no")),
            ("at", Parameter::Integer(-1)),
            ("timeout", Parameter::Real(0.5)),
            ("stream", Parameter::Truth(true)),
            ("sequence_id", Parameter::Truth(true)),
        ] {
            let error = request(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("parameter `{name}`: expected ")));
        }
        let known = request(&[("timeout", Parameter::Integer(1500))]).unwrap();
        assert_eq!(known.timeout, Some(Duration::from_micros(1500)));
    }
}
