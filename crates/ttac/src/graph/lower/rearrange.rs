//! Other shapes, orders and parts of the same elements.

use super::algebra::Made;
use super::arguments::{Outcome, Scope, axis_of};
use super::build::{Meaning, Number, Refusal};
use crate::graph::ir::Dim;

/// Returns what needs no operation: copies, views and changes between types of floating-point numbers.
pub(super) fn same(s: &mut Scope<'_, '_>) -> Outcome {
    Ok(vec![s.subject()?])
}

/// Lowers `clone`: a copy whose elements are its own.
pub(super) fn copy(s: &mut Scope<'_, '_>) -> Outcome {
    Ok(vec![match s.subject()? {
        Meaning::Known(array) => Meaning::Known(array.map(array.kind(), |x| x)),
        other => other,
    }])
}

/// Lowers conversions: constants are rounded, values have one type.
pub(super) fn convert(s: &mut Scope<'_, '_>) -> Outcome {
    let kind = s.dtype()?;
    Ok(vec![match (s.subject()?, kind) {
        (Meaning::Known(array), Some(kind)) if kind != array.kind() => {
            Meaning::Known(array.map(kind, |x| x))
        }
        (Meaning::Operand(_), Some(super::fold::Kind::I64 | super::fold::Kind::Bool)) => {
            return Err("it makes integers of values".into());
        }
        (other, _) => other,
    }])
}

/// Resolves the sizes of a new shape, one of which may be -1, for the example's batch.
fn resolve(s: &Scope<'_, '_>, x: &Meaning, sizes: &[Number]) -> Result<Vec<usize>, Refusal> {
    let count: usize = s.sizes(x)?.iter().product();
    let given = sizes.iter().filter(|size| size.example != -1);
    let given: Option<usize> = given
        .map(|size| usize::try_from(size.example).ok())
        .try_fold(1usize, |product, size| product.checked_mul(size?));
    let wrong = || {
        let sizes: Vec<i64> = sizes.iter().map(|size| size.example).collect();
        Refusal::from(format!("{count} elements cannot have the shape {sizes:?}"))
    };
    let given = given.ok_or_else(wrong)?;
    let rest = count.checked_div(given).unwrap_or(0);
    Ok(sizes
        .iter()
        .map(|size| usize::try_from(size.example).unwrap_or(rest))
        .collect())
}

/// Lowers `view` and `reshape`.
pub(super) fn view(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    if s.overload() == "dtype" {
        return Err("it reads the bits of numbers as other numbers".into());
    }
    let sizes = match s.numbers("size")? {
        Some(sizes) => sizes,
        None => s.numbers("shape")?.ok_or("argument `size` is missing")?,
    };
    let sizes = resolve(s, &x, &sizes)?;
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `view_as` and `reshape_as`.
pub(super) fn view_as(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, other) = (s.subject()?, s.tensor("other")?);
    let sizes = s.sizes(&other)?;
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `flatten`, which merges the axes from `start_dim` to `end_dim`.
pub(super) fn flatten(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    if sizes.is_empty() {
        return Ok(vec![s.reshape(&x, &[1])?]);
    }
    let start = s.axis("start_dim", 0, sizes.len())?;
    let end = s.axis("end_dim", -1, sizes.len())?;
    if start > end {
        return Err(format!("it merges the axes {start} to {end}").into());
    }
    let merged = sizes[start..=end].iter().product();
    let sizes = [&sizes[..start], &[merged], &sizes[end + 1..]].concat();
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `unflatten`, which cuts an axis.
pub(super) fn unflatten(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axis = s.axis("dim", 0, sizes.len())?;
    let parts = s.numbers("sizes")?.ok_or("argument `sizes` is missing")?;
    let number = |&size: &usize| Number::fixed(size as i64);
    let mut all: Vec<Number> = sizes[..axis].iter().map(number).collect();
    all.extend(parts);
    all.extend(sizes[axis + 1..].iter().map(number));
    let sizes = resolve(s, &x, &all)?;
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `squeeze`: axes of size 1 go, all of them or those that are named.
pub(super) fn squeeze(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let shape = s.shape(&x)?;
    let axes = s.axes("dim", shape.dims.len())?;
    let goes = |axis: usize| axes.contains(&axis) && shape.dims[axis] == Dim::fixed(1);
    let kept = (0..shape.dims.len()).filter(|&axis| !goes(axis));
    let kept = kept.map(|axis| shape.dims[axis]).collect();
    Ok(vec![s.reshape_to(&x, kept)?])
}

/// Lowers `unsqueeze`, which adds an axis of size 1.
pub(super) fn unsqueeze(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let mut dims = s.shape(&x)?.dims;
    let axis = s.axis("dim", 0, dims.len() + 1)?;
    dims.insert(axis, Dim::fixed(1));
    Ok(vec![s.reshape_to(&x, dims)?])
}

/// Lowers `permute`.
pub(super) fn permute(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let rank = s.shape(&x)?.dims.len();
    let axes = s.integers("dims")?.ok_or("argument `dims` is missing")?;
    let axes = axes.into_iter().map(|axis| axis_of(axis, rank));
    let axes = axes.collect::<Result<_, _>>()?;
    Ok(vec![s.permute(&x, axes)?])
}

/// Lowers `transpose`, `swapaxes` and `t`.
pub(super) fn transpose(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let rank = s.shape(&x)?.dims.len();
    let [first, second] = if s.argument("axis0").is_some() {
        ["axis0", "axis1"]
    } else {
        ["dim0", "dim1"]
    };
    if rank < 2 {
        return Ok(vec![x]);
    }
    let (a, b) = (s.axis(first, 0, rank)?, s.axis(second, 1, rank)?);
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(a, b);
    Ok(vec![s.permute(&x, axes)?])
}

/// Lowers `movedim`.
pub(super) fn move_axes(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let rank = s.shape(&x)?.dims.len();
    let axes = |name| -> Result<Vec<usize>, Refusal> {
        let axes = s.integers(name)?.unwrap_or_default().into_iter();
        axes.map(|axis| axis_of(axis, rank)).collect()
    };
    let (from, to) = (axes("source")?, axes("destination")?);
    let mut order = vec![None; rank];
    for (&from, &to) in from.iter().zip(&to) {
        order[to] = Some(from);
    }
    let mut rest = (0..rank).filter(|axis| !from.contains(axis));
    let order: Option<Vec<usize>> = order
        .into_iter()
        .map(|at| at.or_else(|| rest.next()))
        .collect();
    let order = order.ok_or("its axes are named twice")?;
    Ok(vec![s.permute(&x, order)?])
}

/// Reads the arguments of `slice`: the axis, and `start`, `end` and step within it.
fn slice_bounds(s: &Scope<'_, '_>, sizes: &[usize]) -> Result<(usize, [usize; 3]), Refusal> {
    let axis = s.axis("dim", 0, sizes.len())?;
    let size = sizes[axis] as i64;
    let bound = |number: Option<Number>, default: i64| {
        let at = number.map_or(default, |number| number.example);
        (if at < 0 { at + size } else { at }).clamp(0, size) as usize
    };
    let start = bound(s.number("start")?, 0);
    let end = bound(s.number("end")?, size);
    let step = s.count("step", 1)?.max(1);
    Ok((axis, [start, end.max(start), step]))
}

/// Lowers `slice`: every `step`-th index from `start` to `end`.
pub(super) fn slice(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let (axis, bounds) = slice_bounds(s, &s.sizes(&x)?)?;
    Ok(vec![s.slice(&x, axis, bounds)?])
}

/// Puts a part that was changed in place back into the whole that a call of `slice` cut it from: the name of the whole stands
/// for what lies before, the part, and what lies behind.
pub(super) fn put_back(s: &mut Scope<'_, '_>, part: &Meaning) -> Result<(), Refusal> {
    let whole = s.subject()?;
    let sizes = s.sizes(&whole)?;
    let (axis, [start, end, step]) = slice_bounds(s, &sizes)?;
    if step != 1 {
        return Err("it changes every other element in place".into());
    }
    let mut parts = Vec::new();
    if start > 0 {
        parts.push(s.slice(&whole, axis, [0, start, 1])?);
    }
    parts.push(part.clone());
    if end < sizes[axis] {
        parts.push(s.slice(&whole, axis, [end, sizes[axis], 1])?);
    }
    let whole = s.concat(&parts, axis)?;
    if let Some(name) = super::inplace::tensors_read(s.call).next() {
        s.builder.names.insert(name.to_owned(), whole);
    }
    Ok(())
}

/// Lowers `narrow`: `length` indices from `start`.
pub(super) fn narrow(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let axis = s.axis("dim", 0, s.shape(&x)?.dims.len())?;
    let (start, length) = (s.count("start", 0)?, s.count("length", 0)?);
    let size = s.sizes(&x)?[axis];
    let end = start.saturating_add(length);
    if end > size {
        return Err(format!("{start}..{end} is no part of {size}").into());
    }
    Ok(vec![s.slice(&x, axis, [start, end, 1])?])
}

/// Takes one index of an axis, which goes.
fn at_index(s: &mut Scope<'_, '_>, x: &Meaning, axis: usize, index: usize) -> Made {
    let mut dims = s.shape(x)?.dims;
    if dims[axis].batch {
        return Err("it takes one image out of the batch".into());
    }
    let part = s.slice(x, axis, [index, index + 1, 1])?;
    dims.remove(axis);
    s.reshape_to(&part, dims)
}

/// Lowers `select`: one index of an axis.
pub(super) fn select(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axis = s.axis("dim", 0, sizes.len())?;
    let index = axis_of(s.integer("index", 0)?, sizes[axis])?;
    Ok(vec![at_index(s, &x, axis, index)?])
}

/// Lowers `unbind`: every index of an axis.
pub(super) fn unbind(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axis = s.axis("dim", 0, sizes.len())?;
    let all = 0..sizes[axis].min(s.call.results.len());
    all.map(|index| at_index(s, &x, axis, index)).collect()
}

/// Lowers `split` and `split_with_sizes`.
pub(super) fn split(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axis = s.axis("dim", 0, sizes.len())?;
    let lengths = match s.integers("split_sizes")? {
        Some(lengths) => Some(lengths),
        None => s.integers("split_size")?,
    };
    let lengths = lengths.ok_or("argument `split_size` is missing")?;
    let lengths: Result<Vec<usize>, _> = lengths.into_iter().map(usize::try_from).collect();
    let lengths = lengths.map_err(|_| "it cuts parts of negative length")?;
    match lengths[..] {
        [length] if s.argument("split_sizes").is_none() => pieces(s, &x, axis, length),
        _ => parts(s, &x, axis, &lengths),
    }
}

/// Lowers `chunk`: so many parts of equal length, the last of which may be shorter.
pub(super) fn chunk(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axis = s.axis("dim", 0, sizes.len())?;
    let length = sizes[axis].div_ceil(s.count("chunks", 1)?.max(1));
    pieces(s, &x, axis, length)
}

fn pieces(s: &mut Scope<'_, '_>, x: &Meaning, axis: usize, length: usize) -> Outcome {
    let size = s.sizes(x)?[axis];
    if length == 0 || size.div_ceil(length) > s.call.results.len() {
        return Err(format!("it cuts {size} into parts of {length}").into());
    }
    let starts = (0..size).step_by(length);
    let lengths: Vec<usize> = starts.map(|start| length.min(size - start)).collect();
    parts(s, x, axis, &lengths)
}

fn parts(s: &mut Scope<'_, '_>, x: &Meaning, axis: usize, lengths: &[usize]) -> Outcome {
    let size = s.sizes(x)?[axis];
    let total = lengths
        .iter()
        .try_fold(0usize, |sum, &l| sum.checked_add(l));
    if total != Some(size) {
        return Err(format!("parts of {lengths:?} are not {size}").into());
    }
    let mut start = 0;
    let mut made = Vec::new();
    for length in lengths {
        made.push(s.slice(x, axis, [start, start + length, 1])?);
        start += length;
    }
    Ok(made)
}

/// Lowers `cat`.
pub(super) fn concat(s: &mut Scope<'_, '_>) -> Outcome {
    let parts = s.tensors("tensors")?;
    let parts: Option<Vec<Meaning>> = parts.into_iter().collect();
    let parts = parts.ok_or("a tensor to join is absent")?;
    let first = parts.first().ok_or("there is nothing to join")?;
    let axis = s.axis("dim", 0, s.shape(first)?.dims.len())?;
    Ok(vec![s.concat(&parts, axis)?])
}

/// Lowers `stack`: each part gets an axis of size 1, along which they are joined.
pub(super) fn stack(s: &mut Scope<'_, '_>) -> Outcome {
    let parts = s.tensors("tensors")?;
    let first = parts.first().and_then(Option::as_ref);
    let rank = s
        .shape(first.ok_or("there is nothing to join")?)?
        .dims
        .len();
    let axis = s.axis("dim", 0, rank + 1)?;
    let mut with_axis = Vec::new();
    for part in parts.into_iter().flatten() {
        let mut dims = s.shape(&part)?.dims;
        if dims.len() != rank {
            return Err("the tensors to join have other numbers of axes".into());
        }
        dims.insert(axis, Dim::fixed(1));
        with_axis.push(s.reshape_to(&part, dims)?);
    }
    Ok(vec![s.concat(&with_axis, axis)?])
}

/// Lowers `roll`: what leaves at the end of an axis comes back at its start.
pub(super) fn roll(s: &mut Scope<'_, '_>) -> Outcome {
    let mut x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let shifts = s.integers("shifts")?.unwrap_or_default();
    let axes = s.integers("dims")?.unwrap_or_default();
    if shifts.len() != axes.len() {
        return Err("it rolls all axes as one".into());
    }
    for (shift, axis) in shifts.into_iter().zip(axes) {
        let axis = axis_of(axis, sizes.len())?;
        let size = sizes[axis];
        if size == 0 {
            continue;
        }
        let shift = shift.rem_euclid(size as i64) as usize;
        if shift == 0 {
            continue;
        }
        let end = s.slice(&x, axis, [size - shift, size, 1])?;
        let start = s.slice(&x, axis, [0, size - shift, 1])?;
        x = s.concat(&[end, start], axis)?;
    }
    Ok(vec![x])
}

/// Lowers `flip`.
pub(super) fn flip(s: &mut Scope<'_, '_>) -> Outcome {
    let mut x = s.subject()?;
    let sizes = s.sizes(&x)?;
    for axis in s.axes("dims", sizes.len())? {
        let list: Vec<usize> = (0..sizes[axis]).rev().collect();
        x = s.gather(&x, axis, &list)?;
    }
    Ok(vec![x])
}

/// Lowers `pixel_shuffle`: channels become pixels.
pub(super) fn pixel_shuffle(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let factor = s.count("upscale_factor", 1)?.max(1);
    let [batch, channels, height, width] = s.sizes(&x)?[..] else {
        return Err("it shuffles something that is no images".into());
    };
    if factor > channels {
        return Err(format!("it makes {factor} pixels of a channel").into());
    }
    let cut = [
        batch,
        channels / (factor * factor),
        factor,
        factor,
        height,
        width,
    ];
    let x = s.reshape(&x, &cut)?;
    let x = s.permute(&x, vec![0, 1, 4, 2, 5, 3])?;
    let sizes = [batch, cut[1], height * factor, width * factor];
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `pixel_unshuffle`: pixels become channels.
pub(super) fn pixel_unshuffle(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let factor = s.count("downscale_factor", 1)?.max(1);
    let [batch, channels, height, width] = s.sizes(&x)?[..] else {
        return Err("it shuffles something that is no images".into());
    };
    if factor > height {
        return Err(format!("it makes a channel of {factor} pixels").into());
    }
    let (rows, columns) = (height / factor, width / factor);
    let x = s.reshape(&x, &[batch, channels, rows, factor, columns, factor])?;
    let x = s.permute(&x, vec![0, 1, 3, 5, 2, 4])?;
    let sizes = [batch, channels * factor * factor, rows, columns];
    Ok(vec![s.reshape(&x, &sizes)?])
}

/// Lowers `channel_shuffle`: channels of groups take turns.
pub(super) fn channel_shuffle(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let groups = s.count("groups", 1)?.max(1);
    let sizes = s.sizes(&x)?;
    let [batch, channels, height, width] = sizes[..] else {
        return Err("it shuffles something that is no images".into());
    };
    let x = s.reshape(&x, &[batch, groups, channels / groups, height, width])?;
    let x = s.permute(&x, vec![0, 2, 1, 3, 4])?;
    Ok(vec![s.reshape(&x, &sizes)?])
}
