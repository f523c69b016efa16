//! A graph while passes work on it: nodes may be dead, values may have gaps.

use std::collections::{BTreeMap, BTreeSet};

use super::batch::Shaped;
use crate::graph::ir::{Dim, Node, Operand, ValueId};
use crate::graph::op::Op;
use crate::graph::shape::{Form, infer};

/// The nodes of a graph and its ends.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub nodes: Vec<Node>,
    pub values: Vec<Shaped>,
    /// The shapes of tensors, by their numbers.
    pub tensors: Vec<Vec<usize>>,
    /// The value that the user wants as features.
    pub features: Option<ValueId>,
    pub output: ValueId,
}

impl Draft {
    /// Returns the sizes of an operand; a number has none.
    pub(super) fn dims(&self, operand: Operand) -> Vec<Dim> {
        match operand {
            Operand::Value(value) => self.values[value.0 as usize].dims.clone(),
            Operand::Tensor(tensor) => {
                let shape = &self.tensors[tensor.0 as usize];
                shape.iter().copied().map(Dim::fixed).collect()
            }
            Operand::Scalar(_) => Vec::new(),
        }
    }

    /// Returns which node makes each value.
    pub(super) fn makers(&self) -> BTreeMap<ValueId, usize> {
        let numbered = self.nodes.iter().enumerate();
        numbered
            .map(|(number, node)| (node.output, number))
            .collect()
    }

    /// Counts how often each value is read, the ends included.
    pub(super) fn readers(&self) -> Vec<usize> {
        let mut readers = vec![0; self.values.len()];
        for value in self.nodes.iter().flat_map(Node::values) {
            readers[value.0 as usize] += 1;
        }
        for end in self.features.iter().chain([&self.output]) {
            readers[end.0 as usize] += 1;
        }
        readers
    }

    /// Makes a value with the shape that an operation gives it, and the node, which the caller puts in its place.
    pub(super) fn make(&mut self, op: Op, inputs: Vec<Operand>, at: &str) -> Result<Node, String> {
        let dims: Vec<Vec<Dim>> = inputs.iter().map(|&input| self.dims(input)).collect();
        let forms: Vec<Form<'_>> = inputs
            .iter()
            .zip(&dims)
            .map(|(input, dims)| match input {
                Operand::Scalar(_) => Form::Scalar,
                _ => Form::Shaped(dims),
            })
            .collect();
        let result = infer(&op, &forms)?;
        let output = ValueId(self.values.len() as u32);
        // Later passes look at sizes alone: how images lie was checked when the graph was built.
        self.values.push(Shaped {
            dims: result,
            outer: 1,
        });
        Ok(Node {
            op,
            inputs,
            output,
            at: at.to_owned(),
        })
    }

    /// Replaces operands by a table, following it from one entry to the next, and lets the ends follow.
    pub(super) fn replace(&mut self, table: &BTreeMap<ValueId, Operand>) {
        if table.is_empty() {
            return;
        }
        let resolve = |operand: Operand| {
            let mut operand = operand;
            while let Operand::Value(value) = operand
                && let Some(&next) = table.get(&value)
            {
                operand = next;
            }
            operand
        };
        for node in &mut self.nodes {
            for input in &mut node.inputs {
                *input = resolve(*input);
            }
        }
        for end in self.features.iter_mut().chain([&mut self.output]) {
            if let Operand::Value(value) = resolve(Operand::Value(*end)) {
                *end = value;
            }
        }
    }

    /// Removes the nodes whose results nobody needs.
    pub(super) fn remove_dead(&mut self) {
        let mut live: BTreeSet<ValueId> = self.features.iter().copied().collect();
        live.insert(self.output);
        for node in self.nodes.iter().rev() {
            if live.contains(&node.output) {
                live.extend(node.values());
            }
        }
        self.nodes.retain(|node| live.contains(&node.output));
    }
}
