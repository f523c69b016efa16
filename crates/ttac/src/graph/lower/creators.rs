//! Constants from nothing, and integers.

use super::algebra::Made;
use super::arguments::{Outcome, Scope};
use super::build::{Meaning, Number, Refusal};
use super::fold::{Array, Kind};
use crate::graph::ir::Dim;
use crate::graph::program::Argument;

/// Makes something with the same number everywhere. Where a size depends on the batch, it is that of the example: what is the
/// same for all images becomes a copy for each where it meets them.
fn full(s: &Scope<'_, '_>, kind: Kind, dims: &[Dim], number: f64) -> Made {
    let sizes = dims.iter().map(|dim| dim.at(s.builder.batch)).collect();
    let axis = dims.iter().position(|dim| dim.batch);
    let array = Array::full(kind, sizes, number)?;
    Ok(Meaning::Known(array.with_images(axis)))
}

/// Reads the argument `size`.
fn sizes(s: &Scope<'_, '_>) -> Result<Vec<Dim>, Refusal> {
    let sizes = s.numbers("size")?.ok_or("argument `size` is missing")?;
    let dim = |number: Number| {
        let size = usize::try_from(number.example).map_err(|_| "a size is negative")?;
        Ok(if number.batch {
            Dim::per_image(size / s.builder.batch)
        } else {
            Dim::fixed(size)
        })
    };
    sizes.into_iter().map(dim).collect()
}

fn kind_like(s: &Scope<'_, '_>, x: &Meaning) -> Result<Kind, Refusal> {
    let own = match x {
        Meaning::Known(array) => array.kind(),
        _ => Kind::F32,
    };
    Ok(s.dtype()?.unwrap_or(own))
}

fn sized(s: &mut Scope<'_, '_>, number: f64) -> Outcome {
    let kind = match s.subject() {
        Ok(x) => kind_like(s, &x)?,
        Err(_) => s.dtype()?.unwrap_or(Kind::F32),
    };
    let dims = sizes(s)?;
    Ok(vec![full(s, kind, &dims, number)?])
}

fn alike(s: &mut Scope<'_, '_>, number: f64) -> Outcome {
    let x = s.subject()?;
    let (kind, dims) = (kind_like(s, &x)?, s.shape(&x)?.dims);
    Ok(vec![full(s, kind, &dims, number)?])
}

/// Lowers `zeros`, `new_zeros`, and `empty`, whose elements must not matter.
pub(super) fn zeros(s: &mut Scope<'_, '_>) -> Outcome {
    sized(s, 0.0)
}

/// Lowers `ones` and `new_ones`.
pub(super) fn ones(s: &mut Scope<'_, '_>) -> Outcome {
    sized(s, 1.0)
}

/// Lowers `zeros_like` and `empty_like`.
pub(super) fn zeros_like(s: &mut Scope<'_, '_>) -> Outcome {
    alike(s, 0.0)
}

/// Lowers `ones_like`.
pub(super) fn ones_like(s: &mut Scope<'_, '_>) -> Outcome {
    alike(s, 1.0)
}

/// Lowers `full` and `new_full`. Without a type it is that of the number.
pub(super) fn filled(s: &mut Scope<'_, '_>) -> Outcome {
    let number = s.tensor("fill_value")?;
    let Meaning::Known(number) = number else {
        return Err("it fills with something that is not known".into());
    };
    let value = number.only().ok_or("it fills with more than one number")?;
    if let Ok(x) = s.subject() {
        let (kind, dims) = (kind_like(s, &x)?, sizes(s)?);
        return Ok(vec![full(s, kind, &dims, value)?]);
    }
    let kind = s.dtype()?.unwrap_or(number.kind());
    let dims = sizes(s)?;
    Ok(vec![full(s, kind, &dims, value)?])
}

/// Lowers `full_like`.
pub(super) fn filled_like(s: &mut Scope<'_, '_>) -> Outcome {
    let value = s.float("fill_value", 0.0)?;
    alike(s, value)
}

/// Lowers `fill`: the shape and kind of one thing, the number of another.
pub(super) fn fill(s: &mut Scope<'_, '_>) -> Outcome {
    let value = s.float("value", 0.0)?;
    alike(s, value)
}

/// Lowers `zero`.
pub(super) fn zero(s: &mut Scope<'_, '_>) -> Outcome {
    alike(s, 0.0)
}

/// Lowers `copy`: the shape and kind of one constant, the elements of another.
pub(super) fn copied(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, from) = (s.subject()?, s.tensor("src")?);
    let (Meaning::Known(x), Meaning::Known(from)) = (&x, &from) else {
        return Err("it overwrites something that depends on images or weights".into());
    };
    let copy = Array::full(x.kind(), x.shape().to_vec(), 0.0)?;
    copy.write(from)?;
    Ok(vec![Meaning::Known(copy)])
}

/// Lowers `scalar_tensor`: a number without axes.
pub(super) fn scalar_tensor(s: &mut Scope<'_, '_>) -> Outcome {
    let Meaning::Known(x) = s.tensor("s")? else {
        return Err("it reads something that is not known".into());
    };
    let kind = s.dtype()?.unwrap_or(x.kind());
    Ok(vec![Meaning::Known(x.map(kind, |x| x))])
}

/// Lowers `arange`: numbers from `start` to `end` in steps.
pub(super) fn arange(s: &mut Scope<'_, '_>) -> Outcome {
    let (start, step) = (s.float("start", 0.0)?, s.float("step", 1.0)?);
    let end = s.float("end", 0.0)?;
    let count = ((end - start) / step).ceil();
    if !(0.0..=f64::from(1 << 24)).contains(&count) {
        return Err(format!("{start} to {end} in steps of {step} are too many numbers").into());
    }
    let whole = ["start", "end", "step"]
        .iter()
        .all(|name| !matches!(s.argument(name), Some(Argument::Float(_))));
    let default = if whole { Kind::I64 } else { Kind::F32 };
    let kind = s.dtype()?.unwrap_or(default);
    let values: Vec<f64> = (0..count as usize)
        .map(|index| kind.round(start + index as f64 * step))
        .collect();
    Ok(vec![Meaning::Known(Array::new(
        kind,
        vec![values.len()],
        values,
    ))])
}

/// Lowers `linspace`: so many numbers at equal distances.
pub(super) fn linspace(s: &mut Scope<'_, '_>) -> Outcome {
    let (start, end) = (s.float("start", 0.0)?, s.float("end", 0.0)?);
    let steps = s.count("steps", 100)?;
    super::fold::bounded(&[steps])?;
    let last = steps.saturating_sub(1).max(1) as f64;
    let values = (0..steps)
        .map(|index| f64::from((start + (end - start) * index as f64 / last) as f32))
        .collect();
    Ok(vec![Meaning::Known(Array::new(
        Kind::F32,
        vec![steps],
        values,
    ))])
}

/// Lowers `meshgrid`: coordinates of a grid, rows first or columns first.
pub(super) fn meshgrid(s: &mut Scope<'_, '_>) -> Outcome {
    let parts = s.tensors("tensors")?.into_iter().flatten();
    let columns_first = s.text("indexing", "ij")? == "xy";
    let parts: Option<Vec<Array>> = parts
        .map(|part| match part {
            Meaning::Known(array) => Some(array),
            _ => None,
        })
        .collect();
    let mut parts = parts.ok_or("its coordinates depend on images or weights")?;
    let swapped = columns_first && parts.len() >= 2;
    if swapped {
        parts.swap(0, 1);
    }
    let shape: Vec<usize> = parts.iter().map(Array::len).collect();
    let grids = parts.iter().enumerate().map(|(axis, part)| {
        let mut alone = vec![1; shape.len()];
        alone[axis] = part.len();
        part.reshape(&alone).expand(&shape)
    });
    let mut grids = grids.collect::<Result<Vec<_>, _>>()?;
    if swapped {
        grids.swap(0, 1);
        let mut order: Vec<usize> = (0..shape.len()).collect();
        order.swap(0, 1);
        grids = grids.iter().map(|grid| grid.permute(&order)).collect();
    }
    Ok(grids.into_iter().map(Meaning::Known).collect())
}

fn triangle(s: &mut Scope<'_, '_>, keep: impl Fn(i64) -> bool) -> Outcome {
    let Meaning::Known(x) = s.subject()? else {
        return Err("it is done with constants alone, and reads images or weights".into());
    };
    let &[.., rows, columns] = x.shape() else {
        return Err("it takes the triangle of something that is no matrix".into());
    };
    let diagonal = s.integer("diagonal", 0)?;
    let kept = (0..rows * columns).map(|at| {
        let behind = (at % columns) as i64 - (at / columns) as i64;
        f64::from(u8::from(keep(behind - diagonal)))
    });
    let kept = Array::new(Kind::Bool, vec![rows, columns], kept.collect());
    let part = x.zip(&kept, x.kind(), |x, kept| if kept == 0.0 { 0.0 } else { x })?;
    Ok(vec![Meaning::Known(part)])
}

/// Folds `triu`: what lies on or above a diagonal.
pub(super) fn upper(s: &mut Scope<'_, '_>) -> Outcome {
    triangle(s, |behind| behind >= 0)
}

/// Folds `tril`: what lies on or below a diagonal.
pub(super) fn lower(s: &mut Scope<'_, '_>) -> Outcome {
    triangle(s, |behind| behind <= 0)
}

/// Lowers `sym_size`: a size as an integer.
pub(super) fn size(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let dims = s.shape(&x)?.dims;
    let dim = dims[s.axis("dim", 0, dims.len())?];
    Ok(vec![Meaning::Number(Number {
        example: dim.at(s.builder.batch) as i64,
        batch: dim.batch,
    })])
}

/// Lowers a call that makes nothing that is read: a check of sizes.
#[expect(clippy::unnecessary_wraps, reason = "it stands in the table")]
pub(super) fn nothing(_: &mut Scope<'_, '_>) -> Outcome {
    Ok(Vec::new())
}

/// Reads the two operands of an operation on integers, by their order.
fn operands(s: &Scope<'_, '_>) -> Result<[Number; 2], Refusal> {
    let mut found = Vec::new();
    for (name, _) in &s.call.arguments {
        found.push(s.number(name)?.ok_or("an operand is absent")?);
    }
    <[Number; 2]>::try_from(found).map_err(|_| "it has not two operands".into())
}

/// Defines operations on integers. The flag says that a result may depend on the batch.
macro_rules! integers {
    ($($name:ident, $batch:expr => $function:expr;)*) => {
        $(
            #[doc = concat!("Computes `", stringify!($name), "` of integers.")]
            pub(super) fn $name(s: &mut Scope<'_, '_>) -> Outcome {
                let [a, b] = operands(s)?;
                if (a.batch || b.batch) && !$batch(a.batch, b.batch) {
                    return Err("a size would be no multiple of the number of images".into());
                }
                let example = $function(a.example, b.example);
                let example = example.ok_or("an integer is too large")?;
                Ok(vec![Meaning::Number(Number { example, batch: a.batch || b.batch })])
            }
        )*
    };
}

integers! {
    multiply, |a: bool, b: bool| !(a && b) => i64::checked_mul;
    add, |a: bool, b: bool| a && b => i64::checked_add;
    subtract, |a: bool, b: bool| a && b => i64::checked_sub;
    divide, |a: bool, b: bool| a && !b => |a: i64, b: i64| (b > 0).then(|| a.div_euclid(b));
}
