//! `.npy` arrays of images and labels, read where they lie.

pub(super) mod header;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use self::header::{Header, MAX_HEADER, integers};
use super::cifar::{PIXELS, SIDE};
use super::memory::pick;
use super::problem::{check_label, damaged};
use super::{Batch, Dataset, Images, SampleId, SetInfo};
use crate::{Error, Result};

/// Bytes of an image.
const ROW: usize = 3 * PIXELS;

/// An array `[count, 32, 32, 3]` of bytes in a file. Only what is asked for is read.
#[derive(Debug)]
pub(super) struct ImageArray {
    path: PathBuf,
    file: Mutex<File>,
    start: u64,
    /// How many images.
    pub count: usize,
}

impl ImageArray {
    pub fn open(data: &'static str, path: &Path) -> Result<Self> {
        let (file, header) = open(data, path)?;
        let damaged = |problem| damaged(data, path, problem);
        if header.dtype.trim_start_matches(['|', '<', '>', '=']) != "u1" {
            let found = header.dtype;
            return Err(damaged(format!(
                "expected unsigned bytes (`|u1`), found `{found}`"
            )));
        }
        let side = SIDE as u64;
        let count = match header.shape[..] {
            [count, height, width, 3] if (height, width) == (side, side) => count,
            _ => {
                let expected = format!("expected images [n, {side}, {side}, 3]");
                return Err(damaged(format!("{expected}, found {:?}", header.shape)));
            }
        };
        if header.fortran_order {
            let problem = "expected C order (the last index runs fastest), found Fortran order";
            return Err(damaged(problem.to_owned()));
        }
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
            start: header.data_start,
            count: count as usize,
        })
    }

    /// The images of some rows, `[rows, 32, 32, 3]`.
    pub fn read(&self, rows: impl ExactSizeIterator<Item = usize>) -> Result<Vec<u8>> {
        let mut pixels = vec![0; rows.len() * ROW];
        let mut file = self.file.lock().expect("no reader panics");
        for (row, image) in rows.zip(pixels.chunks_exact_mut(ROW)) {
            assert!(row < self.count, "row {row} of {}", self.count);
            file.seek(SeekFrom::Start(self.start + (row * ROW) as u64))
                .and_then(|_| file.read_exact(image))
                .map_err(Error::io("read", &self.path))?;
        }
        Ok(pixels)
    }
}

/// Images of an `.npy` file with their labels. The file is read batch by batch and never held whole.
#[derive(Debug)]
pub struct NpyImages {
    info: SetInfo,
    images: ImageArray,
    /// The row of the first sample.
    first: usize,
    /// `[count]`.
    labels: Vec<usize>,
}

impl NpyImages {
    /// The rows from `first` on, one for each label.
    pub(super) fn new(
        name: &'static str,
        classes: &[&str],
        images: ImageArray,
        first: usize,
        labels: Vec<usize>,
    ) -> Self {
        Self {
            info: SetInfo::new(name, labels.len(), classes.iter().copied()),
            images,
            first,
            labels,
        }
    }
}

impl Dataset for NpyImages {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let labels = pick(&self.labels, ids);
        let rows = ids.iter().map(|&id| self.first + id as usize);
        let images = Images {
            height: SIDE,
            width: SIDE,
            pixels: self.images.read(rows)?,
        };
        Ok(Batch {
            ids: ids.to_vec(),
            samples: images.into(),
            labels: Some(labels),
        })
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.labels.clone()))
    }
}

/// The shape and the numbers of an array of `f32` or `f64`.
pub(super) fn read_floats(data: &'static str, path: &Path) -> Result<(Vec<u64>, Vec<f32>)> {
    let (mut file, header) = open(data, path)?;
    if header.fortran_order {
        let problem = "expected C order (the last index runs fastest), found Fortran order";
        return Err(damaged(data, path, problem.to_owned()));
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(header.data_start))
        .and_then(|_| file.read_to_end(&mut bytes))
        .map_err(Error::io("read", path))?;
    let values = match header.dtype.as_str() {
        "<f4" => {
            let numbers = bytes.as_chunks::<4>().0.iter();
            numbers.map(|&number| f32::from_le_bytes(number)).collect()
        }
        "<f8" => {
            let numbers = bytes.as_chunks::<8>().0.iter();
            numbers
                .map(|&number| f64::from_le_bytes(number) as f32)
                .collect()
        }
        found => {
            let problem = format!("expected floats (`<f4` or `<f8`), found `{found}`");
            return Err(damaged(data, path, problem));
        }
    };
    Ok((header.shape, values))
}

/// An array `[count]` of integers below `num_classes`, of any integer type.
pub(super) fn read_labels(
    data: &'static str,
    path: &Path,
    num_classes: usize,
) -> Result<Vec<usize>> {
    let (mut file, header) = open(data, path)?;
    // Some write labels as a column.
    if !matches!(header.shape[..], [_] | [_, 1]) {
        let problem = format!("expected labels [n], found {:?}", header.shape);
        return Err(damaged(data, path, problem));
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(header.data_start))
        .and_then(|_| file.read_to_end(&mut bytes))
        .map_err(Error::io("read", path))?;
    let labels = integers(&header.dtype, &bytes).ok_or_else(|| {
        let problem = format!("expected integers, found `{}`", header.dtype);
        damaged(data, path, problem)
    })?;
    for (index, &label) in labels.iter().enumerate() {
        check_label(data, path, index, label, num_classes)?;
    }
    Ok(labels.iter().map(|&label| label as usize).collect())
}

/// A file whose length agrees with its header.
fn open(data: &'static str, path: &Path) -> Result<(File, Header)> {
    let mut file = File::open(path).map_err(Error::io("read", path))?;
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let mut start = Vec::new();
    (&mut file)
        .take(MAX_HEADER as u64)
        .read_to_end(&mut start)
        .map_err(Error::io("read", path))?;
    let header = Header::parse(&start)
        .map_err(|problem| damaged(data, path, format!("not a `.npy` array: {problem}")))?;
    let width = header
        .dtype
        .trim_start_matches(|c: char| !c.is_ascii_digit());
    let expected = (width.parse().ok())
        .and_then(|width: u64| header.count()?.checked_mul(width))
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| {
            let (shape, dtype) = (&header.shape, &header.dtype);
            damaged(
                data,
                path,
                format!("its header claims {shape:?} of `{dtype}`"),
            )
        })?;
    let found = length.saturating_sub(header.data_start);
    if found != expected {
        let (shape, dtype) = (&header.shape, &header.dtype);
        let problem = format!(
            "expected {expected} bytes for {shape:?} of `{dtype}` after the header, found {found}"
        );
        return Err(damaged(data, path, problem));
    }
    Ok((file, header))
}
