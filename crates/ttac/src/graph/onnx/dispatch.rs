//! Which operation of ONNX becomes what.

use super::super::program::Argument;
use super::message::Node;
use super::problem::{Problem, Result};
use super::translate::{Handle, Translator, Value};

impl Translator<'_> {
    /// Translates a node that needs images or weights and makes one value.
    pub(super) fn made(&mut self, node: &Node<'_>) -> Result<Handle> {
        match node.op.as_str() {
            "Identity" => self.identity(node),
            "Cast" => self.cast(node),
            "CastLike" => self.tensor(node, 0),
            "Dropout" => self.dropout(node),
            "Conv" => self.convolution(node),
            "BatchNormalization" => self.batch_norm(node),
            "LayerNormalization" => self.layer_norm(node),
            "InstanceNormalization" => self.instance_norm(node),
            "GroupNormalization" => self.group_norm(node),
            "Gemm" => self.gemm(node),
            "MatMul" => self.matmul(node),
            "Einsum" => self.einsum(node),
            "Softmax" => self.softmax(node, "aten.softmax.int"),
            "LogSoftmax" => self.softmax(node, "aten.log_softmax.int"),
            "MaxPool" => self.max_pool(node),
            "AveragePool" => self.average_pool(node),
            "GlobalAveragePool" | "GlobalMaxPool" | "ReduceMean" | "ReduceSum" | "ReduceMax"
            | "ReduceL2" => self.reduce(node),
            "Add" | "Sub" | "Mul" | "Div" => self.arithmetic(node),
            "Sum" => self.sum(node),
            "Pow" => self.power(node),
            "Min" | "Max" => self.bound(node),
            "Clip" => self.clip(node),
            "HardSigmoid" => self.hard_sigmoid(node),
            "Relu" => self.apply(node, "aten.relu.default", vec![]),
            "Sigmoid" => self.apply(node, "aten.sigmoid.default", vec![]),
            "Tanh" => self.apply(node, "aten.tanh.default", vec![]),
            "Erf" => self.apply(node, "aten.erf.default", vec![]),
            "Exp" => self.apply(node, "aten.exp.default", vec![]),
            "Log" => self.apply(node, "aten.log.default", vec![]),
            "Sqrt" => self.apply(node, "aten.sqrt.default", vec![]),
            "Sin" => self.apply(node, "aten.sin.default", vec![]),
            "Cos" => self.apply(node, "aten.cos.default", vec![]),
            "Abs" => self.apply(node, "aten.abs.default", vec![]),
            "Neg" => self.apply(node, "aten.neg.default", vec![]),
            "Reciprocal" => self.apply(node, "aten.reciprocal.default", vec![]),
            "Softplus" => self.apply(node, "aten.softplus.default", vec![]),
            "Mish" => self.apply(node, "aten.mish.default", vec![]),
            "HardSwish" => self.apply(node, "aten.hardswish.default", vec![]),
            "Elu" => {
                let alpha = Argument::Float(node.float("alpha", 1.0));
                self.apply(node, "aten.elu.default", vec![("alpha", alpha)])
            }
            "LeakyRelu" => {
                let slope = Argument::Float(node.float("alpha", 0.01));
                let arguments = vec![("negative_slope", slope)];
                self.apply(node, "aten.leaky_relu.default", arguments)
            }
            "Gelu" => {
                let form = Argument::Text(node.text("approximate", "none"));
                self.apply(node, "aten.gelu.default", vec![("approximate", form)])
            }
            "Reshape" => self.reshape(node),
            "Flatten" => self.flatten(node),
            "Squeeze" => self.squeeze(node),
            "Unsqueeze" => self.unsqueeze(node),
            "Transpose" => self.transpose(node),
            "Expand" => self.expand(node),
            "ConstantOfShape" => self.constant_of_shape(node),
            "Tile" => self.tile(node),
            "Concat" => self.concat(node),
            "Slice" => self.slice(node),
            "Gather" => self.gather(node),
            "Pad" => self.pad(node),
            "Resize" | "Upsample" => self.resize(node),
            "DepthToSpace" => self.depth_to_space(node),
            "SpaceToDepth" => self.space_to_depth(node),
            _ => Err(unknown(node)),
        }
    }

    /// Passes a value on. A tensor of the file that passes is a copy under the name it gets: so exporters write tensors that
    /// are equal by chance.
    fn identity(&mut self, node: &Node<'_>) -> Result<Handle> {
        let handle = self.tensor(node, 0)?;
        let Some(name) = node.outputs.first() else {
            return Ok(handle);
        };
        Ok(self.copy(&handle, name).unwrap_or(handle))
    }

    /// Passes a value on whose type changes between floating-point ones, as everything is computed in single precision.
    fn cast(&mut self, node: &Node<'_>) -> Result<Handle> {
        use super::message::element::{BFLOAT16, DOUBLE, FLOAT, FLOAT16};
        let to = node.integer("to", FLOAT);
        if [FLOAT, FLOAT16, DOUBLE, BFLOAT16].contains(&to) {
            return self.tensor(node, 0);
        }
        Err(Problem::with_hint(
            format!("it turns computed values to type {to}"),
            "only networks of floating-point values can be imported",
        ))
    }

    fn dropout(&mut self, node: &Node<'_>) -> Result<Handle> {
        let ratio = match self.known(node, 1)? {
            Some(known) => known.single().map_or(0.5, super::attributes::widen),
            None => node.float("ratio", 0.5),
        };
        let x = self.tensor(node, 0)?;
        let name = result(node)?;
        let arguments = vec![
            ("input", super::translate::tensor(&x.name)),
            ("p", Argument::Float(ratio)),
            ("train", Argument::Bool(false)),
        ];
        Ok(self.call("aten.dropout.default", arguments, name, x.dims, x.outer))
    }

    /// Tells whether a value is known, in contrast to computed ones and tensors of the file.
    pub(super) fn is_known(&self, node: &Node<'_>, index: usize) -> bool {
        matches!(self.value(node, index), Ok(Value::Known(_)))
    }
}

/// Returns the name of a node's first result.
pub(super) fn result<'n>(node: &'n Node<'_>) -> Result<&'n str> {
    let name = node.outputs.first().filter(|name| !name.is_empty());
    name.map(String::as_str)
        .ok_or_else(|| "it makes nothing".into())
}

fn unknown(node: &Node<'_>) -> Problem {
    let op = &node.op;
    match op.as_str() {
        "If" | "Loop" | "Scan" => Problem::with_hint(
            format!("`{op}` chooses while it runs, which a graph cannot"),
            "export the network with `torch.export`, which follows one path",
        ),
        "QuantizeLinear" | "DequantizeLinear" | "DynamicQuantizeLinear" => Problem::with_hint(
            format!("`{op}` belongs to a quantised network, which cannot be adapted"),
            "export the network before it is quantised",
        ),
        "Shape" | "Where" | "Equal" | "Range" => Problem::with_hint(
            format!("`{op}` of values that depend on the images is not supported"),
            "export the network as `.pt2`",
        ),
        _ => Problem::with_hint(
            format!("the operation `{op}` is not supported"),
            "export the network as `.pt2`, which keeps operations whole, or replace the operation",
        ),
    }
}
