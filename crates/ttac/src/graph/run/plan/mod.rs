//! From a graph to steps: where every value lies in memory, and what is computed on it.
//!
//! This file keeps the values, `chains` plans nodes that run as one step, and `nodes` the others.

mod chains;
mod nodes;

use std::collections::HashMap;

use super::fuse::{Fusion, Purpose, fuse};
use super::layout::{Order, channels_last, physical, place, same_sequence, written};
use super::work::{Read, Step, Work};
use crate::graph::ir::{Dim, Graph, Operand, ValueId};

/// A way to compute one value of a graph from another: steps that fill numbered slots.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) steps: Vec<Step>,
    /// The slot that the start is put into. It lies as [`Start`] says.
    pub(super) start: usize,
    /// The slot of the result, which lies as the graph writes it.
    pub(super) result: usize,
    pub(super) slots: usize,
}

/// Where a plan starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// It starts from images, whose channels come last.
    Images,
    /// It starts from features.
    Features,
}

/// Where a value lies.
#[derive(Clone, Debug)]
struct Located {
    slot: usize,
    order: Order,
}

/// Plans the computation of `end` from the start by the given nodes of the graph.
pub(super) fn plan(graph: &Graph, start: Start, purpose: Purpose) -> Plan {
    let (from, end) = match start {
        Start::Images => (graph.input, graph.features),
        Start::Features => (graph.features, graph.output),
    };
    let mut planner = Planner {
        graph,
        purpose,
        start,
        located: HashMap::new(),
        steps: Vec::new(),
        slots: 1,
    };
    let axes = graph.shape(from).len();
    let order = match start {
        Start::Images => channels_last(axes),
        Start::Features => written(axes),
    };
    planner.put(from, 0, order);
    let needed = needed(graph, from, end);
    let fusions = fuse(graph, purpose, &[graph.features, graph.output]);
    for (number, fusion) in fusions.iter().enumerate() {
        match fusion {
            _ if !needed[number] => {}
            Fusion::Absorbed => {}
            Fusion::Alone => planner.node(&graph.nodes[number]),
            Fusion::Chain(chain) => planner.chain(chain, graph.nodes[number].output),
            Fusion::Shortcut { x, stride } => {
                let output = graph.nodes[number].output;
                let work = Work::Shortcut {
                    x: planner.operand_in(*x, &channels_last(4)),
                    channels: graph.shape(output)[1].size,
                    stride: *stride,
                };
                planner.make(output, work, channels_last(4));
            }
        }
    }
    let result = planner.value(end, &written(graph.shape(end).len()));
    planner.finish(result)
}

/// Finds the nodes that lead from one value to another.
fn needed(graph: &Graph, from: ValueId, end: ValueId) -> Vec<bool> {
    let mut wanted = vec![false; graph.values.len()];
    wanted[end.0 as usize] = from != end;
    let mut needed = vec![false; graph.nodes.len()];
    for (number, node) in graph.nodes.iter().enumerate().rev() {
        if node.output != from && wanted[node.output.0 as usize] {
            needed[number] = true;
            for value in node.values() {
                wanted[value.0 as usize] = true;
            }
        }
    }
    needed
}

struct Planner<'a> {
    graph: &'a Graph,
    purpose: Purpose,
    start: Start,
    /// Where each value lies; the first place is where it was made.
    located: HashMap<ValueId, Vec<Located>>,
    steps: Vec<Step>,
    slots: usize,
}

impl Planner<'_> {
    fn put(&mut self, value: ValueId, slot: usize, order: Order) {
        let located = self.located.entry(value).or_default();
        located.push(Located { slot, order });
    }

    /// Adds a step and returns its slot.
    fn step(&mut self, work: Work) -> usize {
        let output = self.slots;
        self.slots += 1;
        self.steps.push(Step { work, output });
        output
    }

    /// Adds the step that makes a value, which then lies in `order`.
    fn make(&mut self, value: ValueId, work: Work, order: Order) {
        let slot = self.step(work);
        if self.purpose != Purpose::Plain || order == written(order.len()) {
            self.put(value, slot, order);
            return;
        }
        // The plain plan keeps every value as the graph writes it.
        let places = written(order.len());
        let places: Vec<usize> = places.iter().map(|&axis| place(&order, axis)).collect();
        let x = Read::Slot { slot, last: false };
        let slot = self.step(Work::Reorder { x, places });
        self.put(value, slot, written(order.len()));
    }

    /// Returns the order in which a value lies.
    fn order(&self, value: ValueId) -> Order {
        self.located[&value][0].order.clone()
    }

    /// Reads a value in an order, into which it is brought if it does not lie so anywhere.
    fn value(&mut self, value: ValueId, order: &[usize]) -> Read {
        let shape = self.graph.shape(value);
        let located = &self.located[&value];
        if let Some(found) = located.iter().find(|found| found.order == order) {
            return Read::Slot {
                slot: found.slot,
                last: false,
            };
        }
        let same = located
            .iter()
            .find(|found| same_sequence(shape, &found.order, order));
        let work = if let Some(found) = same {
            Work::Reshape {
                x: Read::Slot {
                    slot: found.slot,
                    last: false,
                },
                shape: physical(shape, order),
            }
        } else {
            let from = &located[0];
            Work::Reorder {
                x: Read::Slot {
                    slot: from.slot,
                    last: false,
                },
                places: order.iter().map(|&axis| place(&from.order, axis)).collect(),
            }
        };
        let slot = self.step(work);
        self.put(value, slot, order.to_vec());
        Read::Slot { slot, last: false }
    }

    /// Reads an operand as the graph writes it.
    fn operand(&mut self, operand: Operand) -> Read {
        match operand {
            Operand::Value(value) => {
                let order = written(self.graph.shape(value).len());
                self.value(value, &order)
            }
            Operand::Tensor(tensor) => Read::Tensor(tensor),
            Operand::Scalar(number) => Read::Scalar(number),
        }
    }

    /// Reads an operand in an order. Tensors of the network lie as they are written.
    fn operand_in(&mut self, operand: Operand, order: &[usize]) -> Read {
        match operand {
            Operand::Value(value) => self.value(value, order),
            Operand::Scalar(number) => Read::Scalar(number),
            Operand::Tensor(tensor) if order.is_sorted() => Read::Tensor(tensor),
            Operand::Tensor(tensor) => {
                let x = Read::Tensor(tensor);
                let shape = self.shape(operand).unwrap_or_default();
                let work = if same_sequence(&shape, order, &written(order.len())) {
                    let shape = physical(&shape, order);
                    Work::Reshape { x, shape }
                } else {
                    let places = order.to_vec();
                    Work::Reorder { x, places }
                };
                let slot = self.step(work);
                Read::Slot { slot, last: false }
            }
        }
    }

    /// Returns the shape of an operand; none for a number.
    fn shape(&self, operand: Operand) -> Option<Vec<Dim>> {
        match operand {
            Operand::Value(value) => Some(self.graph.shape(value).to_vec()),
            Operand::Tensor(tensor) => {
                let shape = self.graph.tensor(tensor).shape.iter();
                Some(shape.copied().map(Dim::fixed).collect())
            }
            Operand::Scalar(_) => None,
        }
    }

    /// Returns the order in which an operand lies, for one that is no number.
    fn order_of(&self, operand: Operand) -> Order {
        match operand {
            Operand::Value(value) => self.order(value),
            other => written(self.shape(other).map_or(0, |shape| shape.len())),
        }
    }

    /// Computes for every slot who reads it last, and leaves out steps that nobody reads.
    fn finish(mut self, result: Read) -> Plan {
        let Read::Slot { slot: result, .. } = result else {
            unreachable!("the result is a value");
        };
        let mut read = vec![false; self.slots];
        read[result] = true;
        let mut steps = Vec::new();
        for mut step in std::mem::take(&mut self.steps).into_iter().rev() {
            if !read[step.output] {
                continue;
            }
            // The last of two equal reads in one step comes last in the list.
            for one in step.work.reads().into_iter().rev() {
                if let Read::Slot { slot, last } = one {
                    *last = !read[*slot];
                    read[*slot] = true;
                }
            }
            steps.push(step);
        }
        steps.reverse();
        Plan {
            steps,
            start: 0,
            result,
            slots: self.slots,
        }
    }
}
