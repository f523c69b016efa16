//! USPS digits in the HDF5 file `usps.h5`: groups `train` (7,291) and `test` (2,007).

mod digits;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use self::digits::Digits;
use super::grey::{self, Grey};
use super::idx::DIGIT_CLASSES;
use super::problem::{absent, contents, damaged};
use super::resize::resize_grey;
use super::{Batch, Dataset, SampleId, Split};
use crate::{Error, Result};

const NAME: &str = "usps";
const FILE: &str = "usps.h5";

/// Twenty times the file there is: more is not read into memory.
const MAX_BYTES: u64 = 64 << 20;

/// One split of USPS in memory (6 MB for training, 2 MB for test).
///
/// Digits are 16 x 16 floats in `[0, 1]`, white on black. They become bytes by rounding `255 x`, are
/// enlarged to 28 x 28 (bilinear) and from there on treated like those of MNIST: RGB with three equal
/// channels, in the middle of a black square of the model's size.
pub struct Usps(Grey);

impl fmt::Debug for Usps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Usps({} images)", self.0.len())
    }
}

impl Usps {
    /// A split for a model that wants `size` rows and columns, 28 to 56.
    pub fn open(root: &Path, split: Split, size: usize) -> Result<Self> {
        if !root.is_dir() {
            return Err(absent(NAME, root, "no such folder".to_owned()));
        }
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
        Ok(Self(Grey::new(NAME, pixels, digits.labels, size)?))
    }
}

impl Dataset for Usps {
    fn name(&self) -> &'static str {
        NAME
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn classes(&self) -> Vec<String> {
        DIGIT_CLASSES.map(str::to_owned).to_vec()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        Ok(self.0.batch(ids))
    }
}
