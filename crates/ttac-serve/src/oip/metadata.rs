//! What the server and its models are and have done, in the words of the protocol and of Triton. REST writes these as JSON; gRPC has
//! messages with the same fields.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use ttac::input::InputContract;

use super::output::described;
use crate::api::{Lane, ModelInfo, Statistics};

/// The name of the server.
pub const SERVER: &str = "ttac";

/// The version of the server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The extensions of the protocol that are spoken.
pub const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "model_repository",
    "statistics",
    "model_configuration",
    "classification",
    "parameters",
    "sequence",
];

/// What the model's files are, in Triton's form: framework and format.
const PLATFORM: &str = "ttac_safetensors";

/// What a tensor of a model is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Described {
    /// Its name.
    pub name: &'static str,
    /// Its type, as `UINT8`.
    pub datatype: &'static str,
    /// How many values there are in each direction; `-1` stands for any number.
    pub shape: Vec<i64>,
}

/// What a model takes and gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its lanes.
    pub versions: [&'static str; 2],
    /// What its files are.
    pub platform: &'static str,
    /// The input that clients which make up requests should take; such clients send every input that is listed.
    pub inputs: Vec<Described>,
    /// Its outputs.
    pub outputs: Vec<Described>,
    /// What else there is to know: architecture, classes, and the inputs that can be sent instead.
    pub parameters: Value,
}

/// What a model takes and gives, as Triton's configuration says it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Its name.
    pub name: String,
    /// What its files are.
    pub platform: &'static str,
    /// What runs it.
    pub backend: &'static str,
    /// The most samples of a request.
    pub max_batch_size: usize,
    /// Its inputs.
    pub input: Vec<ConfigTensor>,
    /// Its outputs.
    pub output: Vec<ConfigTensor>,
}

/// A tensor in Triton's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigTensor {
    /// Its name.
    pub name: &'static str,
    /// Its type, as `TYPE_UINT8`.
    pub data_type: String,
    /// The shape of one sample; of a scalar `[1]`.
    pub dims: Vec<i64>,
    /// The shape that it has in requests, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reshape: Option<Reshape>,
}

/// Another shape of the same values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reshape {
    /// The shape.
    pub shape: Vec<i64>,
}

/// How often something was done, and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// How often.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// What a model's lane has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The lane.
    pub version: &'static str,
    /// The time of the newest answer, in milliseconds since 1970.
    pub last_inference: u64,
    /// Images that were answered.
    pub inference_count: u64,
    /// Passes.
    pub execution_count: u64,
    /// What requests took.
    pub inference_stats: InferenceStatistics,
    /// What passes took, by the number of images in them.
    pub batch_stats: Vec<BatchStatistics>,
}

/// What the requests of a lane took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InferenceStatistics {
    /// Requests that were answered.
    pub success: Measured,
    /// Requests that were refused.
    pub fail: Measured,
    /// Waiting for a pass.
    pub queue: Measured,
    /// Part of `compute_infer`.
    pub compute_input: Measured,
    /// Passes.
    pub compute_infer: Measured,
    /// Part of `compute_infer`.
    pub compute_output: Measured,
    /// There is no cache.
    pub cache_hit: Measured,
    /// There is no cache.
    pub cache_miss: Measured,
}

/// What the passes of one size took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchStatistics {
    /// The number of images.
    pub batch_size: u64,
    /// Part of `compute_infer`.
    pub compute_input: Measured,
    /// Passes.
    pub compute_infer: Measured,
    /// Part of `compute_infer`.
    pub compute_output: Measured,
}

/// A model's lane in the list of the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Indexed {
    /// The model's name.
    pub name: String,
    /// The lane.
    pub version: &'static str,
    /// `READY` or `LOADING`.
    pub state: &'static str,
    /// Why it cannot be loaded: models that cannot are told before ports open, hence empty.
    pub reason: &'static str,
}

/// Lists the inputs of a model, of which a request has one.
pub fn inputs(contract: &InputContract) -> Vec<Described> {
    let tensor = |name, datatype, shape| Described {
        name,
        datatype,
        shape,
    };
    match *contract {
        InputContract::Images { height, width, .. } => {
            let (height, width) = (height as i64, width as i64);
            vec![
                tensor("images", "UINT8", vec![-1, height, width, 3]),
                tensor("files", "BYTES", vec![-1]),
                tensor("pixel_values", "FP32", vec![-1, 3, height, width]),
            ]
        }
        InputContract::Clouds { points, .. } => {
            vec![tensor("points", "FP32", vec![-1, points as i64, 3])]
        }
    }
}

/// Describes a model.
pub fn metadata(model: &ModelInfo) -> Metadata {
    let mut inputs = inputs(&model.input);
    let instead = inputs.split_off(1);
    Metadata {
        name: model.name.clone(),
        versions: [Lane::Source, Lane::Adapted].map(Lane::version),
        platform: PLATFORM,
        inputs,
        outputs: described(model),
        parameters: json!({
            "architecture": model.architecture,
            "classes": model.classes,
            "instead": instead,
        }),
    }
}

/// Describes a model as Triton's configuration does, without the batch in its shapes.
pub fn config(model: &ModelInfo) -> ModelConfig {
    let tensor = |tensor: Described| {
        let datatype = if tensor.datatype == "BYTES" {
            "STRING"
        } else {
            tensor.datatype
        };
        // A scalar of each sample has a shape too.
        let scalar = tensor.shape.len() == 1;
        ConfigTensor {
            name: tensor.name,
            data_type: format!("TYPE_{datatype}"),
            dims: if scalar {
                vec![1]
            } else {
                tensor.shape[1..].to_vec()
            },
            reshape: scalar.then(|| Reshape { shape: Vec::new() }),
        }
    };
    ModelConfig {
        name: model.name.clone(),
        platform: PLATFORM,
        backend: SERVER,
        max_batch_size: model.largest_batch,
        input: inputs(&model.input)
            .into_iter()
            .take(1)
            .map(tensor)
            .collect(),
        output: described(model).into_iter().map(tensor).collect(),
    }
}

/// Describes what a model's lane has done.
pub fn statistics(model: &str, lane: Lane, statistics: &Statistics) -> ModelStatistics {
    let of = |(count, time): (u64, Duration)| Measured {
        count,
        ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
    };
    let no_time = |count| Measured { count, ns: 0 };
    let by_size = statistics
        .passes
        .iter()
        .map(|(&size, &pass)| BatchStatistics {
            batch_size: size as u64,
            compute_input: no_time(pass.0),
            compute_infer: of(pass),
            compute_output: no_time(pass.0),
        });
    ModelStatistics {
        name: model.to_owned(),
        version: lane.version(),
        last_inference: statistics.newest,
        inference_count: statistics.images,
        execution_count: statistics.passes.values().map(|(count, _)| count).sum(),
        inference_stats: InferenceStatistics {
            success: of(statistics.success),
            fail: of(statistics.fail),
            queue: of(statistics.queue),
            compute_input: no_time(statistics.infer.0),
            compute_infer: of(statistics.infer),
            compute_output: no_time(statistics.infer.0),
            cache_hit: Measured::default(),
            cache_miss: Measured::default(),
        },
        batch_stats: by_size.collect(),
    }
}

/// Lists models with their lanes, all or those that are ready.
pub fn index(models: &[ModelInfo], ready: bool) -> Vec<Indexed> {
    let listed = models.iter().filter(|model| model.ready || !ready);
    let lanes = listed.flat_map(|model| {
        [Lane::Source, Lane::Adapted].map(|lane| Indexed {
            name: model.name.clone(),
            version: lane.version(),
            state: if model.ready { "READY" } else { "LOADING" },
            reason: "",
        })
    });
    lanes.collect()
}
