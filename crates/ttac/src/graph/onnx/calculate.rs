//! Arithmetic on known values.

use super::known::{Known, Numbers, Whole, broadcast, depends_on_the_batch};
use super::problem::Result;

/// Chooses between two values by a condition, element by element.
pub fn choose(inputs: &[Option<&Known>]) -> Result<Known> {
    let [Some(condition), Some(yes), Some(no)] = inputs else {
        return Err("it reads no condition and two values".into());
    };
    let shape = broadcast(&broadcast(&condition.shape, &yes.shape)?, &no.shape)?;
    let (condition, yes, no) = (
        condition.expanded(&shape)?,
        yes.expanded(&shape)?,
        no.expanded(&shape)?,
    );
    let Numbers::Truth(condition) = condition.numbers else {
        return Err("its condition is not of truth values".into());
    };
    let numbers = match (&yes.numbers, &no.numbers) {
        (Numbers::Whole(yes), Numbers::Whole(no)) => Numbers::Whole(mixed(&condition, yes, no)),
        (Numbers::Truth(yes), Numbers::Truth(no)) => Numbers::Truth(mixed(&condition, yes, no)),
        _ => Numbers::Real(mixed(&condition, &yes.real()?, &no.real()?)),
    };
    Ok(Known { shape, numbers })
}

fn mixed<T: Copy>(condition: &[bool], yes: &[T], no: &[T]) -> Vec<T> {
    let pairs = yes.iter().zip(no);
    let chosen = condition.iter().zip(pairs);
    chosen.map(|(&c, (&y, &n))| if c { y } else { n }).collect()
}

/// Applies a function of one number.
pub fn unary(op: &str, x: &Known) -> Result<Known> {
    let numbers = match (op, &x.numbers) {
        ("Not", Numbers::Truth(values)) => Numbers::Truth(values.iter().map(|v| !v).collect()),
        ("Neg", Numbers::Whole(values)) => {
            let negated = values.iter().map(|&v| whole("Sub", Whole::fixed(0), v));
            Numbers::Whole(negated.collect::<Result<_>>()?)
        }
        ("Abs", Numbers::Whole(_)) => {
            let values = x.plain()?.into_iter();
            Numbers::Whole(values.map(|v| Whole::fixed(v.saturating_abs())).collect())
        }
        _ => {
            let function: fn(f32) -> f32 = match op {
                "Neg" => |v| -v,
                "Abs" => f32::abs,
                "Floor" => f32::floor,
                "Ceil" => f32::ceil,
                "Sqrt" => f32::sqrt,
                "Exp" => f32::exp,
                "Log" => f32::ln,
                "Sin" => f32::sin,
                "Cos" => f32::cos,
                "Reciprocal" => f32::recip,
                _ => return Err("it does not read truth values".into()),
            };
            Numbers::Real(x.real()?.into_iter().map(function).collect())
        }
    };
    Ok(Known {
        shape: x.shape.clone(),
        numbers,
    })
}

/// Applies a function of two numbers, with broadcasting.
pub fn binary(op: &str, a: &Known, b: &Known) -> Result<Known> {
    let shape = broadcast(&a.shape, &b.shape)?;
    let (a, b) = (a.expanded(&shape)?, b.expanded(&shape)?);
    let numbers = match (&a.numbers, &b.numbers) {
        (Numbers::Truth(a), Numbers::Truth(b)) => {
            let both = a.iter().zip(b);
            match op {
                "And" => Numbers::Truth(both.map(|(a, b)| *a && *b).collect()),
                "Or" => Numbers::Truth(both.map(|(a, b)| *a || *b).collect()),
                "Equal" => Numbers::Truth(both.map(|(a, b)| a == b).collect()),
                _ => return Err("it does not read truth values".into()),
            }
        }
        (Numbers::Whole(a), Numbers::Whole(b)) => {
            let both = a.iter().zip(b);
            if matches!(
                op,
                "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" | "Pow"
            ) {
                let values = both.map(|(&a, &b)| whole(op, a, b));
                Numbers::Whole(values.collect::<Result<_>>()?)
            } else {
                let values = both.map(|(&a, &b)| compare(op, a, b));
                Numbers::Truth(values.collect::<Result<_>>()?)
            }
        }
        _ => real(op, &a.real()?, &b.real()?)?,
    };
    Ok(Known { shape, numbers })
}

fn real(op: &str, a: &[f32], b: &[f32]) -> Result<Numbers> {
    let both = a.iter().zip(b);
    let function: fn(f32, f32) -> f32 = match op {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        "Mod" => |a, b| a % b,
        "Pow" => f32::powf,
        "Min" => f32::min,
        "Max" => f32::max,
        _ => {
            let test: fn(&f32, &f32) -> bool = match op {
                "Equal" => |a, b| a == b,
                "Less" => |a, b| a < b,
                "LessOrEqual" => |a, b| a <= b,
                "Greater" => |a, b| a > b,
                "GreaterOrEqual" => |a, b| a >= b,
                _ => return Err("it reads truth values alone".into()),
            };
            return Ok(Numbers::Truth(both.map(|(a, b)| test(a, b)).collect()));
        }
    };
    Ok(Numbers::Real(both.map(|(a, b)| function(*a, *b)).collect()))
}

/// Computes with integers that may depend on the number of images.
pub fn whole(op: &str, a: Whole, b: Whole) -> Result<Whole> {
    let parts = |f: fn(i64, i64) -> Option<i64>| {
        let fixed = f(a.fixed, b.fixed)?;
        let per_image = f(a.per_image, b.per_image)?;
        Some(Whole { fixed, per_image })
    };
    let result = match (op, a.number(), b.number()) {
        ("Add", ..) => parts(i64::checked_add),
        ("Sub", ..) => parts(i64::checked_sub),
        ("Mul", _, Some(factor)) => scaled(a, factor),
        ("Mul", Some(factor), _) => scaled(b, factor),
        ("Div", Some(a), Some(b)) => a.checked_div(b).map(Whole::fixed),
        ("Div", _, Some(d)) if d != 0 && a.fixed % d == 0 && a.per_image % d == 0 => Some(Whole {
            fixed: a.fixed / d,
            per_image: a.per_image / d,
        }),
        // The sign of a remainder is that of the divisor, as in Python.
        ("Mod", _, Some(d)) if d > 0 && a.per_image % d == 0 => {
            Some(Whole::fixed(a.fixed.rem_euclid(d)))
        }
        ("Pow", Some(a), Some(b)) => {
            let exponent = u32::try_from(b).ok();
            exponent.and_then(|b| a.checked_pow(b)).map(Whole::fixed)
        }
        ("Min", Some(a), Some(b)) => Some(Whole::fixed(a.min(b))),
        ("Max", Some(a), Some(b)) => Some(Whole::fixed(a.max(b))),
        _ => None,
    };
    result.ok_or_else(depends_on_the_batch)
}

fn scaled(a: Whole, factor: i64) -> Option<Whole> {
    Some(Whole {
        fixed: a.fixed.checked_mul(factor)?,
        per_image: a.per_image.checked_mul(factor)?,
    })
}

/// Compares integers, of which one may be a positive multiple of the number of images: that is never 0 or negative.
fn compare(op: &str, a: Whole, b: Whole) -> Result<bool> {
    let (a, b) = match (a.number(), b.number()) {
        (Some(a), Some(b)) => (a, b),
        _ if a == b => (0, 0),
        (None, Some(b)) if a.fixed >= 0 && a.per_image > 0 && b <= 0 => (1, b),
        (Some(a), None) if b.fixed >= 0 && b.per_image > 0 && a <= 0 => (a, 1),
        _ => return Err(depends_on_the_batch()),
    };
    Ok(match op {
        "Equal" => a == b,
        "Less" => a < b,
        "LessOrEqual" => a <= b,
        "Greater" => a > b,
        "GreaterOrEqual" => a >= b,
        _ => return Err("it does not read integers".into()),
    })
}
