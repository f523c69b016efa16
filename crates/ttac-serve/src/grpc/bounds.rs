//! How many parts a request may have, counted before it is read: an empty part takes two bytes on the way, and hundreds in memory.

use crate::api::Refusal;
use crate::oip::{MOST_INPUTS, MOST_OUTPUTS, MOST_PARAMETERS, MOST_TEXTS, invalid};

/// Bounds of the fields of a message.
type Bounds = &'static [Bound];

/// A field that may come often.
struct Bound {
    number: u64,
    name: &'static str,
    most: usize,
    /// The bounds of what is in it.
    inner: Bounds,
}

const fn bound(number: u64, name: &'static str, most: usize, inner: Bounds) -> Bound {
    Bound {
        number,
        name,
        most,
        inner,
    }
}

/// The fields of `ModelInferRequest`.
const REQUEST: Bounds = &[
    bound(4, "parameters", MOST_PARAMETERS, &[]),
    bound(5, "inputs", MOST_INPUTS, INPUT),
    bound(6, "outputs", MOST_OUTPUTS, OUTPUT),
    bound(7, "raw_input_contents", MOST_INPUTS, &[]),
];

const INPUT: Bounds = &[
    bound(4, "parameters", MOST_PARAMETERS, &[]),
    // One after the other would be put together.
    bound(5, "contents", 1, CONTENTS),
];

const OUTPUT: Bounds = &[bound(2, "parameters", MOST_PARAMETERS, &[])];

const CONTENTS: Bounds = &[bound(8, "bytes_contents", MOST_TEXTS, &[])];

/// Refuses requests of too many parts.
pub fn check(request: &[u8]) -> Result<(), Refusal> {
    check_within(request, REQUEST)
}

fn check_within(mut message: &[u8], bounds: Bounds) -> Result<(), Refusal> {
    let mut found = vec![0; bounds.len()];
    while !message.is_empty() {
        let (number, value) = field(&mut message).ok_or_else(|| {
            invalid("expected a message `ModelInferRequest`, found bytes that are no message")
        })?;
        let Some(at) = bounds.iter().position(|bound| bound.number == number) else {
            continue;
        };
        let Bound {
            name, most, inner, ..
        } = bounds[at];
        found[at] += 1;
        if found[at] > most {
            return Err(invalid(format!(
                "expected at most {most} `{name}`, found more"
            )));
        }
        if !inner.is_empty() {
            check_within(value, inner)?;
        }
    }
    Ok(())
}

/// Takes a field off a message: its number, and its bytes if it has a length of its own.
fn field<'a>(message: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let key = varint(message)?;
    let mut value: &[u8] = &[];
    match key & 7 {
        0 => {
            varint(message)?;
        }
        1 => *message = message.get(8..)?,
        2 => {
            let length = usize::try_from(varint(message)?).ok()?;
            (value, *message) = message.split_at_checked(length)?;
        }
        5 => *message = message.get(4..)?,
        // Groups are no longer part of the language, and nobody sends them.
        _ => return None,
    }
    Some((key >> 3, value))
}

/// Takes a number off a message: seven bits in each byte, the lowest first, until a byte without the highest bit.
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::grpc::generated::inference::model_infer_request::{
        InferInputTensor, InferRequestedOutputTensor,
    };
    use crate::grpc::generated::inference::{
        InferParameter, InferTensorContents, ModelInferRequest,
    };

    fn problem(request: &ModelInferRequest) -> String {
        check(&request.encode_to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn a_request_of_all_parts_passes() {
        let parameter = || ("name".to_owned(), InferParameter::default());
        let contents = InferTensorContents {
            fp32_contents: vec![1.0; 3],
            uint_contents: vec![1, 300],
            bytes_contents: vec![vec![0; 200]; 3],
            ..InferTensorContents::default()
        };
        let input = InferInputTensor {
            name: "images".to_owned(),
            shape: vec![-1, 1 << 40],
            parameters: [parameter()].into(),
            contents: Some(contents),
            ..InferInputTensor::default()
        };
        let request = ModelInferRequest {
            model_name: "m".to_owned(),
            parameters: [parameter()].into(),
            inputs: vec![input; MOST_INPUTS],
            outputs: vec![InferRequestedOutputTensor::default(); MOST_OUTPUTS],
            raw_input_contents: vec![vec![1; 300]; MOST_INPUTS],
            ..ModelInferRequest::default()
        };
        assert_eq!(check(&request.encode_to_vec()), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn too_many_parts_are_named() {
        let many: Vec<_> = (0..=MOST_PARAMETERS).map(|i| i.to_string()).collect();
        let parameters = || {
            let each = many
                .iter()
                .map(|name| (name.clone(), InferParameter::default()));
            each.collect()
        };
        let input = |contents, parameters| ModelInferRequest {
            inputs: vec![InferInputTensor {
                contents,
                parameters,
                ..InferInputTensor::default()
            }],
            ..ModelInferRequest::default()
        };
        let texts = InferTensorContents {
            bytes_contents: vec![Vec::new(); MOST_TEXTS + 1],
            ..InferTensorContents::default()
        };
        let output = InferRequestedOutputTensor {
            parameters: parameters(),
            ..InferRequestedOutputTensor::default()
        };
        let none = ModelInferRequest::default;
        for (request, words) in [
            (
                ModelInferRequest {
                    inputs: vec![InferInputTensor::default(); MOST_INPUTS + 1],
                    ..none()
                },
                "at most 8 `inputs`",
            ),
            (
                ModelInferRequest {
                    outputs: vec![InferRequestedOutputTensor::default(); MOST_OUTPUTS + 1],
                    ..none()
                },
                "at most 32 `outputs`",
            ),
            (
                ModelInferRequest {
                    raw_input_contents: vec![Vec::new(); MOST_INPUTS + 1],
                    ..none()
                },
                "at most 8 `raw_input_contents`",
            ),
            (
                ModelInferRequest {
                    parameters: parameters(),
                    ..none()
                },
                "at most 64 `parameters`",
            ),
            (input(None, parameters()), "at most 64 `parameters`"),
            (
                ModelInferRequest {
                    outputs: vec![output],
                    ..none()
                },
                "at most 64 `parameters`",
            ),
            (
                input(Some(texts), [].into()),
                "at most 4096 `bytes_contents`",
            ),
        ] {
            assert!(problem(&request).contains(words), "{}", problem(&request));
        }
        // An input whose contents come in two pieces.
        let twice = [0x2a, 4, 0x2a, 0, 0x2a, 0];
        assert!(
            check(&twice)
                .unwrap_err()
                .to_string()
                .contains("at most 1 `contents`")
        );
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for wrong in [
            // A length beyond the end, a key without a value, a number that does not end, and a group.
            &[0x2a, 9][..],
            &[0x08],
            &[0xff; 11],
            &[0x0b, 0x0c],
            &[0x09, 1, 2],
        ] {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains("no message"), "{wrong:?}: {error}");
        }
    }
}
