//! The shape of a result, from the shapes of what an operation reads.

use super::dims::{broadcast, describe, elements};
use super::ir::Dim;
use super::op::{Op, Pool};
use super::window::Window;

/// The most axes a value may have.
pub const MOST_AXES: usize = 6;

/// What an operation reads, as far as shapes are concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form<'a> {
    /// A value or a tensor with this shape.
    Shaped(&'a [Dim]),
    /// A number.
    Scalar,
}

/// Returns the shape of the result, or says in a sentence why the operation cannot read these shapes.
pub fn infer(op: &Op, inputs: &[Form<'_>]) -> Result<Vec<Dim>, String> {
    let shape = Inference { op, inputs }.shape()?;
    if shape.len() > MOST_AXES {
        return Err(format!(
            "its result has {} axes, and the most are {MOST_AXES}",
            shape.len()
        ));
    }
    elements(&shape).ok_or_else(|| format!("its result {} is too large", describe(&shape)))?;
    Ok(shape)
}

struct Inference<'a> {
    op: &'a Op,
    inputs: &'a [Form<'a>],
}

impl Inference<'_> {
    fn shape(&self) -> Result<Vec<Dim>, String> {
        match self.op {
            Op::Conv2d { .. } => self.convolution(),
            Op::BatchNorm { .. } => self.batch_norm(),
            Op::Standardise { .. } => self.channel_norm(1, 2),
            Op::GroupNorm { groups, .. } => self.group_norm(*groups),
            Op::LayerNorm { .. } => self.layer_norm(),
            Op::Linear => self.linear(),
            Op::MatMul => self.product(),
            Op::Attention { .. } => self.attention(),
            Op::Softmax { axis } => self.at_axis(*axis),
            Op::Apply(_) | Op::Dropout { .. } => Ok(self.only()?.to_vec()),
            Op::Add | Op::Sub | Op::Mul | Op::Div => self.arithmetic(),
            Op::Reduce { axes, keep, .. } => self.reduction(axes, *keep),
            Op::MaxPool(pool) | Op::AveragePool { pool, .. } => self.pool(pool),
            Op::Reshape { shape } => self.reshape(shape),
            Op::Permute { axes } => self.permute(axes),
            Op::Slice {
                axis,
                start,
                end,
                step,
            } => self.slice(*axis, *start, *end, *step),
            Op::Concat { axis } => self.concat(*axis),
            Op::Pad { padding, .. } => self.pad(padding),
            Op::Expand { shape } => self.expand(shape),
            Op::Gather { axis, count, .. } => self.gather(*axis, *count),
            Op::Resize { size } => {
                let [batch, channels, _, _] = self.image()?;
                let [height, width] = size.map(Dim::fixed);
                if size.contains(&0) {
                    return Err("its size is 0".to_owned());
                }
                Ok(vec![batch, channels, height, width])
            }
        }
    }

    /// Returns the shape of an input that is no number.
    fn input(&self, index: usize) -> Result<&[Dim], String> {
        match self.inputs.get(index) {
            Some(Form::Shaped(shape)) => Ok(shape),
            Some(Form::Scalar) => Err(format!("input {index} is a number, expected a tensor")),
            None => Err(format!(
                "it reads {} inputs, expected more",
                self.inputs.len()
            )),
        }
    }

    fn count(&self, least: usize, most: usize) -> Result<(), String> {
        let found = self.inputs.len();
        if (least..=most).contains(&found) {
            return Ok(());
        }
        Err(format!(
            "it reads {found} inputs, expected {least} to {most}"
        ))
    }

    fn only(&self) -> Result<&[Dim], String> {
        self.count(1, 1)?;
        self.input(0)
    }

    /// Returns the first input as `[batch, channels, height, width]`.
    fn image(&self) -> Result<[Dim; 4], String> {
        let shape = self.input(0)?;
        <[Dim; 4]>::try_from(shape)
            .ok()
            .filter(|dims| dims[1..].iter().all(|dim| !dim.batch))
            .ok_or_else(|| {
                format!(
                    "its input is {}, expected images [b, channels, height, width]",
                    describe(shape)
                )
            })
    }

    /// Checks that an input is a vector with one value for each channel.
    fn vector(&self, index: usize, length: Dim) -> Result<(), String> {
        let shape = self.input(index)?;
        if shape == [length] {
            return Ok(());
        }
        Err(format!(
            "input {index} is {}, expected {}",
            describe(shape),
            describe(&[length])
        ))
    }

    fn convolution(&self) -> Result<Vec<Dim>, String> {
        let Op::Conv2d {
            stride,
            padding,
            dilation,
            groups,
        } = self.op
        else {
            unreachable!("called for convolutions alone");
        };
        self.count(2, 3)?;
        let [batch, channels, height, width] = self.image()?;
        let weight = self.input(1)?;
        let fits = |w: &[Dim; 4]| {
            w.iter().all(|dim| !dim.batch && dim.size > 0)
                && *groups > 0
                && w[1].size.checked_mul(*groups) == Some(channels.size)
                && w[0].size.is_multiple_of(*groups)
        };
        let weight = <[Dim; 4]>::try_from(weight).ok().filter(fits);
        let Some([out, _, rows, columns]) = weight else {
            return Err(format!(
                "weight {} with {groups} groups does not fit input {}",
                describe(self.input(1)?),
                describe(self.input(0)?)
            ));
        };
        if self.inputs.len() == 3 {
            self.vector(2, out)?;
        }
        let mut size = [height.size, width.size];
        for axis in 0..2 {
            let window = Window {
                kernel: [rows, columns][axis].size,
                stride: stride[axis],
                dilation: dilation[axis],
                padding: padding[axis],
                ceil: false,
            };
            size[axis] = window.places(size[axis])?;
        }
        Ok(vec![batch, out, Dim::fixed(size[0]), Dim::fixed(size[1])])
    }

    fn batch_norm(&self) -> Result<Vec<Dim>, String> {
        self.count(5, 5)?;
        self.channel_norm(5, 5)
    }

    /// The shape of a norm whose channels are axis 1: that of its input. The other inputs are vectors.
    fn channel_norm(&self, least: usize, most: usize) -> Result<Vec<Dim>, String> {
        self.count(least, most)?;
        let shape = self.input(0)?;
        let channels = shape.get(1).filter(|channels| !channels.batch);
        let Some(&channels) = channels else {
            return Err(format!(
                "its input is {}, expected channels on the second axis",
                describe(shape)
            ));
        };
        for index in 1..self.inputs.len() {
            self.vector(index, channels)?;
        }
        Ok(shape.to_vec())
    }

    fn group_norm(&self, groups: usize) -> Result<Vec<Dim>, String> {
        let shape = self.channel_norm(1, 3)?;
        let channels = shape[1].size;
        if groups > 0 && channels.is_multiple_of(groups) {
            return Ok(shape);
        }
        Err(format!("{groups} groups do not divide {channels} channels"))
    }

    fn layer_norm(&self) -> Result<Vec<Dim>, String> {
        self.count(1, 3)?;
        let shape = self.input(0)?;
        let last = shape.last().filter(|last| !last.batch);
        let Some(&last) = last else {
            return Err(format!("its input is {}", describe(shape)));
        };
        for index in 1..self.inputs.len() {
            self.vector(index, last)?;
        }
        Ok(shape.to_vec())
    }

    fn linear(&self) -> Result<Vec<Dim>, String> {
        self.count(2, 3)?;
        let (x, weight) = (self.input(0)?, self.input(1)?);
        match (x, weight) {
            ([before @ .., inputs], [outputs, expected])
                if inputs == expected && !inputs.batch && !outputs.batch =>
            {
                if self.inputs.len() == 3 {
                    self.vector(2, *outputs)?;
                }
                let mut shape = before.to_vec();
                shape.push(*outputs);
                Ok(shape)
            }
            _ => Err(format!(
                "weight {} does not fit input {}",
                describe(weight),
                describe(x)
            )),
        }
    }

    fn product(&self) -> Result<Vec<Dim>, String> {
        self.count(2, 2)?;
        let (a, b) = (self.input(0)?, self.input(1)?);
        if let ([outer_a @ .., rows, inner], [outer_b @ .., expected, columns]) = (a, b)
            && inner == expected
        {
            let mut shape = broadcast(outer_a, outer_b)?;
            shape.extend([*rows, *columns]);
            return Ok(shape);
        }
        Err(format!(
            "{} and {} cannot be multiplied",
            describe(a),
            describe(b)
        ))
    }

    fn attention(&self) -> Result<Vec<Dim>, String> {
        self.count(3, 4)?;
        let wrong = || {
            let shapes = self.inputs.iter().map(|form| match form {
                Form::Shaped(shape) => describe(shape),
                Form::Scalar => "a number".to_owned(),
            });
            let shapes = shapes.collect::<Vec<_>>().join(", ");
            format!("its inputs {shapes} are no queries, keys and values")
        };
        let four = |index| <[Dim; 4]>::try_from(self.input(index)?).map_err(|_| wrong());
        let ([q, k, v], fixed) = ([four(0)?, four(1)?, four(2)?], |dim: Dim| !dim.batch);
        let fits = q[..2] == k[..2]
            && k[..3] == v[..3]
            && q[3] == k[3]
            && q[1..].iter().chain(&v[1..]).all(|&dim| fixed(dim));
        if !fits {
            return Err(wrong());
        }
        if self.inputs.len() == 4 {
            let scores = [q[0], q[1], q[2], k[2]];
            let mask = self.input(3)?;
            if mask.len() > 4 || broadcast(mask, &scores)? != scores {
                return Err(wrong());
            }
        }
        Ok(vec![q[0], q[1], q[2], v[3]])
    }

    /// The shape of an operation along one axis, which must not be the batch's.
    fn at_axis(&self, axis: usize) -> Result<Vec<Dim>, String> {
        let shape = self.only()?;
        fixed_axis(shape, axis)?;
        Ok(shape.to_vec())
    }

    fn arithmetic(&self) -> Result<Vec<Dim>, String> {
        self.count(2, 2)?;
        match (self.inputs[0], self.inputs[1]) {
            (Form::Shaped(a), Form::Shaped(b)) => broadcast(a, b),
            (Form::Shaped(shape), Form::Scalar) | (Form::Scalar, Form::Shaped(shape)) => {
                Ok(shape.to_vec())
            }
            (Form::Scalar, Form::Scalar) => Err("both of its inputs are numbers".to_owned()),
        }
    }

    fn reduction(&self, axes: &[usize], keep: bool) -> Result<Vec<Dim>, String> {
        let shape = self.only()?;
        if axes.is_empty() || !axes.is_sorted_by(|a, b| a < b) {
            return Err(format!("axes {axes:?}, expected some in ascending order"));
        }
        for &axis in axes {
            fixed_axis(shape, axis)?;
        }
        let mut out = Vec::new();
        for (axis, &dim) in shape.iter().enumerate() {
            match (axes.contains(&axis), keep) {
                (false, _) => out.push(dim),
                (true, true) => out.push(Dim::fixed(1)),
                (true, false) => {}
            }
        }
        Ok(out)
    }

    fn pool(&self, pool: &Pool) -> Result<Vec<Dim>, String> {
        self.count(1, 1)?;
        let [batch, channels, height, width] = self.image()?;
        let mut size = [height.size, width.size];
        for axis in 0..2 {
            if pool.padding[axis] > pool.kernel[axis] / 2 {
                return Err(format!(
                    "padding {:?} is more than half of kernel {:?}",
                    pool.padding, pool.kernel
                ));
            }
            let window = Window {
                kernel: pool.kernel[axis],
                stride: pool.stride[axis],
                dilation: pool.dilation[axis],
                padding: [pool.padding[axis]; 2],
                ceil: pool.ceil,
            };
            size[axis] = window.places(size[axis])?;
        }
        let [height, width] = size.map(Dim::fixed);
        Ok(vec![batch, channels, height, width])
    }

    fn reshape(&self, shape: &[Dim]) -> Result<Vec<Dim>, String> {
        let from = self.only()?;
        let batches = |shape: &[Dim]| shape.iter().filter(|dim| dim.batch).count();
        let same = elements(from).is_some()
            && elements(from) == elements(shape)
            && batches(from) == batches(shape);
        if same {
            return Ok(shape.to_vec());
        }
        Err(format!(
            "{} cannot become {}",
            describe(from),
            describe(shape)
        ))
    }

    fn permute(&self, axes: &[usize]) -> Result<Vec<Dim>, String> {
        let shape = self.only()?;
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..shape.len()) {
            return Err(format!("axes {axes:?} are no order of {}", describe(shape)));
        }
        Ok(axes.iter().map(|&axis| shape[axis]).collect())
    }

    fn slice(
        &self,
        axis: usize,
        start: usize,
        end: usize,
        step: usize,
    ) -> Result<Vec<Dim>, String> {
        let mut shape = self.only()?.to_vec();
        let size = fixed_axis(&shape, axis)?;
        if step == 0 || start >= end || end > size {
            return Err(format!("{start}..{end} by {step} is no part of {size}"));
        }
        shape[axis].size = (end - start).div_ceil(step);
        Ok(shape)
    }

    fn concat(&self, axis: usize) -> Result<Vec<Dim>, String> {
        let mut shape = self.input(0)?.to_vec();
        fixed_axis(&shape, axis)?;
        for index in 1..self.inputs.len() {
            let other = self.input(index)?;
            let size = fixed_axis(other, axis)?;
            let alone = |shape: &[Dim]| {
                let mut shape = shape.to_vec();
                shape[axis].size = 0;
                shape
            };
            if alone(other) != alone(&shape) {
                return Err(format!(
                    "{} and {} cannot be joined at axis {axis}",
                    describe(&shape),
                    describe(other)
                ));
            }
            shape[axis].size = shape[axis].size.saturating_add(size);
        }
        Ok(shape)
    }

    fn pad(&self, padding: &[[usize; 2]]) -> Result<Vec<Dim>, String> {
        let mut shape = self.only()?.to_vec();
        if padding.len() != shape.len() {
            return Err(format!(
                "padding of {} axes for {}",
                padding.len(),
                describe(&shape)
            ));
        }
        for (dim, [before, after]) in shape.iter_mut().zip(padding) {
            let added = before.saturating_add(*after);
            if dim.batch && added > 0 {
                return Err("it pads the batch".to_owned());
            }
            dim.size = dim.size.saturating_add(added);
        }
        Ok(shape)
    }

    fn expand(&self, shape: &[Dim]) -> Result<Vec<Dim>, String> {
        let from = self.only()?;
        if from.len() <= shape.len() && broadcast(from, shape)? == shape {
            return Ok(shape.to_vec());
        }
        Err(format!(
            "{} cannot become {}",
            describe(from),
            describe(shape)
        ))
    }

    fn gather(&self, axis: usize, count: usize) -> Result<Vec<Dim>, String> {
        let mut shape = self.only()?.to_vec();
        fixed_axis(&shape, axis)?;
        shape[axis].size = count;
        Ok(shape)
    }
}

/// Returns the size of an axis that must not depend on the batch: operations along it would mix images.
fn fixed_axis(shape: &[Dim], axis: usize) -> Result<usize, String> {
    match shape.get(axis) {
        Some(dim) if !dim.batch => Ok(dim.size),
        Some(_) => Err(format!(
            "it works along the batch of {}, and would mix images",
            describe(shape)
        )),
        None => Err(format!("{} has no axis {axis}", describe(shape))),
    }
}
