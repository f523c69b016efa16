//! Planning nodes that are steps of their own.

use ttac_kernels::Activation;

use super::Planner;
use crate::graph::ir::{Dim, Node, Operand};
use crate::graph::op::{Op, Reduction};
use crate::graph::run::fuse::Purpose;
use crate::graph::run::layout::{
    Order, channels_last, physical, place, reshape, with_last, without, written,
};
use crate::graph::run::work::{Read, Work};

impl Planner<'_> {
    /// Plans a node by itself.
    pub(super) fn node(&mut self, node: &Node) {
        let output = node.output;
        let first = node.inputs[0];
        let image = channels_last(4);
        match &node.op {
            Op::Conv2d { .. } => {
                let x = self.operand_in(first, &image);
                let conv = self.conv(node);
                let residual = None;
                self.make(output, Work::Conv { x, conv, residual }, image);
            }
            Op::BatchNorm { .. } => {
                let order = channels_last(self.graph.shape(output).len());
                let x = self.operand_in(first, &order);
                let norm = self.norm(node, Activation::None);
                let residual = None;
                self.make(output, Work::Norm { x, norm, residual }, order);
            }
            Op::Standardise { epsilon } => {
                let order = channels_last(self.graph.shape(output).len());
                let x = self.operand_in(first, &order);
                let weight = node.inputs.get(1).map(|&one| self.operand(one));
                let epsilon = *epsilon;
                self.make(output, Work::Standardise { x, weight, epsilon }, order);
            }
            Op::LayerNorm { epsilon } => {
                let axes = self.graph.shape(output).len();
                let order = with_last(&self.order_of(first), axes - 1);
                let work = Work::LayerNorm {
                    x: self.operand_in(first, &order),
                    affine: [1, 2].map(|i| node.inputs.get(i).map(|&one| self.operand(one))),
                    epsilon: *epsilon,
                };
                self.make(output, work, order);
            }
            Op::GroupNorm { .. } => self.group_norm(node, Activation::None, output),
            Op::Linear => self.linear(node, first, Activation::None, None, output),
            Op::MatMul => self.product(node),
            Op::Attention { scale } => self.attention(node, *scale),
            Op::Add | Op::Sub | Op::Mul | Op::Div => self.arithmetic(node),
            Op::Reduce { how, axes, keep } => self.reduction(node, *how, axes, *keep),
            Op::MaxPool(pool) => {
                let x = self.operand_in(first, &image);
                self.make(output, Work::MaxPool { x, pool: *pool }, image);
            }
            Op::AveragePool {
                pool,
                count_padding,
                divisor,
            } => {
                let work = Work::AveragePool {
                    x: self.operand_in(first, &image),
                    pool: *pool,
                    count_padding: *count_padding,
                    divisor: *divisor,
                };
                self.make(output, work, image);
            }
            Op::Resize { size } => {
                let x = self.operand_in(first, &image);
                self.make(output, Work::Resize { x, size: *size }, image);
            }
            Op::Reshape { shape } => self.reshape(node, shape),
            Op::Permute { axes } => self.permute(node, axes),
            Op::Concat { axis } => {
                let order = self.order_of(first);
                let parts = node.inputs.iter();
                let parts = parts.map(|&part| self.operand_in(part, &order)).collect();
                let axis = place(&order, *axis);
                self.make(output, Work::Concat { parts, axis }, order);
            }
            Op::Expand { shape } => self.expand(node, shape),
            _ => self.in_place(node),
        }
    }

    /// Plans an operation that takes a value as it lies.
    fn in_place(&mut self, node: &Node) {
        let order = self.order_of(node.inputs[0]);
        let x = self.operand_in(node.inputs[0], &order);
        let work = match &node.op {
            Op::Softmax { axis } => Work::Softmax {
                x,
                axis: place(&order, *axis),
            },
            Op::Apply(function) => Work::Apply {
                x,
                function: *function,
            },
            Op::Slice {
                axis,
                start,
                end,
                step,
            } => Work::Slice {
                x,
                axis: place(&order, *axis),
                start: *start,
                end: *end,
                step: *step,
            },
            Op::Pad { padding, value } => Work::Pad {
                x,
                padding: order.iter().map(|&axis| padding[axis]).collect(),
                value: *value,
            },
            Op::Gather { axis, indices, .. } => Work::Gather {
                x,
                axis: place(&order, *axis),
                indices: *indices,
            },
            Op::Dropout { probability } => Work::Dropout {
                x,
                probability: *probability,
            },
            other => unreachable!("`{}` has a plan of its own", other.name()),
        };
        self.make(node.output, work, order);
    }

    fn product(&mut self, node: &Node) {
        let operands = [node.inputs[0], node.inputs[1]];
        // The product reads through permuted axes, so that transposed keys are not copied.
        let orders = operands.map(|operand| {
            let order = self.order_of(operand);
            let axes = written(order.len()).into_iter();
            axes.map(|axis| place(&order, axis)).collect::<Vec<_>>()
        });
        let [a, b] = operands.map(|operand| {
            let order = self.order_of(operand);
            self.operand_in(operand, &order)
        });
        let order = written(self.graph.shape(node.output).len());
        self.make(node.output, Work::MatMul { a, b, orders }, order);
    }

    fn attention(&mut self, node: &Node, scale: f64) {
        let operands = [node.inputs[0], node.inputs[1], node.inputs[2]];
        let orders = operands.map(|operand| {
            let order = self.order_of(operand);
            (0..4).map(|axis| place(&order, axis)).collect::<Vec<_>>()
        });
        let qkv = operands.map(|operand| {
            let order = self.order_of(operand);
            self.operand_in(operand, &order)
        });
        let mask = node.inputs.get(3).map(|&mask| self.operand(mask));
        let work = match self.packed(node, qkv) {
            Some(qkv) if mask.is_none() => Work::PackedAttention { qkv, scale },
            _ => Work::Attention {
                qkv,
                orders,
                mask,
                scale,
            },
        };
        // The result lies as rows of tokens, each with all heads.
        self.make(node.output, work, vec![0, 2, 1, 3]);
    }

    /// Finds the value `[b, t, 3, h, d]` that queries, keys and values are the three slices of.
    fn packed(&self, node: &Node, qkv: [Read; 3]) -> Option<Read> {
        if self.purpose == Purpose::Plain {
            return None;
        }
        let shape = self.shape(node.inputs[0])?;
        let [_, heads, tokens, width] = shape[..] else {
            return None;
        };
        let maker = |slot: usize| self.steps.iter().find(|step| step.output == slot);
        let slice = |read: Read, part: usize| {
            let Read::Slot { slot, .. } = read else {
                return None;
            };
            // The slice keeps its axis of one, which a reshape then drops.
            let Work::Reshape {
                x: Read::Slot { slot, .. },
                shape,
            } = &maker(slot)?.work
            else {
                return None;
            };
            let rows = [Dim::per_image(1), tokens, heads, width];
            match maker(*slot)?.work {
                Work::Slice {
                    x,
                    axis: 2,
                    start,
                    end,
                    ..
                } if start == part && end == part + 1 && *shape == rows => Some(x),
                _ => None,
            }
        };
        let parents = [slice(qkv[0], 0)?, slice(qkv[1], 1)?, slice(qkv[2], 2)?];
        let same = parents[0] == parents[1] && parents[1] == parents[2];
        // A value with a fourth part has other strides than the kernel takes.
        let Read::Slot { slot: parent, .. } = parents[0] else {
            return None;
        };
        let lies = self.located.iter().find_map(|(value, places)| {
            let found = places.iter().find(|place| place.slot == parent)?;
            Some(physical(self.graph.shape(*value), &found.order))
        });
        let expected = [Dim::per_image(1), tokens, Dim::fixed(3), heads, width];
        (same && lies.as_deref() == Some(&expected)).then_some(parents[0])
    }

    fn arithmetic(&mut self, node: &Node) {
        let operands = [node.inputs[0], node.inputs[1]];
        let shapes = operands.map(|operand| self.shape(operand));
        let output = self.graph.shape(node.output).to_vec();
        // The result lies as the operand that has its shape; without one, as the graph writes it.
        let whole = (0..2).find(|&i| shapes[i].as_deref() == Some(&output));
        let order = whole.map_or_else(|| written(output.len()), |i| self.order_of(operands[i]));
        if let Some(work) = self.scale_channels(node, &order) {
            self.make(node.output, work, order);
            return;
        }
        let mut reads = Vec::new();
        for (operand, shape) in operands.into_iter().zip(shapes) {
            let Some(shape) = shape else {
                reads.push(self.operand(operand));
                continue;
            };
            let missing = output.len() - shape.len();
            let own = order.iter().filter(|&&axis| axis >= missing);
            let own: Order = own.map(|&axis| axis - missing).collect();
            let read = self.operand_in(operand, &own);
            if missing == 0 {
                reads.push(read);
                continue;
            }
            // Axes that the operand lacks have one element.
            let full = order.iter().map(|&axis| {
                let own = axis.checked_sub(missing);
                own.map_or(Dim::fixed(1), |own| shape[own])
            });
            let work = Work::Reshape {
                x: read,
                shape: full.collect(),
            };
            let slot = self.step(work);
            reads.push(Read::Slot { slot, last: false });
        }
        let (a, b, activation) = (reads[0], reads[1], Activation::None);
        let work = match node.op {
            Op::Add => Work::Add { a, b, activation },
            Op::Sub => Work::Sub { a, b },
            Op::Mul => Work::Mul { a, b },
            _ => Work::Div { a, b },
        };
        self.make(node.output, work, order);
    }

    /// Plans a multiplication of images by a number for each channel.
    fn scale_channels(&mut self, node: &Node, order: &[usize]) -> Option<Work> {
        let image = channels_last(4);
        if !matches!(node.op, Op::Mul) || *order != image || self.purpose == Purpose::Plain {
            return None;
        }
        let output = self.graph.shape(node.output).to_vec();
        let numbers = [output[0], output[1], Dim::fixed(1), Dim::fixed(1)];
        let is = |operand: Operand, shape: &[Dim]| self.shape(operand).as_deref() == Some(shape);
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let both = [(a, b), (b, a)].into_iter();
        let mut both = both.filter(|&(x, scale)| is(x, &output) && is(scale, &numbers));
        let (x, scale) = both.next()?;
        Some(Work::ScaleChannels {
            x: self.operand_in(x, &image),
            scale: self.operand_in(scale, &image),
        })
    }

    fn reduction(&mut self, node: &Node, how: Reduction, axes: &[usize], keep: bool) {
        let order = self.order_of(node.inputs[0]);
        let x = self.operand_in(node.inputs[0], &order);
        let out = if keep {
            order.clone()
        } else {
            without(&order, axes)
        };
        let shape = physical(self.graph.shape(node.output), &out);
        let image = order == channels_last(4) && axes == [2, 3];
        let work = if how == Reduction::Mean && image {
            Work::GlobalAverage { x, shape }
        } else {
            let mut axes: Vec<usize> = axes.iter().map(|&axis| place(&order, axis)).collect();
            axes.sort_unstable();
            Work::Reduce {
                x,
                how,
                axes,
                shape,
            }
        };
        self.make(node.output, work, out);
    }

    fn reshape(&mut self, node: &Node, shape: &[Dim]) {
        let from = self.shape(node.inputs[0]).unwrap_or_default();
        let layout = reshape(&from, &self.order_of(node.inputs[0]), shape);
        let x = self.operand_in(node.inputs[0], &layout.before);
        let shape = physical(shape, &layout.after);
        self.make(node.output, Work::Reshape { x, shape }, layout.after);
    }

    fn permute(&mut self, node: &Node, axes: &[usize]) {
        let order = self.order_of(node.inputs[0]);
        // Memory stays as it is: the axis that was `axes[i]` is now called `i`.
        let renamed = order.iter().map(|&axis| place(axes, axis)).collect();
        let x = self.operand_in(node.inputs[0], &order);
        match x {
            Read::Slot { slot, .. } if self.purpose != Purpose::Plain => {
                self.put(node.output, slot, renamed);
            }
            x => {
                let places = axes.iter().map(|&axis| place(&order, axis)).collect();
                let out = written(axes.len());
                self.make(node.output, Work::Reorder { x, places }, out);
            }
        }
    }

    fn expand(&mut self, node: &Node, shape: &[Dim]) {
        let own = self.order_of(node.inputs[0]);
        let x = self.operand_in(node.inputs[0], &own);
        let missing = shape.len() - own.len();
        let order = (0..missing).chain(own.iter().map(|axis| axis + missing));
        let order: Order = order.collect();
        let shape = physical(shape, &order);
        self.make(node.output, Work::Expand { x, shape }, order);
    }
}
