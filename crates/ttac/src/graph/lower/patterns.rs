//! Patterns: several nodes that are one operation.
//!
//! Products are compared as lists of factors, so that it does not matter in which order a program multiplies, or whether it
//! divides by a number or multiplies by its inverse.

use super::clean::value_of;
use super::draft::Draft;
use crate::graph::ir::{Dim, Node, Operand, ValueId};
use crate::graph::op::{Function, Op};

/// How far a written-out number may lie from the one of the formula. Programs write `0.7071` or `1.414213562373095`, and single
/// precision has a part in ten million.
const SLACK: f64 = 1e-6;

/// How many products of products are taken apart.
const MOST_FACTORS: usize = 6;

/// Finds patterns and makes each one node. Returns whether there was one. Nodes that are no longer read are left to
/// [`clean`](super::clean).
pub(super) fn find(draft: &mut Draft) -> bool {
    let seen = Seen::of(draft);
    let mut activations = Vec::new();
    let mut attentions = Vec::new();
    for (number, node) in draft.nodes.iter().enumerate() {
        match node.op {
            Op::Mul | Op::Div => {
                let found = seen.activation(node);
                activations.extend(found.map(|found| (number, found)));
            }
            Op::MatMul => {
                let found = seen.attention(node);
                attentions.extend(found.map(|found| (number, found)));
            }
            _ => {}
        }
    }
    // Each one changes its last node alone, which keeps its numbers: so those found together may be made together.
    let mut changed = !activations.is_empty();
    for (number, (function, x)) in activations {
        let node = &mut draft.nodes[number];
        node.op = Op::Apply(function);
        node.inputs = vec![x];
    }
    for (number, parts) in attentions {
        changed |= attend(draft, number, &parts);
    }
    changed
}

/// A product as a number and other factors.
struct Product {
    number: f64,
    factors: Vec<Operand>,
}

/// The parts of attention that is written out.
struct Parts {
    inputs: [Operand; 3],
    mask: Option<Operand>,
    scale: f64,
}

/// A draft with what is known about its values.
struct Seen<'a> {
    draft: &'a Draft,
    makers: Vec<Option<usize>>,
    readers: Vec<usize>,
}

impl<'a> Seen<'a> {
    fn of(draft: &'a Draft) -> Self {
        let mut makers = vec![None; draft.values.len()];
        for (number, node) in draft.nodes.iter().enumerate() {
            makers[node.output.0 as usize] = Some(number);
        }
        Self {
            draft,
            makers,
            readers: draft.readers(),
        }
    }

    fn maker(&self, operand: Operand) -> Option<&'a Node> {
        let ValueId(value) = value_of(operand)?;
        self.makers[value as usize].map(|number| &self.draft.nodes[number])
    }

    /// Returns the node that makes an operand for one reader alone.
    fn private(&self, operand: Operand) -> Option<&'a Node> {
        let ValueId(value) = value_of(operand)?;
        (self.readers[value as usize] == 1)
            .then(|| self.maker(operand))
            .flatten()
    }

    /// Takes a product apart, through factors that nobody else reads.
    fn product(&self, node: &Node) -> Product {
        let mut product = Product {
            number: 1.0,
            factors: Vec::new(),
        };
        self.multiply(node, &mut product, MOST_FACTORS);
        product
    }

    fn multiply(&self, node: &Node, product: &mut Product, most: usize) {
        let [a, b] = [node.inputs[0], node.inputs[1]];
        match (&node.op, a, b) {
            (Op::Div, x, Operand::Scalar(number)) => {
                product.number /= number;
                self.factor(x, product, most);
            }
            (Op::Mul, ..) => {
                self.factor(a, product, most);
                self.factor(b, product, most);
            }
            _ => product.factors.push(Operand::Value(node.output)),
        }
    }

    fn factor(&self, operand: Operand, product: &mut Product, most: usize) {
        if let Operand::Scalar(number) = operand {
            product.number *= number;
            return;
        }
        let node = self.private(operand);
        let product_node = |node: &&Node| most > 0 && matches!(node.op, Op::Mul | Op::Div);
        match node.filter(product_node) {
            Some(node) => self.multiply(node, product, most - 1),
            None => product.factors.push(operand),
        }
    }

    /// Reads `x + number`.
    fn shifted(&self, operand: Operand) -> Option<(Operand, f64)> {
        let node = self.maker(operand)?;
        match (&node.op, node.inputs[0], node.inputs[1..].first()?) {
            (Op::Add, x, Operand::Scalar(number)) => Some((x, *number)),
            (Op::Add, Operand::Scalar(number), x) => Some((*x, number)),
            _ => None,
        }
    }

    /// Reads a product as a known activation of one of its factors.
    fn activation(&self, node: &Node) -> Option<(Function, Operand)> {
        let Product { number, factors } = self.product(node);
        match factors[..] {
            [one] => {
                let x = self.hard_sigmoid(one)?;
                near(number, 1.0 / 6.0).then_some((Function::HardSigmoid, x))
            }
            [a, b] => self
                .gated(number, a, b)
                .or_else(|| self.gated(number, b, a)),
            _ => None,
        }
    }

    /// Reads `number * x * gate(x)`.
    fn gated(&self, number: f64, x: Operand, gate: Operand) -> Option<(Function, Operand)> {
        value_of(x)?;
        if near(number, 1.0 / 6.0) && self.hard_sigmoid(gate) == Some(x) {
            return Some((Function::HardSwish, x));
        }
        if near(number, 0.5) {
            let (inner, one) = self.shifted(gate)?;
            let inner = self.maker(inner).filter(|_| near(one, 1.0))?;
            let of = |argument| match inner.op {
                Op::Apply(Function::Erf) if self.erf_argument(argument) == Some(x) => {
                    Some(Function::Gelu)
                }
                Op::Apply(Function::Tanh) if self.tanh_argument(argument) == Some(x) => {
                    Some(Function::GeluTanh)
                }
                _ => None,
            };
            return of(inner.inputs[0]).map(|function| (function, x));
        }
        let node = self
            .maker(gate)
            .filter(|node| node.inputs[0] == x && number == 1.0)?;
        let function = match node.op {
            Op::Apply(Function::Sigmoid) => Function::Silu,
            Op::Apply(Function::HardSigmoid) => Function::HardSwish,
            _ => return None,
        };
        Some((function, x))
    }

    /// Reads `min(max(x + 3, 0), 6)`.
    fn hard_sigmoid(&self, operand: Operand) -> Option<Operand> {
        let node = self.maker(operand)?;
        let clip = Function::Clip { min: 0.0, max: 6.0 };
        let (x, three) = self.shifted(*node.inputs.first()?)?;
        (node.op == Op::Apply(clip) && three == 3.0).then_some(x)
    }

    /// Reads `x / sqrt(2)`.
    fn erf_argument(&self, operand: Operand) -> Option<Operand> {
        let node = self.maker(operand)?;
        let product = matches!(node.op, Op::Mul | Op::Div).then(|| self.product(node))?;
        match product.factors[..] {
            [x] if near(product.number, std::f64::consts::FRAC_1_SQRT_2) => Some(x),
            _ => None,
        }
    }

    /// Reads `sqrt(2 / pi) * (x + 0.044715 * x^3)`.
    fn tanh_argument(&self, operand: Operand) -> Option<Operand> {
        let node = self.maker(operand)?;
        let outer = matches!(node.op, Op::Mul | Op::Div).then(|| self.product(node))?;
        let [sum] = outer.factors[..] else {
            return None;
        };
        let sum = self.maker(sum).filter(|node| node.op == Op::Add)?;
        let [a, b] = [sum.inputs[0], sum.inputs[1]];
        let cubic = |x: Operand, term: Operand| {
            let node = self.maker(term)?;
            let term = matches!(node.op, Op::Mul | Op::Div).then(|| self.product(node))?;
            let cube = match term.factors[..] {
                [cube] => {
                    let cube = self.maker(cube)?;
                    let three = Function::Power { exponent: 3.0 };
                    cube.op == Op::Apply(three) && cube.inputs[0] == x
                }
                [p, q, r] => [p, q, r] == [x; 3],
                _ => false,
            };
            (cube && near(term.number, 0.044_715)).then_some(x)
        };
        let x = cubic(a, b).or_else(|| cubic(b, a))?;
        let root = (2.0 / std::f64::consts::PI).sqrt();
        near(outer.number, root).then_some(x)
    }

    /// Reads `softmax(scale * q k^T + mask) v`.
    fn attention(&self, node: &Node) -> Option<Parts> {
        let (shares, v) = (self.private(node.inputs[0])?, node.inputs[1]);
        if (Op::Softmax { axis: 3 }) != shares.op {
            return None;
        }
        let mut scores = shares.inputs[0];
        let mut mask = None;
        let mut scale = 1.0;
        loop {
            let node = self.private(scores)?;
            match (&node.op, node.inputs[0], node.inputs.get(1)?) {
                (Op::MatMul, q, k) => {
                    let (q, before) = self.unscaled(q);
                    let (k, other) = self.unscaled(*k);
                    let keys = self.maker(k)?;
                    let turned = Op::Permute {
                        axes: vec![0, 1, 3, 2],
                    };
                    let (k, later) = self.unscaled(*keys.inputs.first()?);
                    return (keys.op == turned).then_some(Parts {
                        inputs: [q, k, v],
                        mask,
                        scale: scale * before * other * later,
                    });
                }
                (Op::Mul, x, Operand::Scalar(number)) => {
                    scale *= number;
                    scores = x;
                }
                (Op::Div, x, Operand::Scalar(number)) => {
                    scale /= number;
                    scores = x;
                }
                // A mask is added behind the scale. A second one, or one that is scaled, is left as it is written.
                (Op::Add, a, b) if mask.is_none() && scale == 1.0 => {
                    let product = |operand| {
                        let node = self.maker(operand);
                        node.is_some_and(|node| matches!(node.op, Op::MatMul | Op::Mul | Op::Div))
                            && self.draft.dims(operand).len() == 4
                    };
                    (scores, mask) = if product(a) {
                        (a, Some(*b))
                    } else {
                        (*b, Some(a))
                    };
                }
                _ => return None,
            }
        }
    }

    /// Reads `x * number`.
    fn unscaled(&self, operand: Operand) -> (Operand, f64) {
        let node = self.maker(operand);
        match node.map(|node| (&node.op, &node.inputs[..])) {
            Some((Op::Mul, [x, Operand::Scalar(number)])) => (*x, *number),
            Some((Op::Div, [x, Operand::Scalar(number)])) => (*x, 1.0 / number),
            _ => (operand, 1.0),
        }
    }
}

/// Makes a node attention, if its parts have the shapes for it.
fn attend(draft: &mut Draft, number: usize, parts: &Parts) -> bool {
    let mut inputs = parts.inputs.to_vec();
    if let Some(mask) = parts.mask {
        if matches!(mask, Operand::Scalar(_)) {
            return false;
        }
        inputs.push(mask);
    }
    let op = Op::Attention { scale: parts.scale };
    let output = draft.nodes[number].output;
    let at = draft.nodes[number].at.clone();
    let dims: Vec<Dim> = draft.dims(Operand::Value(output));
    match draft.make(op, inputs, &at) {
        Ok(node) if draft.dims(Operand::Value(node.output)) == dims => {
            draft.nodes[number] = Node { output, ..node };
            true
        }
        _ => false,
    }
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= SLACK * expected.abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::lower::batch::Shaped;
    use crate::graph::lower::clean::clean;

    /// Starts with one value of this shape.
    fn draft(dims: &[Dim]) -> Draft {
        Draft {
            nodes: Vec::new(),
            values: vec![Shaped {
                dims: dims.to_vec(),
                outer: 1,
            }],
            tensors: Vec::new(),
            features: None,
            output: ValueId(0),
        }
    }

    fn push(draft: &mut Draft, op: Op, inputs: &[Operand]) -> Operand {
        let node = draft.make(op, inputs.to_vec(), "").unwrap();
        draft.output = node.output;
        draft.nodes.push(node);
        Operand::Value(draft.output)
    }

    fn found(draft: &mut Draft) -> Vec<Op> {
        while find(draft) {
            clean(draft);
        }
        draft.nodes.iter().map(|node| node.op.clone()).collect()
    }

    const X: Operand = Operand::Value(ValueId(0));
    const ROW: [Dim; 2] = [Dim::per_image(1), Dim::fixed(4)];

    #[test]
    fn a_gate_of_itself_is_silu() {
        let mut draft = draft(&ROW);
        let gate = push(&mut draft, Op::Apply(Function::Sigmoid), &[X]);
        push(&mut draft, Op::Mul, &[gate, X]);
        assert_eq!(found(&mut draft), [Op::Apply(Function::Silu)]);
    }

    #[test]
    fn a_gate_of_something_else_stays() {
        let mut draft = draft(&ROW);
        let other = push(&mut draft, Op::Apply(Function::Exp), &[X]);
        let gate = push(&mut draft, Op::Apply(Function::Sigmoid), &[other]);
        push(&mut draft, Op::Mul, &[gate, X]);
        assert_eq!(found(&mut draft).len(), 3);
    }

    #[test]
    fn the_erf_form_is_gelu_in_any_order() {
        for halved_first in [true, false] {
            let mut draft = draft(&ROW);
            let scaled = if halved_first {
                let root = Operand::Scalar(std::f64::consts::SQRT_2);
                push(&mut draft, Op::Div, &[X, root])
            } else {
                let root = Operand::Scalar(std::f64::consts::FRAC_1_SQRT_2);
                push(&mut draft, Op::Mul, &[X, root])
            };
            let erf = push(&mut draft, Op::Apply(Function::Erf), &[scaled]);
            let gate = push(&mut draft, Op::Add, &[erf, Operand::Scalar(1.0)]);
            if halved_first {
                let half = push(&mut draft, Op::Mul, &[X, Operand::Scalar(0.5)]);
                push(&mut draft, Op::Mul, &[half, gate]);
            } else {
                let product = push(&mut draft, Op::Mul, &[X, gate]);
                push(&mut draft, Op::Div, &[product, Operand::Scalar(2.0)]);
            }
            assert_eq!(found(&mut draft), [Op::Apply(Function::Gelu)]);
        }
    }

    #[test]
    fn the_tanh_form_is_gelu_with_tanh() {
        let mut draft = draft(&ROW);
        let cube = Op::Apply(Function::Power { exponent: 3.0 });
        let cube = push(&mut draft, cube, &[X]);
        let cube = push(&mut draft, Op::Mul, &[cube, Operand::Scalar(0.044_715)]);
        let sum = push(&mut draft, Op::Add, &[X, cube]);
        let root = Operand::Scalar(0.797_884_560_802_865_4);
        let scaled = push(&mut draft, Op::Mul, &[sum, root]);
        let tanh = push(&mut draft, Op::Apply(Function::Tanh), &[scaled]);
        let gate = push(&mut draft, Op::Add, &[tanh, Operand::Scalar(1.0)]);
        let half = push(&mut draft, Op::Mul, &[X, Operand::Scalar(0.5)]);
        push(&mut draft, Op::Mul, &[half, gate]);
        assert_eq!(found(&mut draft), [Op::Apply(Function::GeluTanh)]);
    }

    #[test]
    fn hard_swish_is_found_and_a_clip_to_six_stays() {
        let mut draft = draft(&ROW);
        let shifted = push(&mut draft, Op::Add, &[X, Operand::Scalar(3.0)]);
        let clip = Op::Apply(Function::Clip { min: 0.0, max: 6.0 });
        let clipped = push(&mut draft, clip.clone(), &[shifted]);
        let gate = push(&mut draft, Op::Div, &[clipped, Operand::Scalar(6.0)]);
        let swish = push(&mut draft, Op::Mul, &[X, gate]);
        push(&mut draft, clip.clone(), &[swish]);
        assert_eq!(found(&mut draft), [Op::Apply(Function::HardSwish), clip]);
    }

    /// Writes attention out: scores scaled or queries scaled, with or without a mask.
    fn written_out(scaled_queries: bool, mask: bool) -> Draft {
        let heads = [
            Dim::per_image(1),
            Dim::fixed(2),
            Dim::fixed(5),
            Dim::fixed(8),
        ];
        let mut draft = draft(&heads);
        draft.tensors.push(vec![1, 2, 5, 5]);
        let scale = Operand::Scalar(0.25);
        let turn = Op::Permute {
            axes: vec![0, 1, 3, 2],
        };
        let keys = push(&mut draft, Op::Apply(Function::Sin), &[X]);
        let keys = push(&mut draft, turn, &[keys]);
        let queries = if scaled_queries {
            push(&mut draft, Op::Mul, &[X, scale])
        } else {
            X
        };
        let mut scores = push(&mut draft, Op::MatMul, &[queries, keys]);
        if !scaled_queries {
            scores = push(&mut draft, Op::Mul, &[scores, scale]);
        }
        if mask {
            let table = Operand::Tensor(crate::graph::TensorId(0));
            scores = push(&mut draft, Op::Add, &[scores, table]);
        }
        let shares = push(&mut draft, Op::Softmax { axis: 3 }, &[scores]);
        push(&mut draft, Op::MatMul, &[shares, X]);
        draft
    }

    #[test]
    fn attention_that_is_written_out_is_found() {
        for (scaled_queries, mask) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut draft = written_out(scaled_queries, mask);
            let ops = found(&mut draft);
            let expected = [Op::Apply(Function::Sin), Op::Attention { scale: 0.25 }];
            assert_eq!(ops, expected);
            assert_eq!(draft.nodes[1].inputs.len(), if mask { 4 } else { 3 });
        }
    }

    #[test]
    fn scores_that_somebody_else_reads_stay() {
        let mut draft = written_out(false, false);
        let scores = Operand::Value(draft.nodes[2].output);
        let out = Operand::Value(draft.output);
        let sum = push(&mut draft, Op::MatMul, &[scores, out]);
        assert_eq!(sum, Operand::Value(draft.output));
        assert!(found(&mut draft).contains(&Op::Softmax { axis: 3 }));
    }
}
