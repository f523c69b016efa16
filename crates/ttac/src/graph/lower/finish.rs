//! The end: numbers without gaps, and the part that each tensor plays.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::TensorData;

use super::build::Builder;
use super::classifier::Classifier;
use super::draft::Draft;
use super::{Lowered, persistent, whole};
use crate::error::Result;
use crate::graph::ir::{
    Dim, Graph, Node, Operand, TensorId, TensorInfo, TensorKind, VERSION, ValueId,
};
use crate::graph::op::Op;
use crate::graph::program::{Role, Stored, Values};

/// Makes the graph, and checks it like one from a stranger.
pub(super) fn finish(builder: Builder<'_>, draft: Draft, found: &Classifier) -> Result<Lowered> {
    let all = builder.tensor_values();
    let kinds = kinds(&draft, &all);
    let mut tensors = BTreeMap::new();
    let mut infos = Vec::new();
    let mut numbers = BTreeMap::new();
    let mut constants = 0;
    for (old, ((mut info, kind), (stored, values))) in builder
        .tensors
        .iter()
        .cloned()
        .zip(kinds)
        .zip(all)
        .enumerate()
    {
        let Some(kind) = kind else { continue };
        info.kind = kind;
        if !stored.is_some_and(|stored| persistent(stored.role)) {
            info.name = format!("graph.constant.{constants}");
            info.also.clear();
            constants += 1;
        }
        if !matches!(kind, TensorKind::Counter(_)) {
            let data = TensorData::new(values, info.shape.clone());
            tensors.insert(info.name.clone(), data);
        }
        numbers.insert(TensorId(old as u32), TensorId(infos.len() as u32));
        infos.push(info);
    }
    let graph = renumbered(&builder, draft, found, &numbers, infos);
    let graph = graph.ok_or_else(|| whole("its nodes read values before they are made".into()))?;
    let problems = graph.problems();
    if !problems.is_empty() {
        return Err(whole(problems.join("; ").into()));
    }
    let mut notes = builder.notes;
    let normalises_inside = normalises_inside(&graph);
    if normalises_inside {
        notes.push(
            "The network normalises its images itself: give it images from 0 to 1, with mean 0 and deviation 1.".to_owned(),
        );
    }
    Ok(Lowered {
        graph,
        tensors,
        normalises_inside,
        notes,
    })
}

/// Gives values and lists of indices new numbers in the order in which they are made and read. `None` if one is read before it
/// is made.
fn renumbered(
    builder: &Builder<'_>,
    draft: Draft,
    found: &Classifier,
    numbers: &BTreeMap<TensorId, TensorId>,
    tensors: Vec<TensorInfo>,
) -> Option<Graph> {
    let mut values: Vec<Vec<Dim>> = vec![draft.values[0].dims.clone()];
    let mut value_numbers = BTreeMap::from([(ValueId(0), ValueId(0))]);
    let mut lists: Vec<usize> = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    for mut node in draft.nodes {
        for input in &mut node.inputs {
            *input = match *input {
                Operand::Value(value) => Operand::Value(*value_numbers.get(&value)?),
                Operand::Tensor(tensor) => Operand::Tensor(numbers[&tensor]),
                scalar @ Operand::Scalar(_) => scalar,
            };
        }
        if let Op::Gather { indices, .. } = &mut node.op {
            let known = lists.iter().position(|list| list == indices);
            let old = *indices;
            *indices = known.unwrap_or(lists.len());
            if known.is_none() {
                lists.push(old);
            }
        }
        let output = ValueId(values.len() as u32);
        value_numbers.insert(node.output, output);
        values.push(draft.values[node.output.0 as usize].dims.clone());
        node.output = output;
        nodes.push(node);
    }
    let mut head = found.head.clone();
    for layer in &mut head {
        layer.weight = numbers[&layer.weight];
        layer.bias = layer.bias.map(|bias| numbers[&bias]);
    }
    let indices = lists.into_iter();
    Some(Graph {
        version: VERSION,
        input: ValueId(0),
        features: *value_numbers.get(&found.features)?,
        output: *value_numbers.get(&draft.output)?,
        head,
        values,
        tensors,
        indices: indices.map(|list| builder.indices[list].clone()).collect(),
        nodes,
    })
}

/// Returns the part that each tensor plays; `None` for constants that nobody reads.
fn kinds(draft: &Draft, all: &[(Option<&Stored>, Vec<f32>)]) -> Vec<Option<TensorKind>> {
    let mut read = BTreeSet::new();
    let mut affine = BTreeSet::new();
    let mut running = BTreeSet::new();
    for node in &draft.nodes {
        read.extend(node.tensors());
        let tensors = |range: std::ops::Range<usize>| {
            let operands = node.inputs.get(range).unwrap_or_default();
            operands.iter().filter_map(|operand| match operand {
                Operand::Tensor(tensor) => Some(*tensor),
                _ => None,
            })
        };
        let count = node.inputs.len();
        match node.op {
            Op::BatchNorm { .. } => {
                affine.extend(tensors(1..3));
                running.extend(tensors(3..5));
            }
            Op::LayerNorm { .. } | Op::GroupNorm { .. } => affine.extend(tensors(1..count)),
            _ => {}
        }
    }
    let kind = |(index, (stored, _)): (usize, &(Option<&Stored>, Vec<f32>))| {
        let id = TensorId(index as u32);
        if running.contains(&id) {
            return Some(TensorKind::Running);
        }
        let role = stored.map_or(Role::Constant, |stored| stored.role);
        match (read.contains(&id), role) {
            (true, Role::Parameter) if affine.contains(&id) => Some(TensorKind::Affine),
            (true, Role::Parameter) => Some(TensorKind::Weight),
            (true, Role::Buffer | Role::Constant) => Some(TensorKind::Constant),
            (false, Role::Constant) => None,
            (false, _) => Some(stored.map_or(TensorKind::Unused, unread)),
        }
    };
    all.iter().enumerate().map(kind).collect()
}

/// Tells the part of a tensor that nobody reads: a single integer counts something.
fn unread(stored: &Stored) -> TensorKind {
    match &stored.values {
        Values::I64(values) if stored.shape.is_empty() && values.len() == 1 => {
            TensorKind::Counter(values[0])
        }
        _ => TensorKind::Unused,
    }
}

/// Tells whether the images go through arithmetic with constants, one for each channel or one for all, before anything else.
fn normalises_inside(graph: &Graph) -> bool {
    let reads = |node: &&Node| node.values().any(|value| value == graph.input);
    let mut readers = graph.nodes.iter().filter(reads);
    let (Some(first), None) = (readers.next(), readers.next()) else {
        return false;
    };
    let constant = |operand: &Operand| match operand {
        Operand::Tensor(tensor) => {
            let info = graph.tensor(*tensor);
            let channels = matches!(info.shape[..], [1, 3 | 1, 1, 1] | [3 | 1, 1, 1]);
            info.kind == TensorKind::Constant && channels
        }
        Operand::Scalar(_) => true,
        Operand::Value(_) => false,
    };
    matches!(first.op, Op::Sub | Op::Div | Op::Add | Op::Mul) && first.inputs.iter().any(constant)
}
