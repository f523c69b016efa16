//! More elements than there were: padding, repetition, and indices that are constants.

use super::algebra::Made;
use super::arguments::{Outcome, Scope, axis_of};
use super::build::{Meaning, Number, Refusal};
use crate::graph::ir::Dim;
use crate::graph::op::Op;

/// Lowers `pad` and `constant_pad_nd`. Padding is given from the last axis on, before and after; what is negative is cut off.
pub(super) fn pad(s: &mut Scope<'_, '_>) -> Outcome {
    let mode = s.text("mode", "constant")?;
    if mode != "constant" {
        return Err(format!("padding of mode `{mode}` is no operation of ours").into());
    }
    let mut x = s.subject()?;
    let value = s.float("value", 0.0)?;
    let given = s.integers("pad")?.ok_or("argument `pad` is missing")?;
    let sizes = s.sizes(&x)?;
    if given.len() > 2 * sizes.len() || !given.len().is_multiple_of(2) {
        return Err(format!("padding {given:?} for {} axes", sizes.len()).into());
    }
    let mut padding = vec![[0; 2]; sizes.len()];
    for (from_end, sides) in given.chunks(2).enumerate() {
        let axis = sizes.len() - 1 - from_end;
        let cut = [0, 1].map(|side| sides[side].min(0).unsigned_abs() as usize);
        padding[axis] = [0, 1].map(|side| sides[side].max(0) as usize);
        if cut != [0, 0] {
            let end = sizes[axis].saturating_sub(cut[1]);
            x = s.slice(&x, axis, [cut[0].min(end), end, 1])?;
        }
    }
    if padding.iter().all(|sides| *sides == [0, 0]) {
        return Ok(vec![x]);
    }
    if let Meaning::Known(array) = &x {
        let mut made = array.clone();
        for (axis, &sides) in padding.iter().enumerate() {
            let side = |length| {
                let mut shape = made.shape().to_vec();
                shape[axis] = length;
                super::fold::Array::full(made.kind(), shape, value)
            };
            let (before, after) = (side(sides[0])?, side(sides[1])?);
            made = super::fold::Array::concat(&[before, made, after], axis)?;
        }
        return Ok(vec![Meaning::Known(made)]);
    }
    Ok(vec![s.node(Op::Pad { padding, value }, &[x])?])
}

/// Lowers `expand`. A size of -1 keeps the axis; the example's batch in front becomes the batch.
pub(super) fn expand(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.numbers("size")?.ok_or("argument `size` is missing")?;
    Ok(vec![expanded(s, &x, &sizes)?])
}

/// Lowers `expand_as`.
pub(super) fn expand_as(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, other) = (s.subject()?, s.tensor("other")?);
    let other = s.shape(&other)?.dims;
    Ok(vec![s.expand(&x, other)?])
}

/// Repeats axes of size 1 until sizes are reached.
fn expanded(s: &mut Scope<'_, '_>, x: &Meaning, sizes: &[Number]) -> Made {
    let (from, batch) = (s.shape(x)?, s.builder.batch);
    let added = sizes.len().checked_sub(from.dims.len());
    let added = added.ok_or("it has more axes than it shall get")?;
    let mut dims = Vec::new();
    for (axis, size) in sizes.iter().enumerate() {
        let old = axis.checked_sub(added).map(|at| from.dims[at]);
        let whole = usize::try_from(size.example).ok();
        let kept =
            old.filter(|old| size.example == -1 || whole == Some(old.at(batch)) && !size.batch);
        // A known thing stays as it is, for it can be narrowed where it meets the images.
        let example = s.builder.fixed_batch
            && axis == 0
            && whole == Some(batch)
            && from.axis().is_none()
            && !matches!(x, Meaning::Known(_))
            && old.is_none_or(|old| old == Dim::fixed(1));
        dims.push(match (kept, whole) {
            _ if example => Dim::per_image(1),
            (Some(old), _) => old,
            (None, Some(whole)) if size.batch => {
                if old.is_some_and(|old| old.batch) {
                    old.unwrap_or(Dim::per_image(1))
                } else {
                    Dim::per_image(whole / batch)
                }
            }
            (None, Some(whole)) => Dim::fixed(whole),
            (None, None) => return Err(format!("its size {} is none", size.example).into()),
        });
    }
    s.expand(x, dims)
}

/// Lowers `repeat`: axes of size 1 are expanded, others joined with themselves.
pub(super) fn repeat(s: &mut Scope<'_, '_>) -> Outcome {
    let mut x = s.subject()?;
    let times = s
        .numbers("repeats")?
        .ok_or("argument `repeats` is missing")?;
    let mut dims = s.shape(&x)?.dims;
    let added = times.len().checked_sub(dims.len());
    for _ in 0..added.ok_or("it repeats fewer axes than there are")? {
        dims.insert(0, Dim::fixed(1));
    }
    x = s.reshape_to(&x, dims.clone())?;
    let one = |axis: usize| dims[axis] == Dim::fixed(1);
    let sizes: Vec<Number> = (0..times.len())
        .map(|axis| {
            if one(axis) {
                times[axis]
            } else {
                Number::fixed(-1)
            }
        })
        .collect();
    x = expanded(s, &x, &sizes)?;
    for (axis, number) in times.iter().enumerate() {
        if !one(axis) && (number.batch || number.example != 1) {
            let copies = usize::try_from(number.example).ok();
            let copies = copies.filter(|copies| !number.batch && (1..=1024).contains(copies));
            let copies = copies.ok_or_else(|| format!("it repeats an axis {number:?} times"))?;
            x = s.concat(&vec![x; copies], axis)?;
        }
    }
    Ok(vec![x])
}

/// Lowers `repeat_interleave` with one number: each index so many times in a row.
pub(super) fn repeat_interleave(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let times = s.count("repeats", 1)?;
    let axis = s.axis("dim", 0, sizes.len())?;
    super::fold::bounded(&[sizes[axis], times])?;
    let list: Vec<usize> = (0..sizes[axis])
        .flat_map(|index| std::iter::repeat_n(index, times))
        .collect();
    Ok(vec![s.gather(&x, axis, &list)?])
}

/// Reads a constant as indices of an axis.
fn indices(index: &Meaning, size: usize) -> Result<(Vec<usize>, Vec<usize>), Refusal> {
    let Meaning::Known(array) = index else {
        return Err("its indices depend on images or weights".into());
    };
    match array.kind() {
        super::fold::Kind::I64 => {
            let list = array.to_vec().into_iter();
            let list = list.map(|index| axis_of(index as i64, size));
            Ok((list.collect::<Result<_, _>>()?, array.shape().to_vec()))
        }
        super::fold::Kind::Bool if array.shape() == [size] => {
            let list = array.to_vec();
            let list = (0..size).filter(|&index| list[index] != 0.0);
            let list: Vec<usize> = list.collect();
            let shape = vec![list.len()];
            Ok((list, shape))
        }
        _ => Err("its indices are no integers".into()),
    }
}

/// Takes indices of any shape along an axis.
fn take(s: &mut Scope<'_, '_>, x: &Meaning, axis: usize, index: &Meaning) -> Made {
    let dims = s.shape(x)?.dims;
    let size = dims.get(axis).ok_or("it takes indices of a number")?.size;
    let (list, shape) = indices(index, size)?;
    let taken = s.gather(x, axis, &list)?;
    let shape: Vec<Dim> = shape.into_iter().map(Dim::fixed).collect();
    let dims = [&dims[..axis], &shape, &dims[axis + 1..]].concat();
    s.reshape_to(&taken, dims)
}

/// Lowers `index_select`, and `embedding`, whose indices are known.
pub(super) fn index_select(s: &mut Scope<'_, '_>) -> Outcome {
    if s.argument("weight").is_some() {
        let (x, index) = (s.tensor("weight")?, s.tensor("indices")?);
        return Ok(vec![take(s, &x, 0, &index)?]);
    }
    let (x, index) = (s.subject()?, s.tensor("index")?);
    let axis = s.axis("dim", 0, s.shape(&x)?.dims.len())?;
    Ok(vec![take(s, &x, axis, &index)?])
}

/// Lowers `index` by constants: one of them, or several on neighbouring axes, which are read as one.
pub(super) fn index(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let given = s.tensors("indices")?;
    let named: Vec<usize> = (0..given.len())
        .filter(|&axis| given[axis].is_some())
        .collect();
    let (Some(&first), Some(&last)) = (named.first(), named.last()) else {
        return Ok(vec![x]);
    };
    let dims = s.shape(&x)?.dims;
    if last >= dims.len() || last + 1 - first != named.len() {
        return Err("its indices name axes that are not neighbours".into());
    }
    let given: Vec<Meaning> = given.into_iter().flatten().collect();
    if let [index] = &given[..] {
        return Ok(vec![take(s, &x, first, index)?]);
    }
    if dims[first..=last].iter().any(|dim| dim.batch) {
        return Err("it takes images out of the batch".into());
    }
    let mut flat = Scope::scalar(0.0);
    for (index, axis) in given.iter().zip(first..) {
        let (list, shape) = indices(index, dims[axis].size)?;
        let list = list.into_iter().map(|index| index as f64).collect();
        let index = super::fold::Array::new(super::fold::Kind::I64, shape, list);
        let size = dims[axis].size as f64;
        let Meaning::Known(before) = flat else {
            unreachable!("indices are known");
        };
        let sum = before.zip(&index, super::fold::Kind::I64, |before, index| {
            before * size + index
        });
        flat = Meaning::Known(sum?);
    }
    let merged: usize = dims[first..=last].iter().map(|dim| dim.size).product();
    let merged = [&dims[..first], &[Dim::fixed(merged)], &dims[last + 1..]].concat();
    let x = s.reshape_to(&x, merged)?;
    Ok(vec![take(s, &x, first, &flat)?])
}
