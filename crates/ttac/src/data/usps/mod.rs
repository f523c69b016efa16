//! USPS digits in the HDF5 file `usps.h5`: groups `train` (7,291) and `test` (2,007).

mod digits;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use self::digits::Digits;
use super::Split;
use super::grey::{self, GreyImages};
use super::idx::DIGIT_CLASSES;
use super::problem::{absent, check_folder, contents, damaged};
use super::resize::resize_grey;
use crate::{Error, Result};

const NAME: &str = "usps";
const FILE: &str = "usps.h5";

/// Twenty times the file there is: more is not read into memory.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a split of USPS for a model that wants `size` rows and columns, 28 to 56 (6 MB for training, 2 MB for test).
///
/// Digits are 16 x 16 floats in `[0, 1]`, white on black. They become bytes by rounding `255 x`, are
/// enlarged to 28 x 28 (bilinear) and from there on treated like those of MNIST: RGB with three equal
/// channels, in the middle of a black square of the model's size.
pub fn open_usps(root: &Path, split: Split, size: usize) -> Result<GreyImages> {
    check_folder(NAME, root)?;
    let path = root.join(FILE);
    if !path.is_file() {
        let problem = format!("expected `{FILE}`, {}", contents(root));
        return Err(absent(NAME, root, problem));
    }
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(Error::io("read", &path))?;
    (file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(Error::io("read", &path))?;
    if bytes.len() as u64 > MAX_BYTES {
        let problem = format!(
            "expected about 3 MB, found more than {} MB",
            MAX_BYTES >> 20
        );
        return Err(damaged(NAME, &path, problem));
    }
    let digits = Digits::parse(bytes, &split.to_string())
        .map_err(|problem| damaged(NAME, &path, problem))?;
    let pixels = resize_grey(&digits.pixels, digits::SIDE, grey::SIDE);
    GreyImages::new(NAME, &DIGIT_CLASSES, pixels, &digits.labels, size)
}
