//! Functions of each element, and arithmetic.

use super::algebra::{Arithmetic, Made};
use super::arguments::{Outcome, Scope};
use super::build::{MASKED, Meaning, Refusal};
use super::fold::{Array, Kind};
use crate::graph::ir::Dim;
use crate::graph::op::{Function, Op};

/// The bound of a clip that has none on that side.
const UNBOUNDED: f64 = f32::MAX as f64;

/// Defines lowerings of functions without arguments.
macro_rules! functions {
    ($($name:ident => $function:expr;)*) => {
        $(
            #[doc = concat!("Lowers `", stringify!($name), "`.")]
            pub(super) fn $name(s: &mut Scope<'_, '_>) -> Outcome {
                let x = s.subject()?;
                Ok(vec![s.apply($function, &x)?])
            }
        )*
    };
}

functions! {
    relu => Function::Relu;
    sigmoid => Function::Sigmoid;
    silu => Function::Silu;
    hardswish => Function::HardSwish;
    hardsigmoid => Function::HardSigmoid;
    mish => Function::Mish;
    tanh => Function::Tanh;
    exp => Function::Exp;
    log => Function::Log;
    sqrt => Function::Sqrt;
    sin => Function::Sin;
    cos => Function::Cos;
    erf => Function::Erf;
    abs => Function::Abs;
    square => Function::Power { exponent: 2.0 };
    reciprocal => Function::Power { exponent: -1.0 };
    rsqrt => Function::Power { exponent: -0.5 };
    relu6 => Function::Clip { min: 0.0, max: 6.0 };
}

/// Lowers `gelu`, exact or with `tanh`.
pub(super) fn gelu(s: &mut Scope<'_, '_>) -> Outcome {
    let function = match s.text("approximate", "none")? {
        "none" => Function::Gelu,
        "tanh" => Function::GeluTanh,
        other => return Err(format!("the approximation `{other}` is unknown").into()),
    };
    let x = s.subject()?;
    Ok(vec![s.apply(function, &x)?])
}

/// Lowers `leaky_relu`.
pub(super) fn leaky_relu(s: &mut Scope<'_, '_>) -> Outcome {
    let slope = s.float("negative_slope", 0.01)?;
    let x = s.subject()?;
    Ok(vec![s.apply(Function::LeakyRelu { slope }, &x)?])
}

/// Lowers `elu`: `scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))`.
pub(super) fn elu(s: &mut Scope<'_, '_>) -> Outcome {
    if s.float("input_scale", 1.0)? != 1.0 {
        return Err("a scale inside of the exponential is no operation of ours".into());
    }
    let (alpha, scale) = (s.float("alpha", 1.0)?, s.float("scale", 1.0)?);
    let x = s.subject()?;
    let made = s.apply(Function::Elu { alpha }, &x)?;
    Ok(vec![s.scale(&made, scale)?])
}

/// Lowers `selu`, whose two constants are those of its paper.
pub(super) fn selu(s: &mut Scope<'_, '_>) -> Outcome {
    let alpha = 1.673_263_242_354_377_2;
    let x = s.subject()?;
    let made = s.apply(Function::Elu { alpha }, &x)?;
    Ok(vec![s.scale(&made, 1.050_700_987_355_480_5)?])
}

/// Lowers `softplus`: `ln(1 + exp(beta x)) / beta`.
pub(super) fn softplus(s: &mut Scope<'_, '_>) -> Outcome {
    let beta = s.float("beta", 1.0)?;
    let x = s.subject()?;
    let scaled = s.scale(&x, beta)?;
    let made = s.apply(Function::Softplus, &scaled)?;
    Ok(vec![s.scale(&made, 1.0 / beta)?])
}

/// Lowers `clamp`, `clamp_min`, `clamp_max` and `hardtanh`.
pub(super) fn clamp(s: &mut Scope<'_, '_>) -> Outcome {
    let min = s.optional_float("min")?.unwrap_or(-UNBOUNDED);
    let max = s.optional_float("max")?.unwrap_or(UNBOUNDED);
    clip(s, min, max)
}

/// Lowers `hardtanh`.
pub(super) fn hardtanh(s: &mut Scope<'_, '_>) -> Outcome {
    let (min, max) = (s.float("min_val", -1.0)?, s.float("max_val", 1.0)?);
    clip(s, min, max)
}

fn clip(s: &mut Scope<'_, '_>, min: f64, max: f64) -> Outcome {
    let x = s.subject()?;
    let [min, max] = [min, max].map(|bound| bound.clamp(-UNBOUNDED, UNBOUNDED));
    if let Meaning::Known(array) = &x {
        let clipped = array.map(array.kind(), |x| x.max(min).min(max));
        return Ok(vec![Meaning::Known(clipped)]);
    }
    let function = match (min, max) {
        (0.0, UNBOUNDED) => Function::Relu,
        _ => Function::Clip { min, max },
    };
    Ok(vec![s.apply(function, &x)?])
}

/// Lowers `prelu`: `max(x, 0) + weight * min(x, 0)`, with a weight for each channel or one for all.
pub(super) fn prelu(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, weight) = (s.subject()?, s.tensor("weight")?);
    let rank = s.shape(&x)?.dims.len();
    let count = s.shape(&weight)?.dims.iter().map(|dim| dim.size).product();
    let mut sizes = vec![1; rank];
    if rank > 1 {
        sizes[1] = count;
    }
    let weight = s.reshape(&weight, &sizes)?;
    let positive = s.apply(Function::Relu, &x)?;
    let negative = Function::Clip {
        min: -UNBOUNDED,
        max: 0.0,
    };
    let negative = s.apply(negative, &x)?;
    let negative = s.mul(&weight, &negative)?;
    Ok(vec![s.add(&positive, &negative)?])
}

/// Lowers `glu`: the first half times the sigmoid of the second.
pub(super) fn glu(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let axis = s.axis("dim", -1, sizes.len())?;
    let half = sizes[axis] / 2;
    let gate = s.slice(&x, axis, [half, 2 * half, 1])?;
    let x = s.slice(&x, axis, [0, half, 1])?;
    let gate = s.apply(Function::Sigmoid, &gate)?;
    Ok(vec![s.mul(&x, &gate)?])
}

/// Lowers `pow` with a number as its exponent, or as its base.
pub(super) fn pow(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, exponent) = (s.subject()?, s.tensor("exponent")?);
    let number = |meaning: &Meaning| match meaning {
        Meaning::Known(array) if array.shape().is_empty() => array.only(),
        _ => None,
    };
    if let (Meaning::Known(x), Meaning::Known(exponent)) = (&x, &exponent) {
        let kind = x.kind().max(exponent.kind());
        return Ok(vec![Meaning::Known(x.zip(exponent, kind, f64::powf)?)]);
    }
    match (number(&x), number(&exponent)) {
        (_, Some(1.0)) => Ok(vec![x]),
        (_, Some(exponent)) => Ok(vec![s.apply(Function::Power { exponent }, &x)?]),
        (Some(base), None) if base > 0.0 => {
            let scaled = s.scale(&exponent, base.ln())?;
            Ok(vec![s.apply(Function::Exp, &scaled)?])
        }
        _ => Err("both the base and the exponent depend on images or weights".into()),
    }
}

/// Lowers `neg`.
pub(super) fn negate(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    Ok(vec![s.scale(&x, -1.0)?])
}

/// Lowers `log_sigmoid`: `-ln(1 + exp(-x))`.
pub(super) fn log_sigmoid(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let negative = s.scale(&x, -1.0)?;
    let made = s.apply(Function::Softplus, &negative)?;
    Ok(vec![s.scale(&made, -1.0)?])
}

/// Lowers `add`: `self + alpha * other`.
pub(super) fn add(s: &mut Scope<'_, '_>) -> Outcome {
    let (a, b) = (s.subject()?, s.tensor("other")?);
    let alpha = s.float("alpha", 1.0)?;
    let b = s.scale(&b, alpha)?;
    Ok(vec![s.add(&a, &b)?])
}

/// Lowers `sub`: `self - alpha * other`.
pub(super) fn sub(s: &mut Scope<'_, '_>) -> Outcome {
    let (a, b) = (s.subject()?, s.tensor("other")?);
    let alpha = s.float("alpha", 1.0)?;
    let b = s.scale(&b, alpha)?;
    Ok(vec![s.arithmetic(Arithmetic::Sub, &a, &b)?])
}

/// Lowers `rsub`: `other - alpha * self`.
pub(super) fn reversed_sub(s: &mut Scope<'_, '_>) -> Outcome {
    let (a, b) = (s.subject()?, s.tensor("other")?);
    let alpha = s.float("alpha", 1.0)?;
    let a = s.scale(&a, alpha)?;
    Ok(vec![s.arithmetic(Arithmetic::Sub, &b, &a)?])
}

/// Lowers `mul`.
pub(super) fn mul(s: &mut Scope<'_, '_>) -> Outcome {
    let (a, b) = (s.subject()?, s.tensor("other")?);
    Ok(vec![s.mul(&a, &b)?])
}

/// Lowers `div`; with a mode of rounding it works on constants alone.
pub(super) fn div(s: &mut Scope<'_, '_>) -> Outcome {
    let (a, b) = (s.subject()?, s.tensor("other")?);
    match s.text("rounding_mode", "")? {
        "" => Ok(vec![s.arithmetic(Arithmetic::Div, &a, &b)?]),
        "floor" => Ok(vec![known_pair(&a, &b, Promotion::Widest, |a, b| {
            (a / b).floor()
        })?]),
        _ => Ok(vec![known_pair(&a, &b, Promotion::Widest, |a, b| {
            (a / b).trunc()
        })?]),
    }
}

/// Lowers `addcmul`: `self + value * tensor1 * tensor2`.
pub(super) fn addcmul(s: &mut Scope<'_, '_>) -> Outcome {
    scaled_pair(s, Arithmetic::Mul)
}

/// Lowers `addcdiv`: `self + value * tensor1 / tensor2`.
pub(super) fn addcdiv(s: &mut Scope<'_, '_>) -> Outcome {
    scaled_pair(s, Arithmetic::Div)
}

fn scaled_pair(s: &mut Scope<'_, '_>, how: Arithmetic) -> Outcome {
    let (a, b) = (s.tensor("tensor1")?, s.tensor("tensor2")?);
    let value = s.float("value", 1.0)?;
    let product = s.arithmetic(how, &a, &b)?;
    let product = s.scale(&product, value)?;
    let x = s.subject()?;
    Ok(vec![s.add(&x, &product)?])
}

/// Lowers `lerp`: `self + weight * (end - self)`.
pub(super) fn lerp(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, end, weight) = (s.subject()?, s.tensor("end")?, s.tensor("weight")?);
    let way = s.arithmetic(Arithmetic::Sub, &end, &x)?;
    let way = s.mul(&weight, &way)?;
    Ok(vec![s.add(&x, &way)?])
}

/// Lowers `maximum` and `minimum` with a number: a clip.
pub(super) fn maximum(s: &mut Scope<'_, '_>) -> Outcome {
    extremum(s, true)
}

/// Lowers `minimum` with a number.
pub(super) fn minimum(s: &mut Scope<'_, '_>) -> Outcome {
    extremum(s, false)
}

fn extremum(s: &mut Scope<'_, '_>, largest: bool) -> Outcome {
    let (a, b) = (s.subject()?, s.tensor("other")?);
    let (x, bound) = match (&a, &b) {
        (Meaning::Known(x), Meaning::Known(y)) => {
            let pick = if largest { f64::max } else { f64::min };
            let kind = x.kind().max(y.kind());
            return Ok(vec![Meaning::Known(x.zip(y, kind, pick)?)]);
        }
        (x, Meaning::Known(bound)) | (Meaning::Known(bound), x) if bound.len() == 1 => (x, bound),
        _ => return Err("it compares elements of two values".into()),
    };
    let bound = bound.only().unwrap_or_default();
    let (min, max) = if largest {
        (bound, UNBOUNDED)
    } else {
        (-UNBOUNDED, bound)
    };
    Ok(vec![s.apply(Function::Clip { min, max }, x)?])
}

/// Lowers `where` with a condition that is known.
pub(super) fn choose(s: &mut Scope<'_, '_>) -> Outcome {
    let (condition, a, b) = (s.tensor("condition")?, s.subject()?, s.tensor("other")?);
    Ok(vec![chosen(s, &condition, &a, &b)?])
}

/// Lowers `masked_fill` with a mask that is known.
pub(super) fn masked_fill(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, mask, value) = (s.subject()?, s.tensor("mask")?, s.tensor("value")?);
    Ok(vec![chosen(s, &mask, &value, &x)?])
}

/// Takes `a` where the condition holds and `b` elsewhere, as a sum of products with the condition.
fn chosen(s: &mut Scope<'_, '_>, condition: &Meaning, a: &Meaning, b: &Meaning) -> Made {
    let Meaning::Known(condition) = condition else {
        return Err("its condition depends on images or weights".into());
    };
    if let (Meaning::Known(a), Meaning::Known(b)) = (a, b) {
        let kind = a.kind().max(b.kind());
        // What is not chosen may be infinite: parts are taken, not products.
        let a = condition.zip(a, kind, |c, a| if c == 0.0 { 0.0 } else { a })?;
        let b = condition.zip(b, kind, |c, b| if c == 0.0 { b } else { 0.0 })?;
        return Ok(Meaning::Known(a.zip(&b, kind, |a, b| a + b)?));
    }
    let take = condition.map(Kind::F32, |c| f64::from(u8::from(c != 0.0)));
    let leave = condition.map(Kind::F32, |c| f64::from(u8::from(c == 0.0)));
    let part = |s: &mut Scope<'_, '_>, x: &Meaning, share: Array| -> Made {
        match x {
            Meaning::Known(x) => {
                let finite = x.map(Kind::F32, |x| x.clamp(MASKED, -MASKED));
                Ok(Meaning::Known(share.zip(&finite, Kind::F32, |c, x| c * x)?))
            }
            x => s.mul(x, &Meaning::Known(share)),
        }
    };
    let (a, b) = (part(s, a, take)?, part(s, b, leave)?);
    let nothing =
        |x: &Meaning| matches!(x, Meaning::Known(x) if x.to_vec().iter().all(|&x| x == 0.0));
    let same =
        |s: &Scope<'_, '_>, x: &Meaning, sum: &[Dim]| Ok::<_, Refusal>(s.shape(x)?.dims == sum);
    let whole = crate::graph::dims::broadcast(&s.shape(&a)?.dims, &s.shape(&b)?.dims)?;
    match (
        nothing(&a) && same(s, &b, &whole)?,
        nothing(&b) && same(s, &a, &whole)?,
    ) {
        (true, _) => Ok(b),
        (_, true) => Ok(a),
        _ => s.add(&a, &b),
    }
}

/// How the kind of a result follows from those of its operands.
#[derive(Clone, Copy, Debug)]
enum Promotion {
    Widest,
    Bool,
}

fn known_pair(
    a: &Meaning,
    b: &Meaning,
    promotion: Promotion,
    function: impl Fn(f64, f64) -> f64,
) -> Made {
    let (Meaning::Known(a), Meaning::Known(b)) = (a, b) else {
        return Err("it is done with constants alone, and reads images or weights".into());
    };
    let kind = match promotion {
        Promotion::Widest => a.kind().max(b.kind()),
        Promotion::Bool => Kind::Bool,
    };
    Ok(Meaning::Known(a.zip(b, kind, function)?))
}

/// Defines lowerings of functions of two constants.
macro_rules! pairs {
    ($($name:ident => $promotion:ident, $function:expr;)*) => {
        $(
            #[doc = concat!("Folds `", stringify!($name), "` of constants.")]
            pub(super) fn $name(s: &mut Scope<'_, '_>) -> Outcome {
                let (a, b) = (s.subject()?, s.tensor("other")?);
                Ok(vec![known_pair(&a, &b, Promotion::$promotion, $function)?])
            }
        )*
    };
}

fn truth(truth: bool) -> f64 {
    f64::from(u8::from(truth))
}

pairs! {
    eq => Bool, |a, b| truth(a == b);
    ne => Bool, |a, b| truth(a != b);
    lt => Bool, |a, b| truth(a < b);
    le => Bool, |a, b| truth(a <= b);
    gt => Bool, |a, b| truth(a > b);
    ge => Bool, |a, b| truth(a >= b);
    logical_and => Bool, |a, b| truth(a != 0.0 && b != 0.0);
    logical_or => Bool, |a, b| truth(a != 0.0 || b != 0.0);
    floor_divide => Widest, |a, b| (a / b).floor();
    remainder => Widest, |a, b| a - b * (a / b).floor();
}

/// Defines lowerings of functions of one constant.
macro_rules! singles {
    ($($name:ident => $function:expr;)*) => {
        $(
            #[doc = concat!("Folds `", stringify!($name), "` of a constant.")]
            pub(super) fn $name(s: &mut Scope<'_, '_>) -> Outcome {
                let x = s.subject()?;
                let Meaning::Known(x) = x else {
                    return Err("it is done with constants alone, and reads images or weights".into());
                };
                Ok(vec![Meaning::Known($function(&x))])
            }
        )*
    };
}

singles! {
    logical_not => |x: &Array| x.map(Kind::Bool, |x| truth(x == 0.0));
    bitwise_not => |x: &Array| match x.kind() {
        Kind::Bool => x.map(Kind::Bool, |x| truth(x == 0.0)),
        kind => x.map(kind, |x| -x - 1.0),
    };
    floor => |x: &Array| x.map(x.kind(), f64::floor);
    ceil => |x: &Array| x.map(x.kind(), f64::ceil);
    round => |x: &Array| x.map(x.kind(), f64::round_ties_even);
    sign => |x: &Array| x.map(x.kind(), |x| if x == 0.0 { 0.0 } else { x.signum() });
}

/// Lowers `log2`, a logarithm times a constant.
pub(super) fn log2(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    if let Meaning::Known(x) = &x {
        return Ok(vec![Meaning::Known(x.map(Kind::F32, f64::log2))]);
    }
    let made = s.apply(Function::Log, &x)?;
    Ok(vec![s.scale(&made, std::f64::consts::LOG2_E)?])
}

/// Lowers `softmax`, along one axis.
pub(super) fn softmax(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let axis = s.axis("dim", -1, s.shape(&x)?.dims.len())?;
    Ok(vec![s.node(Op::Softmax { axis }, &[x])?])
}

/// Lowers `log_softmax`, the logarithm of a softmax.
pub(super) fn log_softmax(s: &mut Scope<'_, '_>) -> Outcome {
    let shares = softmax(s)?;
    Ok(vec![s.apply(Function::Log, &shares[0])?])
}
