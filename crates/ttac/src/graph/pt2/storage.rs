//! Tensors as views of storages: sizes, strides and an offset over a record of raw bytes.

use super::super::program::{ElementType, Values};
use super::fault::{Fault, Result};
use super::half;
use super::schema::TensorMeta;

/// The number by which the schema names tensors that have strides.
const STRIDED: i64 = 7;

/// A view of a storage whose numbers fit into memory. It is held against a storage by [`check`](View::check).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct View {
    pub(super) sizes: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) offset: usize,
}

/// Returns the type of element that a number of the schema means.
pub(super) fn element_type(number: i64) -> Option<ElementType> {
    Some(match number {
        1 => ElementType::U8,
        2 => ElementType::I8,
        3 => ElementType::I16,
        4 => ElementType::I32,
        5 => ElementType::I64,
        6 => ElementType::F16,
        7 => ElementType::F32,
        8 => ElementType::F64,
        12 => ElementType::Bool,
        13 => ElementType::Bf16,
        _ => return None,
    })
}

/// Returns the bytes of one element.
pub(super) fn bytes_of(element: ElementType) -> usize {
    match element {
        ElementType::U8 | ElementType::I8 | ElementType::Bool => 1,
        ElementType::I16 | ElementType::F16 | ElementType::Bf16 => 2,
        ElementType::I32 | ElementType::F32 => 4,
        ElementType::I64 | ElementType::F64 => 8,
    }
}

impl View {
    /// Reads the view and the type of element of a tensor, which a fault calls by its name.
    pub(super) fn new(name: &str, meta: &TensorMeta) -> Result<(Self, ElementType)> {
        let element = element_type(meta.dtype).ok_or_else(|| {
            Fault::new(
                format!(
                    "the tensor `{name}` has elements of type {}",
                    describe_type(meta.dtype)
                ),
                "convert the network with `model.float()` before the export",
            )
        })?;
        if meta.layout.is_some_and(|layout| layout != STRIDED) {
            return Err(Fault::new(
                format!("the tensor `{name}` is sparse or in a special layout"),
                "make it dense before the export",
            ));
        }
        let plain = |what: &str, value: Option<i64>| {
            let found = value.and_then(|value| usize::try_from(value).ok());
            found.ok_or_else(|| {
                let value = value.map_or("symbolic".to_owned(), |value| value.to_string());
                Fault::damaged(format!("the tensor `{name}` has a {what} of {value}"))
            })
        };
        let sizes = meta.sizes.iter().map(|size| plain("size", size.as_int));
        let strides = meta.strides.iter().map(|step| plain("stride", step.as_int));
        let offset = meta.storage_offset.as_ref();
        let view = Self {
            sizes: sizes.collect::<Result<_>>()?,
            strides: strides.collect::<Result<_>>()?,
            offset: offset.map_or(Ok(0), |offset| plain("storage offset", offset.as_int))?,
        };
        if view.sizes.len() != view.strides.len() {
            return Err(Fault::damaged(format!(
                "the tensor `{name}` has {} sizes and {} strides",
                view.sizes.len(),
                view.strides.len()
            )));
        }
        Ok((view, element))
    }

    /// Returns the number of elements and the index behind the last one that the view touches, or nothing if they are no numbers
    /// that memory could have.
    pub(super) fn reach(&self) -> Option<(usize, usize)> {
        let mut axes = self.sizes.iter().zip(&self.strides);
        // Sizes of zero count as one here, so that the product fits in whatever order it is taken later.
        let (count, last) = axes.try_fold((1_usize, self.offset), |(count, last), axis| {
            let size = (*axis.0).max(1);
            let step = (size - 1).checked_mul(*axis.1)?;
            Some((count.checked_mul(size)?, last.checked_add(step)?))
        })?;
        if self.sizes.contains(&0) {
            return Some((0, 0));
        }
        Some((count, last.checked_add(1)?))
    }

    /// Returns the number of elements of a checked view.
    pub(super) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Refuses a view that reaches outside a storage of so many bytes, or that repeats elements to more than the storage holds.
    pub(super) fn check(&self, name: &str, element: ElementType, bytes: u64) -> Result<()> {
        let held = usize::try_from(bytes).unwrap_or(usize::MAX) / bytes_of(element);
        let problem = match self.reach() {
            Some((count, end)) if count <= held && end <= held => return Ok(()),
            Some((_, end)) if end <= held => "has more elements than",
            _ => "reaches outside",
        };
        Err(Fault::damaged(format!(
            "the tensor `{name}` with sizes {:?}, strides {:?} and offset {} {problem} its record of {held} elements",
            self.sizes, self.strides, self.offset
        )))
    }

    /// Calls a function with the index of every element, in row-major order of the view.
    pub(super) fn for_each(&self, mut visit: impl FnMut(usize)) {
        let mut position = vec![0_usize; self.sizes.len()];
        let mut index = self.offset;
        for _ in 0..self.count() {
            visit(index);
            for axis in (0..position.len()).rev() {
                if position[axis] + 1 < self.sizes[axis] {
                    position[axis] += 1;
                    index += self.strides[axis];
                    break;
                }
                // The stride of an axis of size one may be any number and is not added.
                index -= self.strides[axis] * position[axis];
                position[axis] = 0;
            }
        }
    }

    /// Returns the elements of a checked view in row-major order, widened.
    pub(super) fn gather(&self, element: ElementType, storage: &[u8]) -> Values {
        fn collect<const N: usize, T>(
            view: &View,
            storage: &[u8],
            read: impl Fn([u8; N]) -> T,
        ) -> Vec<T> {
            let mut values = Vec::with_capacity(view.count());
            let (elements, _) = storage.as_chunks::<N>();
            view.for_each(|index| values.push(read(elements[index])));
            values
        }
        let (ints, floats) = (Values::I64, Values::F32);
        match element {
            ElementType::U8 => ints(collect(self, storage, |[b]| i64::from(b))),
            ElementType::I8 => ints(collect(self, storage, |b| i64::from(i8::from_le_bytes(b)))),
            ElementType::I16 => ints(collect(self, storage, |b| i64::from(i16::from_le_bytes(b)))),
            ElementType::I32 => ints(collect(self, storage, |b| i64::from(i32::from_le_bytes(b)))),
            ElementType::I64 => ints(collect(self, storage, i64::from_le_bytes)),
            ElementType::F16 => floats(collect(self, storage, |b| {
                half::widen(u16::from_le_bytes(b))
            })),
            ElementType::Bf16 => floats(collect(self, storage, |b| {
                half::widen_brain(u16::from_le_bytes(b))
            })),
            ElementType::F32 => floats(collect(self, storage, f32::from_le_bytes)),
            ElementType::F64 => floats(collect(self, storage, |b| f64::from_le_bytes(b) as f32)),
            ElementType::Bool => Values::Bool(collect(self, storage, |[b]| b != 0)),
        }
    }

    /// Writes floating-point values in row-major order into a checked view, rounded to its type of element. An element that has the
    /// value already keeps its bytes, so that double precision is not lost where nothing changes.
    pub(super) fn scatter(&self, element: ElementType, values: &[f32], storage: &mut [u8]) {
        let width = bytes_of(element);
        let mut values = values.iter();
        self.for_each(|index| {
            let Some(&value) = values.next() else { return };
            let place = &mut storage[index * width..(index + 1) * width];
            match element {
                ElementType::F16 => place.copy_from_slice(&half::narrow(value).to_le_bytes()),
                ElementType::Bf16 => {
                    place.copy_from_slice(&half::narrow_brain(value).to_le_bytes());
                }
                ElementType::F32 => place.copy_from_slice(&value.to_le_bytes()),
                ElementType::F64 => {
                    let old = <[u8; 8]>::try_from(&*place).map(f64::from_le_bytes);
                    if old.is_ok_and(|old| (old as f32).to_bits() != value.to_bits()) {
                        place.copy_from_slice(&f64::from(value).to_le_bytes());
                    }
                }
                _ => {}
            }
        });
    }
}

/// Rounds a value as writing it to an element of a type does.
pub(super) fn rounded(element: ElementType, value: f32) -> f32 {
    match element {
        ElementType::F16 => half::widen(half::narrow(value)),
        ElementType::Bf16 => half::widen_brain(half::narrow_brain(value)),
        _ => value,
    }
}

/// Returns whether a type of element holds floating-point numbers.
pub(super) fn is_float(element: ElementType) -> bool {
    use ElementType::{Bf16, F16, F32, F64};
    matches!(element, F16 | Bf16 | F32 | F64)
}

/// Names a type of element that this program does not hold.
fn describe_type(number: i64) -> String {
    match number {
        9..=11 => "complex numbers".to_owned(),
        14..=18 | 20..=24 => "quantised numbers".to_owned(),
        _ => format!("number {number} of the schema, which is unknown"),
    }
}
