//! Computes what depends on no image: sizes, shapes, masks, tables of indices.

use std::path::Path;

use super::attributes::axis_of;
use super::calculate::{binary, choose, unary, whole};
use super::known::{
    Known, Numbers, Whole, broadcast, count, depends_on_the_batch, places, strides,
};
use super::message::{Node, element};
use super::problem::Result;
use super::tensor::Array;

/// What a node reads: known values, or nothing where an input is left out.
pub type Inputs<'a> = [Option<&'a Known>];

/// Computes the result of a node from known values. `None` if that is not possible for this operation or these sizes.
pub fn fold(node: &Node<'_>, inputs: &Inputs<'_>, folder: Option<&Path>) -> Result<Option<Known>> {
    let known = match node.op.as_str() {
        "Constant" => constant(node, folder)?,
        "Identity" | "CastLike" => first(inputs)?.clone(),
        "Cast" => cast(first(inputs)?, node.integer("to", element::FLOAT))?,
        "ConstantOfShape" => return filled(node, first(inputs)?, folder),
        "Size" => {
            let size = first(inputs)?.numbers.len() as i64;
            Known::scalar(Numbers::Whole(vec![Whole::fixed(size)]))
        }
        "Range" => range(inputs)?,
        "Gather" => gather(node, inputs)?,
        "Concat" => concat(node, inputs)?,
        "Slice" => slice(node, inputs)?,
        "Squeeze" => squeeze(node, inputs)?,
        "Unsqueeze" => unsqueeze(node, inputs)?,
        "Reshape" => reshape(node, inputs)?,
        "Flatten" => {
            let x = first(inputs)?;
            let axis = node.integer("axis", 1);
            let axis = if axis == x.shape.len() as i64 {
                x.shape.len()
            } else {
                axis_of(axis, x.shape.len())?
            };
            let shape = vec![count(&x.shape[..axis])?, count(&x.shape[axis..])?];
            x.reshaped(shape)?
        }
        "Transpose" => transpose(node, first(inputs)?)?,
        "Expand" => match second(inputs)?.plain() {
            Ok(target) => {
                let shape = broadcast(&first(inputs)?.shape, &sizes(&target)?)?;
                first(inputs)?.expanded(&shape)?
            }
            Err(_) => return Ok(None),
        },
        "Where" => choose(inputs)?,
        "Not" | "Neg" | "Abs" | "Floor" | "Ceil" | "Sqrt" | "Exp" | "Log" | "Sin" | "Cos"
        | "Reciprocal" => unary(&node.op, first(inputs)?)?,
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Min" | "Max" | "Equal" | "Less"
        | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or" => {
            binary(&node.op, first(inputs)?, second(inputs)?)?
        }
        "ReduceProd" => {
            let product = first(inputs)?.whole()?.iter();
            let one = Whole::fixed(1);
            let product = product.copied().try_fold(one, |a, b| whole("Mul", a, b))?;
            Known::scalar(Numbers::Whole(vec![product]))
        }
        _ => return Ok(None),
    };
    Ok(Some(known))
}

/// Returns the value of an optional list of integers: an input, or an attribute as older versions have it.
pub fn integers(
    node: &Node<'_>,
    name: &str,
    index: usize,
    inputs: &Inputs<'_>,
) -> Result<Option<Vec<i64>>> {
    match inputs.get(index) {
        Some(Some(known)) => known.plain().map(Some),
        _ => Ok(node.integers(name).map(<[i64]>::to_vec)),
    }
}

fn first<'a>(inputs: &Inputs<'a>) -> Result<&'a Known> {
    let found = inputs.first().copied().flatten();
    found.ok_or_else(|| "its first input is missing".into())
}

fn second<'a>(inputs: &Inputs<'a>) -> Result<&'a Known> {
    let found = inputs.get(1).copied().flatten();
    found.ok_or_else(|| "its second input is missing".into())
}

fn sizes(values: &[i64]) -> Result<Vec<usize>> {
    let sizes = values.iter().map(|&size| usize::try_from(size));
    sizes
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{values:?} is no shape").into())
}

fn constant(node: &Node<'_>, folder: Option<&Path>) -> Result<Known> {
    if let Some(tensor) = node
        .attribute("value")
        .and_then(|value| value.tensor.as_ref())
    {
        return Ok(Known::of(&Array::of(tensor, folder)?));
    }
    if let Some(values) = node.integers("value_ints") {
        return Ok(Known::integers(values));
    }
    if let Some(values) = node.attribute("value_floats") {
        return Ok(Known {
            shape: vec![values.floats.len()],
            numbers: Numbers::Real(values.floats.clone()),
        });
    }
    let of = |name| node.attribute(name);
    if let Some(value) = of("value_int").and_then(|value| value.integer) {
        return Ok(Known::scalar(Numbers::Whole(vec![Whole::fixed(value)])));
    }
    if let Some(value) = of("value_float").and_then(|value| value.float) {
        return Ok(Known::scalar(Numbers::Real(vec![value])));
    }
    Err("it has no value of a supported type".into())
}

fn filled(node: &Node<'_>, shape: &Known, folder: Option<&Path>) -> Result<Option<Known>> {
    let Ok(shape) = shape.plain() else {
        return Ok(None);
    };
    fill_value(node, folder)?
        .expanded(&sizes(&shape)?)
        .map(Some)
}

/// Returns what a `ConstantOfShape` repeats, as a single number.
pub fn fill_value(node: &Node<'_>, folder: Option<&Path>) -> Result<Known> {
    let tensor = node
        .attribute("value")
        .and_then(|value| value.tensor.as_ref());
    match tensor {
        Some(tensor) => Known::of(&Array::of(tensor, folder)?).reshaped(Vec::new()),
        None => Ok(Known::scalar(Numbers::Real(vec![0.0]))),
    }
}

fn cast(x: &Known, to: i64) -> Result<Known> {
    let whole = [
        element::UINT8,
        element::INT8,
        element::INT16,
        element::INT32,
        element::INT64,
    ];
    let numbers = match (to, &x.numbers) {
        (to, Numbers::Whole(values)) if whole.contains(&to) => Numbers::Whole(values.clone()),
        (to, _) if whole.contains(&to) => {
            let values = x.real()?.into_iter();
            Numbers::Whole(values.map(|v| Whole::fixed(v as i64)).collect())
        }
        (element::BOOL, Numbers::Truth(values)) => Numbers::Truth(values.clone()),
        (element::BOOL, _) => Numbers::Truth(x.real()?.into_iter().map(|v| v != 0.0).collect()),
        _ => Numbers::Real(x.real()?),
    };
    Ok(Known {
        shape: x.shape.clone(),
        numbers,
    })
}

fn range(inputs: &Inputs<'_>) -> Result<Known> {
    let [Some(start), Some(limit), Some(step)] = inputs else {
        return Err("it reads no start, limit and step".into());
    };
    let one = |known: &Known| -> Result<f64> {
        let value = known.single().ok_or_else(depends_on_the_batch)?;
        Ok(f64::from(value))
    };
    let (from, to, by) = (one(start)?, one(limit)?, one(step)?);
    let length = ((to - from) / by).ceil().max(0.0);
    let length = count(&[if length.is_finite() {
        length as usize
    } else {
        usize::MAX
    }])?;
    let values = (0..length).map(|i| from + by * i as f64);
    let numbers = match start.numbers {
        Numbers::Whole(_) => Numbers::Whole(values.map(|v| Whole::fixed(v as i64)).collect()),
        _ => Numbers::Real(values.map(|v| v as f32).collect()),
    };
    Ok(Known {
        shape: vec![length],
        numbers,
    })
}

fn gather(node: &Node<'_>, inputs: &Inputs<'_>) -> Result<Known> {
    let (x, indices) = (first(inputs)?, second(inputs)?);
    let axis = axis_of(node.integer("axis", 0), x.shape.len())?;
    let size = x.shape[axis];
    let (outer, inner) = (count(&x.shape[..axis])?, count(&x.shape[axis + 1..])?);
    let wanted = indices.plain()?;
    let wanted = wanted.iter().map(|&index| axis_of(index, size));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(&indices.shape);
    shape.extend(&x.shape[axis + 1..]);
    let mut taken = Vec::with_capacity(count(&shape)?);
    for o in 0..outer {
        for index in &wanted {
            let start = (o * size + index) * inner;
            taken.extend(start..start + inner);
        }
    }
    Ok(x.pick(shape, &taken))
}

fn concat(node: &Node<'_>, inputs: &Inputs<'_>) -> Result<Known> {
    let parts: Option<Vec<&Known>> = inputs.iter().copied().collect();
    let parts = parts.ok_or("an input is missing")?;
    let head = first(inputs)?;
    let axis = axis_of(node.integer("axis", 0), head.shape.len())?;
    let mut shape = head.shape.clone();
    shape[axis] = 0;
    for part in &parts {
        let mut rest = part.shape.clone();
        if rest.len() != shape.len() {
            return Err("its inputs have different numbers of axes".into());
        }
        rest[axis] = shape[axis];
        if rest != shape {
            return Err("its inputs do not fit together".into());
        }
        shape[axis] = shape[axis].saturating_add(part.shape[axis]);
    }
    let total = count(&shape)?;
    let outer = count(&shape[..axis])?;
    // One after the other, then reordered: the chunks of all parts for each index before the axis.
    let mut numbers = parts[0].numbers.pick(&[]);
    let mut places = Vec::with_capacity(total);
    let mut starts = Vec::new();
    for part in &parts {
        starts.push(numbers.len());
        match (&mut numbers, &part.numbers) {
            (Numbers::Whole(all), Numbers::Whole(values)) => all.extend(values),
            (Numbers::Real(all), Numbers::Real(values)) => all.extend(values),
            (Numbers::Truth(all), Numbers::Truth(values)) => all.extend(values),
            _ => return Err("its inputs have different types".into()),
        }
    }
    for o in 0..outer {
        for (part, start) in parts.iter().zip(&starts) {
            let chunk = part.numbers.len() / outer;
            places.extend(start + o * chunk..start + (o + 1) * chunk);
        }
    }
    Ok(Known {
        numbers: numbers.pick(&places),
        shape,
    })
}

/// One axis of a slice: the first index, how many, and the step between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The axis.
    pub axis: usize,
    /// The first index.
    pub start: usize,
    /// How many indices are taken.
    pub count: usize,
    /// The step, which may be negative.
    pub step: i64,
}

/// Reads the inputs of a `Slice` of a value with this shape, behind the first. Sizes that depend on the batch are `None`; their
/// axes must be taken whole.
pub fn cuts(node: &Node<'_>, shape: &[Option<usize>], inputs: &Inputs<'_>) -> Result<Vec<Cut>> {
    let list = |index| integers(node, "", index, inputs);
    let starts = list(1)?.ok_or("it has no starts")?;
    let ends = list(2)?.ok_or("it has no ends")?;
    let axes = list(3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = list(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err("its starts, ends, axes and steps are not as many".into());
    }
    let mut cuts = Vec::new();
    for (index, &axis) in axes.iter().enumerate() {
        let (axis, step) = (axis_of(axis, shape.len())?, steps[index]);
        let Some(size) = shape[axis] else {
            if (starts[index], step) == (0, 1) && ends[index] > i64::from(i32::MAX) - 1 {
                continue;
            }
            return Err("it takes some of the images, and would mix them".into());
        };
        if step == 0 {
            return Err("its step is 0".into());
        }
        let size = size as i64;
        let counted = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let bounds = if step > 0 { (0, size) } else { (-1, size - 1) };
        let within = |at: i64| counted(at).clamp(bounds.0, bounds.1);
        let (start, end) = (within(starts[index]), within(ends[index]));
        let span = if step > 0 { end - start } else { start - end };
        let count = span.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
        cuts.push(Cut {
            axis,
            start: start.max(0) as usize,
            count: count as usize,
            step,
        });
    }
    Ok(cuts)
}

fn slice(node: &Node<'_>, inputs: &Inputs<'_>) -> Result<Known> {
    let x = first(inputs)?;
    let whole: Vec<Option<usize>> = x.shape.iter().copied().map(Some).collect();
    let (mut shape, mut steps) = (x.shape.clone(), strides(&x.shape));
    let mut start = 0;
    for cut in cuts(node, &whole, inputs)? {
        start += cut.start * steps[cut.axis] as usize;
        shape[cut.axis] = cut.count;
        steps[cut.axis] = steps[cut.axis].saturating_mul(cut.step as isize);
    }
    let places = places(&shape, &steps, start)?;
    Ok(x.pick(shape, &places))
}

/// Returns the axes that `Squeeze` takes away from a shape; all of size 1 if none are given.
pub fn squeezed(node: &Node<'_>, ones: &[bool], inputs: &Inputs<'_>) -> Result<Vec<usize>> {
    let Some(axes) = integers(node, "axes", 1, inputs)? else {
        return Ok((0..ones.len()).filter(|&axis| ones[axis]).collect());
    };
    let axes = axes.iter().map(|&axis| axis_of(axis, ones.len()));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    match axes.iter().find(|&&axis| !ones[axis]) {
        None => Ok(axes),
        Some(axis) => Err(format!("axis {axis} has another size than 1").into()),
    }
}

fn squeeze(node: &Node<'_>, inputs: &Inputs<'_>) -> Result<Known> {
    let x = first(inputs)?;
    let ones: Vec<bool> = x.shape.iter().map(|&size| size == 1).collect();
    let axes = squeezed(node, &ones, inputs)?;
    let kept = (0..x.shape.len()).filter(|axis| !axes.contains(axis));
    x.reshaped(kept.map(|axis| x.shape[axis]).collect())
}

/// Returns the axes of the result that `Unsqueeze` adds, in ascending order.
pub fn unsqueezed(node: &Node<'_>, rank: usize, inputs: &Inputs<'_>) -> Result<Vec<usize>> {
    let axes = integers(node, "axes", 1, inputs)?.ok_or("it has no axes")?;
    let axes = axes.iter().map(|&axis| axis_of(axis, rank + axes.len()));
    let mut axes = axes.collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

fn unsqueeze(node: &Node<'_>, inputs: &Inputs<'_>) -> Result<Known> {
    let x = first(inputs)?;
    let mut shape = x.shape.clone();
    for axis in unsqueezed(node, shape.len(), inputs)? {
        shape.insert(axis.min(shape.len()), 1);
    }
    x.reshaped(shape)
}

fn reshape(node: &Node<'_>, inputs: &Inputs<'_>) -> Result<Known> {
    let (x, target) = (first(inputs)?, second(inputs)?.plain()?);
    let zero_is_zero = node.integer("allowzero", 0) == 1;
    let mut shape = Vec::new();
    for (axis, &size) in target.iter().enumerate() {
        shape.push(match size {
            -1 => 1,
            0 if !zero_is_zero => *x.shape.get(axis).ok_or("it copies an axis that is not")?,
            size => usize::try_from(size).map_err(|_| format!("a size of {size}"))?,
        });
    }
    if let Some(axis) = target.iter().position(|&size| size == -1) {
        let rest = count(&shape)?;
        shape[axis] = x.numbers.len() / rest.max(1);
    }
    x.reshaped(shape)
}

fn transpose(node: &Node<'_>, x: &Known) -> Result<Known> {
    let order = order(node, x.shape.len())?;
    let steps = strides(&x.shape);
    let shape: Vec<usize> = order.iter().map(|&axis| x.shape[axis]).collect();
    let steps: Vec<isize> = order.iter().map(|&axis| steps[axis]).collect();
    let places = places(&shape, &steps, 0)?;
    Ok(x.pick(shape, &places))
}

/// Returns the order of axes of a `Transpose`; they are reversed by default.
pub fn order(node: &Node<'_>, rank: usize) -> Result<Vec<usize>> {
    let Some(order) = node.integers("perm") else {
        return Ok((0..rank).rev().collect());
    };
    let axes = order.iter().map(|&axis| axis_of(axis, rank));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(format!("{order:?} is no order of {rank} axes").into());
    }
    Ok(axes)
}
