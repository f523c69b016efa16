//! Messages of gRPC as what every transport understands, and back.

use std::collections::HashMap;

use super::generated::inference::infer_parameter::ParameterChoice;
use super::generated::inference::model_infer_request::InferInputTensor;
use super::generated::inference::model_infer_response::InferOutputTensor;
use super::generated::inference::model_metadata_response::TensorMetadata;
use super::generated::inference::repository_index_response::ModelIndex;
use super::generated::inference::{
    DataType, InferBatchStatistics, InferParameter, InferStatistics, InferTensorContents,
    ModelConfig, ModelInferRequest, ModelInferResponse, ModelInput, ModelMetadataResponse,
    ModelOutput, ModelStatistics, ModelTensorReshape, StatisticDuration,
};
use crate::api::Refusal;
use crate::inference::Answer;
use crate::oip::{
    self, Column, InferRequest, Parameter, Parameters, Tensor, Values, WantedOutput, invalid,
};

/// Reads a request.
pub fn read(request: ModelInferRequest) -> Result<InferRequest, Refusal> {
    let parameters = read_parameters(request.parameters)?;
    let (inputs, raw) = (request.inputs, request.raw_input_contents);
    if !raw.is_empty() && raw.len() != inputs.len() {
        let (expected, found) = (inputs.len(), raw.len());
        return Err(invalid(format!(
            "expected values of {expected} inputs in `raw_input_contents`, found {found}"
        )));
    }
    // Clients read the form that they write.
    let binary = oip::truth(&parameters, "binary_data_output")?.unwrap_or(!raw.is_empty());
    let raw = raw.into_iter().map(Some).chain(std::iter::repeat(None));
    let inputs = inputs.into_iter().zip(raw);
    let inputs = inputs.map(|(input, raw)| read_input(input, raw));
    let outputs = request.outputs.into_iter().map(|output| {
        let parameters = read_parameters(output.parameters)?;
        WantedOutput::new(output.name, &parameters, binary)
    });
    let (inputs, outputs) = (
        inputs.collect::<Result<_, _>>()?,
        outputs.collect::<Result<_, _>>()?,
    );
    let read = InferRequest::new(Some(request.id), &parameters, inputs, outputs)?;
    Ok(InferRequest { binary, ..read })
}

fn read_parameters(written: HashMap<String, InferParameter>) -> Result<Parameters, Refusal> {
    let each = written.into_iter().map(|(name, parameter)| {
        let value = match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => Parameter::Truth(value),
            Some(ParameterChoice::Int64Param(value)) => Parameter::Integer(value.into()),
            Some(ParameterChoice::Uint64Param(value)) => Parameter::Integer(value.into()),
            Some(ParameterChoice::DoubleParam(value)) => Parameter::Real(value),
            Some(ParameterChoice::StringParam(value)) => Parameter::Text(value),
            None => {
                let expected = "expected a value, found none";
                return Err(invalid(format!("parameter `{name}`: {expected}")));
            }
        };
        Ok((name, value))
    });
    each.collect()
}

/// Reads an input, whose values are either in it or in `raw_input_contents`.
fn read_input(input: InferInputTensor, raw: Option<Vec<u8>>) -> Result<Tensor, Refusal> {
    let parameters = read_parameters(input.parameters)?;
    let mut tensor = Tensor {
        name: input.name,
        datatype: input.datatype,
        shape: Vec::new(),
        base64: oip::text(&parameters, "content_type")?.as_deref() == Some("base64"),
        values: Values::Raw(Vec::new()),
    };
    let shape = input.shape.iter().map(|&length| u64::try_from(length));
    tensor.shape = shape.collect::<Result<_, _>>().map_err(|_| {
        let found = format!(
            "expected a shape without negative numbers, found {:?}",
            input.shape
        );
        tensor.wrong(&found)
    })?;
    let expected = "expected values in `contents` or in `raw_input_contents`, found";
    tensor.values = match (raw, input.contents) {
        (Some(raw), None) => Values::Raw(raw),
        (None, Some(contents)) => read_contents(&tensor, contents)?,
        (None, None) => return Err(tensor.wrong(&format!("{expected} neither"))),
        (Some(_), Some(_)) => return Err(tensor.wrong(&format!("{expected} both"))),
    };
    Ok(tensor)
}

/// Reads values from the field of their datatype.
fn read_contents(tensor: &Tensor, contents: InferTensorContents) -> Result<Values, Refusal> {
    let (uint, fp32, bytes) = (
        contents.uint_contents,
        contents.fp32_contents,
        contents.bytes_contents,
    );
    let filled = [
        ("bool_contents", !contents.bool_contents.is_empty()),
        ("int_contents", !contents.int_contents.is_empty()),
        ("int64_contents", !contents.int64_contents.is_empty()),
        ("uint_contents", !uint.is_empty()),
        ("uint64_contents", !contents.uint64_contents.is_empty()),
        ("fp32_contents", !fp32.is_empty()),
        ("fp64_contents", !contents.fp64_contents.is_empty()),
        ("bytes_contents", !bytes.is_empty()),
    ];
    let (field, values) = match tensor.datatype.as_str() {
        "UINT8" => {
            let numbers = uint.iter().map(|&number| number as f32);
            ("uint_contents", Values::Numbers(numbers.collect()))
        }
        "FP32" => ("fp32_contents", Values::Numbers(fp32)),
        "BYTES" => ("bytes_contents", Values::Texts(bytes)),
        // No input has such values, which is said where the inputs are known.
        _ => return Ok(Values::Raw(Vec::new())),
    };
    let other = filled.iter().find(|(name, is)| *is && *name != field);
    if let Some((other, _)) = other {
        let datatype = &tensor.datatype;
        let text = format!("expected the values of {datatype} in `{field}`, found `{other}`");
        return Err(tensor.wrong(&text));
    }
    Ok(values)
}

/// Writes an answer.
pub fn answered(model: String, answer: Answer) -> ModelInferResponse {
    // The form holds for all outputs.
    let raw = answer.tensors.iter().any(|tensor| tensor.binary);
    let mut raw_output_contents = Vec::new();
    let mut outputs = Vec::with_capacity(answer.tensors.len());
    for tensor in answer.tensors {
        let datatype = tensor.values.datatype().to_owned();
        let contents = if raw {
            raw_output_contents.push(tensor.values.to_bytes());
            None
        } else {
            Some(contents(tensor.values))
        };
        outputs.push(InferOutputTensor {
            name: tensor.name,
            datatype,
            shape: tensor.shape.iter().map(|&length| length as i64).collect(),
            parameters: HashMap::new(),
            contents,
        });
    }
    let parameters = answer.parameters.into_iter();
    ModelInferResponse {
        model_name: model,
        model_version: answer.version.to_owned(),
        id: answer.id.unwrap_or_default(),
        parameters: parameters
            .map(|(name, value)| (name, parameter(value)))
            .collect(),
        outputs,
        raw_output_contents,
    }
}

fn contents(values: Column) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    match values {
        Column::Floats(values) => contents.fp32_contents = values,
        Column::Integers(values) => contents.int64_contents = values,
        Column::Texts(values) => {
            contents.bytes_contents = values.into_iter().map(String::into_bytes).collect();
        }
    }
    contents
}

/// Writes a parameter.
pub fn parameter(value: Parameter) -> InferParameter {
    let choice = match value {
        Parameter::Truth(value) => ParameterChoice::BoolParam(value),
        Parameter::Integer(value) => match (i64::try_from(value), u64::try_from(value)) {
            (Ok(value), _) => ParameterChoice::Int64Param(value),
            (_, Ok(value)) => ParameterChoice::Uint64Param(value),
            _ => ParameterChoice::StringParam(value.to_string()),
        },
        Parameter::Real(value) => ParameterChoice::DoubleParam(value),
        Parameter::Text(value) => ParameterChoice::StringParam(value),
    };
    InferParameter {
        parameter_choice: Some(choice),
    }
}

impl From<oip::Described> for TensorMetadata {
    fn from(tensor: oip::Described) -> Self {
        Self {
            name: tensor.name.to_owned(),
            datatype: tensor.datatype.to_owned(),
            shape: tensor.shape,
        }
    }
}

impl From<oip::Metadata> for ModelMetadataResponse {
    fn from(model: oip::Metadata) -> Self {
        Self {
            name: model.name,
            versions: model.versions.map(str::to_owned).into(),
            platform: model.platform.to_owned(),
            inputs: model.inputs.into_iter().map(Into::into).collect(),
            outputs: model.outputs.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<oip::ModelConfig> for ModelConfig {
    fn from(model: oip::ModelConfig) -> Self {
        let data_type = |name: &str| {
            DataType::from_str_name(name)
                .unwrap_or(DataType::TypeInvalid)
                .into()
        };
        let reshape = |reshape: Option<oip::Reshape>| {
            reshape.map(|reshape| ModelTensorReshape {
                shape: reshape.shape,
            })
        };
        let input = model.input.into_iter().map(|tensor| ModelInput {
            name: tensor.name.to_owned(),
            data_type: data_type(&tensor.data_type),
            dims: tensor.dims,
            reshape: reshape(tensor.reshape),
        });
        let output = model.output.into_iter().map(|tensor| ModelOutput {
            name: tensor.name.to_owned(),
            data_type: data_type(&tensor.data_type),
            dims: tensor.dims,
            reshape: reshape(tensor.reshape),
        });
        Self {
            name: model.name,
            platform: model.platform.to_owned(),
            max_batch_size: i32::try_from(model.max_batch_size).unwrap_or(i32::MAX),
            input: input.collect(),
            output: output.collect(),
            backend: model.backend.to_owned(),
        }
    }
}

/// Writes how often something was done.
#[expect(
    clippy::unnecessary_wraps,
    reason = "a field of a message can be absent"
)]
fn duration(measured: oip::Measured) -> Option<StatisticDuration> {
    Some(StatisticDuration {
        count: measured.count,
        ns: measured.ns,
    })
}

impl From<oip::ModelStatistics> for ModelStatistics {
    fn from(model: oip::ModelStatistics) -> Self {
        let requests = model.inference_stats;
        let by_size = model
            .batch_stats
            .into_iter()
            .map(|passes| InferBatchStatistics {
                batch_size: passes.batch_size,
                compute_input: duration(passes.compute_input),
                compute_infer: duration(passes.compute_infer),
                compute_output: duration(passes.compute_output),
            });
        Self {
            name: model.name,
            version: model.version.to_owned(),
            last_inference: model.last_inference,
            inference_count: model.inference_count,
            execution_count: model.execution_count,
            inference_stats: Some(InferStatistics {
                success: duration(requests.success),
                fail: duration(requests.fail),
                queue: duration(requests.queue),
                compute_input: duration(requests.compute_input),
                compute_infer: duration(requests.compute_infer),
                compute_output: duration(requests.compute_output),
                cache_hit: duration(requests.cache_hit),
                cache_miss: duration(requests.cache_miss),
            }),
            batch_stats: by_size.collect(),
        }
    }
}

impl From<oip::Indexed> for ModelIndex {
    fn from(model: oip::Indexed) -> Self {
        Self {
            name: model.name,
            version: model.version.to_owned(),
            state: model.state.to_owned(),
            reason: model.reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_back_as_they_were() {
        for value in [
            Parameter::Truth(true),
            Parameter::Integer(-3),
            Parameter::Integer(u64::MAX.into()),
            Parameter::Real(0.5),
            Parameter::Text("x".to_owned()),
        ] {
            let written = HashMap::from([("a".to_owned(), parameter(value.clone()))]);
            assert_eq!(read_parameters(written).unwrap()["a"], value);
        }
        let none = HashMap::from([("a".to_owned(), InferParameter::default())]);
        let error = read_parameters(none).unwrap_err().to_string();
        assert_eq!(error, "parameter `a`: expected a value, found none");
    }

    #[test]
    fn values_stand_in_the_field_of_their_datatype() {
        let read = |datatype: &str, contents| {
            let input = InferInputTensor {
                name: "x".to_owned(),
                datatype: datatype.to_owned(),
                shape: vec![1],
                contents: Some(contents),
                ..InferInputTensor::default()
            };
            read_input(input, None).map(|tensor| tensor.values)
        };
        let integers = || InferTensorContents {
            uint_contents: vec![7],
            ..InferTensorContents::default()
        };
        let texts = || InferTensorContents {
            bytes_contents: vec![b"a".to_vec()],
            ..InferTensorContents::default()
        };
        assert_eq!(read("UINT8", integers()), Ok(Values::Numbers(vec![7.0])));
        assert_eq!(
            read("BYTES", texts()),
            Ok(Values::Texts(vec![b"a".to_vec()]))
        );
        let error = read("FP32", integers()).unwrap_err().to_string();
        assert!(error.ends_with("values of FP32 in `fp32_contents`, found `uint_contents`"));
        let error = read("UINT8", texts()).unwrap_err().to_string();
        assert!(error.ends_with("found `bytes_contents`"), "{error}");
    }
}
