//! Files of arrays with a header: what training, anchors and adapting methods leave behind.
//!
//! An archive is safetensors whose metadata hold a JSON header under the archive's kind and a digest
//! over header and arrays, so that a damaged file is found before it is used.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::tensor::TensorData;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result, write_atomically};

/// Key of the digest in the metadata.
const DIGEST_KEY: &str = "blake3";

/// The kind of an archive, which is the key of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A training run that can go on.
    Training,
    /// Source statistics.
    Anchors,
    /// The state of an adapting session.
    Session,
    /// Features before and after adaptation.
    Features,
    /// The state of a served stream.
    Stream,
}

impl Kind {
    /// Lists all kinds.
    pub const ALL: [Self; 5] = [
        Self::Training,
        Self::Anchors,
        Self::Session,
        Self::Features,
        Self::Stream,
    ];

    fn key(self) -> &'static str {
        match self {
            Self::Training => "ttac-training",
            Self::Anchors => "ttac-anchors",
            Self::Session => "ttac-session",
            Self::Features => "ttac-features",
            Self::Stream => "ttac-stream",
        }
    }

    /// Names the kind in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Anchors => "anchors",
            Self::Session => "session",
            Self::Features => "features",
            Self::Stream => "stream",
        }
    }

    /// Describes the kind in words, with an article.
    pub fn description(self) -> &'static str {
        match self {
            Self::Training => "the state of a ttac training run",
            Self::Anchors => "a ttac anchor file",
            Self::Session => "the state of a ttac session",
            Self::Features => "a ttac feature file",
            Self::Stream => "the state of a served stream",
        }
    }
}

/// An array of numbers in an archive.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Single precision, row-major, with a shape.
    F32(Vec<usize>, Vec<f32>),
    /// Double precision, row-major, with a shape.
    F64(Vec<usize>, Vec<f64>),
    /// Bytes.
    U8(Vec<u8>),
    /// Whole numbers.
    U64(Vec<u64>),
}

impl Array {
    /// Returns the shape of the array.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::F32(shape, _) | Self::F64(shape, _) => shape.clone(),
            Self::U8(values) => vec![values.len()],
            Self::U64(values) => vec![values.len()],
        }
    }

    fn dtype_shape_bytes(&self) -> (Dtype, Vec<usize>, Vec<u8>) {
        fn bytes<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            values.iter().flat_map(|&value| to(value)).collect()
        }
        match self {
            Self::F32(shape, v) => (Dtype::F32, shape.clone(), bytes(v, f32::to_le_bytes)),
            Self::F64(shape, v) => (Dtype::F64, shape.clone(), bytes(v, f64::to_le_bytes)),
            Self::U8(v) => (Dtype::U8, vec![v.len()], v.clone()),
            Self::U64(v) => (Dtype::U64, vec![v.len()], bytes(v, u64::to_le_bytes)),
        }
    }

    fn from_view(view: &TensorView<'_>) -> Option<Self> {
        fn numbers<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&chunk| from(chunk))
                .collect()
        }
        let (shape, bytes) = (view.shape().to_vec(), view.data());
        Some(match view.dtype() {
            Dtype::F32 => Self::F32(shape, numbers(bytes, f32::from_le_bytes)),
            Dtype::F64 => Self::F64(shape, numbers(bytes, f64::from_le_bytes)),
            Dtype::U8 => Self::U8(bytes.to_vec()),
            Dtype::U64 => Self::U64(numbers(bytes, u64::from_le_bytes)),
            _ => return None,
        })
    }
}

impl From<TensorData> for Array {
    /// # Panics
    /// If the tensor is not f32.
    fn from(data: TensorData) -> Self {
        let shape = data.shape().to_vec();
        Self::F32(shape, data.try_to_vec().expect("tensors are f32"))
    }
}

/// Arrays by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrays(pub BTreeMap<String, Array>);

impl Arrays {
    /// Adds an array.
    pub fn insert(&mut self, name: impl Into<String>, array: impl Into<Array>) {
        self.0.insert(name.into(), array.into());
    }

    /// Takes out doubles of a known count.
    pub fn f64(&mut self, name: &str, count: usize) -> Result<Vec<f64>> {
        match self.0.remove(name) {
            Some(Array::F64(_, values)) if values.len() == count => Ok(values),
            other => Err(absent(name, &format!("{count} doubles"), other.as_ref())),
        }
    }

    /// Takes out bytes.
    pub fn u8(&mut self, name: &str) -> Result<Vec<u8>> {
        match self.0.remove(name) {
            Some(Array::U8(values)) => Ok(values),
            other => Err(absent(name, "bytes", other.as_ref())),
        }
    }

    /// Takes out single-precision tensors whose name starts with a prefix, by the rest of the name.
    pub fn tensors(&mut self, prefix: &str) -> BTreeMap<String, TensorData> {
        let mut taken = BTreeMap::new();
        self.0.retain(|name, array| {
            let (Some(rest), Array::F32(shape, values)) = (name.strip_prefix(prefix), array) else {
                return true;
            };
            let data = TensorData::new(std::mem::take(values), shape.clone());
            taken.insert(rest.to_owned(), data);
            false
        });
        taken
    }
}

fn absent(name: &str, expected: &str, found: Option<&Array>) -> Error {
    let found = found.map_or("nothing".to_owned(), |array| {
        let (dtype, shape, _) = array.dtype_shape_bytes();
        format!("{dtype:?} {shape:?}")
    });
    Error::Mismatch {
        what: format!("array `{name}`"),
        expected: expected.to_owned(),
        found,
    }
}

/// Encodes an archive.
pub fn to_bytes(kind: Kind, header: &impl Serialize, arrays: &Arrays) -> Vec<u8> {
    let header = serde_json::to_string(header).expect("headers are plain JSON");
    let parts: Vec<_> = arrays
        .0
        .iter()
        .map(|(name, array)| (name, array.dtype_shape_bytes()))
        .collect();
    let mut hasher = blake3::Hasher::new();
    hasher.update(header.as_bytes());
    for (name, (_, _, bytes)) in &parts {
        hasher.update(name.as_bytes());
        hasher.update(bytes);
    }
    let digest = hasher.finalize().to_hex().to_string();
    let metadata = HashMap::from([
        (kind.key().to_owned(), header),
        (DIGEST_KEY.to_owned(), digest),
    ]);
    let views = parts.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        (name, view.expect("shape and bytes agree"))
    });
    safetensors::serialize(views, Some(metadata)).expect("serialising to memory cannot fail")
}

/// Writes an archive, atomically.
pub fn save(path: &Path, kind: Kind, header: &impl Serialize, arrays: &Arrays) -> Result<()> {
    write_atomically(path, &to_bytes(kind, header, arrays))
}

/// Reads an archive and checks its kind and digest.
pub fn load<H: DeserializeOwned>(path: &Path, kind: Kind) -> Result<(H, Arrays)> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    from_bytes(path, kind, &bytes)
}

/// Tells the kind of an archive by its metadata; `None` if the bytes are something else.
pub fn kind_of(bytes: &[u8]) -> Option<Kind> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).ok()?;
    let texts = metadata.metadata().as_ref()?;
    Kind::ALL
        .into_iter()
        .find(|kind| texts.contains_key(kind.key()))
}

/// Decodes an archive and checks its kind and digest; `path` is for the messages.
pub fn from_bytes<H: DeserializeOwned>(
    path: &Path,
    kind: Kind,
    bytes: &[u8],
) -> Result<(H, Arrays)> {
    let wrong = |problem: String, hint: Option<&str>| Error::Format {
        path: path.to_owned(),
        expected: kind.description(),
        problem,
        hint: hint.map(str::to_owned),
    };
    let damaged = "it was cut short or changed after it was written; make it again";
    let (_, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|e| wrong(format!("not safetensors ({e})"), Some(damaged)))?;
    let texts = metadata.metadata().as_ref();
    let text = texts.and_then(|texts| texts.get(kind.key()));
    let Some(text) = text else {
        let other = match kind_of(bytes) {
            Some(other) => format!("it is {}", other.description()),
            None => "it has no header of that kind".to_owned(),
        };
        return Err(wrong(other, None));
    };
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| wrong(format!("damaged ({e})"), Some(damaged)))?;
    let views: BTreeMap<String, TensorView<'_>> = file.tensors().into_iter().collect();
    let mut hasher = blake3::Hasher::new();
    hasher.update(text.as_bytes());
    for (name, view) in &views {
        hasher.update(name.as_bytes());
        hasher.update(view.data());
    }
    let digest = hasher.finalize().to_hex();
    if texts
        .and_then(|texts| texts.get(DIGEST_KEY))
        .map(String::as_str)
        != Some(digest.as_str())
    {
        return Err(wrong(
            "its digest is not that of its content".into(),
            Some(damaged),
        ));
    }
    let header = serde_json::from_str(text).map_err(|e| {
        let hint = "it was written by another version of ttac";
        wrong(format!("its header is not one of ours ({e})"), Some(hint))
    })?;
    let mut arrays = Arrays::default();
    for (name, view) in &views {
        let array = Array::from_view(view);
        let array = array.ok_or_else(|| wrong(format!("`{name}` is {:?}", view.dtype()), None))?;
        arrays.0.insert(name.clone(), array);
    }
    Ok((header, arrays))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Arrays {
        let mut arrays = Arrays::default();
        arrays.insert("mean", Array::F64(vec![2], vec![0.1, -0.2]));
        arrays.insert("bytes", Array::U8(vec![1, 2, 3]));
        arrays.insert("weight.a", Array::F32(vec![1, 2], vec![1.0, 2.0]));
        arrays
    }

    #[test]
    fn comes_back_as_it_was() {
        let bytes = to_bytes(Kind::Anchors, &"header", &example());
        let (header, mut arrays) =
            from_bytes::<String>(Path::new("a"), Kind::Anchors, &bytes).unwrap();
        assert_eq!(header, "header");
        assert_eq!(arrays, example());
        assert_eq!(arrays.f64("mean", 2).unwrap(), [0.1, -0.2]);
        assert!(arrays.f64("mean", 2).is_err());
        assert_eq!(arrays.tensors("weight.").len(), 1);
        assert_eq!(arrays.u8("bytes").unwrap(), [1, 2, 3]);
    }

    #[test]
    fn every_changed_byte_of_the_content_is_found() {
        let bytes = to_bytes(Kind::Session, &"header", &example());
        for at in bytes.len() - 25..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(from_bytes::<String>(Path::new("a"), Kind::Session, &changed).is_err());
        }
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            assert!(from_bytes::<String>(Path::new("a"), Kind::Session, cut).is_err());
        }
    }

    #[test]
    fn another_kind_is_named() {
        let bytes = to_bytes(Kind::Session, &"header", &example());
        let error = from_bytes::<String>(Path::new("a"), Kind::Anchors, &bytes).unwrap_err();
        assert!(
            error.to_string().contains("the state of a ttac session"),
            "{error}"
        );
    }
}
