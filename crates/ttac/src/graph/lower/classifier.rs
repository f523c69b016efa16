//! The classifier: where features end and a linear head begins.

use std::collections::{BTreeMap, BTreeSet};

use super::clean::value_of;
use super::draft::Draft;
use crate::graph::ir::{Dim, HeadLayer, Node, Operand, TensorId, ValueId};
use crate::graph::op::{Function, Op};

/// What the pass found.
#[derive(Debug)]
pub(super) struct Classifier {
    pub features: ValueId,
    pub head: Vec<HeadLayer>,
}

/// One linear layer whose result becomes scores.
struct Layer {
    node: usize,
    head: HeadLayer,
    convolution: bool,
}

/// Removes a softmax behind the classifier: methods want scores. Returns whether there was one.
pub(super) fn drop_shares(draft: &mut Draft) -> bool {
    let start = draft.output;
    let makers = draft.makers();
    let Some(&last) = makers.get(&draft.output) else {
        return false;
    };
    let mut node = &draft.nodes[last];
    if let (Op::Apply(Function::Log), Some(value)) = (&node.op, value_of(node.inputs[0]))
        && let Some(&before) = makers.get(&value)
        && matches!(draft.nodes[before].op, Op::Softmax { .. })
    {
        node = &draft.nodes[before];
    }
    if let (Op::Softmax { .. }, Some(value)) = (&node.op, value_of(node.inputs[0])) {
        draft.output = value;
        if draft.features == Some(start) {
            draft.features = Some(value);
        }
        draft.remove_dead();
        return true;
    }
    false
}

/// Finds features and head, or takes the features that the user named. Adds notes on what it could not find.
pub(super) fn classify(draft: &mut Draft, notes: &mut Vec<String>) -> Result<Classifier, String> {
    if let Some(features) = draft.features {
        return named(draft, features, notes);
    }
    let layers = find(draft, draft.output);
    match &layers[..] {
        [] => {
            notes.push(
                "The network ends in no linear layer: its scores are its features, and methods that need a classifier \
                 refuse it."
                    .to_owned(),
            );
            let features = draft.output;
            Ok(Classifier {
                features,
                head: Vec::new(),
            })
        }
        [layer] => single(draft, layer),
        _ => several(draft, &layers),
    }
}

/// Goes back from the output to its linear layers: one, or those whose results are averaged.
fn find(draft: &Draft, output: ValueId) -> Vec<Layer> {
    let makers = draft.makers();
    let maker = |operand: Operand| {
        let number = *makers.get(&value_of(operand)?)?;
        Some((number, &draft.nodes[number]))
    };
    let direct = |operand| layer(draft, &makers, operand);
    if let Some(layer) = direct(Operand::Value(output)) {
        return vec![layer];
    }
    // (a + b) / 2 or (a + b) * 0.5
    let Some((_, node)) = maker(Operand::Value(output)) else {
        return Vec::new();
    };
    let halved = match (&node.op, node.inputs.as_slice()) {
        (Op::Div, [sum, Operand::Scalar(2.0)]) | (Op::Mul, [sum, Operand::Scalar(0.5)]) => {
            maker(*sum)
        }
        _ => None,
    };
    let Some((_, sum)) = halved.filter(|(_, node)| node.op == Op::Add) else {
        return Vec::new();
    };
    match (direct(sum.inputs[0]), direct(sum.inputs[1])) {
        (Some(a), Some(b)) => vec![a, b],
        _ => Vec::new(),
    }
}

/// Reads a value as the result of a linear layer: directly, or of a convolution of images of one pixel that are flattened.
fn layer(draft: &Draft, makers: &BTreeMap<ValueId, usize>, operand: Operand) -> Option<Layer> {
    let mut number = *makers.get(&value_of(operand)?)?;
    let mut node = &draft.nodes[number];
    if let Op::Reshape { .. } = node.op {
        number = *makers.get(&value_of(node.inputs[0])?)?;
        node = &draft.nodes[number];
    }
    let tensor = |index: usize| match node.inputs.get(index) {
        Some(Operand::Tensor(tensor)) => Some(*tensor),
        _ => None,
    };
    let weight: TensorId = tensor(1)?;
    let dims = draft.dims(node.inputs[0]);
    let row = |dims: &[Dim]| dims.first() == Some(&Dim::per_image(1));
    let convolution = match &node.op {
        Op::Linear => (row(&dims) && dims.len() == 2).then_some(false)?,
        Op::Conv2d { groups: 1, .. } => {
            let kernel = &draft.tensors[weight.0 as usize][2..];
            let out = draft.dims(Operand::Value(node.output));
            let pixel = |dims: &[Dim]| dims[2..].iter().all(|dim| *dim == Dim::fixed(1));
            (kernel == [1, 1] && pixel(&dims) && pixel(&out) && row(&dims)).then_some(true)?
        }
        _ => return None,
    };
    if node.inputs.len() == 3 {
        tensor(2)?;
    }
    Some(Layer {
        node: number,
        head: HeadLayer {
            weight,
            bias: tensor(2),
        },
        convolution,
    })
}

/// Makes the input of one layer the features.
fn single(draft: &mut Draft, layer: &Layer) -> Result<Classifier, String> {
    let Some(input) = value_of(draft.nodes[layer.node].inputs[0]) else {
        return Err("the classifier reads no value".to_owned());
    };
    let features = before_dropout(draft, input);
    let features = rows(draft, features)?;
    Ok(Classifier {
        features,
        head: vec![layer.head],
    })
}

/// Goes back through dropout, which belongs to the head.
fn before_dropout(draft: &Draft, value: ValueId) -> ValueId {
    before(draft, value, |op| matches!(op, Op::Dropout { .. }))
}

/// Goes back through dropout and reshapes.
fn flattened(draft: &Draft, value: ValueId) -> ValueId {
    before(draft, value, |op| {
        matches!(op, Op::Dropout { .. } | Op::Reshape { .. })
    })
}

/// Goes back through operations of some kinds.
fn before(draft: &Draft, mut value: ValueId, through: impl Fn(&Op) -> bool) -> ValueId {
    let makers = draft.makers();
    while let Some(&number) = makers.get(&value)
        && let node = &draft.nodes[number]
        && through(&node.op)
        && let Some(input) = value_of(node.inputs[0])
    {
        value = input;
    }
    value
}

/// Returns a value as a row for each image. One of images of one pixel is flattened, and whoever reads it reads the row.
fn rows(draft: &mut Draft, value: ValueId) -> Result<ValueId, String> {
    let dims = draft.dims(Operand::Value(value));
    if dims.len() == 2 {
        return Ok(value);
    }
    let at = draft.makers().get(&value).map(|&number| number + 1);
    let at = at.unwrap_or(0);
    let path = at
        .checked_sub(1)
        .map_or(String::new(), |maker| draft.nodes[maker].at.clone());
    let shape = dims[..2].to_vec();
    let flat = draft.make(Op::Reshape { shape }, vec![Operand::Value(value)], &path)?;
    let features = flat.output;
    let back = draft.make(
        Op::Reshape { shape: dims },
        vec![Operand::Value(features)],
        &path,
    )?;
    let table = BTreeMap::from([(value, Operand::Value(back.output))]);
    let (first, second) = (flat.clone(), back);
    draft.replace(&table);
    draft.nodes.insert(at, first);
    draft.nodes.insert(at + 1, second);
    Ok(features)
}

/// Joins the inputs of several layers to one vector of features, of which each layer reads its part.
fn several(draft: &mut Draft, layers: &[Layer]) -> Result<Classifier, String> {
    let reads: Vec<usize> = layers.iter().map(|layer| layer.node).collect();
    if layers.iter().any(|layer| layer.convolution) {
        return Err("the scores are the mean of convolutions".to_owned());
    }
    let inputs: Vec<Operand> = reads
        .iter()
        .map(|&node| draft.nodes[node].inputs[0])
        .collect();
    let inputs: Option<Vec<ValueId>> = inputs.into_iter().map(value_of).collect();
    let inputs = inputs.ok_or("a classifier reads no value")?;
    let parts: Vec<ValueId> = inputs.iter().map(|&v| before_dropout(draft, v)).collect();
    let path = draft.nodes[reads[0]].at.clone();
    let operands = parts.iter().map(|&part| Operand::Value(part)).collect();
    let joined = draft.make(Op::Concat { axis: 1 }, operands, &path)?;
    let features = joined.output;
    let mut inserted = vec![joined];
    let makers = draft.makers();
    let mut moved = BTreeSet::new();
    let mut start = 0;
    for (&number, &part) in reads.iter().zip(&parts) {
        let end = start + draft.dims(Operand::Value(part))[1].size;
        let op = Op::Slice {
            axis: 1,
            start,
            end,
            step: 1,
        };
        let slice = draft.make(op, vec![Operand::Value(features)], &path)?;
        // The layer and the dropout before it read the slice.
        let mut node = number;
        moved.insert(node);
        while let Some(input) = value_of(draft.nodes[node].inputs[0])
            && input != part
            && let Some(&before) = makers.get(&input)
        {
            node = before;
            moved.insert(node);
        }
        draft.nodes[node].inputs[0] = Operand::Value(slice.output);
        inserted.push(slice);
        start = end;
    }
    // They come behind the features, which come behind the last of their parts.
    let last = parts.iter().filter_map(|part| makers.get(part)).max();
    let place = last.map_or(0, |last| last + 1);
    let mut order: Vec<Node> = Vec::new();
    let mut behind: Vec<Node> = inserted;
    for (number, node) in draft.nodes.drain(..).enumerate() {
        let early = number < place && !moved.contains(&number);
        if early { &mut order } else { &mut behind }.push(node);
    }
    order.append(&mut behind);
    draft.nodes = order;
    Ok(Classifier {
        features,
        head: layers.iter().map(|layer| layer.head).collect(),
    })
}

/// Takes the features that the user named. The head is the linear layer that reads them, if that is all there is behind them.
fn named(
    draft: &mut Draft,
    features: ValueId,
    notes: &mut Vec<String>,
) -> Result<Classifier, String> {
    let dims = draft.dims(Operand::Value(features));
    let row = dims.len() >= 2
        && dims[0] == Dim::per_image(1)
        && dims[2..].iter().all(|dim| *dim == Dim::fixed(1));
    if !row {
        return Err(format!(
            "the features have the shape {}, expected a row for each image",
            crate::graph::dims::describe(&dims)
        ));
    }
    let found = find(draft, draft.output);
    if let [layer] = &found[..]
        && let Some(input) = value_of(draft.nodes[layer.node].inputs[0])
    {
        let reads = flattened(draft, input);
        if reads == flattened(draft, features) {
            draft.features = None;
            return single(draft, layer);
        }
    }
    notes.push(
        "The scores are no linear function of the chosen features: methods that need a classifier refuse the network."
            .to_owned(),
    );
    let features = rows(draft, features)?;
    draft.features = Some(features);
    Ok(Classifier {
        features,
        head: Vec::new(),
    })
}
