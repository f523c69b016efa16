//! The values of tensors, in the file itself or in one beside it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

use super::super::program::{ElementType, Values};
use super::message::{Tensor, element};
use super::problem::{Problem, Result};

/// A tensor with its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The shape.
    pub shape: Vec<usize>,
    /// The values, in row-major order.
    pub values: Values,
    /// The type of the values in the file.
    pub element: ElementType,
}

impl Array {
    /// Takes the values of a tensor. Those outside the file are looked for in `folder`, if there is one.
    pub fn of(tensor: &Tensor<'_>, folder: Option<&Path>) -> Result<Self> {
        let place = if tensor.name.is_empty() {
            "a constant".to_owned()
        } else {
            format!("tensor `{}`", tensor.name)
        };
        Self::read(tensor, folder).map_err(|problem| problem.at(&place))
    }

    fn read(tensor: &Tensor<'_>, folder: Option<&Path>) -> Result<Self> {
        let element = element_type(tensor.element)?;
        let too_large = || format!("its shape {:?} is too large or negative", tensor.shape);
        let mut count = 1usize;
        let mut shape = Vec::with_capacity(tensor.shape.len());
        for &size in &tensor.shape {
            let size = usize::try_from(size).map_err(|_| too_large())?;
            count = count.checked_mul(size).ok_or_else(too_large)?;
            shape.push(size);
        }
        let length = count.checked_mul(width(element)).ok_or_else(too_large)?;
        let raw = if tensor.external {
            Some(Cow::Owned(outside(tensor, length, folder)?))
        } else {
            tensor.raw.clone()
        };
        let values = match raw {
            Some(raw) if raw.len() == length => from_bytes(element, &raw),
            Some(raw) => {
                let found = raw.len();
                return Err(
                    format!("its shape {shape:?} needs {length} bytes, found {found}").into(),
                );
            }
            None => from_fields(element, tensor),
        };
        let found = match &values {
            Values::F32(values) => values.len(),
            Values::I64(values) => values.len(),
            Values::Bool(values) => values.len(),
        };
        if found != count {
            return Err(format!("its shape {shape:?} needs {count} values, found {found}").into());
        }
        Ok(Self {
            shape,
            values,
            element,
        })
    }
}

/// Returns the type of elements by its number in the format.
pub fn element_type(number: i64) -> Result<ElementType> {
    Ok(match number {
        element::FLOAT => ElementType::F32,
        element::UINT8 => ElementType::U8,
        element::INT8 => ElementType::I8,
        element::INT16 => ElementType::I16,
        element::INT32 => ElementType::I32,
        element::INT64 => ElementType::I64,
        element::BOOL => ElementType::Bool,
        element::FLOAT16 => ElementType::F16,
        element::DOUBLE => ElementType::F64,
        element::BFLOAT16 => ElementType::Bf16,
        other => {
            return Err(Problem::with_hint(
                format!("its elements have type {other}, which is not supported"),
                "export the network in single precision, without quantisation",
            ));
        }
    })
}

fn width(element: ElementType) -> usize {
    match element {
        ElementType::U8 | ElementType::I8 | ElementType::Bool => 1,
        ElementType::I16 | ElementType::F16 | ElementType::Bf16 => 2,
        ElementType::I32 | ElementType::F32 => 4,
        ElementType::I64 | ElementType::F64 => 8,
    }
}

fn from_bytes(element: ElementType, bytes: &[u8]) -> Values {
    fn each<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        let (chunks, _) = bytes.as_chunks::<N>();
        chunks.iter().map(|chunk| convert(*chunk)).collect()
    }
    match element {
        ElementType::F32 => Values::F32(each(bytes, f32::from_le_bytes)),
        ElementType::F64 => Values::F32(each(bytes, |b| f64::from_le_bytes(b) as f32)),
        ElementType::F16 => Values::F32(each(bytes, |b| half(u16::from_le_bytes(b)))),
        ElementType::Bf16 => Values::F32(each(bytes, |b| brain(u16::from_le_bytes(b)))),
        ElementType::U8 => Values::I64(each(bytes, |[b]| i64::from(b))),
        ElementType::I8 => Values::I64(each(bytes, |[b]| i64::from(b as i8))),
        ElementType::I16 => Values::I64(each(bytes, |b| i16::from_le_bytes(b).into())),
        ElementType::I32 => Values::I64(each(bytes, |b| i32::from_le_bytes(b).into())),
        ElementType::I64 => Values::I64(each(bytes, i64::from_le_bytes)),
        ElementType::Bool => Values::Bool(each(bytes, |[b]| b != 0)),
    }
}

/// Takes values that are written one by one. Each type has its field.
fn from_fields(element: ElementType, tensor: &Tensor<'_>) -> Values {
    let integers = tensor.integers.iter();
    match element {
        ElementType::F32 => Values::F32(tensor.floats.clone()),
        ElementType::F64 => Values::F32(tensor.doubles.iter().map(|&v| v as f32).collect()),
        ElementType::F16 => Values::F32(integers.map(|&bits| half(bits as u16)).collect()),
        ElementType::Bf16 => Values::F32(integers.map(|&bits| brain(bits as u16)).collect()),
        ElementType::I64 => Values::I64(tensor.longs.clone()),
        ElementType::Bool => Values::Bool(integers.map(|&value| value != 0).collect()),
        ElementType::U8 | ElementType::I8 | ElementType::I16 | ElementType::I32 => {
            Values::I64(tensor.integers.clone())
        }
    }
}

/// Widens a number of half precision.
fn half(bits: u16) -> f32 {
    let [sign, exponent, fraction] = [bits >> 15, bits >> 10 & 31, bits & 1023].map(u32::from);
    let magnitude = match exponent {
        // Subnormal numbers count in steps of 2^-24.
        0 => fraction as f32 * 2f32.powi(-24),
        31 => f32::from_bits(0x7f80_0000 | fraction << 13),
        _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Reads values from the file beside the network that the tensor names.
fn outside(tensor: &Tensor<'_>, length: usize, folder: Option<&Path>) -> Result<Vec<u8>> {
    let value = |key: &str| {
        let mut entries = tensor.place.iter();
        entries.find(|(found, _)| found == key).map(|(_, v)| v)
    };
    let number = |key: &str, default: u64| match value(key) {
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| format!("its {key} `{text}` in another file is no number")),
        None => Ok(default),
    };
    let location = value("location").ok_or("its values are in another file without a name")?;
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
    let mut parts = Path::new(location).components();
    if location.is_empty() || !parts.all(inside) || location.contains('\\') {
        return Err(Problem::with_hint(
            format!("its values are in `{location}`, which leads out of the network's folder"),
            "only files beside the network are read: export it again, or write the name alone",
        ));
    }
    let folder = folder
        .ok_or_else(|| format!("its values are in `{location}`, and there is no folder to look"))?;
    let path = folder.join(location);
    let (offset, stated) = (number("offset", 0)?, number("length", length as u64)?);
    if stated != length as u64 {
        return Err(
            format!("it needs {length} bytes, and `{location}` has {stated} for it").into(),
        );
    }
    let failed = |error: std::io::Error| {
        Problem::with_hint(
            format!(
                "its values cannot be read from `{}`: {error}",
                path.display()
            ),
            "the exporter writes weights to a second file: keep both in the same folder",
        )
    };
    let mut file = File::open(&path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    if offset.checked_add(stated).is_none_or(|end| end > size) {
        return Err(Problem::with_hint(
            format!("its {stated} bytes begin at byte {offset} of `{location}`, which has {size}"),
            "the file of weights is cut or belongs to another network",
        ));
    }
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
