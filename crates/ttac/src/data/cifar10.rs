//! CIFAR-10 in its original binary layout, or as the PNG sprites of a package.
//!
//! Binary: `data_batch_{1..5}.bin` and `test_batch.bin`, 10,000 records each of a label byte and 1,024
//! red, green and blue bytes. Sprites: `data_batch_{1..5}.png` and `test_batch.png`, 1,024 x 10,000 RGB
//! whose row `i` is image `i`, with `train_lables.json` and `test_lables.json` (spelled so).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{Batch, Dataset, Images, SampleId, Samples};
use crate::{Error, Result};

/// Names of the ten classes, in the order of the labels.
pub const CIFAR10_CLASSES: [&str; 10] = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
];

const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;
const RECORD: usize = 1 + 3 * PIXELS;
const PER_FILE: usize = 10_000;

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The training images.
    Train,
    /// The test images.
    Test,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Test => "test",
        })
    }
}

impl FromStr for Split {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "train" => Ok(Self::Train),
            "test" => Ok(Self::Test),
            other => Err(Error::Invalid {
                what: "split",
                problem: format!("expected `train` or `test`, found `{other}`"),
            }),
        }
    }
}

/// One split of CIFAR-10 in memory (154 MB for training, 31 MB for test).
pub struct Cifar10 {
    /// `[count, 32, 32, 3]`.
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl fmt::Debug for Cifar10 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cifar10({} images)", self.labels.len())
    }
}

impl Cifar10 {
    /// Reads a split from a folder that holds either layout.
    pub fn open(root: &Path, split: Split) -> Result<Self> {
        let problem = |problem: String| Error::Data {
            data: "cifar10",
            path: root.to_owned(),
            problem,
            hint: Some(
                "`ttac fetch cifar10` brings it, `--root DIR` says where it already lies"
                    .to_owned(),
            ),
        };
        if !root.is_dir() {
            return Err(problem("no such folder".to_owned()));
        }
        let stems: &[&str] = match split {
            Split::Train => &[
                "data_batch_1",
                "data_batch_2",
                "data_batch_3",
                "data_batch_4",
                "data_batch_5",
            ],
            Split::Test => &["test_batch"],
        };
        // The original archive unpacks into a folder of its own.
        let nested = root.join("cifar-10-batches-bin");
        let root_of = |ending: &str| {
            let present = |folder: &Path| folder.join(format!("{}.{ending}", stems[0])).is_file();
            [root, &nested].into_iter().find(|folder| present(folder))
        };
        let mut set = Self {
            pixels: Vec::with_capacity(stems.len() * PER_FILE * 3 * PIXELS),
            labels: Vec::with_capacity(stems.len() * PER_FILE),
        };
        if let Some(folder) = root_of("bin") {
            for stem in stems {
                set.append_binary(&folder.join(format!("{stem}.bin")))?;
            }
        } else if let Some(folder) = root_of("png") {
            for stem in stems {
                set.append_sprite(&folder.join(format!("{stem}.png")))?;
            }
            let name = match split {
                Split::Train => "train_lables.json",
                Split::Test => "test_lables.json",
            };
            set.read_sprite_labels(&folder.join(name))?;
        } else {
            return Err(problem(describe_foreign(root, stems[0])));
        }
        Ok(set)
    }

    fn append_binary(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        if bytes.len() != PER_FILE * RECORD {
            return Err(damaged(
                path,
                format!(
                    "expected {} bytes ({PER_FILE} records of {RECORD}), found {}",
                    PER_FILE * RECORD,
                    bytes.len()
                ),
            ));
        }
        for (index, record) in bytes.chunks_exact(RECORD).enumerate() {
            let (&label, planes) = record.split_first().expect("a record is not empty");
            check_label(path, index, label as usize)?;
            self.labels.push(label);
            let (red, rest) = planes.split_at(PIXELS);
            let (green, blue) = rest.split_at(PIXELS);
            let rgb = red.iter().zip(green).zip(blue);
            self.pixels.extend(rgb.flat_map(|((&r, &g), &b)| [r, g, b]));
        }
        Ok(())
    }

    fn append_sprite(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let image = image::load_from_memory_with_format(&bytes, image::ImageFormat::Png)
            .map_err(|e| damaged(path, format!("not a whole PNG ({e})")))?;
        let (width, height) = (image.width() as usize, image.height() as usize);
        if (width, height) != (PIXELS, PER_FILE) {
            return Err(damaged(
                path,
                format!("expected {PIXELS} x {PER_FILE} pixels, found {width} x {height}"),
            ));
        }
        self.pixels.extend_from_slice(image.to_rgb8().as_raw());
        Ok(())
    }

    fn read_sprite_labels(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let labels: Vec<usize> = serde_json::from_str(&text)
            .map_err(|e| damaged(path, format!("not a list of labels ({e})")))?;
        let images = self.pixels.len() / (3 * PIXELS);
        if labels.len() != images {
            return Err(damaged(
                path,
                format!("expected {images} labels, found {}", labels.len()),
            ));
        }
        for (index, &label) in labels.iter().enumerate() {
            check_label(path, index, label)?;
            self.labels.push(label as u8);
        }
        Ok(())
    }
}

fn damaged(path: &Path, problem: String) -> Error {
    Error::Data {
        data: "cifar10",
        path: path.to_owned(),
        problem,
        hint: Some(
            "the file is damaged or of another data set: remove it and run `ttac fetch cifar10`"
                .to_owned(),
        ),
    }
}

fn check_label(path: &Path, index: usize, label: usize) -> Result<()> {
    if label < CIFAR10_CLASSES.len() {
        return Ok(());
    }
    let problem = format!("record {index} has label {label}, expected 0 to 9");
    Err(damaged(path, problem))
}

/// What a folder holds instead of CIFAR-10.
fn describe_foreign(root: &Path, stem: &str) -> String {
    let expected = format!("expected `{stem}.bin` or `{stem}.png`");
    let entries: Vec<PathBuf> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    if entries.is_empty() {
        return format!("{expected}, the folder is empty");
    }
    if root.join("cifar-10-batches-py").is_dir() || root.join(stem).is_file() {
        return format!("{expected}, found the Python pickles; the binary version is needed");
    }
    let mut names: Vec<_> = entries
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names.truncate(3);
    format!("{expected}, found `{}`", names.join("`, `"))
}

impl Dataset for Cifar10 {
    fn name(&self) -> &'static str {
        "cifar10"
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        CIFAR10_CLASSES.map(str::to_owned).to_vec()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut pixels = Vec::with_capacity(ids.len() * 3 * PIXELS);
        for &id in ids {
            let start = id as usize * 3 * PIXELS;
            pixels.extend_from_slice(&self.pixels[start..start + 3 * PIXELS]);
        }
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images {
                    height: SIDE,
                    width: SIDE,
                    pixels,
                },
            },
            labels: ids
                .iter()
                .map(|&id| self.labels[id as usize] as usize)
                .collect(),
        })
    }
}
