//! Linear layers, products of matrices, attention.

use super::algebra::Made;
use super::arguments::{Outcome, Scope};
use super::build::{MASKED, Meaning, Refusal};
use super::fold::{Array, Kind};
use crate::graph::ir::{Dim, Operand};
use crate::graph::op::Op;

/// Lowers `linear`.
pub(super) fn linear(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, weight) = (s.tensor("input")?, s.tensor("weight")?);
    let mut inputs = vec![s.builder.operand(&x)?, s.builder.operand(&weight)?];
    inputs.extend(s.operand("bias")?);
    Ok(vec![s.emit(Op::Linear, inputs)?])
}

/// Returns the weight whose transpose this is.
fn transposed(s: &Scope<'_, '_>, b: &Meaning) -> Option<Operand> {
    let Meaning::Operand(operand) = b else {
        return None;
    };
    let node = s.builder.maker(*operand)?;
    match (&node.op, &node.inputs[..]) {
        (Op::Permute { axes }, [weight @ Operand::Tensor(_)]) if *axes == [1, 0] => Some(*weight),
        _ => None,
    }
}

/// Multiplies matrices: a linear layer where the second is the transpose of a weight.
fn product(s: &mut Scope<'_, '_>, a: &Meaning, b: &Meaning) -> Made {
    if let Some(weight) = transposed(s, b) {
        let a = s.builder.operand(a)?;
        return s.emit(Op::Linear, vec![a, weight]);
    }
    s.node(Op::MatMul, &[a.clone(), b.clone()])
}

/// Lowers `matmul`, `mm` and `bmm`. A vector is a matrix of one row or column.
pub(super) fn matmul(s: &mut Scope<'_, '_>) -> Outcome {
    let (mut a, other) = (s.subject()?, s.argument("other").is_some());
    let mut b = s.tensor(if other { "other" } else { "mat2" })?;
    let ranks = [s.shape(&a)?.dims.len(), s.shape(&b)?.dims.len()];
    if ranks.contains(&0) {
        return Err("it multiplies a number as a matrix".into());
    }
    if ranks[0] == 1 {
        let dims = [vec![Dim::fixed(1)], s.shape(&a)?.dims].concat();
        a = s.reshape_to(&a, dims)?;
    }
    if ranks[1] == 1 {
        let dims = [s.shape(&b)?.dims, vec![Dim::fixed(1)]].concat();
        b = s.reshape_to(&b, dims)?;
    }
    let mut made = product(s, &a, &b)?;
    if ranks.contains(&1) {
        let mut dims = s.shape(&made)?.dims;
        let last = dims.len() - 1;
        if ranks[1] == 1 {
            dims.remove(last);
        }
        if ranks[0] == 1 {
            dims.remove(dims.len() - 1 - usize::from(ranks[1] != 1));
        }
        made = s.reshape_to(&made, dims)?;
    }
    Ok(vec![made])
}

/// Lowers `addmm` and `baddbmm`: `beta * self + alpha * mat1 mat2`.
pub(super) fn addmm(s: &mut Scope<'_, '_>) -> Outcome {
    let batched = s.argument("batch1").is_some();
    let names = if batched {
        ["batch1", "batch2"]
    } else {
        ["mat1", "mat2"]
    };
    let [a, b] = [s.tensor(names[0])?, s.tensor(names[1])?];
    let (alpha, beta) = (s.float("alpha", 1.0)?, s.float("beta", 1.0)?);
    let bias = s.subject()?;
    let vector = s.shape(&bias)?.dims.len() == 1;
    if let (Some(weight), true, 1.0, 1.0) = (transposed(s, &b), vector, alpha, beta) {
        let inputs = vec![s.builder.operand(&a)?, weight, s.builder.operand(&bias)?];
        return Ok(vec![s.emit(Op::Linear, inputs)?]);
    }
    let made = product(s, &a, &b)?;
    let made = s.scale(&made, alpha)?;
    if beta == 0.0 {
        return Ok(vec![made]);
    }
    let bias = s.scale(&bias, beta)?;
    Ok(vec![s.add(&bias, &made)?])
}

/// Lowers `scaled_dot_product_attention` and its variants in decomposed programs.
pub(super) fn attention(s: &mut Scope<'_, '_>) -> Outcome {
    if s.float("dropout_p", 0.0)? != 0.0 {
        return super::norms::training_only(s);
    }
    if s.flag("enable_gqa", false)? {
        return Err(
            "attention with fewer heads of keys than of queries is no operation of ours".into(),
        );
    }
    let parts = [s.tensor("query")?, s.tensor("key")?, s.tensor("value")?];
    let mut mask = match s.optional("attn_mask")? {
        Some(mask) => Some(mask),
        None => s.optional("attn_bias")?,
    };
    let [q, k, _] = [0, 1, 2].map(|part| s.shape(&parts[part]));
    let (q, k) = (q?.dims, k?.dims);
    let &[.., queries, width] = &q[..] else {
        return Err("its queries are no matrices".into());
    };
    let keys = k.get(k.len().saturating_sub(2)).copied();
    let keys = keys.ok_or("its keys are no matrices")?;
    if k.len() < 2 || s.shape(&parts[2])?.dims.len() < 2 {
        return Err("its keys or values are no matrices".into());
    }
    if width.batch || queries.batch || keys.batch {
        return Err("it attends from one image to another".into());
    }
    let scale = s.float("scale", 1.0 / (width.size as f64).sqrt())?;
    if s.flag("is_causal", false)? {
        mask = Some(causal(queries.size, keys.size)?);
    }
    let mask = mask.map(|mask| additive(&mask));
    Ok(vec![attend(s, &parts, mask, scale)?])
}

/// Makes the mask that hides later keys from earlier queries.
fn causal(queries: usize, keys: usize) -> Made {
    super::fold::bounded(&[queries, keys])?;
    let hidden = (0..queries * keys).map(|at| if at % keys > at / keys { MASKED } else { 0.0 });
    let mask = Array::new(Kind::F32, vec![queries, keys], hidden.collect());
    Ok(Meaning::Known(mask))
}

/// Turns a mask of yes and no into one that is added.
fn additive(mask: &Meaning) -> Meaning {
    match mask {
        Meaning::Known(array) if array.kind() == Kind::Bool => {
            let added = array.map(Kind::F32, |seen| if seen == 0.0 { MASKED } else { 0.0 });
            Meaning::Known(added)
        }
        other => other.clone(),
    }
}

fn attend(s: &mut Scope<'_, '_>, parts: &[Meaning; 3], mask: Option<Meaning>, scale: f64) -> Made {
    let [q, k, v] = parts;
    let shapes = [s.shape(q)?.dims, s.shape(k)?.dims, s.shape(v)?.dims];
    let one_head = shapes.iter().all(|dims| dims.len() == 3);
    let heads = shapes.iter().all(|dims| dims.len() == 4);
    let together = shapes[0][..shapes[0].len() - 2] == shapes[1][..shapes[1].len() - 2]
        && shapes[1][..shapes[1].len() - 1] == shapes[2][..shapes[2].len() - 1];
    let small_mask = match &mask {
        Some(mask) => s.shape(mask)?.dims.len() <= if one_head { 2 } else { 4 },
        None => true,
    };
    if !(together && small_mask && (one_head || heads)) {
        return attend_apart(s, parts, mask, scale);
    }
    let mut inputs = Vec::new();
    for (part, mut dims) in parts.iter().zip(shapes) {
        if one_head {
            dims.insert(1, Dim::fixed(1));
        }
        let part = if one_head {
            s.reshape_to(part, dims)?
        } else {
            part.clone()
        };
        inputs.push(part);
    }
    inputs.extend(mask);
    let made = s.node(Op::Attention { scale }, &inputs)?;
    if !one_head {
        return Ok(made);
    }
    let mut dims = s.shape(&made)?.dims;
    dims.remove(1);
    s.reshape_to(&made, dims)
}

/// Writes attention out where heads or images of its parts broadcast.
fn attend_apart(
    s: &mut Scope<'_, '_>,
    [q, k, v]: &[Meaning; 3],
    mask: Option<Meaning>,
    scale: f64,
) -> Made {
    let rank = s.shape(k)?.dims.len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    let k = s.permute(k, order)?;
    let q = s.scale(q, scale)?;
    let mut scores = s.node(Op::MatMul, &[q, k])?;
    if let Some(mask) = mask {
        scores = s.add(&scores, &mask)?;
    }
    let axis = s.shape(&scores)?.dims.len() - 1;
    let shares = s.node(Op::Softmax { axis }, &[scores])?;
    s.node(Op::MatMul, &[shares, v.clone()])
}

/// Lowers `einsum` of one or two tensors: axes are ordered, merged and multiplied as matrices.
pub(super) fn einsum(s: &mut Scope<'_, '_>) -> Outcome {
    let equation: String = s.text("equation", "")?.split_whitespace().collect();
    let tensors: Vec<Meaning> = s.tensors("tensors")?.into_iter().flatten().collect();
    let (inputs, output) = equation
        .split_once("->")
        .ok_or("its equation names no result")?;
    let inputs: Vec<Vec<char>> = inputs
        .split(',')
        .map(|part| part.chars().collect())
        .collect();
    let output: Vec<char> = output.chars().collect();
    let proper = |labels: &[char]| {
        let letters = labels.iter().all(char::is_ascii_alphabetic);
        letters && (1..labels.len()).all(|at| !labels[..at].contains(&labels[at]))
    };
    if inputs.len() != tensors.len() || !inputs.iter().chain([&output]).all(|l| proper(l)) {
        return Err(format!("the equation `{equation}` is none that we read").into());
    }
    for (labels, tensor) in inputs.iter().zip(&tensors) {
        if labels.len() != s.shape(tensor)?.dims.len() {
            return Err(format!("the equation `{equation}` does not fit its tensors").into());
        }
    }
    match (&inputs[..], &tensors[..]) {
        ([labels], [x]) => {
            let (x, labels) = sum_away(s, x, labels, &output)?;
            Ok(vec![ordered(s, &x, &labels, &output)?])
        }
        ([left, right], [a, b]) => Ok(vec![pairwise(s, (a, left), (b, right), &output)?]),
        _ => Err("an einsum of more than two tensors is no operation of ours".into()),
    }
}

/// Sums over the axes whose labels nobody needs.
fn sum_away(
    s: &mut Scope<'_, '_>,
    x: &Meaning,
    labels: &[char],
    needed: &[char],
) -> Result<(Meaning, Vec<char>), Refusal> {
    let axes = (0..labels.len()).filter(|&axis| !needed.contains(&labels[axis]));
    let made = super::reductions::summed(s, x, axes.collect())?;
    let kept = labels
        .iter()
        .copied()
        .filter(|label| needed.contains(label));
    Ok((made, kept.collect()))
}

/// Orders axes by their labels.
fn ordered(s: &mut Scope<'_, '_>, x: &Meaning, from: &[char], to: &[char]) -> Made {
    let order = to.iter().map(|label| from.iter().position(|l| l == label));
    let order: Option<Vec<usize>> = order.collect();
    let order = order.filter(|order| order.len() == from.len());
    let order = order.ok_or("its result names an axis that nothing has")?;
    if order.is_sorted() {
        return Ok(x.clone());
    }
    s.permute(x, order)
}

fn pairwise(
    s: &mut Scope<'_, '_>,
    (a, left): (&Meaning, &[char]),
    (b, right): (&Meaning, &[char]),
    output: &[char],
) -> Made {
    let (a, left) = sum_away(s, a, left, &[right, output].concat())?;
    let (b, right) = sum_away(s, b, right, &[&left, output].concat())?;
    let of = |keep: &dyn Fn(&char) -> bool, labels: &[char]| -> Vec<char> {
        labels.iter().copied().filter(|label| keep(label)).collect()
    };
    let shared = of(&|l| right.contains(l) && output.contains(l), &left);
    let summed = of(&|l| right.contains(l) && !output.contains(l), &left);
    let rows = of(&|l| !right.contains(l), &left);
    let columns = of(&|l| !left.contains(l), &right);
    let a = ordered(s, &a, &left, &[&shared[..], &rows, &summed].concat())?;
    let b = ordered(s, &b, &right, &[&shared[..], &summed, &columns].concat())?;
    let (sizes_a, sizes_b) = (s.sizes(&a)?, s.sizes(&b)?);
    let (outer, after) = sizes_a.split_at(shared.len());
    let (row_sizes, inner_sizes) = after.split_at(rows.len());
    let column_sizes = &sizes_b[shared.len() + summed.len()..];
    let product_of = |sizes: &[usize]| sizes.iter().product::<usize>();
    let inner = product_of(inner_sizes);
    let a = s.reshape(&a, &[outer, &[product_of(row_sizes), inner]].concat())?;
    let b = s.reshape(&b, &[outer, &[inner, product_of(column_sizes)]].concat())?;
    let made = s.node(Op::MatMul, &[a, b])?;
    let made = s.reshape(&made, &[outer, row_sizes, column_sizes].concat())?;
    ordered(s, &made, &[&shared[..], &rows, &columns].concat(), output)
}
