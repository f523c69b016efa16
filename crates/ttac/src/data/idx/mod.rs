//! IDX files, plain or compressed: MNIST and Fashion-MNIST.
//!
//! `train-images-idx3-ubyte` and `train-labels-idx1-ubyte` with 60,000 images of 28 x 28 grey bytes,
//! `t10k-..` with 10,000, each with or without `.gz`. What a model gets is described in [`open_mnist`].

mod array;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use self::array::Array;
use super::Split;
use super::grey::{GreyImages, SIDE};
use super::problem::{absent, check_folder, check_label, contents, damaged};
use crate::{Error, Result};

/// Names of the ten classes of Fashion-MNIST, in the order of the labels.
pub const FASHION_MNIST_CLASSES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

/// Names of the ten digits, in the order of the labels.
pub const DIGIT_CLASSES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// More images than any IDX set has, so that a lying header is refused before memory is asked for.
const MAX_IMAGES: u32 = 1_000_000;

/// Reads a split of MNIST for a model that wants `size` rows and columns, 28 to 56 (47 MB for training, 8 MB for
/// test).
///
/// Images are 28 x 28 grey bytes, white on black. They are handed out as RGB with three equal channels,
/// in the middle of a black square of the model's size: a border of two zeros makes 32 pixels of 28.
pub fn open_mnist(root: &Path, split: Split, size: usize) -> Result<GreyImages> {
    open("mnist", &DIGIT_CLASSES, root, split, size)
}

/// Reads a split of Fashion-MNIST, as [`open_mnist`] does of MNIST.
pub fn open_fashion_mnist(root: &Path, split: Split, size: usize) -> Result<GreyImages> {
    open("fashion-mnist", &FASHION_MNIST_CLASSES, root, split, size)
}

fn open(
    name: &'static str,
    classes: &[&str],
    root: &Path,
    split: Split,
    size: usize,
) -> Result<GreyImages> {
    check_folder(name, root)?;
    let stem = split.of("train", "t10k");
    let images = find(name, root, &format!("{stem}-images-idx3-ubyte"))?;
    let labels = find(name, root, &format!("{stem}-labels-idx1-ubyte"))?;
    let pixels = read(
        name,
        &images,
        "images [n, 28, 28]",
        |shape| matches!(shape, [_, height, width] if (*height, *width) == (SIDE as u32, SIDE as u32)),
    )?;
    let found = read(name, &labels, "labels [n]", |shape| shape.len() == 1)?.bytes;
    let count = pixels.shape[0] as usize;
    if found.len() != count {
        let problem = format!("expected {count} labels, found {}", found.len());
        return Err(damaged(name, &labels, problem));
    }
    for (index, &label) in found.iter().enumerate() {
        check_label(name, &labels, index, label.into(), classes.len())?;
    }
    GreyImages::new(name, classes, pixels.bytes, &found, size)
}

/// A file, plain or compressed, in the folder or where other programs put it.
fn find(name: &'static str, root: &Path, file: &str) -> Result<PathBuf> {
    let folders = ["", "raw", "MNIST/raw", "FashionMNIST/raw"].map(|below| root.join(below));
    let dotted = file.replace("-idx", ".idx");
    for folder in &folders {
        for spelling in [file, &dotted] {
            for ending in ["", ".gz"] {
                let path = folder.join(format!("{spelling}{ending}"));
                if path.is_file() {
                    return Ok(path);
                }
            }
        }
    }
    let problem = format!("expected `{file}` or `{file}.gz`, {}", contents(root));
    Err(absent(name, root, problem))
}

/// The array of a file, with a first axis of a believable length.
fn read(
    name: &'static str,
    path: &Path,
    expected: &str,
    fits: impl Fn(&[u32]) -> bool,
) -> Result<Array> {
    let file = BufReader::new(File::open(path).map_err(Error::io("read", path))?);
    Array::read(file, expected, |shape| {
        fits(shape) && shape[0] <= MAX_IMAGES
    })
    .map_err(|problem| damaged(name, path, problem))
}
