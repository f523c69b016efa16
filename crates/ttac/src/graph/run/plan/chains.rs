//! Planning nodes that run as one step.

use ttac_kernels::Activation;

use super::{Planner, Start};
use crate::graph::ir::{Node, Operand, TensorId, ValueId};
use crate::graph::op::Op;
use crate::graph::run::fuse::{Chain, activation_of, vector_of};
use crate::graph::run::layout::{channels_last, with_last};
use crate::graph::run::work::{Conv, Norm, Read, Work};

impl Planner<'_> {
    pub(super) fn chain(&mut self, chain: &Chain, output: ValueId) {
        let node = |number: usize| &self.graph.nodes[number];
        let activation = self.activation(chain.activation);
        let residual = chain.add.map(|(_, other)| other);
        match (
            chain.before.map(node),
            chain.product.map(node),
            chain.scale.map(node),
        ) {
            (before, Some(product), None) if matches!(product.op, Op::Linear) => {
                let before = before.map(|before| match before.op {
                    Op::Apply(function) => (activation_of(function), before.inputs[0]),
                    _ => unreachable!("only functions come before a linear layer"),
                });
                let (before, x) = match before {
                    Some((before, x)) => (before.unwrap_or(Activation::None), x),
                    None => (Activation::None, product.inputs[0]),
                };
                self.linear(product, x, before, residual, output);
            }
            (Some(norm), Some(product), None) => {
                let before = self.activation(chain.before_activation);
                let (norm, x) = (self.norm(norm, before), norm.inputs[0]);
                let (conv, x) = (self.conv(product), self.operand_in(x, &channels_last(4)));
                let residual = self.residual(residual, 4);
                let work = Work::NormConv {
                    x,
                    norm,
                    conv,
                    residual,
                };
                self.make(output, work, channels_last(4));
            }
            (None, Some(product), scale) => {
                let x = self.operand_in(product.inputs[0], &channels_last(4));
                let conv = self.conv(product);
                let norm = scale.map(|norm| self.norm(norm, activation));
                let residual = self.residual(residual, 4);
                let work = match norm {
                    Some(norm) => Work::ConvNorm {
                        x,
                        conv,
                        norm,
                        residual,
                    },
                    None => Work::Conv { x, conv, residual },
                };
                self.make(output, work, channels_last(4));
            }
            (None, None, Some(scale)) => self.scaled(scale, residual, activation, output),
            _ => unreachable!("a chain has a product or a scale"),
        }
    }

    /// Plans a norm, a layer scale or an addition with what follows it.
    fn scaled(
        &mut self,
        scale: &Node,
        residual: Option<Operand>,
        activation: Activation,
        output: ValueId,
    ) {
        match scale.op {
            Op::BatchNorm { .. } => {
                let x = self.operand_in(scale.inputs[0], &channels_last(4));
                let norm = self.norm(scale, activation);
                let residual = self.residual(residual, 4);
                self.make(output, Work::Norm { x, norm, residual }, channels_last(4));
            }
            Op::Mul => {
                let found = vector_of(self.graph, scale).expect("only such products are joined");
                let order = with_last(&self.order_of(found.x), found.axis);
                let x = self.operand_in(found.x, &order);
                let length = self.graph.shape(output)[found.axis];
                let vector = self.operand(found.vector);
                let slot = self.step(Work::Reshape {
                    x: vector,
                    shape: vec![length],
                });
                let scale = Read::Slot { slot, last: false };
                let residual = residual.map(|other| self.operand_in(other, &order));
                let work = Work::ScaleLast { x, scale, residual };
                self.make(output, work, order);
            }
            Op::GroupNorm { .. } => self.group_norm(scale, activation, output),
            Op::Add => {
                let order = self.order_of(scale.inputs[0]);
                let [a, b] = [0, 1].map(|i| self.operand_in(scale.inputs[i], &order));
                self.make(output, Work::Add { a, b, activation }, order);
            }
            _ => unreachable!("nothing else is joined with what follows"),
        }
    }

    fn residual(&mut self, residual: Option<Operand>, axes: usize) -> Option<Read> {
        residual.map(|other| self.operand_in(other, &channels_last(axes)))
    }

    fn activation(&self, node: Option<usize>) -> Activation {
        let function = node.map(|number| match self.graph.nodes[number].op {
            Op::Apply(function) => activation_of(function),
            _ => None,
        });
        function.flatten().unwrap_or(Activation::None)
    }

    pub(super) fn conv(&mut self, node: &Node) -> Conv {
        let Op::Conv2d {
            stride,
            padding,
            dilation,
            groups,
        } = node.op
        else {
            unreachable!("called for convolutions alone");
        };
        Conv {
            weight: self.operand(node.inputs[1]),
            bias: node.inputs.get(2).map(|&bias| self.operand(bias)),
            stride,
            padding,
            dilation,
            groups,
        }
    }

    pub(super) fn norm(&mut self, node: &Node, activation: Activation) -> Norm {
        let Op::BatchNorm { epsilon, momentum } = node.op else {
            unreachable!("called for batch norms alone");
        };
        let running = |operand: Operand| -> TensorId {
            match operand {
                Operand::Tensor(tensor) => tensor,
                _ => unreachable!("a checked graph has running tensors here"),
            }
        };
        Norm {
            weight: self.operand(node.inputs[1]),
            bias: self.operand(node.inputs[2]),
            mean: running(node.inputs[3]),
            variance: running(node.inputs[4]),
            epsilon,
            momentum,
            activation,
        }
    }

    pub(super) fn linear(
        &mut self,
        node: &Node,
        x: Operand,
        before: Activation,
        residual: Option<Operand>,
        output: ValueId,
    ) {
        let axes = self.graph.shape(output).len();
        let order = with_last(&self.order_of(x), axes - 1);
        let work = Work::Linear {
            x: self.operand_in(x, &order),
            weight: self.operand(node.inputs[1]),
            bias: node.inputs.get(2).map(|&bias| self.operand(bias)),
            residual: residual.map(|other| self.operand_in(other, &order)),
            before,
            classifier: self.start == Start::Features,
        };
        self.make(output, work, order);
    }

    pub(super) fn group_norm(&mut self, node: &Node, activation: Activation, output: ValueId) {
        let Op::GroupNorm { groups, epsilon } = node.op else {
            unreachable!("called for group norms alone");
        };
        let order = channels_last(self.graph.shape(output).len());
        let work = Work::GroupNorm {
            x: self.operand_in(node.inputs[0], &order),
            affine: [1, 2].map(|i| node.inputs.get(i).map(|&one| self.operand(one))),
            groups,
            epsilon,
            activation,
        };
        self.make(output, work, order);
    }
}
