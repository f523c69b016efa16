//! Constants: arrays whose views share their elements, for everything that depends on neither images nor trained tensors.
//!
//! Masks and tables of positions are made by programs of their own: a Swin fills slices of a mask in place and compares the
//! result. All of that is computed once, here.

use std::cell::RefCell;
use std::rc::Rc;

use crate::graph::program::{ElementType, Stored, Values};

/// The most elements of a folded array. A file must not make us compute without bounds.
const MOST_ELEMENTS: usize = 1 << 26;

/// The kind of numbers in an array, in the order in which one is promoted to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Yes or no.
    Bool,
    /// Integers, exact up to 2^53.
    I64,
    /// Single precision: every result is rounded to it.
    F32,
}

/// An array or a view of one.
#[derive(Clone, Debug)]
pub(super) struct Array {
    storage: Rc<Storage>,
    kind: Kind,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// The axis along which the file says that the images of the example lie. It is told of each result, and views forget it.
    images: Option<usize>,
}

/// The elements that arrays share.
#[derive(Debug)]
struct Storage {
    values: RefCell<Vec<f64>>,
    /// The tensor of the program that the elements are, as long as nobody has changed them.
    source: RefCell<Option<String>>,
}

impl Kind {
    /// Rounds a number to one of this kind.
    pub(super) fn round(self, number: f64) -> f64 {
        match self {
            Self::Bool => f64::from(u8::from(number != 0.0)),
            Self::I64 => number.trunc(),
            Self::F32 => f64::from(number as f32),
        }
    }
}

impl From<ElementType> for Kind {
    fn from(element: ElementType) -> Self {
        match element {
            ElementType::Bool => Self::Bool,
            ElementType::U8
            | ElementType::I8
            | ElementType::I16
            | ElementType::I32
            | ElementType::I64 => Self::I64,
            ElementType::F16 | ElementType::F32 | ElementType::F64 | ElementType::Bf16 => Self::F32,
        }
    }
}

impl Array {
    /// Makes an array of elements in row-major order.
    pub(super) fn new(kind: Kind, shape: Vec<usize>, values: Vec<f64>) -> Self {
        assert_eq!(
            values.len(),
            shape.iter().product::<usize>(),
            "elements of an array"
        );
        let storage = Storage {
            values: RefCell::new(values),
            source: RefCell::new(None),
        };
        Self {
            strides: row_major(&shape),
            storage: Rc::new(storage),
            kind,
            offset: 0,
            shape,
            images: None,
        }
    }

    /// Makes an array of one number without axes. The number is not rounded: what is written into a program is exact.
    pub(super) fn scalar(kind: Kind, number: f64) -> Self {
        Self::new(kind, Vec::new(), vec![number])
    }

    /// Makes an array that has the same number everywhere.
    pub(super) fn full(kind: Kind, shape: Vec<usize>, number: f64) -> Result<Self, String> {
        let count = bounded(&shape)?;
        Ok(Self::new(kind, shape, vec![kind.round(number); count]))
    }

    /// Copies a tensor of the program that calls know by this name.
    pub(super) fn stored(name: &str, stored: &Stored) -> Self {
        let (kind, values): (_, Vec<f64>) = match &stored.values {
            Values::F32(values) => (Kind::F32, values.iter().map(|&v| f64::from(v)).collect()),
            Values::I64(values) => (Kind::I64, values.iter().map(|&v| v as f64).collect()),
            Values::Bool(values) => (Kind::Bool, values.iter().map(|&v| f64::from(v)).collect()),
        };
        let array = Self::new(kind, stored.shape.clone(), values);
        *array.storage.source.borrow_mut() = Some(name.to_owned());
        array
    }

    /// Returns the name of the tensor of the program that this is, unchanged and as a whole.
    pub(super) fn source(&self) -> Option<String> {
        let whole = self.offset == 0
            && self.strides == row_major(&self.shape)
            && self.len() == self.storage.values.borrow().len();
        self.storage.source.borrow().clone().filter(|_| whole)
    }

    /// Returns the axis along which the images of the example lie.
    pub(super) fn images(&self) -> Option<usize> {
        self.images
    }

    /// Returns the same elements with the axis of the images.
    pub(super) fn with_images(mut self, axis: Option<usize>) -> Self {
        self.images = axis;
        self
    }

    fn unmarked(&self) -> Self {
        self.clone().with_images(None)
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the elements in row-major order.
    pub(super) fn to_vec(&self) -> Vec<f64> {
        let values = self.storage.values.borrow();
        let places = places(&self.shape, &self.strides, self.offset);
        places.into_iter().map(|place| values[place]).collect()
    }

    /// Returns the only element of an array that has just one.
    pub(super) fn only(&self) -> Option<f64> {
        (self.len() == 1).then(|| self.storage.values.borrow()[self.offset])
    }

    /// Returns a view with reordered axes.
    pub(super) fn permute(&self, axes: &[usize]) -> Self {
        let mut view = self.unmarked();
        view.shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        view.strides = axes.iter().map(|&axis| self.strides[axis]).collect();
        view
    }

    /// Returns a view of every `step`-th index from `start` to `end`.
    pub(super) fn slice(&self, axis: usize, start: usize, end: usize, step: usize) -> Self {
        let mut view = self.unmarked();
        view.offset += start * self.strides[axis];
        view.shape[axis] = end.saturating_sub(start).div_ceil(step);
        view.strides[axis] *= step;
        view
    }

    /// Returns the elements in another shape: a view where one is possible, as PyTorch does it, and a copy elsewhere.
    pub(super) fn reshape(&self, shape: &[usize]) -> Self {
        if let Some(strides) = self.viewed(shape) {
            let mut view = self.unmarked();
            view.shape = shape.to_vec();
            view.strides = strides;
            return view;
        }
        Self::new(self.kind, shape.to_vec(), self.to_vec())
    }

    /// Returns the strides of a view in another shape, if there is one: each run of axes that lie behind one another in memory
    /// may be cut anew.
    fn viewed(&self, shape: &[usize]) -> Option<Vec<usize>> {
        if self.len() == 0 {
            return None;
        }
        let mut strides = vec![0; shape.len()];
        let mut next = shape.len();
        let mut axis = self.shape.len();
        while axis > 0 {
            let stride = self.strides[axis - 1];
            let mut run = self.shape[axis - 1];
            axis -= 1;
            while axis > 0 && (self.shape[axis - 1] == 1 || self.strides[axis - 1] == run * stride)
            {
                run *= self.shape[axis - 1];
                axis -= 1;
            }
            let mut filled = 1;
            while next > 0 && (filled < run || shape[next - 1] == 1) {
                next -= 1;
                strides[next] = filled * stride;
                filled *= shape[next];
            }
            if filled != run {
                return None;
            }
        }
        shape[..next]
            .iter()
            .all(|&size| size == 1)
            .then_some(strides)
    }

    /// Returns a view that repeats axes of size 1 and adds axes in front.
    pub(super) fn expand(&self, shape: &[usize]) -> Result<Self, String> {
        let missing = shape.len().checked_sub(self.shape.len());
        let fits = missing.is_some_and(|missing| {
            let pairs = self.shape.iter().zip(&shape[missing..]);
            pairs.into_iter().all(|(from, to)| from == to || *from == 1)
        });
        let (true, Some(missing)) = (fits, missing) else {
            return Err(format!("{:?} cannot become {shape:?}", self.shape));
        };
        bounded(shape)?;
        let mut view = self.unmarked();
        view.strides = vec![0; missing];
        for (axis, &size) in self.shape.iter().enumerate() {
            let repeated = size == 1;
            view.strides
                .push(if repeated { 0 } else { self.strides[axis] });
        }
        view.shape = shape.to_vec();
        Ok(view)
    }

    /// Joins arrays along an axis.
    pub(super) fn concat(arrays: &[Self], axis: usize) -> Result<Self, String> {
        let mut shape = arrays[0].shape.clone();
        let alone = |shape: &[usize]| [&shape[..axis], &shape[axis + 1..]].concat();
        if axis >= shape.len()
            || arrays
                .iter()
                .any(|a| a.shape.len() != shape.len() || alone(&a.shape) != alone(&shape))
        {
            return Err(format!("arrays cannot be joined at axis {axis}"));
        }
        shape[axis] = arrays.iter().map(|array| array.shape[axis]).sum();
        let kind = arrays.iter().map(Self::kind).max().unwrap_or(Kind::F32);
        let joined = Self::full(kind, shape, 0.0)?;
        let mut start = 0;
        for array in arrays {
            let end = start + array.shape[axis];
            joined.slice(axis, start, end, 1).write(array)?;
            start = end;
        }
        Ok(joined)
    }

    /// Takes the given indices along an axis.
    pub(super) fn gather(&self, axis: usize, indices: &[usize]) -> Result<Self, String> {
        let mut shape = self.shape.clone();
        shape[axis] = indices.len();
        let taken = Self::full(self.kind, shape, 0.0)?;
        for (to, &from) in indices.iter().enumerate() {
            let part = self.slice(axis, from, from + 1, 1);
            taken.slice(axis, to, to + 1, 1).write(&part)?;
        }
        Ok(taken)
    }

    /// Replaces the elements, and with them those of every other view, by those of an array that is broadcast.
    pub(super) fn write(&self, from: &Self) -> Result<(), String> {
        let from = from.expand(&self.shape)?.to_vec();
        let mut values = self.storage.values.borrow_mut();
        let places = places(&self.shape, &self.strides, self.offset);
        for (place, value) in places.into_iter().zip(from) {
            values[place] = self.kind.round(value);
        }
        *self.storage.source.borrow_mut() = None;
        Ok(())
    }

    /// Applies a function to each element.
    pub(super) fn map(&self, kind: Kind, function: impl Fn(f64) -> f64) -> Self {
        let values = self.to_vec().into_iter();
        let values = values.map(|value| kind.round(function(value))).collect();
        Self::new(kind, self.shape.clone(), values)
    }

    /// Applies a function to pairs of elements, with broadcasting.
    pub(super) fn zip(
        &self,
        other: &Self,
        kind: Kind,
        function: impl Fn(f64, f64) -> f64,
    ) -> Result<Self, String> {
        let shape = broadcast(&self.shape, &other.shape)?;
        let (a, b) = (
            self.expand(&shape)?.to_vec(),
            other.expand(&shape)?.to_vec(),
        );
        let values = a.into_iter().zip(b);
        let values = values.map(|(a, b)| kind.round(function(a, b))).collect();
        Ok(Self::new(kind, shape, values))
    }

    /// Reduces axes, which stay with size 1, by a function of all their elements in row-major order.
    pub(super) fn reduce(
        &self,
        axes: &[usize],
        kind: Kind,
        function: impl Fn(&[f64]) -> f64,
    ) -> Self {
        let kept = (0..self.shape.len()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
        let count: usize = axes.iter().map(|&axis| self.shape[axis]).product();
        let values = self.permute(&order).to_vec();
        let values = values.chunks(count.max(1));
        let values = values.map(|group| kind.round(function(group))).collect();
        let mut shape = self.shape.clone();
        for &axis in axes {
            shape[axis] = 1;
        }
        Self::new(kind, shape, values)
    }

    /// Tells whether the array is the same at every index of an axis.
    pub(super) fn repeats(&self, axis: usize) -> bool {
        let first = self.slice(axis, 0, 1, 1).to_vec();
        (1..self.shape[axis]).all(|index| self.slice(axis, index, index + 1, 1).to_vec() == first)
    }
}

/// Returns the shape that two shapes broadcast to.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let axes = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| {
        let missing = axes - shape.len();
        axis.checked_sub(missing).map_or(1, |at| shape[at])
    };
    let one = |axis| match (size(a, axis), size(b, axis)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => Err(format!("{a:?} and {b:?} do not broadcast")),
    };
    let shape = (0..axes).map(one).collect::<Result<Vec<_>, _>>()?;
    bounded(&shape)?;
    Ok(shape)
}

/// Counts elements, and refuses too many.
pub(super) fn bounded(shape: &[usize]) -> Result<usize, String> {
    let count = shape
        .iter()
        .try_fold(1usize, |n, &size| n.checked_mul(size));
    count
        .filter(|&count| count <= MOST_ELEMENTS)
        .ok_or_else(|| {
            format!(
                "a constant of shape {shape:?} is too large, the most are {MOST_ELEMENTS} elements"
            )
        })
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Returns where the elements of a view lie, in row-major order.
fn places(shape: &[usize], strides: &[usize], offset: usize) -> Vec<usize> {
    let mut places = vec![offset];
    for (&size, &stride) in shape.iter().zip(strides) {
        let old = std::mem::take(&mut places);
        places.reserve(old.len() * size);
        for place in old {
            places.extend((0..size).map(|index| place + index * stride));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(shape: &[usize]) -> Array {
        let count = shape.iter().product::<usize>();
        Array::new(
            Kind::F32,
            shape.to_vec(),
            (0..count).map(|v| v as f64).collect(),
        )
    }

    #[test]
    fn views_share_their_elements() {
        let mask = Array::full(Kind::F32, vec![1, 4, 4], 0.0).unwrap();
        let part = mask.slice(1, 0, 2, 1).slice(2, 1, 4, 2);
        part.write(&Array::scalar(Kind::F32, 3.0)).unwrap();
        let expected = [
            0., 3., 0., 3., 0., 3., 0., 3., 0., 0., 0., 0., 0., 0., 0., 0.,
        ];
        assert_eq!(mask.to_vec(), expected);
    }

    #[test]
    fn a_view_of_a_slice_with_another_axis_still_shares() {
        let base = counted(&[2, 3]);
        let view = base.slice(1, 1, 2, 1).reshape(&[1, 2, 1, 1]);
        view.write(&Array::scalar(Kind::F32, 9.0)).unwrap();
        assert_eq!(base.to_vec(), [0., 9., 2., 3., 9., 5.]);
    }

    #[test]
    fn a_shape_across_a_gap_is_a_copy_in_row_major_order() {
        let base = counted(&[2, 3]);
        let copy = base.permute(&[1, 0]).reshape(&[6]);
        assert_eq!(copy.to_vec(), [0., 3., 1., 4., 2., 5.]);
        copy.write(&Array::scalar(Kind::F32, 9.0)).unwrap();
        assert_eq!(base.to_vec(), [0., 1., 2., 3., 4., 5.]);
    }

    #[test]
    fn numbers_are_rounded_to_their_kind() {
        let tenth = Array::full(Kind::F32, vec![1], 0.1).unwrap();
        assert_eq!(tenth.only(), Some(f64::from(0.1f32)));
        let half = Array::scalar(Kind::I64, 7.0).map(Kind::I64, |v| v / 2.0);
        assert_eq!(half.only(), Some(3.0));
    }

    #[test]
    fn a_changed_tensor_is_no_longer_the_one_of_the_file() {
        let stored = Stored {
            key: "mean".to_owned(),
            also: Vec::new(),
            role: crate::graph::Role::Buffer,
            shape: vec![3],
            values: Values::F32(vec![1.0, 2.0, 3.0]),
            element: ElementType::F32,
        };
        let array = Array::stored("b_mean", &stored);
        assert_eq!(array.source().as_deref(), Some("b_mean"));
        assert_eq!(array.slice(0, 0, 2, 1).source(), None);
        array
            .slice(0, 0, 1, 1)
            .write(&Array::scalar(Kind::F32, 5.0))
            .unwrap();
        assert_eq!(array.source(), None);
    }

    #[test]
    fn reductions_and_gathers_follow_their_axis() {
        let base = counted(&[2, 3]);
        let sum = base.reduce(&[0], Kind::F32, |group| group.iter().sum());
        assert_eq!((sum.shape(), sum.to_vec()), (&[1, 3][..], vec![3., 5., 7.]));
        let taken = base.gather(1, &[2, 2, 0]).unwrap();
        assert_eq!(taken.to_vec(), [2., 2., 0., 5., 5., 3.]);
        assert!(base.expand(&[4, 2, 3]).unwrap().repeats(0));
        assert!(!base.repeats(0));
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(Array::full(Kind::F32, vec![1 << 20, 1 << 20], 0.0).is_err());
        assert!(Array::full(Kind::F32, vec![usize::MAX, 2], 0.0).is_err());
    }
}
