//! What lowerings are written in: operations on meanings. What is known is computed at once; everything else becomes a node.

use super::arguments::Scope;
use super::batch;
use super::build::{Meaning, Refusal};
use super::fold::{Array, Kind};
use crate::graph::ir::{Dim, Operand};
use crate::graph::op::{Function, Op, Reduction};

/// What an operation on meanings returns.
pub(super) type Made = Result<Meaning, Refusal>;

/// One of the four arithmetic operations with broadcasting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
}

impl Arithmetic {
    fn op(self) -> Op {
        match self {
            Self::Add => Op::Add,
            Self::Sub => Op::Sub,
            Self::Mul => Op::Mul,
            Self::Div => Op::Div,
        }
    }

    fn compute(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
        }
    }
}

impl Scope<'_, '_> {
    /// Adds a node and returns its result.
    pub(super) fn emit(&mut self, op: Op, inputs: Vec<Operand>) -> Made {
        self.builder.emit(op, inputs).map(Meaning::Operand)
    }

    /// Adds a node that reads meanings.
    pub(super) fn node(&mut self, op: Op, inputs: &[Meaning]) -> Made {
        let operands = inputs.iter().map(|input| self.builder.operand(input));
        let operands = operands.collect::<Result<_, _>>()?;
        self.emit(op, operands)
    }

    /// Makes a known number without axes.
    pub(super) fn scalar(number: f64) -> Meaning {
        Meaning::Known(Array::scalar(Kind::F32, number))
    }

    /// Gives the elements another shape, whose sizes are those for the example's batch.
    pub(super) fn reshape(&mut self, x: &Meaning, sizes: &[usize]) -> Made {
        let from = self.shape(x)?;
        let count = |sizes: &[usize]| sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        let example = from.at(self.builder.batch);
        if count(sizes).is_none() || count(sizes) != count(&example) {
            return Err(format!("{example:?} cannot become {sizes:?}").into());
        }
        match x {
            Meaning::Known(array) => Ok(Meaning::Known(array.reshape(sizes))),
            _ if example == sizes => Ok(x.clone()),
            _ => {
                let shape = batch::reshaped(&from, sizes, self.builder.batch)?;
                self.node(Op::Reshape { shape }, std::slice::from_ref(x))
            }
        }
    }

    /// Gives the elements a shape that is known for every batch.
    pub(super) fn reshape_to(&mut self, x: &Meaning, shape: Vec<Dim>) -> Made {
        if let Meaning::Known(array) = x {
            let sizes: Vec<usize> = shape.iter().map(|dim| dim.size).collect();
            return Ok(Meaning::Known(array.reshape(&sizes)));
        }
        self.node(Op::Reshape { shape }, std::slice::from_ref(x))
    }

    /// Reorders axes.
    pub(super) fn permute(&mut self, x: &Meaning, axes: Vec<usize>) -> Made {
        match x {
            Meaning::Known(array) => {
                let mut sorted = axes.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..array.shape().len()) {
                    return Err(format!("axes {axes:?} are no order").into());
                }
                Ok(Meaning::Known(array.permute(&axes)))
            }
            _ => self.node(Op::Permute { axes }, std::slice::from_ref(x)),
        }
    }

    /// Takes every `step`-th index from `start` to `end`.
    pub(super) fn slice(
        &mut self,
        x: &Meaning,
        axis: usize,
        [start, end, step]: [usize; 3],
    ) -> Made {
        if let Meaning::Known(array) = x {
            return Ok(Meaning::Known(array.slice(axis, start, end, step)));
        }
        let dim = self.shape(x)?.dims[axis];
        // All images are no part of them.
        if step == 1 && start == 0 && end == dim.at(self.builder.batch) {
            return Ok(x.clone());
        }
        let op = Op::Slice {
            axis,
            start,
            end,
            step,
        };
        self.node(op, std::slice::from_ref(x))
    }

    /// Joins meanings along an axis.
    pub(super) fn concat(&mut self, parts: &[Meaning], axis: usize) -> Made {
        if let [one] = parts {
            return Ok(one.clone());
        }
        let known = parts.iter().map(|part| match part {
            Meaning::Known(array) => Some(array.clone()),
            _ => None,
        });
        if let Some(known) = known.collect::<Option<Vec<_>>>() {
            if known.is_empty() {
                return Err("there is nothing to join".into());
            }
            return Ok(Meaning::Known(Array::concat(&known, axis)?));
        }
        let batched = parts.iter().find_map(|part| {
            let shape = self.shape(part).ok()?;
            shape.axis().map(|at| shape.dims.len() - at)
        });
        let mut operands = Vec::new();
        for part in parts {
            let part = match batched {
                Some(from_end) => self.for_each_image(part, from_end)?,
                None => part.clone(),
            };
            operands.push(part);
        }
        self.node(Op::Concat { axis }, &operands)
    }

    /// Gives every image its copy of something that was made for the example's batch, or for one image, and that joins values
    /// of all images.
    fn for_each_image(&mut self, x: &Meaning, from_end: usize) -> Made {
        let shape = self.shape(x)?;
        let Some(axis) = shape.dims.len().checked_sub(from_end) else {
            return Ok(x.clone());
        };
        if shape.axis().is_some() || !self.builder.fixed_batch {
            return Ok(x.clone());
        }
        let narrow = self.narrowed(x, axis);
        if self.shape(&narrow)?.dims[axis] != Dim::fixed(1) {
            return Ok(narrow);
        }
        let mut dims = self.shape(&narrow)?.dims;
        dims[axis] = Dim::per_image(1);
        self.node(Op::Expand { shape: dims }, &[narrow])
    }

    /// Takes one copy of something known that is the same for every image of the example.
    fn narrowed(&self, x: &Meaning, axis: usize) -> Meaning {
        match x {
            Meaning::Known(array)
                if array.shape()[axis] == self.builder.batch && array.repeats(axis) =>
            {
                Meaning::Known(array.slice(axis, 0, 1, 1))
            }
            _ => x.clone(),
        }
    }

    /// Computes with broadcasting.
    pub(super) fn arithmetic(&mut self, how: Arithmetic, a: &Meaning, b: &Meaning) -> Made {
        if let (Meaning::Known(a), Meaning::Known(b)) = (a, b) {
            let kind = match how {
                Arithmetic::Div => Kind::F32,
                _ => a.kind().max(b.kind()),
            };
            let result = a.zip(b, kind, |a, b| how.compute(a, b))?;
            return Ok(Meaning::Known(result));
        }
        let (a, b) = (self.beside(a, b)?, self.beside(b, a)?);
        let (a, b) = (self.broadcast_operand(&a)?, self.broadcast_operand(&b)?);
        self.emit(how.op(), vec![a, b])
    }

    /// Narrows something known that was made for the images of the example and stands beside them.
    fn beside(&mut self, x: &Meaning, other: &Meaning) -> Made {
        let (shape, others) = (self.shape(x)?, self.shape(other)?);
        let from_end = others.axis().map(|axis| others.dims.len() - axis);
        let axis = from_end.and_then(|from_end| shape.dims.len().checked_sub(from_end));
        match axis {
            Some(axis) if self.builder.batch > 1 => Ok(self.narrowed(x, axis)),
            _ => Ok(x.clone()),
        }
    }

    /// Returns what arithmetic reads: a known number without axes stands in the node itself.
    fn broadcast_operand(&mut self, x: &Meaning) -> Result<Operand, Refusal> {
        if let Meaning::Known(array) = x
            && array.shape().is_empty()
            && let Some(number) = array.only()
        {
            if number.is_nan() {
                return Err("it reads a number that is none".into());
            }
            let limit = super::build::MASKED.abs();
            return Ok(Operand::Scalar(number.clamp(-limit, limit)));
        }
        self.builder.operand(x)
    }

    /// Adds.
    pub(super) fn add(&mut self, a: &Meaning, b: &Meaning) -> Made {
        self.arithmetic(Arithmetic::Add, a, b)
    }

    /// Multiplies.
    pub(super) fn mul(&mut self, a: &Meaning, b: &Meaning) -> Made {
        self.arithmetic(Arithmetic::Mul, a, b)
    }

    /// Multiplies by a number, unless it is 1.
    pub(super) fn scale(&mut self, x: &Meaning, number: f64) -> Made {
        if number == 1.0 {
            return Ok(x.clone());
        }
        let kind = match x {
            Meaning::Known(array) if number.fract() == 0.0 => array.kind(),
            _ => Kind::F32,
        };
        let number = Meaning::Known(Array::scalar(kind, number));
        self.mul(x, &number)
    }

    /// Applies a function to each element.
    pub(super) fn apply(&mut self, function: Function, x: &Meaning) -> Made {
        match x {
            Meaning::Known(array) => match evaluated(function) {
                Some(compute) => {
                    let keeps = matches!(function, Function::Relu | Function::Abs);
                    let kind = if keeps { array.kind() } else { Kind::F32 };
                    Ok(Meaning::Known(array.map(kind, compute)))
                }
                None => self.node(Op::Apply(function), std::slice::from_ref(x)),
            },
            _ => self.node(Op::Apply(function), std::slice::from_ref(x)),
        }
    }

    /// Reduces axes.
    pub(super) fn reduce(
        &mut self,
        how: Reduction,
        x: &Meaning,
        axes: Vec<usize>,
        keep: bool,
    ) -> Made {
        if axes.is_empty() {
            return Ok(x.clone());
        }
        let Meaning::Known(array) = x else {
            return self.node(Op::Reduce { how, axes, keep }, std::slice::from_ref(x));
        };
        if array.len() == 0 {
            return Err("it reduces nothing".into());
        }
        let kind = match how {
            Reduction::Mean | Reduction::Euclidean => Kind::F32,
            Reduction::Sum => array.kind().max(Kind::I64),
            Reduction::Maximum => array.kind(),
        };
        let reduced = array.reduce(&axes, kind, |group| match how {
            Reduction::Mean => group.iter().sum::<f64>() / group.len() as f64,
            Reduction::Sum => group.iter().sum(),
            Reduction::Maximum => group.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Reduction::Euclidean => group.iter().map(|v| v * v).sum::<f64>().sqrt(),
        });
        if keep {
            return Ok(Meaning::Known(reduced));
        }
        let shape = array.shape().iter().enumerate();
        let shape: Vec<usize> = shape
            .filter(|(axis, _)| !axes.contains(axis))
            .map(|(_, &size)| size)
            .collect();
        Ok(Meaning::Known(reduced.reshape(&shape)))
    }

    /// Takes the given indices along an axis.
    pub(super) fn gather(&mut self, x: &Meaning, axis: usize, list: &[usize]) -> Made {
        let size = self.shape(x)?.dims[axis];
        if size.batch || list.iter().any(|&index| index >= size.size) {
            return Err(format!("its indices are not all below {}", size.size).into());
        }
        if let Meaning::Known(array) = x {
            return Ok(Meaning::Known(array.gather(axis, list)?));
        }
        let op = Op::Gather {
            axis,
            indices: self.builder.index_list(list),
            count: list.len(),
        };
        self.node(op, std::slice::from_ref(x))
    }

    /// Repeats axes of size 1 and adds axes in front.
    pub(super) fn expand(&mut self, x: &Meaning, shape: Vec<Dim>) -> Made {
        if let Meaning::Known(array) = x
            && shape.iter().all(|dim| !dim.batch)
        {
            let sizes: Vec<usize> = shape.iter().map(|dim| dim.size).collect();
            return Ok(Meaning::Known(array.expand(&sizes)?));
        }
        if self.shape(x)?.dims == shape {
            return Ok(x.clone());
        }
        self.node(Op::Expand { shape }, std::slice::from_ref(x))
    }
}

/// Returns how a function is computed for what is known, where that is needed: tables of positions and masks.
fn evaluated(function: Function) -> Option<Box<dyn Fn(f64) -> f64>> {
    Some(match function {
        Function::Relu => Box::new(|x: f64| x.max(0.0)),
        Function::Abs => Box::new(f64::abs),
        Function::Exp => Box::new(f64::exp),
        Function::Log => Box::new(f64::ln),
        Function::Sqrt => Box::new(f64::sqrt),
        Function::Sin => Box::new(f64::sin),
        Function::Cos => Box::new(f64::cos),
        Function::Tanh => Box::new(f64::tanh),
        Function::Sigmoid => Box::new(|x: f64| 1.0 / (1.0 + (-x).exp())),
        Function::Power { exponent } => Box::new(move |x: f64| x.powf(exponent)),
        Function::Clip { min, max } => Box::new(move |x: f64| x.max(min).min(max)),
        _ => return None,
    })
}
