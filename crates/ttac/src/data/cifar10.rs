//! CIFAR-10 in its original binary layout, or as the PNG sprites of a package.
//!
//! Binary: `data_batch_{1..5}.bin` and `test_batch.bin`, 10,000 records each of a label byte and 1,024
//! red, green and blue bytes. Sprites: `data_batch_{1..5}.png` and `test_batch.png`, 1,024 x 10,000 RGB
//! whose row `i` is image `i`, with `train_lables.json` and `test_lables.json` (spelled so).

use std::path::Path;

use super::cifar::{Layout, PIXELS, Records, foreign};
use super::problem::{check_folder, check_label, damaged, folder_with};
use super::{InMemory, Split};
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

/// Reads a split of CIFAR-10 from a folder that holds either layout (154 MB for training, 31 MB for test).
pub fn open_cifar10(root: &Path, split: Split) -> Result<InMemory> {
    check_folder(LAYOUT.data, root)?;
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
    let mut set = Records::default();
    // The original archive unpacks into a folder of its own.
    let folder_of = |ending: &str| {
        let first = format!("{}.{ending}", stems[0]);
        folder_with(root, "cifar-10-batches-bin", &first)
    };
    if let Some(folder) = folder_of("bin") {
        for stem in stems {
            set.append_records(&LAYOUT, &folder.join(format!("{stem}.bin")))?;
        }
    } else if let Some(folder) = folder_of("png") {
        for stem in stems {
            append_sprite(&mut set, &folder.join(format!("{stem}.png")))?;
        }
        read_sprite_labels(&mut set, &folder.join(format!("{split}_lables.json")))?;
    } else {
        let stem = stems[0];
        let expected = format!("expected `{stem}.bin` or `{stem}.png`");
        let pickles = ["cifar-10-batches-py", stem];
        return Err(foreign(LAYOUT.data, root, &expected, pickles));
    }
    set.into_set(LAYOUT.data, &CIFAR10_CLASSES)
}

fn append_sprite(set: &mut Records, path: &Path) -> Result<()> {
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

fn read_sprite_labels(set: &mut Records, path: &Path) -> Result<()> {
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
        set.labels.push(label as usize);
    }
    Ok(())
}
