//! Values that are known without any image: constants, sizes, and what is computed from them.

use super::super::ir::Dim;
use super::super::program::Values;
use super::problem::{Problem, Result};
use super::tensor::Array;

/// The most elements that folding makes. Masks and tables of indices are far smaller.
const MOST: usize = 1 << 24;

/// An integer that may depend on the number of images: `fixed + per_image * batch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// The part that does not change.
    pub fixed: i64,
    /// What the number of images is multiplied by.
    pub per_image: i64,
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Integers.
    Whole(Vec<Whole>),
    /// Floating-point numbers.
    Real(Vec<f32>),
    /// Truth values.
    Truth(Vec<bool>),
}

/// A tensor whose values are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The shape.
    pub shape: Vec<usize>,
    /// The values, in row-major order.
    pub numbers: Numbers,
}

impl Whole {
    /// Makes an integer that does not depend on the number of images.
    pub const fn fixed(fixed: i64) -> Self {
        Self {
            fixed,
            per_image: 0,
        }
    }

    /// Returns the integer if it does not depend on the number of images.
    pub fn number(self) -> Option<i64> {
        (self.per_image == 0).then_some(self.fixed)
    }
}

impl From<Dim> for Whole {
    fn from(dim: Dim) -> Self {
        let size = i64::try_from(dim.size).unwrap_or(i64::MAX);
        if dim.batch {
            Self {
                fixed: 0,
                per_image: size,
            }
        } else {
            Self::fixed(size)
        }
    }
}

impl Numbers {
    /// Counts the values.
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(values) => values.len(),
            Self::Real(values) => values.len(),
            Self::Truth(values) => values.len(),
        }
    }

    /// Takes the values at these places.
    pub fn pick(&self, places: &[usize]) -> Self {
        fn taken<T: Copy>(values: &[T], places: &[usize]) -> Vec<T> {
            places.iter().map(|&place| values[place]).collect()
        }
        match self {
            Self::Whole(values) => Self::Whole(taken(values, places)),
            Self::Real(values) => Self::Real(taken(values, places)),
            Self::Truth(values) => Self::Truth(taken(values, places)),
        }
    }
}

impl Known {
    /// Makes a list of integers.
    pub fn list(values: Vec<Whole>) -> Self {
        Self {
            shape: vec![values.len()],
            numbers: Numbers::Whole(values),
        }
    }

    /// Makes a list of integers that do not depend on the number of images.
    pub fn integers(values: &[i64]) -> Self {
        Self::list(values.iter().copied().map(Whole::fixed).collect())
    }

    /// Makes a single number.
    pub fn scalar(numbers: Numbers) -> Self {
        Self {
            shape: Vec::new(),
            numbers,
        }
    }

    /// Takes the values of a tensor of the file.
    pub fn of(array: &Array) -> Self {
        let numbers = match &array.values {
            Values::F32(values) => Numbers::Real(values.clone()),
            Values::I64(values) => {
                Numbers::Whole(values.iter().copied().map(Whole::fixed).collect())
            }
            Values::Bool(values) => Numbers::Truth(values.clone()),
        };
        Self {
            shape: array.shape.clone(),
            numbers,
        }
    }

    /// Returns integers, some of which may depend on the number of images.
    pub fn whole(&self) -> Result<&[Whole]> {
        match &self.numbers {
            Numbers::Whole(values) => Ok(values),
            _ => Err("it reads numbers that are no integers".into()),
        }
    }

    /// Returns integers, none of which may depend on the number of images.
    pub fn plain(&self) -> Result<Vec<i64>> {
        let values = self.whole()?.iter().map(|value| value.number());
        values
            .collect::<Option<_>>()
            .ok_or_else(depends_on_the_batch)
    }

    /// Returns the values as numbers, truth as one and zero.
    pub fn real(&self) -> Result<Vec<f32>> {
        match &self.numbers {
            Numbers::Real(values) => Ok(values.clone()),
            Numbers::Whole(_) => Ok(self.plain()?.into_iter().map(|v| v as f32).collect()),
            Numbers::Truth(values) => Ok(values.iter().map(|&v| f32::from(u8::from(v))).collect()),
        }
    }

    /// Returns the only number, if it is one.
    pub fn single(&self) -> Option<f32> {
        let values = self.real().ok()?;
        match values.as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// Returns the values as a tensor of the program has them.
    pub fn values(&self) -> Result<Values> {
        Ok(match &self.numbers {
            Numbers::Real(values) => Values::F32(values.clone()),
            Numbers::Whole(_) => Values::I64(self.plain()?),
            Numbers::Truth(values) => Values::Bool(values.clone()),
        })
    }

    /// Takes values at places, in another shape.
    pub fn pick(&self, shape: Vec<usize>, places: &[usize]) -> Self {
        Self {
            shape,
            numbers: self.numbers.pick(places),
        }
    }

    /// Gives the values another shape of as many elements.
    pub fn reshaped(&self, shape: Vec<usize>) -> Result<Self> {
        if count(&shape)? != self.numbers.len() {
            return Err(format!("{:?} cannot become {shape:?}", self.shape).into());
        }
        Ok(Self {
            shape,
            numbers: self.numbers.clone(),
        })
    }

    /// Repeats the values to a larger shape.
    pub fn expanded(&self, shape: &[usize]) -> Result<Self> {
        let steps = self.broadcast_steps(shape)?;
        let places = places(shape, &steps, 0)?;
        Ok(self.pick(shape.to_vec(), &places))
    }

    /// Returns how far apart neighbours lie along each axis of a shape that the values are repeated to.
    fn broadcast_steps(&self, shape: &[usize]) -> Result<Vec<isize>> {
        let wrong = || format!("{:?} cannot become {shape:?}", self.shape);
        let missing = shape
            .len()
            .checked_sub(self.shape.len())
            .ok_or_else(wrong)?;
        let mut steps = vec![0; shape.len()];
        for (axis, step) in strides(&self.shape).into_iter().enumerate() {
            match (self.shape[axis], shape[missing + axis]) {
                (1, _) => {}
                (from, to) if from == to => steps[missing + axis] = step,
                _ => return Err(wrong().into()),
            }
        }
        Ok(steps)
    }
}

/// Says that something cannot be computed before the number of images is known.
pub fn depends_on_the_batch() -> Problem {
    Problem::with_hint(
        "it computes with the number of images in a way that cannot be followed",
        "export the network with a fixed batch of 2 and a dynamic first axis, or as `.pt2`",
    )
}

/// Counts the elements of a shape that is to be made.
pub fn count(shape: &[usize]) -> Result<usize> {
    let product = shape.iter().try_fold(1usize, |product, &size| {
        product.checked_mul(size).filter(|&product| product <= MOST)
    });
    product
        .ok_or_else(|| format!("a constant of shape {shape:?} is larger than {MOST} values").into())
}

/// Returns how far apart neighbours lie along each axis, in row-major order.
pub fn strides(shape: &[usize]) -> Vec<isize> {
    let mut steps = vec![1isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        steps[axis - 1] = steps[axis].saturating_mul(shape[axis] as isize);
    }
    steps
}

/// Lists the places of elements of a shape whose neighbours along each axis lie so far apart, beginning at a place.
pub fn places(shape: &[usize], steps: &[isize], start: usize) -> Result<Vec<usize>> {
    let total = count(shape)?;
    let mut places = Vec::with_capacity(total);
    if total == 0 {
        return Ok(places);
    }
    places.push(start);
    for (&size, &step) in shape.iter().zip(steps) {
        let outer = std::mem::take(&mut places);
        for place in outer {
            places.extend((0..size).map(|index| place.wrapping_add_signed(step * index as isize)));
        }
    }
    Ok(places)
}

/// Returns the shape that two shapes broadcast to.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let axes = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| {
        let at = (axis + shape.len()).checked_sub(axes);
        at.map_or(1, |at| shape[at])
    };
    let one = |axis| match (size(a, axis), size(b, axis)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => Err(format!("{a:?} and {b:?} do not broadcast").into()),
    };
    (0..axes).map(one).collect()
}
