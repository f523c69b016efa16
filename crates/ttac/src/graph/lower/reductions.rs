//! Means, sums, maxima and norms over axes.

use super::algebra::{Arithmetic, Made};
use super::arguments::{Outcome, Scope};
use super::build::Meaning;
use super::fold::Kind;
use crate::graph::op::{Function, Reduction};

fn over(s: &mut Scope<'_, '_>, how: Reduction) -> Outcome {
    let x = s.subject()?;
    let axes = s.axes("dim", s.shape(&x)?.dims.len())?;
    let keep = s.flag("keepdim", false)?;
    Ok(vec![s.reduce(how, &x, axes, keep)?])
}

/// Lowers `mean`.
pub(super) fn mean(s: &mut Scope<'_, '_>) -> Outcome {
    over(s, Reduction::Mean)
}

/// Lowers `sum`.
pub(super) fn sum(s: &mut Scope<'_, '_>) -> Outcome {
    over(s, Reduction::Sum)
}

/// Lowers `amax`, and `max` along one axis, whose indices nothing may read.
pub(super) fn maximum(s: &mut Scope<'_, '_>) -> Outcome {
    if s.argument("other").is_some() {
        return super::elementwise::maximum(s);
    }
    over(s, Reduction::Maximum)
}

/// Lowers norms of vectors: of order 2, 1 or infinity.
pub(super) fn vector_norm(s: &mut Scope<'_, '_>) -> Outcome {
    let order = match s.optional_float("ord")? {
        Some(order) => order,
        None => s.optional_float("p")?.unwrap_or(2.0),
    };
    let how = match order {
        2.0 => return over(s, Reduction::Euclidean),
        1.0 => Reduction::Sum,
        f64::INFINITY => Reduction::Maximum,
        _ => return Err(format!("a norm of order {order} is no operation of ours").into()),
    };
    let x = s.subject()?;
    let axes = s.axes("dim", s.shape(&x)?.dims.len())?;
    let keep = s.flag("keepdim", false)?;
    let x = s.apply(Function::Abs, &x)?;
    Ok(vec![s.reduce(how, &x, axes, keep)?])
}

/// Computes the variance over axes, with the mean: `sum (x - mean)^2 / (n - correction)`.
fn spread(s: &mut Scope<'_, '_>) -> Result<(Meaning, Meaning), super::build::Refusal> {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axes = s.axes("dim", sizes.len())?;
    let keep = s.flag("keepdim", false)?;
    let unbiased = f64::from(u8::from(s.flag("unbiased", true)?));
    let correction = s.optional_float("correction")?.unwrap_or(unbiased);
    let count = axes.iter().map(|&axis| sizes[axis]).product::<usize>() as f64;
    let mean = s.reduce(Reduction::Mean, &x, axes.clone(), true)?;
    let centred = s.arithmetic(Arithmetic::Sub, &x, &mean)?;
    let squares = s.apply(Function::Power { exponent: 2.0 }, &centred)?;
    let variance = s.reduce(Reduction::Mean, &squares, axes.clone(), keep)?;
    let variance = s.scale(&variance, count / (count - correction))?;
    let mean = if keep {
        mean
    } else {
        s.reduce(Reduction::Mean, &x, axes, false)?
    };
    Ok((variance, mean))
}

/// Lowers `var`.
pub(super) fn variance(s: &mut Scope<'_, '_>) -> Outcome {
    Ok(vec![spread(s)?.0])
}

/// Lowers `var_mean`, which makes both.
pub(super) fn variance_and_mean(s: &mut Scope<'_, '_>) -> Outcome {
    let (variance, mean) = spread(s)?;
    Ok(vec![variance, mean])
}

/// Lowers `std`.
pub(super) fn deviation(s: &mut Scope<'_, '_>) -> Outcome {
    let variance = spread(s)?.0;
    Ok(vec![s.apply(Function::Sqrt, &variance)?])
}

/// Folds `cumsum` of a constant.
pub(super) fn running_sum(s: &mut Scope<'_, '_>) -> Outcome {
    let Meaning::Known(x) = s.subject()? else {
        return Err("it is done with constants alone, and reads images or weights".into());
    };
    let axis = s.axis("dim", 0, x.shape().len())?;
    let kind = s.dtype()?.unwrap_or(x.kind().max(Kind::I64));
    let sums = x.map(kind, |x| x);
    for index in 1..x.shape()[axis] {
        let before = sums.slice(axis, index - 1, index, 1);
        let here = sums.slice(axis, index, index + 1, 1);
        here.write(&here.zip(&before, kind, |a, b| a + b)?)?;
    }
    Ok(vec![Meaning::Known(sums)])
}

/// Computes the sum over axes, which go.
pub(super) fn summed(s: &mut Scope<'_, '_>, x: &Meaning, axes: Vec<usize>) -> Made {
    s.reduce(Reduction::Sum, x, axes, false)
}
