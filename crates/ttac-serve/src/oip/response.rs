//! Replies as bytes.

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use super::{Column, OutputTensor, Parameter, Parameters};
use crate::api::Reply;

/// A reply as a body of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// JSON, and the binary tensors behind it.
    pub body: Vec<u8>,
    /// How many bytes of it are JSON, if there are tensors behind.
    pub json_length: Option<usize>,
}

/// Returns the parameters of a reply: who answered, and what becomes of the samples.
pub fn reply_parameters(reply: &Reply, stream: &str) -> Parameters {
    let text = |text: &str| Parameter::Text(text.to_owned());
    let number = |number: u64| Parameter::Integer(number.into());
    let mut parameters = Parameters::from([
        ("stream".to_owned(), text(stream)),
        ("weights_version".to_owned(), number(reply.weights_version)),
        ("weights".to_owned(), text(&reply.weights)),
        ("mode".to_owned(), text(reply.mode.name())),
        ("health".to_owned(), text(reply.health.name())),
        ("learned".to_owned(), text(reply.fate.name())),
    ]);
    if let Some(sequence) = reply.sequence {
        parameters.insert("seq".to_owned(), number(sequence));
    }
    parameters
}

#[derive(Serialize)]
struct WrittenReply<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    parameters: &'a Parameters,
    outputs: Vec<WrittenTensor<'a>>,
}

#[derive(Serialize)]
struct WrittenTensor<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Column>,
}

#[derive(Serialize)]
struct Size {
    binary_data_size: usize,
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn list<S: Serializer, T: Serialize>(
            serializer: S,
            values: &[T],
        ) -> Result<S::Ok, S::Error> {
            let mut list = serializer.serialize_seq(Some(values.len()))?;
            for value in values {
                list.serialize_element(value)?;
            }
            list.end()
        }
        match self {
            Self::Floats(values) => list(serializer, values),
            Self::Integers(values) => list(serializer, values),
            Self::Texts(values) => list(serializer, values),
        }
    }
}

/// Writes a reply.
pub fn encode(
    model: &str,
    version: &str,
    id: Option<&str>,
    parameters: &Parameters,
    tensors: &[OutputTensor],
) -> Encoded {
    let mut binary = Vec::new();
    let mut written = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let before = binary.len();
        if tensor.binary {
            binary.extend(tensor.values.to_bytes());
        }
        written.push(WrittenTensor {
            name: &tensor.name,
            datatype: tensor.values.datatype(),
            shape: &tensor.shape,
            parameters: tensor.binary.then_some(Size {
                binary_data_size: binary.len() - before,
            }),
            data: (!tensor.binary).then_some(&tensor.values),
        });
    }
    let reply = WrittenReply {
        model_name: model,
        model_version: version,
        id,
        parameters,
        outputs: written,
    };
    let mut body = serde_json::to_vec(&reply).expect("a reply is plain JSON");
    let json_length = tensors
        .iter()
        .any(|tensor| tensor.binary)
        .then_some(body.len());
    body.extend(binary);
    Encoded { body, json_length }
}
