//! CIFAR-10 in its original binary layout, or as the PNG sprites of a package.
//!
//! Binary: `data_batch_{1..5}.bin` and `test_batch.bin`, 10,000 records each of a label byte and 1,024
//! red, green and blue bytes. Sprites: `data_batch_{1..5}.png` and `test_batch.png`, 1,024 x 10,000 RGB
//! whose row `i` is image `i`, with `train_lables.json` and `test_lables.json` (spelled so).

use std::fmt;
use std::path::Path;

use super::cifar::{Layout, PIXELS, Stored};
use super::problem::{absent, check_label, contents, damaged};
use super::{Batch, Dataset, SampleId, Split};
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

const LAYOUT: Layout = Layout {
    data: "cifar10",
    label_bytes: 1,
    num_classes: CIFAR10_CLASSES.len(),
    count: 10_000,
};

/// One split of CIFAR-10 in memory (154 MB for training, 31 MB for test).
pub struct Cifar10(Stored);

impl fmt::Debug for Cifar10 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cifar10({} images)", self.0.labels.len())
    }
}

impl Cifar10 {
    /// Reads a split from a folder that holds either layout.
    pub fn open(root: &Path, split: Split) -> Result<Self> {
        if !root.is_dir() {
            return Err(absent(LAYOUT.data, root, "no such folder".to_owned()));
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
        let mut set = Stored::default();
        if let Some(folder) = root_of("bin") {
            for stem in stems {
                set.append_records(&LAYOUT, &folder.join(format!("{stem}.bin")))?;
            }
        } else if let Some(folder) = root_of("png") {
            for stem in stems {
                append_sprite(&mut set, &folder.join(format!("{stem}.png")))?;
            }
            let name = match split {
                Split::Train => "train_lables.json",
                Split::Test => "test_lables.json",
            };
            read_sprite_labels(&mut set, &folder.join(name))?;
        } else {
            return Err(absent(LAYOUT.data, root, describe_foreign(root, stems[0])));
        }
        Ok(Self(set))
    }
}

fn append_sprite(set: &mut Stored, path: &Path) -> Result<()> {
    let damaged = |problem| damaged(LAYOUT.data, path, problem);
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let image = image::load_from_memory_with_format(&bytes, image::ImageFormat::Png)
        .map_err(|e| damaged(format!("not a whole PNG ({e})")))?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    if (width, height) != (PIXELS, LAYOUT.count) {
        let expected = format!("expected {PIXELS} x {} pixels", LAYOUT.count);
        return Err(damaged(format!("{expected}, found {width} x {height}")));
    }
    set.pixels.extend_from_slice(image.to_rgb8().as_raw());
    Ok(())
}

fn read_sprite_labels(set: &mut Stored, path: &Path) -> Result<()> {
    let damaged = |problem| damaged(LAYOUT.data, path, problem);
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    let labels: Vec<i64> =
        serde_json::from_str(&text).map_err(|e| damaged(format!("not a list of labels ({e})")))?;
    let images = set.pixels.len() / (3 * PIXELS);
    if labels.len() != images {
        let found = labels.len();
        return Err(damaged(format!("expected {images} labels, found {found}")));
    }
    for (index, &label) in labels.iter().enumerate() {
        check_label(LAYOUT.data, path, index, label, LAYOUT.num_classes)?;
        set.labels.push(label as u8);
    }
    Ok(())
}

/// What a folder holds instead of CIFAR-10.
fn describe_foreign(root: &Path, stem: &str) -> String {
    let expected = format!("expected `{stem}.bin` or `{stem}.png`");
    if root.join("cifar-10-batches-py").is_dir() || root.join(stem).is_file() {
        return format!("{expected}, found the Python pickles; the binary version is needed");
    }
    format!("{expected}, {}", contents(root))
}

impl Dataset for Cifar10 {
    fn name(&self) -> &'static str {
        "cifar10"
    }

    fn len(&self) -> usize {
        self.0.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        CIFAR10_CLASSES.map(str::to_owned).to_vec()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        Ok(self.0.batch(ids))
    }
}
