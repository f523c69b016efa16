//! Cleaning: nodes that nobody reads or that change nothing go, chains become one node, padding moves into convolutions.

use std::collections::BTreeMap;

use super::draft::Draft;
use crate::graph::ir::{Dim, Node, Operand, ValueId};
use crate::graph::op::Op;

/// Simplifies until nothing changes.
pub(super) fn clean(draft: &mut Draft) {
    loop {
        draft.remove_dead();
        let mut changed = rewrite(draft);
        changed |= drop_identities(draft);
        if !changed {
            draft.remove_dead();
            return;
        }
    }
}

/// Removes nodes that return what they read.
fn drop_identities(draft: &mut Draft) -> bool {
    let mut table = BTreeMap::new();
    for node in &draft.nodes {
        let input = node.inputs[0];
        let same = match &node.op {
            Op::Reshape { .. } | Op::Expand { .. } => {
                draft.dims(input) == draft.dims(Operand::Value(node.output))
            }
            Op::Slice { .. } => draft.dims(input) == draft.dims(Operand::Value(node.output)),
            Op::Permute { axes } => axes.is_sorted(),
            Op::Pad { padding, .. } => padding.iter().all(|sides| *sides == [0, 0]),
            Op::Dropout { probability } => *probability == 0.0,
            Op::Concat { .. } => node.inputs.len() == 1,
            Op::Add | Op::Sub => node.inputs[1] == Operand::Scalar(0.0),
            Op::Mul | Op::Div => node.inputs[1] == Operand::Scalar(1.0),
            _ => false,
        };
        // A tensor cannot be an end of the graph.
        let is_end = node.output == draft.output || Some(node.output) == draft.features;
        let replaceable = matches!(input, Operand::Value(_)) || !is_end;
        if same && replaceable && !matches!(input, Operand::Scalar(_)) {
            table.insert(node.output, input);
        }
    }
    draft.replace(&table);
    draft.nodes.retain(|node| !table.contains_key(&node.output));
    !table.is_empty()
}

/// Joins each node with the one before it where that gives one node.
fn rewrite(draft: &mut Draft) -> bool {
    let makers = draft.makers();
    let mut changed = false;
    for number in 0..draft.nodes.len() {
        let node = &draft.nodes[number];
        let before = match node.inputs[0] {
            Operand::Value(value) => makers.get(&value).map(|&maker| &draft.nodes[maker]),
            _ => None,
        };
        let joined = alone(draft, node).or_else(|| joined(node, before?));
        if let Some((op, input)) = joined {
            let node = &mut draft.nodes[number];
            node.op = op;
            node.inputs[0] = input;
            changed = true;
        }
    }
    changed
}

/// Rewrites a permutation that moves axes of size 1 alone as a reshape.
fn alone(draft: &Draft, node: &Node) -> Option<(Op, Operand)> {
    let Op::Permute { axes } = &node.op else {
        return None;
    };
    let dims = draft.dims(node.inputs[0]);
    let moved = axes.iter().filter(|&&axis| dims[axis] != Dim::fixed(1));
    let still = moved.is_sorted() && !axes.is_sorted();
    let shape = axes.iter().map(|&axis| dims[axis]).collect();
    still.then(|| (Op::Reshape { shape }, node.inputs[0]))
}

fn joined(node: &Node, before: &Node) -> Option<(Op, Operand)> {
    let input = before.inputs[0];
    match (&node.op, &before.op) {
        (Op::Reshape { shape }, Op::Reshape { .. }) => Some((
            Op::Reshape {
                shape: shape.clone(),
            },
            input,
        )),
        (Op::Permute { axes }, Op::Permute { axes: first }) => {
            let axes = axes.iter().map(|&axis| first[axis]).collect();
            Some((Op::Permute { axes }, input))
        }
        (Op::Conv2d { .. }, Op::Pad { padding, value }) if *value == 0.0 => {
            padded(&node.op, padding).map(|op| (op, input))
        }
        _ => None,
    }
}

/// Adds zeros around images to those that a convolution adds itself. A pool is another matter: its padding never wins.
fn padded(op: &Op, added: &[[usize; 2]]) -> Option<Op> {
    let Op::Conv2d {
        stride,
        padding,
        dilation,
        groups,
    } = op
    else {
        return None;
    };
    let [[0, 0], [0, 0], rows, columns] = *added else {
        return None;
    };
    let sum = |a: [usize; 2], b: [usize; 2]| [a[0] + b[0], a[1] + b[1]];
    Some(Op::Conv2d {
        stride: *stride,
        padding: [sum(padding[0], rows), sum(padding[1], columns)],
        dilation: *dilation,
        groups: *groups,
    })
}

/// Returns the value an operand is, for passes that follow values.
pub(super) fn value_of(operand: Operand) -> Option<ValueId> {
    match operand {
        Operand::Value(value) => Some(value),
        Operand::Tensor(_) | Operand::Scalar(_) => None,
    }
}
