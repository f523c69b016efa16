//! Convolutions and pools.

use super::algebra::Made;
use super::arguments::{Outcome, Scope};
use super::build::{Meaning, Refusal};
use crate::graph::ir::{Dim, Operand};
use crate::graph::op::{Op, Pool, Reduction};

/// Lowers `conv2d`, with numbers or a word for its padding, and `convolution`.
pub(super) fn convolution(s: &mut Scope<'_, '_>) -> Outcome {
    if s.flag("transposed", false)? {
        return Err("a transposed convolution is no operation of ours".into());
    }
    let x = s.tensor("input")?;
    if s.shape(&x)?.dims.len() == 3 {
        return convolution_of_rows(s, &x);
    }
    let weight = s.tensor("weight")?;
    let x = s.builder.operand(&x)?;
    Ok(vec![windows(s, x, &weight, false)?])
}

/// Lowers a convolution along one axis to one of images that are one pixel high.
pub(super) fn conv1d(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.tensor("input")?;
    convolution_of_rows(s, &x)
}

fn convolution_of_rows(s: &mut Scope<'_, '_>, x: &Meaning) -> Outcome {
    let high = |mut dims: Vec<Dim>| {
        dims.insert(2, Dim::fixed(1));
        dims
    };
    let weight = s.tensor("weight")?;
    let shapes = [s.shape(x)?.dims, s.shape(&weight)?.dims];
    if shapes.iter().any(|dims| dims.len() != 3) {
        return Err("it convolves something that is neither images nor rows".into());
    }
    let [x_shape, weight_shape] = shapes.map(high);
    let x = s.reshape_to(x, x_shape)?;
    let weight = s.reshape_to(&weight, weight_shape)?;
    let x = s.builder.operand(&x)?;
    let made = windows(s, x, &weight, true)?;
    let mut shape = s.shape(&made)?.dims;
    shape.remove(2);
    Ok(vec![s.reshape_to(&made, shape)?])
}

fn windows(s: &mut Scope<'_, '_>, x: Operand, weight: &Meaning, row: bool) -> Made {
    let along = |pair: [usize; 2], still: usize| {
        if row { [still, pair[1]] } else { pair }
    };
    let stride = along(s.pair("stride", [1, 1])?, 1);
    let dilation = along(s.pair("dilation", [1, 1])?, 1);
    let kernel = s.shape(weight)?.at(s.builder.batch);
    let padding = match s.argument("padding") {
        Some(crate::graph::program::Argument::Text(word)) => match word.as_str() {
            "valid" => [[0; 2]; 2],
            "same" if kernel.len() == 4 => {
                // An even span pads one more after than before, as PyTorch does.
                let side = |axis: usize| {
                    let taps = kernel[axis + 2].saturating_sub(1);
                    let total = dilation[axis].saturating_mul(taps);
                    [total / 2, total - total / 2]
                };
                [side(0), side(1)]
            }
            other => return Err(format!("padding `{other}` is unknown").into()),
        },
        _ => along(s.pair("padding", [0, 0])?, 0).map(|side| [side; 2]),
    };
    let op = Op::Conv2d {
        stride,
        padding,
        dilation,
        groups: s.count("groups", 1)?,
    };
    let mut inputs = vec![x, s.builder.operand(weight)?];
    inputs.extend(s.operand("bias")?);
    s.emit(op, inputs)
}

fn pool(s: &Scope<'_, '_>) -> Result<Pool, Refusal> {
    let kernel = s.pair("kernel_size", [1, 1])?;
    Ok(Pool {
        kernel,
        stride: s.pair("stride", kernel)?,
        padding: s.pair("padding", [0, 0])?,
        dilation: s.pair("dilation", [1, 1])?,
        ceil: s.flag("ceil_mode", false)?,
    })
}

/// Lowers `max_pool2d`, with or without its indices, which nothing may read.
pub(super) fn max_pool(s: &mut Scope<'_, '_>) -> Outcome {
    let (x, pool) = (s.subject_operand()?, pool(s)?);
    Ok(vec![s.emit(Op::MaxPool(pool), vec![x])?])
}

/// Lowers `avg_pool2d`.
pub(super) fn average_pool(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject_operand()?;
    let divisor = match s.number("divisor_override")? {
        Some(_) => Some(s.count("divisor_override", 1)?),
        None => None,
    };
    let op = Op::AveragePool {
        pool: pool(s)?,
        count_padding: s.flag("count_include_pad", true)?,
        divisor,
    };
    Ok(vec![s.emit(op, vec![x])?])
}

/// Lowers `adaptive_avg_pool2d` where its windows are all alike: to one number, to a divisor or a multiple of the size.
pub(super) fn adaptive_average_pool(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let (from, to) = adaptive_sizes(s, &x)?;
    if to == [1, 1] {
        return Ok(vec![s.reduce(Reduction::Mean, &x, vec![2, 3], true)?]);
    }
    let mut made = x;
    let kernel = [0, 1].map(|axis| (from[axis] / to[axis]).max(1));
    if kernel != [1, 1] {
        let op = Op::AveragePool {
            pool: tiles(kernel),
            count_padding: true,
            divisor: None,
        };
        made = s.node(op, &[made])?;
    }
    if (0..2).any(|axis| to[axis] > from[axis]) {
        made = s.node(Op::Resize { size: to }, &[made])?;
    }
    Ok(vec![made])
}

/// Lowers `adaptive_max_pool2d` like [`adaptive_average_pool`]. The indices are not made.
pub(super) fn adaptive_max_pool(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let (from, to) = adaptive_sizes(s, &x)?;
    if to == [1, 1] {
        return Ok(vec![s.reduce(Reduction::Maximum, &x, vec![2, 3], true)?]);
    }
    let mut made = x;
    let kernel = [0, 1].map(|axis| (from[axis] / to[axis]).max(1));
    if kernel != [1, 1] {
        made = s.node(Op::MaxPool(tiles(kernel)), &[made])?;
    }
    if (0..2).any(|axis| to[axis] > from[axis]) {
        made = s.node(Op::Resize { size: to }, &[made])?;
    }
    Ok(vec![made])
}

/// Windows that lie side by side.
fn tiles(kernel: [usize; 2]) -> Pool {
    Pool {
        kernel,
        stride: kernel,
        padding: [0, 0],
        dilation: [1, 1],
        ceil: false,
    }
}

fn adaptive_sizes(s: &Scope<'_, '_>, x: &Meaning) -> Result<([usize; 2], [usize; 2]), Refusal> {
    let sizes = s.sizes(x)?;
    let [_, _, height, width] = sizes[..] else {
        return Err(format!("it pools {} axes, expected images", sizes.len()).into());
    };
    let (from, to) = ([height, width], s.pair("output_size", [height, width])?);
    let alike = |axis: usize| {
        to[axis] > 0 && (from[axis].is_multiple_of(to[axis]) || to[axis].is_multiple_of(from[axis]))
    };
    if alike(0) && alike(1) {
        return Ok((from, to));
    }
    Err(Refusal::with_hint(
        format!("it pools {from:?} pixels to {to:?} with windows of unequal size"),
        "export the network with images whose size it was made for",
    ))
}

/// Lowers `adaptive_avg_pool1d` to one number.
pub(super) fn adaptive_average_row(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let last = sizes.len().checked_sub(1);
    let last = last.ok_or("it pools a number without axes")?;
    match s.integers("output_size")?.as_deref() {
        Some([1]) => Ok(vec![s.reduce(Reduction::Mean, &x, vec![last], true)?]),
        Some([to]) if *to == sizes[last] as i64 => Ok(vec![x]),
        other => Err(format!("it pools {} elements to {other:?}", sizes[last]).into()),
    }
}

/// Lowers `upsample_nearest2d`: to [`Op::Resize`] where that takes the same pixels, to gathers elsewhere.
pub(super) fn upsample_nearest(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let sizes = s.sizes(&x)?;
    let [_, _, height, width] = sizes[..] else {
        return Err(format!("it enlarges {} axes, expected images", sizes.len()).into());
    };
    let from = [height, width];
    let scales = scales(s)?;
    let to = match s.integers("output_size")? {
        Some(_) => s.pair("output_size", from)?,
        None => {
            [0, 1].map(|axis| (from[axis] as f64 * scales[axis].unwrap_or(1.0)).floor() as usize)
        }
    };
    if to
        .iter()
        .chain(&from)
        .any(|edge| !(1..=1 << 14).contains(edge))
    {
        return Err(format!("it makes {to:?} pixels of {from:?}").into());
    }
    // A factor that was given decides which pixel is nearest, in single precision, even if the sizes have another ratio.
    let pixel = |axis: usize, index: usize| {
        let step = match scales[axis] {
            Some(scale) => (1.0 / scale) as f32,
            None => from[axis] as f32 / to[axis] as f32,
        };
        ((index as f32 * step) as usize).min(from[axis] - 1)
    };
    let same = |axis: usize| {
        (0..to[axis]).all(|index| pixel(axis, index) == index * from[axis] / to[axis])
    };
    if same(0) && same(1) {
        return Ok(vec![s.node(Op::Resize { size: to }, &[x])?]);
    }
    let mut made = x;
    for axis in 0..2 {
        let list: Vec<usize> = (0..to[axis]).map(|index| pixel(axis, index)).collect();
        made = s.gather(&made, axis + 2, &list)?;
    }
    Ok(vec![made])
}

fn scales(s: &Scope<'_, '_>) -> Result<[Option<f64>; 2], Refusal> {
    use crate::graph::program::Argument;
    match s.argument("scale_factors") {
        Some(Argument::Floats(scales)) if scales.len() == 2 => {
            Ok([Some(scales[0]), Some(scales[1])])
        }
        Some(other) => Err(format!("argument `scale_factors` is {other:?}").into()),
        None => Ok([s.optional_float("scales_h")?, s.optional_float("scales_w")?]),
    }
}
