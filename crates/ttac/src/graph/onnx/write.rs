//! Writes a graph as an ONNX file.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::TensorData;

use super::super::ir::{Dim, Graph, Node, Operand, TensorId, TensorKind, ValueId};
use super::message::{self, Attribute, Model, Size, Tensor, ValueInfo, element};
use crate::{Error, Result, write_atomically};

/// The version of the set of operators that is written: the first with a layer norm.
const OPSET: i64 = 17;

/// The version of the file format that goes with it.
const IR_VERSION: i64 = 8;

/// The most bytes of weights. Protocol buffers end at 2 GiB.
const MOST_BYTES: usize = 1_900_000_000;

/// Writes a network as an ONNX file of opset 17, for inference.
///
/// The input is `images [batch, 3, height, width]`, the output `logits [batch, num_classes]`; any number of images can be
/// given. Weights are under their names in the `state_dict`. Batch norms use their running statistics. What no operation reads
/// is left out. The file is there whole, or not at all.
///
/// # Errors
/// If a tensor is missing or has another shape than the graph says, if there are more than 1.9 GB of weights, or if the file
/// cannot be written.
pub fn write(
    graph: &Graph,
    tensors: &BTreeMap<String, TensorData>,
    out: &Path,
    producer: &str,
) -> Result<()> {
    let size: usize = graph.tensors.iter().map(|info| bytes_of(&info.shape)).sum();
    if size > MOST_BYTES {
        return Err(Error::Invalid {
            what: "network for an ONNX file",
            problem: format!("it has {size} bytes of weights, and the most are {MOST_BYTES}"),
        });
    }
    let problems = graph.problems();
    Error::invalid_if_any("graph", &problems)?;
    write_atomically(out, &encode(graph, tensors, producer)?)
}

fn bytes_of(shape: &[usize]) -> usize {
    let sizes = shape.iter();
    sizes.fold(4, |product: usize, &size| product.saturating_mul(size))
}

fn encode(
    graph: &Graph,
    tensors: &BTreeMap<String, TensorData>,
    producer: &str,
) -> Result<Vec<u8>> {
    let mut builder = Builder::new(graph);
    builder.weights(tensors)?;
    for node in &graph.nodes {
        builder.node(node);
    }
    let info = |value: ValueId, name: &str| ValueInfo {
        name: name.to_owned(),
        element: element::FLOAT,
        shape: Some(graph.shape(value).iter().map(|&dim| size(dim)).collect()),
    };
    let model = Model {
        ir_version: IR_VERSION,
        producer: producer.to_owned(),
        opsets: vec![(String::new(), OPSET)],
        graph: Some(message::Graph {
            name: "network".to_owned(),
            inputs: vec![info(graph.input, &builder.value(graph.input))],
            outputs: vec![info(graph.output, &builder.value(graph.output))],
            nodes: builder.nodes,
            initialisers: builder.initialisers,
            sparse: 0,
        }),
    };
    Ok(model.encode())
}

fn size(dim: Dim) -> Size {
    match dim {
        Dim {
            size: 1,
            batch: true,
        } => Size::Named("batch".to_owned()),
        Dim { size, batch: true } => Size::Named(format!("{size}*batch")),
        Dim { size, batch: false } => Size::Number(size as i64),
    }
}

/// Collects the nodes and tensors of a file.
pub(super) struct Builder<'g> {
    pub graph: &'g Graph,
    nodes: Vec<message::Node<'g>>,
    initialisers: Vec<Tensor<'g>>,
    /// The number of the next name.
    next: usize,
    /// The module of the node that is being written.
    at: &'g str,
    /// The name of the number of images, once something needs it.
    batch: Option<String>,
}

impl<'g> Builder<'g> {
    fn new(graph: &'g Graph) -> Self {
        Self {
            graph,
            nodes: Vec::new(),
            initialisers: Vec::new(),
            next: 0,
            at: "",
            batch: None,
        }
    }

    /// Names a value. No tensor has such a name, because keys of a `state_dict` have no slashes in front.
    pub fn value(&self, value: ValueId) -> String {
        if value == self.graph.output {
            return self.end("logits");
        }
        if value == self.graph.input {
            return self.end("images");
        }
        format!("/v{}", value.0)
    }

    /// Names the input or the output, with a slash if a tensor has that name.
    fn end(&self, name: &str) -> String {
        let taken = self.graph.tensors.iter().any(|info| info.name == name);
        if taken {
            format!("/{name}")
        } else {
            name.to_owned()
        }
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("/t{}", self.next)
    }

    /// Adds the tensors that operations read. Constants are operations themselves, so that a reader can tell them from weights.
    fn weights(&mut self, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
        let graph = self.graph;
        for info in &graph.tensors {
            if matches!(info.kind, TensorKind::Unused | TensorKind::Counter(_)) {
                continue;
            }
            let what = format!("tensor `{}`", info.name);
            let Some(data) = tensors.get(&info.name) else {
                return Err(Error::mismatch(&what, "its values", "none"));
            };
            let values = data.clone().convert::<f32>().try_to_vec::<f32>();
            let values = values.unwrap_or_default();
            if bytes_of(&info.shape) != 4 * values.len() || data.shape().to_vec() != info.shape {
                let (expected, found) = (&info.shape, data.shape());
                return Err(Error::mismatch(
                    &what,
                    format!("shape {expected:?}"),
                    format!("{found:?}"),
                ));
            }
            let tensor = floats(&info.name, &info.shape, &values);
            if info.kind == TensorKind::Constant {
                self.constant(tensor);
            } else {
                self.initialisers.push(tensor);
            }
        }
        Ok(())
    }

    /// Writes a node; the last operation that is added gets the name of its result.
    fn node(&mut self, node: &'g Node) {
        self.at = &node.at;
        let inputs = node.inputs.iter().map(|&operand| self.operand(operand));
        let inputs: Vec<String> = inputs.collect();
        self.operation(node, &inputs);
        let name = self.value(node.output);
        let last = self.nodes.last_mut();
        let last = last.expect("every operation adds at least one");
        last.outputs = vec![name];
    }

    fn operand(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Value(value) => self.value(value),
            Operand::Tensor(tensor) => self.graph.tensor(tensor).name.clone(),
            Operand::Scalar(number) => self.number(number),
        }
    }

    /// Returns the shape of an operand; a number has no axes.
    pub fn shape(&self, operand: Operand) -> Vec<Dim> {
        match operand {
            Operand::Value(value) => self.graph.shape(value).to_vec(),
            Operand::Tensor(TensorId(tensor)) => {
                let shape = &self.graph.tensors[tensor as usize].shape;
                shape.iter().copied().map(Dim::fixed).collect()
            }
            Operand::Scalar(_) => Vec::new(),
        }
    }

    /// Adds an operation and returns the name of its result.
    pub fn add(&mut self, op: &str, inputs: &[&str], attributes: Vec<Attribute<'g>>) -> String {
        let output = self.fresh();
        let number = self.nodes.len();
        let name = match self.at {
            "" => format!("{op}_{number}"),
            at => format!("/{at}/{op}_{number}"),
        };
        self.nodes.push(message::Node {
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs: vec![output.clone()],
            name,
            op: op.to_owned(),
            attributes,
            ..message::Node::default()
        });
        output
    }

    /// Adds a number.
    pub fn number(&mut self, number: f64) -> String {
        self.floats(&[], &[number as f32])
    }

    /// Adds numbers that are no weights.
    pub fn floats(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = self.fresh();
        self.constant(floats(&name, shape, values));
        name
    }

    /// Adds a tensor that is never learned.
    fn constant(&mut self, tensor: Tensor<'g>) {
        let output = tensor.name.clone();
        let value = Attribute {
            name: "value".to_owned(),
            tensor: Some(tensor),
            ..Attribute::default()
        };
        self.nodes.push(message::Node {
            outputs: vec![output],
            op: "Constant".to_owned(),
            attributes: vec![value],
            ..message::Node::default()
        });
    }

    /// Adds a list of integers.
    pub fn integers(&mut self, values: &[i64]) -> String {
        let name = self.fresh();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.initialisers.push(Tensor {
            name: name.clone(),
            shape: vec![values.len() as i64],
            element: element::INT64,
            raw: Some(bytes.into()),
            ..Tensor::default()
        });
        name
    }

    /// Gives a value another shape. The axis of the images is the one that is found by counting.
    pub fn reshape(&mut self, x: &str, shape: &[Dim]) -> String {
        let size = |dim: &Dim| if dim.batch { -1 } else { dim.size as i64 };
        let sizes: Vec<i64> = shape.iter().map(size).collect();
        let sizes = self.integers(&sizes);
        self.add("Reshape", &[x, &sizes], vec![])
    }

    /// Returns the name of the number of images, as a list of one.
    fn batch(&mut self) -> String {
        if let Some(batch) = &self.batch {
            return batch.clone();
        }
        let input = self.value(self.graph.input);
        let ends = vec![integer("start", 0), integer("end", 1)];
        let batch = self.add("Shape", &[&input], ends);
        self.batch.insert(batch).clone()
    }

    /// Adds a shape with the number of images in it, as one list.
    pub fn sizes(&mut self, shape: &[Dim]) -> String {
        if shape.iter().all(|dim| !dim.batch) {
            let sizes: Vec<i64> = shape.iter().map(|dim| dim.size as i64).collect();
            return self.integers(&sizes);
        }
        let batch = self.batch();
        let mut parts = Vec::new();
        for dim in shape {
            parts.push(match (dim.batch, dim.size) {
                (true, 1) => batch.clone(),
                (true, size) => {
                    let factor = self.integers(&[size as i64]);
                    self.add("Mul", &[&batch, &factor], vec![])
                }
                (false, size) => self.integers(&[size as i64]),
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.add("Concat", &parts, vec![integer("axis", 0)])
    }
}

fn floats<'a>(name: &str, shape: &[usize], values: &[f32]) -> Tensor<'a> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Tensor {
        name: name.to_owned(),
        shape: shape.iter().map(|&size| size as i64).collect(),
        element: element::FLOAT,
        raw: Some(bytes.into()),
        ..Tensor::default()
    }
}

/// Makes an attribute of an integer.
pub(super) fn integer<'a>(name: &str, value: i64) -> Attribute<'a> {
    Attribute {
        name: name.to_owned(),
        integer: Some(value),
        ..Attribute::default()
    }
}

/// Makes an attribute of integers.
pub(super) fn integers<'a>(name: &str, values: &[usize]) -> Attribute<'a> {
    Attribute {
        name: name.to_owned(),
        integers: values.iter().map(|&value| value as i64).collect(),
        ..Attribute::default()
    }
}

/// Makes an attribute of a number.
pub(super) fn float<'a>(name: &str, value: f64) -> Attribute<'a> {
    Attribute {
        name: name.to_owned(),
        float: Some(value as f32),
        ..Attribute::default()
    }
}

/// Makes an attribute of a text.
pub(super) fn text<'a>(name: &str, value: &'static str) -> Attribute<'a> {
    Attribute {
        name: name.to_owned(),
        text: Some(value.as_bytes().into()),
        ..Attribute::default()
    }
}
