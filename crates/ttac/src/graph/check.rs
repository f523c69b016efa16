//! Checking a graph like a file from a stranger.

use std::collections::BTreeSet;

use super::dims::{describe, elements};
use super::ir::{Dim, Graph, Node, Operand, TensorId, TensorInfo, TensorKind, VERSION, ValueId};
use super::op::Op;
use super::shape::{Form, MOST_AXES, infer};

/// The most nodes, tensors, values and indices of a graph. The largest of 82 common networks has 1,086 nodes.
const MOST: usize = 1 << 20;

impl Graph {
    /// Lists everything that is wrong with the graph: what does not exist, is made twice, is read before it is made or has
    /// another shape than its operation gives it. A graph without problems can be run.
    pub fn problems(&self) -> Vec<String> {
        if self.version != VERSION {
            return vec![format!(
                "the graph has version {}, expected {VERSION}",
                self.version
            )];
        }
        let checks = [
            Self::limits,
            Self::tensor_problems,
            Self::node_problems,
            Self::end_problems,
            Self::head_problems,
        ];
        // Each check relies on those before it.
        let mut found = checks.iter().map(|check| check(self));
        found.find(|found| !found.is_empty()).unwrap_or_default()
    }

    fn limits(&self) -> Vec<String> {
        let indices = self.indices.iter().map(Vec::len).sum::<usize>();
        let counts = [
            ("nodes", self.nodes.len()),
            ("values", self.values.len()),
            ("tensors", self.tensors.len()),
            ("indices", indices),
        ];
        let too_many = counts.into_iter().filter(|(_, count)| *count > MOST);
        too_many
            .map(|(what, count)| format!("the graph has {count} {what}, and the most are {MOST}"))
            .collect()
    }

    fn tensor_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut names = BTreeSet::new();
        for info in &self.tensors {
            for name in std::iter::once(&info.name).chain(&info.also) {
                let proper = !name.is_empty() && name.split('.').all(|part| !part.is_empty());
                if !proper || !names.insert(name) {
                    problems.push(format!("tensor `{name}`: expected a name of its own"));
                }
            }
            let shape: Vec<Dim> = info.shape.iter().copied().map(Dim::fixed).collect();
            if shape.len() > MOST_AXES || elements(&shape).is_none() {
                problems.push(format!(
                    "tensor `{}` has the shape {:?}, which is too large",
                    info.name, info.shape
                ));
            }
            let fits = match info.kind {
                TensorKind::Unused => true,
                TensorKind::Counter(_) => elements(&shape) == Some(1),
                TensorKind::Running => shape.len() == 1 && shape[0].size > 0,
                _ => elements(&shape) != Some(0),
            };
            if !fits {
                problems.push(format!(
                    "tensor `{}` has the shape {:?}, which its kind {:?} cannot have",
                    info.name, info.shape, info.kind
                ));
            }
        }
        problems
    }

    /// Follows the nodes: everything they read was made before, and shapes are those of their operations.
    fn node_problems(&self) -> Vec<String> {
        let mut made = vec![false; self.values.len()];
        let Some(input) = made.get_mut(self.input.0 as usize) else {
            return vec!["the input is no value of the graph".to_owned()];
        };
        *input = true;
        for (number, node) in self.nodes.iter().enumerate() {
            if let Err(problem) = self.node_problem(node, &made) {
                return vec![format!("{}: {problem}", node.describe(number))];
            }
            made[node.output.0 as usize] = true;
        }
        let missing = made.iter().position(|made| !made);
        let missing = missing.map(|value| format!("no node makes value {value}"));
        missing.into_iter().collect()
    }

    fn node_problem(&self, node: &Node, made: &[bool]) -> Result<(), String> {
        let mut tensors = Vec::new();
        for operand in &node.inputs {
            tensors.push(self.dims_of(*operand, made)?);
        }
        let forms: Vec<Form<'_>> = tensors
            .iter()
            .map(|shape| shape.as_deref().map_or(Form::Scalar, Form::Shaped))
            .collect();
        let shape = infer(&node.op, &forms)?;
        let output = node.output.0 as usize;
        match made.get(output) {
            None => return Err(format!("it makes value {output}, which does not exist")),
            Some(true) => return Err(format!("it makes value {output}, which is there already")),
            Some(false) => {}
        }
        if shape != self.values[output] {
            return Err(format!(
                "its result is {}, and the graph says {}",
                describe(&shape),
                describe(&self.values[output])
            ));
        }
        if elements(&shape) == Some(0) {
            return Err(format!("its result {} is empty", describe(&shape)));
        }
        self.special_problem(node)
    }

    /// Checks what shapes do not tell.
    fn special_problem(&self, node: &Node) -> Result<(), String> {
        match &node.op {
            Op::BatchNorm { .. } => {
                let running = |operand: &Operand| matches!(operand, Operand::Tensor(tensor) if self.tensor(*tensor).kind == TensorKind::Running);
                if node.inputs[3..].iter().all(running) {
                    return Ok(());
                }
                Err("its statistics are no running tensors".to_owned())
            }
            Op::Gather {
                axis,
                indices,
                count,
            } => {
                let size = self.size_of(node.inputs[0], *axis);
                let list = self.indices.get(*indices);
                let list = list.filter(|list| list.len() == *count);
                match list.map(|list| list.iter().all(|&index| (index as usize) < size)) {
                    Some(true) => Ok(()),
                    _ => Err(format!(
                        "list {indices} holds no {count} indices below {size}"
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    fn size_of(&self, operand: Operand, axis: usize) -> usize {
        match operand {
            Operand::Value(value) => self.shape(value)[axis].size,
            Operand::Tensor(tensor) => self.tensor(tensor).shape[axis],
            Operand::Scalar(_) => 0,
        }
    }

    /// Returns the shape of an operand; `None` for a number.
    fn dims_of(&self, operand: Operand, made: &[bool]) -> Result<Option<Vec<Dim>>, String> {
        match operand {
            Operand::Scalar(number) if number.is_finite() => Ok(None),
            Operand::Scalar(number) => Err(format!("it reads the number {number}")),
            Operand::Value(ValueId(value)) => match made.get(value as usize) {
                Some(true) => Ok(Some(self.values[value as usize].clone())),
                _ => Err(format!("it reads value {value}, which is not made before")),
            },
            Operand::Tensor(TensorId(tensor)) => {
                let info = self.tensors.get(tensor as usize);
                let readable = |kind| !matches!(kind, TensorKind::Unused | TensorKind::Counter(_));
                let info = info.filter(|info| readable(info.kind));
                let info =
                    info.ok_or_else(|| format!("it reads tensor {tensor}, which is none"))?;
                Ok(Some(info.shape.iter().copied().map(Dim::fixed).collect()))
            }
        }
    }

    /// Checks the input, the features and the output, and that the output sees the input through the features alone.
    fn end_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let [input, features, output] = [self.input, self.features, self.output];
        for (what, value) in [("features", features), ("output", output)] {
            if value.0 as usize >= self.values.len() {
                return vec![format!("the {what} are no value of the graph")];
            }
            if !matches!(self.shape(value), [batch, size] if *batch == Dim::per_image(1) && !size.batch)
            {
                problems.push(format!(
                    "the {what} are {}, expected a row for each image",
                    describe(self.shape(value))
                ));
            }
        }
        let edge = |dim: &Dim| !dim.batch && dim.size > 0;
        let is_image = |shape: &[Dim]| match shape {
            [batch, channels, edges @ ..] if edges.len() == 2 => {
                [*batch, *channels] == [Dim::per_image(1), Dim::fixed(3)] && edges.iter().all(edge)
            }
            _ => false,
        };
        if !is_image(self.shape(input)) || elements(self.shape(input)).is_none() {
            problems.push(format!(
                "the input is {}, expected images [b, 3, height, width]",
                describe(self.shape(input))
            ));
        }
        if problems.is_empty() && features != output {
            let mut seen = vec![false; self.values.len()];
            seen[input.0 as usize] = true;
            for node in &self.nodes {
                let sees = node.values().any(|value| seen[value.0 as usize]);
                seen[node.output.0 as usize] = sees && node.output != features;
            }
            if seen[output.0 as usize] {
                problems.push("the output sees the input past the features".to_owned());
            }
        }
        problems
    }

    fn head_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut inputs = 0;
        for layer in &self.head {
            let learned = |info: &&TensorInfo| {
                matches!(
                    info.kind,
                    TensorKind::Weight | TensorKind::Affine | TensorKind::Constant
                )
            };
            let tensor = |id: TensorId| self.tensors.get(id.0 as usize).filter(learned);
            let (weight, bias) = (tensor(layer.weight), layer.bias.map(tensor));
            let shape = weight.map(|weight| weight.shape.as_slice());
            let read = match shape {
                Some([outputs, read] | [outputs, read, 1, 1]) if *outputs == self.num_classes() => {
                    *read
                }
                other => {
                    problems.push(format!("a weight of the head has the shape {other:?}"));
                    continue;
                }
            };
            let bias_fits = |bias: Option<&TensorInfo>| {
                bias.is_some_and(|bias| bias.shape == [self.num_classes()])
            };
            if !bias.is_none_or(bias_fits) {
                problems.push("a bias of the head has another shape".to_owned());
            }
            inputs += read;
        }
        if problems.is_empty() && !self.head.is_empty() && inputs != self.num_features() {
            problems.push(format!(
                "the head reads {inputs} features of {}",
                self.num_features()
            ));
        }
        problems
    }
}

impl Node {
    /// Names the node in a message: its number, its operation and its module.
    pub fn describe(&self, number: usize) -> String {
        let op = self.op.name();
        if self.at.is_empty() {
            return format!("node {number} ({op})");
        }
        format!("node {number} ({op}, in `{}`)", self.at)
    }
}
