//! Requests in JSON. What a client sends decides how much memory is taken, so that nothing is read into trees of values.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::request::{
    self, MOST_INPUTS, MOST_OUTPUTS, MOST_PARAMETERS, MOST_TEXTS, Parameter, Parameters,
};
use super::{InferRequest, Tensor, Values, WantedOutput, invalid};
use crate::api::Refusal;

/// How deep arrays and objects may lie in each other.
const DEEPEST: usize = 16;

/// Refuses JSON whose arrays and objects lie too deep in each other, before anybody reads it.
pub fn check_depth(json: &[u8]) -> Result<(), Refusal> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for &byte in json {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Err(invalid(format!(
                "JSON: expected at most {DEEPEST} arrays and objects within each other"
            )));
        }
    }
    Ok(())
}

/// Reads a request, of which binary tensors lie behind the JSON.
pub fn read_request(json: &[u8], binary: &[u8]) -> Result<InferRequest, Refusal> {
    check_depth(json)?;
    let written: WrittenRequest =
        serde_json::from_slice(json).map_err(|error| invalid(format!("the request: {error}")))?;
    let mut rest = binary;
    let mut inputs = Vec::new();
    for input in written.inputs.0 {
        inputs.push(input.read(&mut rest)?);
    }
    if !rest.is_empty() {
        return Err(invalid(format!(
            "{} bytes follow the JSON that no `binary_data_size` of an input counts",
            rest.len()
        )));
    }
    let parameters = written.parameters.0;
    let binary = request::truth(&parameters, "binary_data_output")?.unwrap_or(false);
    let outputs = written.outputs.map(|outputs| outputs.0).unwrap_or_default();
    let outputs = outputs
        .into_iter()
        .map(|output| WantedOutput::new(output.name, &output.parameters.0, binary))
        .collect::<Result<_, _>>()?;
    InferRequest::new(written.id, &parameters, inputs, outputs)
}

#[derive(Deserialize)]
struct WrittenRequest {
    id: Option<String>,
    #[serde(default)]
    parameters: WrittenParameters,
    inputs: Few<WrittenTensor, MOST_INPUTS>,
    outputs: Option<Few<WrittenOutput, MOST_OUTPUTS>>,
}

#[derive(Deserialize)]
struct WrittenTensor {
    name: String,
    shape: Few<u64, 8>,
    datatype: String,
    #[serde(default)]
    parameters: WrittenParameters,
    data: Option<Flat>,
}

#[derive(Deserialize)]
struct WrittenOutput {
    name: String,
    #[serde(default)]
    parameters: WrittenParameters,
}

impl WrittenTensor {
    /// Makes the tensor, and takes its bytes from those behind the JSON if it has some there.
    fn read(self, rest: &mut &[u8]) -> Result<Tensor, Refusal> {
        let parameters = self.parameters.0;
        let binary = request::whole(&parameters, "binary_data_size")?;
        let mut tensor = Tensor {
            name: self.name,
            datatype: self.datatype,
            shape: self.shape.0,
            base64: request::text(&parameters, "content_type")?.as_deref() == Some("base64"),
            values: Values::Raw(Vec::new()),
        };
        tensor.values = match (binary, self.data) {
            (None, Some(flat)) => flat.values(),
            (Some(size), None) => {
                let found = rest.len();
                let split = usize::try_from(size)
                    .ok()
                    .and_then(|size| rest.split_at_checked(size));
                let (bytes, others) = split.ok_or_else(|| {
                    let said = format!("`binary_data_size` says {size} bytes");
                    tensor.wrong(&format!("{said}, and {found} are left behind the JSON"))
                })?;
                *rest = others;
                Values::Raw(bytes.to_vec())
            }
            (None, None) => {
                let expected = "expected `data` or the parameter `binary_data_size`, found neither";
                return Err(tensor.wrong(expected));
            }
            (Some(_), Some(_)) => {
                let expected = "expected `data` or the parameter `binary_data_size`, found both";
                return Err(tensor.wrong(expected));
            }
        };
        Ok(tensor)
    }
}

// -------------------------------------------------------------------------------- lists with a limit

/// A list of at most `N` things.
struct Few<T, const N: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Few<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Few<T, N>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N}")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut few = Vec::new();
                while let Some(one) = list.next_element()? {
                    if few.len() == N {
                        return Err(A::Error::invalid_length(N + 1, &self));
                    }
                    few.push(one);
                }
                Ok(Few(few))
            }
        }
        deserializer.deserialize_seq(List(std::marker::PhantomData))
    }
}

// ------------------------------------------------------------------------------------- parameters

#[derive(Default)]
struct WrittenParameters(Parameters);

impl<'de> Deserialize<'de> for WrittenParameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = WrittenParameters;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MOST_PARAMETERS} parameters")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut parameters = Parameters::new();
                while let Some((name, value)) = map.next_entry()? {
                    if parameters.len() == MOST_PARAMETERS {
                        return Err(A::Error::invalid_length(MOST_PARAMETERS + 1, &self));
                    }
                    parameters.insert(name, value);
                }
                Ok(WrittenParameters(parameters))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(WrittenParameters::default())
            }
        }
        deserializer.deserialize_any(Map)
    }
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl Visitor<'_> for Scalar {
            type Value = Parameter;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "true, false, a number or a text")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Parameter, E> {
                Ok(Parameter::Truth(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Parameter, E> {
                Ok(Parameter::Integer(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Parameter, E> {
                Ok(Parameter::Integer(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Parameter, E> {
                Ok(Parameter::Real(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Parameter, E> {
                Ok(Parameter::Text(value.to_owned()))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

impl Serialize for Parameter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Truth(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i128(*value),
            Self::Real(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
        }
    }
}

// ------------------------------------------------------------------------------------------- data

/// Values of JSON, which may lie in lists of lists.
#[derive(Default)]
struct Flat {
    numbers: Vec<f32>,
    texts: Vec<Vec<u8>>,
}

impl Flat {
    fn values(self) -> Values {
        if self.texts.is_empty() {
            Values::Numbers(self.numbers)
        } else {
            Values::Texts(self.texts)
        }
    }
}

impl<'de> Deserialize<'de> for Flat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut flat = Self::default();
        Into(&mut flat).deserialize(deserializer)?;
        Ok(flat)
    }
}

/// Reads a value, or a list of such, into a flat list.
struct Into<'a>(&'a mut Flat);

impl<'de> DeserializeSeed<'de> for Into<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Into<'_> {
    fn number<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        if !self.0.texts.is_empty() {
            return Err(E::custom("expected texts alone, found a number among them"));
        }
        self.0.numbers.push(number as f32);
        Ok(())
    }
}

impl<'de> Visitor<'de> for Into<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "numbers or texts, or lists of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Into(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.number(number)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.number(number as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.number(number as f64)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if !self.0.numbers.is_empty() {
            return Err(E::custom("expected numbers alone, found a text among them"));
        }
        if self.0.texts.len() == MOST_TEXTS {
            return Err(E::custom(format!("expected at most {MOST_TEXTS} texts")));
        }
        self.0.texts.push(text.as_bytes().to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, binary: &[u8]) -> Result<InferRequest, String> {
        read_request(json.as_bytes(), binary).map_err(|error| error.to_string())
    }

    #[test]
    fn data_is_flat_nested_or_behind_the_json() {
        let nested =
            r#"{"inputs":[{"name":"a","shape":[2,2],"datatype":"UINT8","data":[[1,2],[3,4.0]]}]}"#;
        let flat = nested.replace("[[1,2],[3,4.0]]", "[1,2,3,4]");
        let numbers = Values::Numbers(vec![1.0, 2.0, 3.0, 4.0]);
        assert_eq!(read(nested, b"").unwrap().inputs[0].values, numbers);
        assert_eq!(read(&flat, b"").unwrap().inputs[0].values, numbers);
        let binary = flat.replace(
            r#""data":[1,2,3,4]"#,
            r#""parameters":{"binary_data_size":4}"#,
        );
        let values = Values::Raw(vec![9; 4]);
        assert_eq!(read(&binary, &[9; 4]).unwrap().inputs[0].values, values);
        let short = read(&binary, &[9; 3]).unwrap_err();
        assert!(short.contains("says 4 bytes, and 3 are left"), "{short}");
        let long = read(&binary, &[9; 6]).unwrap_err();
        assert!(long.starts_with("2 bytes follow the JSON"), "{long}");
    }

    #[test]
    fn outputs_are_binary_as_they_or_all_say() {
        let request = read(
            r#"{"id":"7","parameters":{"binary_data_output":true,"learn":false,"sequence_id":18446744073709551615},
                "inputs":[],"outputs":[{"name":"a"},{"name":"b","parameters":{"binary_data":false,"classification":3}}]}"#,
            b"",
        );
        let request = request.unwrap();
        assert_eq!(
            request.outputs[0],
            WantedOutput {
                name: "a".to_owned(),
                binary: true,
                classification: None
            }
        );
        assert_eq!(
            request.outputs[1],
            WantedOutput {
                name: "b".to_owned(),
                binary: false,
                classification: Some(3)
            }
        );
        assert_eq!(request.own_stream.as_deref(), Some("18446744073709551615"));
        assert!(request.binary && !request.learn);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let many = format!(r#"{{"inputs":[],"parameters":{{{}}}}}"#, {
            let each = (0..65).map(|i| format!("\"p{i}\":1"));
            each.collect::<Vec<_>>().join(",")
        });
        let input = |rest: &str| {
            format!(r#"{{"inputs":[{{"name":"a","shape":[1],"datatype":"FP32"{rest}}}]}}"#)
        };
        for (json, words) in [
            ("", "EOF while parsing"),
            ("[]", "expected struct WrittenRequest"),
            ("{}", "missing field `inputs`"),
            (&input(""), "found neither"),
            (&input(r#","data":[NaN]"#), "expected value"),
            (&input(r#","data":[1,"a"]"#), "found a text among them"),
            (&input(r#","data":["a",1]"#), "found a number among them"),
            (&input(r#","data":[true]"#), "numbers or texts"),
            (
                &input(r#","data":[1],"parameters":{"binary_data_size":4}"#),
                "found both",
            ),
            (
                r#"{"inputs":[],"parameters":{"a":[1]}}"#,
                "true, false, a number or a text",
            ),
            (&many, "at most 64 parameters"),
            (&"[".repeat(17), "at most 16 arrays"),
        ] {
            let error = read(json, b"").unwrap_err();
            assert!(error.contains(words), "{json}: {error}");
        }
        assert!(check_depth(br#"["[[[[[[[[[[[[[[[[[[\"[["]"#).is_ok());
    }
}
