//! The steps that are computed by Burn's own operations, on tensors as they lie in memory.

use std::ops::Range;

use burn::tensor::{Tensor, activation};
use ttac_kernels::kernels::Window;
use ttac_kernels::{Activation, AveragePoolOptions, GroupNormOptions, PoolOptions};

use super::any::{Any, each};
use super::fuse::activation_of;
use crate::graph::op::{Function, Pool, Reduction};

/// An operation on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Sub,
    Mul,
    Div,
}

/// Combines two values with equally many axes, with broadcasting.
pub(super) fn binary(a: Any, b: Any, operation: Operation) -> Any {
    fn apply<const D: usize>(a: Tensor<D>, b: Tensor<D>, operation: Operation) -> Tensor<D> {
        match operation {
            Operation::Add if a.dims() == b.dims() => ttac_kernels::add(a, b),
            Operation::Mul if a.dims() == b.dims() => ttac_kernels::mul(a, b),
            Operation::Add => a + b,
            Operation::Sub => a - b,
            Operation::Mul => a * b,
            Operation::Div => a / b,
        }
    }
    match (a, b) {
        (Any::R1(a), Any::R1(b)) => apply(a, b, operation).into(),
        (Any::R2(a), Any::R2(b)) => apply(a, b, operation).into(),
        (Any::R3(a), Any::R3(b)) => apply(a, b, operation).into(),
        (Any::R4(a), Any::R4(b)) => apply(a, b, operation).into(),
        (Any::R5(a), Any::R5(b)) => apply(a, b, operation).into(),
        (Any::R6(a), Any::R6(b)) => apply(a, b, operation).into(),
        (a, b) => unreachable!("a plan gave {:?} and {:?}", a.dims(), b.dims()),
    }
}

/// Combines a value and a number.
pub(super) fn with_number(a: Any, b: f64, operation: Operation) -> Any {
    a.elementwise(|a| match operation {
        Operation::Add => a + b,
        Operation::Sub => a - b,
        Operation::Mul => a * b,
        Operation::Div => a / b,
    })
}

/// Combines a number and a value.
pub(super) fn from_number(a: f64, b: Any, operation: Operation) -> Any {
    b.elementwise(|b| match operation {
        Operation::Add => b + a,
        Operation::Sub => -b + a,
        Operation::Mul => b * a,
        Operation::Div => b.recip() * a,
    })
}

/// Applies a function to each element.
pub(super) fn apply(x: Any, function: Function) -> Any {
    if let Some(known) = activation_of(function) {
        return activate(x, known);
    }
    x.elementwise(|x| match function {
        Function::LeakyRelu { slope } => activation::leaky_relu(x, slope),
        Function::Elu { alpha } => {
            let negative = (x.clone().clamp_max(0.0).exp() - 1.0) * alpha;
            activation::relu(x) + negative
        }
        Function::Mish => activation::mish(x),
        Function::Softplus => activation::softplus(x, 1.0),
        Function::Clip { min, max } => clip(x, min, max),
        Function::Tanh => x.tanh(),
        Function::Exp => x.exp(),
        Function::Log => x.log(),
        Function::Sqrt => x.sqrt(),
        Function::Sin => x.sin(),
        Function::Cos => x.cos(),
        Function::Erf => x.erf(),
        Function::Abs => x.abs(),
        Function::Power { exponent } => power(x, exponent),
        _ => unreachable!("the others are activations of our kernels"),
    })
}

/// `min(max(x, min), max)`, where a bound may be infinite.
fn clip(x: Tensor<1>, min: f64, max: f64) -> Tensor<1> {
    match (min.is_finite(), max.is_finite()) {
        (true, true) => x.clamp(min, max),
        (true, false) => x.clamp_min(min),
        (false, true) => x.clamp_max(max),
        (false, false) => x,
    }
}

/// `x` to a power. Whole and half exponents are computed without logarithms, so that negative numbers have powers as well.
fn power(x: Tensor<1>, exponent: f64) -> Tensor<1> {
    if exponent == 2.0 {
        x.clone() * x
    } else if exponent == 0.5 {
        x.sqrt()
    } else if exponent == -0.5 {
        x.sqrt().recip()
    } else if exponent == -1.0 {
        x.recip()
    } else if exponent == exponent.trunc() && exponent.abs() < 64.0 {
        x.powi_scalar(exponent as i32)
    } else {
        x.powf_scalar(exponent)
    }
}

/// `activation(a + b)` of values of one shape.
pub(super) fn add_activate(a: Any, b: Any, function: Activation) -> Any {
    match (a, b) {
        (Any::R2(a), Any::R2(b)) => ttac_kernels::add_activate(a, b, function).into(),
        (Any::R3(a), Any::R3(b)) => ttac_kernels::add_activate(a, b, function).into(),
        (Any::R4(a), Any::R4(b)) => ttac_kernels::add_activate(a, b, function).into(),
        (a, b) => activate(binary(a, b, Operation::Add), function),
    }
}

/// Applies an activation of our kernels.
pub(super) fn activate(x: Any, function: Activation) -> Any {
    if function == Activation::None {
        return x;
    }
    each!(x, x => ttac_kernels::activate(x, function).into())
}

/// Normalises the columns of rows by their own mean and biased variance.
pub(super) fn standardise(x: Any, weight: Option<Tensor<1>>, epsilon: f64) -> Any {
    let (x, dims) = x.rows();
    let centred = x.clone() - x.mean_dim(0);
    let variance = (centred.clone() * centred.clone()).mean_dim(0);
    let y = centred / (variance + epsilon).sqrt();
    let y = match weight {
        Some(weight) => y * weight.unsqueeze(),
        None => y,
    };
    Any::from(y).reshape(&dims)
}

/// Normalises rows of the last axis.
pub(super) fn layer_norm(x: Any, [weight, bias]: [Option<Tensor<1>>; 2], epsilon: f64) -> Any {
    let (x, dims) = x.rows();
    let (weight, bias) = affine(weight, bias, x.dims()[1], &x.device());
    Any::from(ttac_kernels::layer_norm(x, weight, bias, epsilon as f32)).reshape(&dims)
}

/// Normalises groups of channels, which come last, of each image.
pub(super) fn group_norm(
    x: Any,
    [weight, bias]: [Option<Tensor<1>>; 2],
    groups: usize,
    epsilon: f64,
    activation: Activation,
) -> Any {
    let dims = x.dims();
    let (batch, channels) = (dims[0], dims[dims.len() - 1]);
    let image = match dims[..] {
        [batch, height, width, channels] => [batch, height, width, channels],
        _ => [
            batch,
            1,
            dims.iter().product::<usize>() / (batch * channels),
            channels,
        ],
    };
    let (weight, bias) = affine(weight, bias, channels, &x.device());
    let options = GroupNormOptions {
        groups,
        epsilon: epsilon as f32,
        activation,
    };
    Any::from(ttac_kernels::group_norm(
        x.view(image),
        weight,
        bias,
        options,
    ))
    .reshape(&dims)
}

/// A scale of ones and a shift of zeros where a norm has none.
fn affine(
    weight: Option<Tensor<1>>,
    bias: Option<Tensor<1>>,
    channels: usize,
    device: &burn::tensor::Device,
) -> (Tensor<1>, Tensor<1>) {
    (
        weight.unwrap_or_else(|| Tensor::ones([channels], device)),
        bias.unwrap_or_else(|| Tensor::zeros([channels], device)),
    )
}

/// Multiplies matrices of the last two axes; the axes before them broadcast.
pub(super) fn mat_mul(a: Any, b: Any) -> Any {
    let (mut shape, other) = (a.dims(), b.dims());
    let axes = shape.len().max(other.len());
    let widened = |dims: &[usize]| [vec![1; axes - dims.len()], dims.to_vec()].concat();
    let (left, right) = (widened(&shape), widened(&other));
    shape.clone_from(&left);
    for axis in 0..axes - 2 {
        shape[axis] = left[axis].max(right[axis]);
    }
    shape[axes - 1] = right[axes - 1];
    // Products over equal outer axes are one batch of products.
    let flat = |any: Any, dims: Vec<usize>| {
        let outer: Vec<usize> = shape[..axes - 2].to_vec();
        let full = [outer, dims[axes - 2..].to_vec()].concat();
        let any = expand(any.reshape(&dims), &full);
        let batch = full[..axes - 2].iter().product();
        any.view::<3>([batch, full[axes - 2], full[axes - 1]])
    };
    let product = flat(a, left).matmul(flat(b, right));
    Any::from(product).reshape(&shape)
}

/// Makes shares that add up to 1 along an axis.
pub(super) fn softmax(x: Any, axis: usize) -> Any {
    let (x, dims) = x.around(axis);
    let y = if x.dims()[2] == 1 {
        let [before, size, _] = x.dims();
        Any::from(ttac_kernels::softmax(x.reshape([before, size])))
    } else {
        activation::softmax(x, 1).into()
    };
    y.reshape(&dims)
}

/// Reduces axes, which stay with size 1.
pub(super) fn reduce(x: Any, how: Reduction, axes: &[usize]) -> Any {
    let squared = how == Reduction::Euclidean;
    let mut x = if squared {
        x.elementwise(|x| x.clone() * x)
    } else {
        x
    };
    for &axis in axes {
        let (at, mut dims) = x.around(axis);
        dims[axis] = 1;
        let reduced = match how {
            Reduction::Mean => at.mean_dim(1),
            Reduction::Sum | Reduction::Euclidean => at.sum_dim(1),
            Reduction::Maximum => at.max_dim(1),
        };
        x = Any::from(reduced).reshape(&dims);
    }
    if squared {
        x.elementwise(Tensor::sqrt)
    } else {
        x
    }
}

/// Takes the nearest pixel of `[b, h, w, c]` for every pixel of another size.
pub(super) fn resize(x: Tensor<4>, size: [usize; 2]) -> Tensor<4> {
    let [_, height, width, _] = x.dims();
    let device = x.device();
    let nearest = |from: usize, to: usize| {
        let indices: Vec<i64> = (0..to).map(|i| (i * from / to) as i64).collect();
        let data = burn::tensor::TensorData::new(indices, [to]);
        Tensor::<1, burn::tensor::Int>::from_data(data, &device)
    };
    x.select(1, nearest(height, size[0]))
        .select(2, nearest(width, size[1]))
}

/// Copies into another order of axes.
pub(super) fn reorder(x: Any, places: &[usize]) -> Any {
    fn order<const D: usize>(places: &[usize]) -> [usize; D] {
        std::array::from_fn(|place| places[place])
    }
    if places.is_sorted() {
        return x;
    }
    each!(x, x => ttac_kernels::reorder(x, order(places)).into())
}

/// Takes the maximum over windows of images whose channels come last.
pub(super) fn max_pool(x: Tensor<4>, pool: Pool) -> Tensor<4> {
    ttac_kernels::max_pool(x, windows(pool))
}

/// Takes the mean over windows of images whose channels come last.
pub(super) fn average_pool(
    x: Tensor<4>,
    pool: Pool,
    count_padding: bool,
    divisor: Option<usize>,
) -> Tensor<4> {
    let options = AveragePoolOptions {
        windows: windows(pool),
        count_padding,
        divisor,
    };
    ttac_kernels::average_pool(x, options)
}

fn windows(pool: Pool) -> PoolOptions {
    PoolOptions {
        window: Window {
            kernel: pool.kernel,
            stride: pool.stride,
            dilation: pool.dilation,
            padding: pool.padding.map(|both| [both; 2]),
        },
        ceil: pool.ceil,
    }
}

/// Takes a part of an axis.
pub(super) fn slice(x: Any, axis: usize, range: Range<usize>, step: usize) -> Any {
    let (x, mut dims) = x.around(axis);
    if range == (0..dims[axis]) && step == 1 {
        return Any::from(x).reshape(&dims);
    }
    dims[axis] = range.len().div_ceil(step);
    let part = if step == 1 {
        x.narrow(1, range.start, range.len())
    } else {
        let slice = burn::tensor::Slice::with_step(
            range.start as isize,
            Some(range.end as isize),
            step as isize,
        );
        x.slice_dim(1, slice)
    };
    Any::from(part).reshape(&dims)
}

/// Joins values along an axis.
pub(super) fn concat(parts: Vec<Any>, axis: usize) -> Any {
    let mut shape = parts[0].dims();
    let parts: Vec<Tensor<3>> = parts.into_iter().map(|part| part.around(axis).0).collect();
    shape[axis] = parts.iter().map(|part| part.dims()[1]).sum();
    Any::from(Tensor::cat(parts, 1)).reshape(&shape)
}

/// Surrounds with a constant.
pub(super) fn pad(mut x: Any, padding: &[[usize; 2]], value: f64) -> Any {
    for (axis, &[before, after]) in padding.iter().enumerate() {
        if before + after == 0 {
            continue;
        }
        let (at, mut dims) = x.around(axis);
        let [outer, _, inner] = at.dims();
        let device = at.device();
        let border = |count: usize| Tensor::full([outer, count, inner], value, &device);
        let mut parts = vec![at];
        if before > 0 {
            parts.insert(0, border(before));
        }
        if after > 0 {
            parts.push(border(after));
        }
        dims[axis] += before + after;
        x = Any::from(Tensor::cat(parts, 1)).reshape(&dims);
    }
    x
}

/// Repeats axes of size 1, and adds axes at the front.
pub(super) fn expand(x: Any, shape: &[usize]) -> Any {
    let dims = x.dims();
    // A number is a vector of one.
    if dims == shape || shape.is_empty() {
        return x;
    }
    let full = [vec![1; shape.len() - dims.len()], dims].concat();
    let x = x.reshape(&full);
    match x {
        Any::R1(x) => x.expand([shape[0]]).into(),
        Any::R2(x) => x.expand([shape[0], shape[1]]).into(),
        Any::R3(x) => x.expand([shape[0], shape[1], shape[2]]).into(),
        Any::R4(x) => x.expand([shape[0], shape[1], shape[2], shape[3]]).into(),
        Any::R5(x) => {
            let shape: [usize; 5] = std::array::from_fn(|i| shape[i]);
            x.expand(shape).into()
        }
        Any::R6(x) => {
            let shape: [usize; 6] = std::array::from_fn(|i| shape[i]);
            x.expand(shape).into()
        }
    }
}
