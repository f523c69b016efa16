//! Which nodes of a graph run as one step.
//!
//! Nodes are joined only where the value between them has no other reader, so that nothing has to be stored that the joined step
//! does not make. A joined step runs in the place of its last node, when everything it reads is there.

use ttac_kernels::Activation;

use crate::graph::ir::{Dim, Graph, Node, Operand, ValueId};
use crate::graph::op::{Function, Op};

/// What becomes of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Fusion {
    /// It is a step of its own.
    #[default]
    Alone,
    /// It is part of the step of a later node.
    Absorbed,
    /// It ends a chain of nodes, whose numbers are given.
    Chain(Chain),
    /// It ends a shortcut without parameters: every `stride`-th pixel of a value, with channels of zeros around its own.
    Shortcut {
        /// The value.
        x: Operand,
        /// The distance between pixels, in both directions.
        stride: usize,
    },
}

/// Nodes that run as one step, in the order in which they depend on each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Chain {
    /// A norm before a convolution, or a function before a linear layer.
    pub before: Option<usize>,
    /// The activation between the norm and the convolution.
    pub before_activation: Option<usize>,
    /// The convolution or linear layer.
    pub product: Option<usize>,
    /// The norm or the multiplication by a vector.
    pub scale: Option<usize>,
    /// The addition, and the operand that is added.
    pub add: Option<(usize, Operand)>,
    /// The activation.
    pub activation: Option<usize>,
}

/// The purpose that a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Every node is a step of its own, and every value lies as the graph writes it: the oracle of the others.
    Plain,
    /// Norms use the statistics of the batch, or gradients are asked for.
    Training,
    /// Norms use running statistics, and there are no gradients.
    Inference,
}

/// Decides for every node of a graph what becomes of it.
pub(super) fn fuse(graph: &Graph, purpose: Purpose, kept: &[ValueId]) -> Vec<Fusion> {
    let mut finder = Finder::new(graph, kept);
    if purpose == Purpose::Plain {
        return finder.fusions;
    }
    for node in 0..graph.nodes.len() {
        if finder.fusions[node] != Fusion::Alone {
            continue;
        }
        match (&graph.nodes[node].op, purpose) {
            (Op::Conv2d { .. }, Purpose::Inference) => finder.convolution_with_norm(node),
            (Op::BatchNorm { .. }, _) => finder.norm(node),
            (Op::Apply(Function::Gelu | Function::GeluTanh), _) => finder.before_linear(node),
            _ => {}
        }
    }
    // What is left: additions behind convolutions and linear layers, activations behind additions and group norms.
    for node in 0..graph.nodes.len() {
        if finder.fusions[node] != Fusion::Alone {
            continue;
        }
        match &graph.nodes[node].op {
            Op::Conv2d { .. } | Op::Linear => finder.product(node, None),
            Op::Add | Op::GroupNorm { .. } => finder.with_activation(node),
            Op::Mul => finder.layer_scale(node),
            Op::Pad { .. } => finder.shortcut(node),
            _ => {}
        }
    }
    finder.fusions
}

/// Returns the activation of our kernels that a function is, if it is one.
pub(super) fn activation_of(function: Function) -> Option<Activation> {
    Some(match function {
        Function::Relu => Activation::Relu,
        Function::Clip { min, max } if min == 0.0 && max == 6.0 => Activation::Relu6,
        Function::Gelu => Activation::Gelu,
        Function::GeluTanh => Activation::GeluTanh,
        Function::Sigmoid => Activation::Sigmoid,
        Function::Silu => Activation::Silu,
        Function::HardSwish => Activation::HardSwish,
        Function::HardSigmoid => Activation::HardSigmoid,
        _ => return None,
    })
}

struct Finder<'a> {
    graph: &'a Graph,
    /// For each value, the only node that reads it, if there is just one.
    reader: Vec<Option<usize>>,
    /// For each value, the node that makes it.
    maker: Vec<Option<usize>>,
    fusions: Vec<Fusion>,
}

impl<'a> Finder<'a> {
    fn new(graph: &'a Graph, kept: &[ValueId]) -> Self {
        let mut readers = vec![Vec::new(); graph.values.len()];
        let mut maker = vec![None; graph.values.len()];
        for (number, node) in graph.nodes.iter().enumerate() {
            for value in node.values() {
                readers[value.0 as usize].push(number);
            }
            maker[node.output.0 as usize] = Some(number);
        }
        for value in kept {
            // The caller reads it too.
            readers[value.0 as usize].clear();
        }
        let only = |readers: Vec<usize>| match readers[..] {
            [reader] => Some(reader),
            _ => None,
        };
        Self {
            graph,
            reader: readers.into_iter().map(only).collect(),
            maker,
            fusions: vec![Fusion::Alone; graph.nodes.len()],
        }
    }

    /// Returns the only reader of a node's result, if nothing has become of it yet.
    fn next(&self, node: usize) -> Option<usize> {
        let output = self.graph.nodes[node].output;
        let reader = self.reader[output.0 as usize]?;
        (self.fusions[reader] == Fusion::Alone).then_some(reader)
    }

    fn op(&self, node: usize) -> &'a Op {
        &self.graph.nodes[node].op
    }

    fn output(&self, node: usize) -> Operand {
        Operand::Value(self.graph.nodes[node].output)
    }

    /// Tells whether a node's result is the first thing another node reads, and nothing else that it reads.
    fn leads_into(&self, node: usize, reader: usize) -> bool {
        let inputs = &self.graph.nodes[reader].inputs;
        let output = self.output(node);
        inputs[0] == output && inputs[1..].iter().all(|input| *input != output)
    }

    /// Returns the activation that alone reads a node's result.
    fn activation_behind(&self, node: usize) -> Option<usize> {
        let next = self.next(node)?;
        matches!(self.op(next), Op::Apply(function) if activation_of(*function).is_some())
            .then_some(next)
    }

    /// Returns the addition of an equally large value that alone reads a node's result, and that value.
    fn addition_behind(&self, node: usize) -> Option<(usize, Operand)> {
        let next = self.next(node)?;
        let (Op::Add, [a, b]) = (self.op(next), &self.graph.nodes[next].inputs[..]) else {
            return None;
        };
        let other = match self.output(node) {
            output if *a == output => *b,
            output if *b == output => *a,
            _ => return None,
        };
        let Operand::Value(value) = other else {
            return None;
        };
        let shape = self.graph.shape(self.graph.nodes[node].output);
        (self.graph.shape(value) == shape && other != self.output(node)).then_some((next, other))
    }

    /// Tells whether an addition is better joined to its first operand: that one, too, is a norm with no other reader.
    fn belongs_to_first(&self, node: usize, addition: usize) -> bool {
        let first = self.graph.nodes[addition].inputs[0];
        let Operand::Value(value) = first else {
            return false;
        };
        let maker = self.maker[value.0 as usize];
        first != self.output(node)
            && self.reader[value.0 as usize].is_some()
            && maker.is_some_and(|maker| {
                matches!(self.op(maker), Op::BatchNorm { .. }) && self.is_image(maker)
            })
    }

    fn is_image(&self, node: usize) -> bool {
        self.graph.shape(self.graph.nodes[node].output).len() == 4
    }

    /// Joins what follows a norm or a product: the addition, then the activation. Returns the last node.
    fn tail(&self, chain: &mut Chain, mut last: usize) -> usize {
        if let Some((addition, other)) = self.addition_behind(last)
            && !self.belongs_to_first(last, addition)
        {
            chain.add = Some((addition, other));
            last = addition;
        }
        if let Some(activation) = self.activation_behind(last) {
            chain.activation = Some(activation);
            last = activation;
        }
        last
    }

    fn take(&mut self, chain: Chain, last: usize) {
        let parts = [
            chain.before,
            chain.before_activation,
            chain.product,
            chain.scale,
            chain.add.map(|(node, _)| node),
            chain.activation,
        ];
        for part in parts.into_iter().flatten() {
            self.fusions[part] = Fusion::Absorbed;
        }
        self.fusions[last] = Fusion::Chain(chain);
    }

    /// Joins a convolution and the batch norm that alone reads it, with what follows.
    fn convolution_with_norm(&mut self, node: usize) {
        let norm = self.next(node).filter(|&next| {
            matches!(self.op(next), Op::BatchNorm { .. }) && self.leads_into(node, next)
        });
        let Some(norm) = norm else {
            return;
        };
        let mut chain = Chain {
            product: Some(node),
            scale: Some(norm),
            ..Chain::default()
        };
        let last = self.tail(&mut chain, norm);
        self.take(chain, last);
    }

    /// Joins a batch norm of images with what follows, or with the convolution that alone reads it.
    fn norm(&mut self, node: usize) {
        if !self.is_image(node) {
            return;
        }
        let activation = self.activation_behind(node);
        let end = activation.unwrap_or(node);
        let convolution = self.next(end).filter(|&next| {
            let bare = self.graph.nodes[next].inputs.len() == 2;
            matches!(self.op(next), Op::Conv2d { .. }) && bare && self.leads_into(end, next)
        });
        if let Some(convolution) = convolution {
            let mut chain = Chain {
                before: Some(node),
                before_activation: activation,
                product: Some(convolution),
                ..Chain::default()
            };
            let mut last = convolution;
            if let Some((addition, other)) = self.addition_behind(convolution)
                && !self.belongs_to_first(convolution, addition)
            {
                chain.add = Some((addition, other));
                last = addition;
            }
            self.take(chain, last);
            return;
        }
        let mut chain = Chain {
            scale: Some(node),
            ..Chain::default()
        };
        let last = self.tail(&mut chain, node);
        self.take(chain, last);
    }

    /// Joins a GELU with the linear layer that alone reads it.
    fn before_linear(&mut self, node: usize) {
        let linear = self
            .next(node)
            .filter(|&next| matches!(self.op(next), Op::Linear) && self.leads_into(node, next));
        if let Some(linear) = linear {
            self.product(linear, Some(node));
        }
    }

    /// Joins a convolution or linear layer with the addition that alone reads it.
    fn product(&mut self, node: usize, before: Option<usize>) {
        let mut chain = Chain {
            before,
            product: Some(node),
            ..Chain::default()
        };
        let mut last = node;
        if let Some((addition, other)) = self.addition_behind(node)
            && !self.belongs_to_first(node, addition)
        {
            chain.add = Some((addition, other));
            last = addition;
        }
        if last != node || before.is_some() {
            self.take(chain, last);
        }
    }

    /// Joins an addition of equal shapes, or a group norm, with the activation that alone reads it.
    fn with_activation(&mut self, node: usize) {
        let inputs = &self.graph.nodes[node].inputs;
        let equal = inputs.iter().all(|input| match input {
            Operand::Value(value) => {
                self.graph.shape(*value) == self.graph.shape(self.graph.nodes[node].output)
            }
            Operand::Tensor(_) | Operand::Scalar(_) => false,
        });
        let (Some(activation), true) = (
            self.activation_behind(node),
            equal || matches!(self.op(node), Op::GroupNorm { .. }),
        ) else {
            return;
        };
        let chain = Chain {
            scale: Some(node),
            activation: Some(activation),
            ..Chain::default()
        };
        self.take(chain, activation);
    }

    /// Joins the slices and the padding of a shortcut without parameters (He et al., option A).
    fn shortcut(&mut self, node: usize) {
        let (Op::Pad { padding, value }, true) = (self.op(node), self.is_image(node)) else {
            return;
        };
        let [[0, 0], [before, after], [0, 0], [0, 0]] = padding[..] else {
            return;
        };
        let (Some((columns, right)), true) = (self.every(node, 3), *value == 0.0) else {
            return;
        };
        let Some((rows, down)) = self.every(columns, 2) else {
            return;
        };
        // The kernel puts half of the zeros on each side, one more behind if they are odd.
        if down == right && before == usize::midpoint(before, after) {
            let x = self.graph.nodes[rows].inputs[0];
            self.fusions[rows] = Fusion::Absorbed;
            self.fusions[columns] = Fusion::Absorbed;
            self.fusions[node] = Fusion::Shortcut { x, stride: down };
        }
    }

    /// Finds the slice that takes every so-many-th place of an axis, and that this node alone reads.
    fn every(&self, node: usize, along: usize) -> Option<(usize, usize)> {
        let Operand::Value(value) = self.graph.nodes[node].inputs[0] else {
            return None;
        };
        let maker = self.maker[value.0 as usize]?;
        let alone = self.reader[value.0 as usize] == Some(node);
        let Operand::Value(from) = self.graph.nodes[maker].inputs[0] else {
            return None;
        };
        match *self.op(maker) {
            Op::Slice {
                axis,
                start: 0,
                end,
                step,
            } if alone && axis == along && end == self.graph.shape(from)[axis].size => {
                Some((maker, step))
            }
            _ => None,
        }
    }

    /// Joins a multiplication by a vector with the addition that alone reads it.
    fn layer_scale(&mut self, node: usize) {
        if vector_of(self.graph, &self.graph.nodes[node]).is_none() {
            return;
        }
        let mut chain = Chain {
            scale: Some(node),
            ..Chain::default()
        };
        let mut last = node;
        if let Some((addition, other)) = self.addition_behind(node) {
            chain.add = Some((addition, other));
            last = addition;
        }
        self.take(chain, last);
    }
}

/// A multiplication of a value by a vector along one of its axes.
pub(super) struct ByVector {
    pub x: Operand,
    pub vector: Operand,
    /// The axis of the value that the vector lies along.
    pub axis: usize,
}

/// Finds out whether a multiplication is one by a vector: one operand has the shape of the result, the other is the same for all
/// images and longer than one along a single axis.
pub(super) fn vector_of(graph: &Graph, node: &Node) -> Option<ByVector> {
    let shape = graph.shape(node.output);
    let dims = |operand: Operand| -> Option<Vec<Dim>> {
        match operand {
            Operand::Value(value) => Some(graph.shape(value).to_vec()),
            Operand::Tensor(tensor) => {
                let sizes = graph.tensor(tensor).shape.iter();
                Some(sizes.copied().map(Dim::fixed).collect())
            }
            Operand::Scalar(_) => None,
        }
    };
    let (Op::Mul, &[a, b]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    let as_vector = |x: Operand, vector: Operand| {
        let (whole, sizes) = (dims(x)?, dims(vector)?);
        let mut long = (0..sizes.len()).filter(|&axis| sizes[axis] != Dim::fixed(1));
        let (axis, None) = (long.next()?, long.next()) else {
            return None;
        };
        let is_vector = whole == shape && !sizes[axis].batch && matches!(x, Operand::Value(_));
        let axis = axis + shape.len() - sizes.len();
        is_vector.then_some(ByVector { x, vector, axis })
    };
    as_vector(a, b).or_else(|| as_vector(b, a))
}
