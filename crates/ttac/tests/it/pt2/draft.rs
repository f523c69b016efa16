//! A small network as `torch.export.save` of PyTorch 2.9 writes it: the mean over the image, and a linear layer of three inputs and
//! two outputs with a counter.

use std::io::{Cursor, Write};
use std::path::Path;

use serde_json::{Value, json};
use ttac::Result;
use ttac::graph::{Program, pt2};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The parts of a file, to be changed before it is written.
#[derive(Clone)]
pub struct Draft {
    /// `models/model.json`.
    pub model: Value,
    /// `data/weights/model_weights_config.json`.
    pub weights: Value,
    /// `data/constants/model_constants_config.json`.
    pub constants: Value,
    /// Further records, with their names below the root folder.
    pub records: Vec<(String, Vec<u8>)>,
    pub method: CompressionMethod,
}

/// The bytes of numbers of single precision.
pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The description of a tensor.
pub fn meta(dtype: i64, sizes: &[i64], strides: &[i64], offset: i64) -> Value {
    let ints = |values: &[i64]| -> Vec<Value> {
        values
            .iter()
            .map(|value| json!({"as_int": value}))
            .collect()
    };
    json!({
        "dtype": dtype, "sizes": ints(sizes), "strides": ints(strides), "storage_offset": {"as_int": offset},
        "requires_grad": false, "device": {"type": "cpu", "index": null}, "layout": 7
    })
}

/// The place of a tensor.
pub fn payload(record: &str, is_param: bool, meta: &Value) -> Value {
    json!({"path_name": record, "is_param": is_param, "use_pickle": false, "tensor_meta": meta})
}

/// A tensor as an argument.
pub fn tensor(name: &str) -> Value {
    json!({"as_tensor": {"name": name}})
}

/// A call.
pub fn node(target: &str, at: &str, inputs: &[(&str, Value)], output: &str) -> Value {
    let inputs = inputs.iter();
    let inputs: Vec<Value> = inputs
        .map(|(name, arg)| json!({"name": name, "arg": arg, "kind": 1}))
        .collect();
    json!({
        "target": target, "inputs": inputs, "outputs": [tensor(output)], "name": output,
        "metadata": {"stack_trace": "a path of the user", "nn_module_stack": format!("L__self__,,Net;L__self___x,{at},Layer")}
    })
}

impl Draft {
    pub fn new() -> Self {
        let batch = json!({"as_expr": {"expr_str": "Symbol('s77')", "hint": {"as_int": 2}}});
        let mut image = meta(7, &[2, 3, 4, 4], &[48, 16, 4, 1], 0);
        image["sizes"][0] = batch;
        let spec = |name: &str| json!({"arg": {"name": format!("p_fc_{name}")}, "parameter_name": format!("fc.{name}")});
        let model = json!({
            "graph_module": {
                "graph": {
                    "inputs": [], "outputs": [tensor("linear")],
                    "nodes": [
                        node("torch.ops.aten.mean.dim", "", &[("self", tensor("x")), ("dim", json!({"as_ints": [2, 3]}))], "mean"),
                        node(
                            "torch.ops.aten.linear.default", "fc@1",
                            &[("input", tensor("mean")), ("weight", tensor("p_fc_weight")), ("bias", tensor("p_fc_bias"))],
                            "linear",
                        ),
                    ],
                    "tensor_values": {
                        "x": image, "p_fc_weight": meta(7, &[2, 3], &[3, 1], 0),
                        "mean": meta(7, &[2, 3], &[3, 1], 0), "linear": meta(7, &[2, 2], &[2, 1], 0)
                    }
                },
                "signature": {
                    "input_specs": [
                        {"parameter": spec("weight")}, {"parameter": spec("bias")},
                        {"buffer": {"arg": {"name": "b_steps"}, "buffer_name": "steps", "persistent": true}},
                        {"user_input": {"arg": tensor("x")}}
                    ],
                    "output_specs": [{"user_output": {"arg": tensor("linear")}}]
                }
            },
            "schema_version": {"major": 8, "minor": 14}, "torch_version": "2.9.1"
        });
        let weights = json!({"config": {
            "fc.weight": payload("weight_0", true, &meta(7, &[2, 3], &[3, 1], 0)),
            "fc.bias": payload("weight_1", true, &meta(7, &[2], &[1], 0)),
            "steps": payload("weight_2", false, &meta(5, &[], &[], 0)),
        }});
        let records = [
            ("weight_0", floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
            ("weight_1", floats(&[0.5, -0.5])),
            ("weight_2", 7_i64.to_le_bytes().to_vec()),
        ];
        let records = records.map(|(name, bytes)| (format!("data/weights/{name}"), bytes));
        Self {
            model,
            weights,
            constants: json!({"config": {}}),
            records: records.to_vec(),
            method: CompressionMethod::Stored,
        }
    }

    /// Replaces a part of the graph's JSON, by its pointer.
    pub fn graph(mut self, pointer: &str, value: Value) -> Self {
        *self.model.pointer_mut(pointer).expect("the part is there") = value;
        self
    }

    /// Replaces the place of a weight.
    pub fn weight(mut self, key: &str, value: Value) -> Self {
        self.weights["config"][key] = value;
        self
    }

    /// Adds an input of the graph, in front of the others.
    pub fn input(mut self, spec: Value) -> Self {
        let specs = &mut self.model["graph_module"]["signature"]["input_specs"];
        specs.as_array_mut().unwrap().insert(0, spec);
        self
    }

    /// Adds or replaces a record.
    pub fn record(mut self, name: &str, bytes: Vec<u8>) -> Self {
        self.records.retain(|(found, _)| found != name);
        self.records.push((name.to_owned(), bytes));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let json = |value: &Value| value.to_string().into_bytes();
        let mut records = self.records.clone();
        records.push((
            "data/weights/model_weights_config.json".to_owned(),
            json(&self.weights),
        ));
        records.push((
            "data/constants/model_constants_config.json".to_owned(),
            json(&self.constants),
        ));
        records.push(("models/model.json".to_owned(), json(&self.model)));
        // The user's example: nothing reads it, so it may be anything.
        records.push((
            "data/sample_inputs/model.pt".to_owned(),
            b"not even a zip file".to_vec(),
        ));
        records.push(("archive_format".to_owned(), b"pt2".to_vec()));
        if !self.records.iter().any(|(name, _)| name == "byteorder") {
            records.push(("byteorder".to_owned(), b"little".to_vec()));
        }
        archive(&records, self.method)
    }

    pub fn read(&self) -> Result<Program> {
        pt2::read_bytes(&self.bytes(), Path::new("net.pt2"))
    }
}

/// A zip file with records below the folder `net`.
pub fn archive(records: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in records {
        zip.start_file(format!("net/{name}"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
