//! What a model is and has done, in the words of the protocol and of Triton.

use std::time::Duration;

use serde_json::{Value, json};
use ttac::input::InputContract;

use super::output::described;
use crate::api::{Lane, ModelInfo, Statistics};

/// What the model's files are, in Triton's form: framework and format.
const PLATFORM: &str = "ttac_safetensors";

/// Lists name, datatype and shape of the inputs of a model, of which a request has one; `-1` stands for any number.
pub fn inputs(contract: &InputContract) -> Vec<(&'static str, &'static str, Vec<i64>)> {
    match *contract {
        InputContract::Images { height, width, .. } => {
            let (height, width) = (height as i64, width as i64);
            vec![
                ("images", "UINT8", vec![-1, height, width, 3]),
                ("files", "BYTES", vec![-1]),
                ("pixel_values", "FP32", vec![-1, 3, height, width]),
            ]
        }
        InputContract::Clouds { points, .. } => {
            vec![("points", "FP32", vec![-1, points as i64, 3])]
        }
    }
}

/// Describes a model. The first input is the one that clients which make up requests should take; the others stand beside it in
/// `parameters`, because such clients send every input that is listed.
pub fn metadata(model: &ModelInfo) -> Value {
    let tensor = |(name, datatype, shape): &(&str, &str, Vec<i64>)| json!({ "name": name, "datatype": datatype, "shape": shape });
    let inputs: Vec<Value> = inputs(&model.input).iter().map(tensor).collect();
    let outputs: Vec<Value> = described(model).iter().map(tensor).collect();
    json!({
        "name": model.name,
        "versions": [Lane::Source.version(), Lane::Adapted.version()],
        "platform": PLATFORM,
        "inputs": inputs[..1],
        "outputs": outputs,
        "parameters": {
            "architecture": model.architecture,
            "classes": model.classes,
            "instead": inputs[1..],
        },
    })
}

/// Describes a model as Triton's configuration does, without the batch in its shapes.
pub fn config(model: &ModelInfo) -> Value {
    let tensor = |(name, datatype, shape): &(&str, &str, Vec<i64>)| {
        let datatype = if *datatype == "BYTES" {
            "STRING"
        } else {
            datatype
        };
        // A scalar of each sample has a shape too.
        let dims = if shape.len() == 1 {
            &[1][..]
        } else {
            &shape[1..]
        };
        let mut tensor =
            json!({ "name": name, "data_type": format!("TYPE_{datatype}"), "dims": dims });
        if shape.len() == 1 {
            tensor["reshape"] = json!({ "shape": [] });
        }
        tensor
    };
    let inputs: Vec<Value> = inputs(&model.input).iter().take(1).map(tensor).collect();
    let outputs: Vec<Value> = described(model).iter().map(tensor).collect();
    json!({
        "name": model.name,
        "platform": PLATFORM,
        "backend": "ttac",
        "max_batch_size": model.largest_batch,
        "input": inputs,
        "output": outputs,
    })
}

/// Describes what a model's lane has done.
pub fn statistics(model: &str, lane: Lane, statistics: &Statistics) -> Value {
    let none = (0, Duration::ZERO);
    let of = |(count, time): (u64, Duration)| json!({ "count": count, "ns": u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) });
    let passes = statistics
        .passes
        .values()
        .map(|(count, _)| count)
        .sum::<u64>();
    let by_size = statistics.passes.iter().map(|(size, &pass)| {
        json!({
            "batch_size": size,
            "compute_input": of((pass.0, Duration::ZERO)),
            "compute_infer": of(pass),
            "compute_output": of((pass.0, Duration::ZERO)),
        })
    });
    let requests = (statistics.infer.0, Duration::ZERO);
    json!({
        "name": model,
        "version": lane.version(),
        "last_inference": statistics.newest,
        "inference_count": statistics.images,
        "execution_count": passes,
        "inference_stats": {
            "success": of(statistics.success),
            "fail": of(statistics.fail),
            "queue": of(statistics.queue),
            "compute_input": of(requests),
            "compute_infer": of(statistics.infer),
            "compute_output": of(requests),
            "cache_hit": of(none),
            "cache_miss": of(none),
        },
        "batch_stats": by_size.collect::<Vec<_>>(),
    })
}
