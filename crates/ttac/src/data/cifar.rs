//! What CIFAR-10 and CIFAR-100 have in common: images of 32 x 32 pixels, stored as records of label
//! bytes and 1,024 red, green and blue bytes.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::problem::{absent, check_label, contents, damaged};
use super::{Images, InMemory};
use crate::{Error, Result};

/// Rows and columns of an image.
pub(super) const SIDE: usize = 32;
/// Pixels of an image.
pub(super) const PIXELS: usize = SIDE * SIDE;

/// How a file of records is laid out.
pub(super) struct Layout {
    /// The data set's name.
    pub data: &'static str,
    /// Label bytes that a record begins with; the last of them is the label.
    pub label_bytes: usize,
    /// The label is below this.
    pub num_classes: usize,
    /// Records in a file.
    pub count: usize,
}

/// Images and labels as they are read, file by file.
#[derive(Default)]
pub(super) struct Records {
    /// `[count, 32, 32, 3]`.
    pub pixels: Vec<u8>,
    /// `[count]`.
    pub labels: Vec<usize>,
}

impl Records {
    /// Reads a file of records to the end.
    pub fn append_records(&mut self, layout: &Layout, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        let found = file.metadata().map_err(Error::io("read", path))?.len();
        let (count, size) = (layout.count, layout.label_bytes + 3 * PIXELS);
        if found != (count * size) as u64 {
            let problem = format!(
                "expected {} bytes ({count} records of {size}), found {found}",
                count * size
            );
            return Err(damaged(layout.data, path, problem));
        }
        self.pixels.reserve(count * 3 * PIXELS);
        self.labels.reserve(count);
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut record = vec![0; size];
        for index in 0..count {
            file.read_exact(&mut record)
                .map_err(Error::io("read", path))?;
            let (labels, planes) = record.split_at(layout.label_bytes);
            let label = labels[layout.label_bytes - 1];
            check_label(layout.data, path, index, label.into(), layout.num_classes)?;
            self.labels.push(label.into());
            let (red, rest) = planes.split_at(PIXELS);
            let (green, blue) = rest.split_at(PIXELS);
            let rgb = red.iter().zip(green).zip(blue);
            self.pixels.extend(rgb.flat_map(|((&r, &g), &b)| [r, g, b]));
        }
        Ok(())
    }

    /// Makes a data set of what was read.
    pub fn into_set(self, name: &str, classes: &[&str]) -> Result<InMemory> {
        let images = Images {
            height: SIDE,
            width: SIDE,
            pixels: self.pixels,
        };
        InMemory::new(name, classes.iter().copied(), images, Some(self.labels))
    }
}

/// The error of a folder that holds something else, e.g. the version in Python pickles: a folder or a file.
pub(super) fn foreign(data: &str, root: &Path, expected: &str, [folder, file]: [&str; 2]) -> Error {
    let problem = if root.join(folder).is_dir() || root.join(file).is_file() {
        format!("{expected}, found the Python pickles; the binary version is needed")
    } else {
        format!("{expected}, {}", contents(root))
    };
    absent(data, root, problem)
}
