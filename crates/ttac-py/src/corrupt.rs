//! Corruptions of images, as Python sees them.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray4, PyArrayMethods};
use pyo3::prelude::*;
use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

use crate::arrays;
use crate::errors::{compute, invalid};

/// Says what is wrong and what to try.
fn raise(error: ttac_corrupt::Error) -> PyErr {
    match error.hint() {
        Some(hint) => invalid(format!("{error}\nhint: {hint}")),
        None => invalid(error.to_string()),
    }
}

/// Returns images under a corruption of CIFAR-10-C and ImageNet-C, at a severity of 1 to 5.
///
/// Images are uint8 `[n, height, width, 3]`; a new array is returned. Image `i` of a set is drawn by its own stream of the
/// seed: `first_index` is the place of the first image in the set, so that a set in pieces is corrupted as the whole.
/// `frost` needs a folder of photographs, `frost_textures`; `frost-like` draws its ice.
#[pyfunction]
#[pyo3(signature = (images, corruption, severity=5, seed=0, *, first_index=0, frost_textures=None))]
pub fn corrupt<'py>(
    images: &Bound<'py, PyAny>,
    corruption: &str,
    severity: i64,
    seed: u64,
    first_index: u64,
    frost_textures: Option<PathBuf>,
) -> PyResult<Bound<'py, PyArray4<u8>>> {
    let py = images.py();
    let wanted = if corruption == "frost-like" {
        "frost"
    } else {
        corruption
    };
    let wanted: Corruption = wanted.parse().map_err(raise)?;
    let severity: Severity = severity.to_string().parse().map_err(raise)?;
    let mut corruptor = Corruptor::new(seed);
    if corruption == "frost" {
        let Some(folder) = frost_textures else {
            return Err(invalid(
                "`frost` needs its photographs\nhint: give their folder as `frost_textures`, or ask for `frost-like`",
            ));
        };
        corruptor = corruptor.with_frost(FrostTextures::load(folder).map_err(raise)?);
    }
    let images = arrays::images(images)?;
    let shape = [images.count(), images.height, images.width, 3];
    let pixels = compute(py, || {
        let mut pixels = images.pixels;
        let (height, width) = (images.height, images.width);
        corruptor
            .apply_in_place(wanted, severity, &mut pixels, height, width, first_index)
            .map_err(raise)?;
        Ok(pixels)
    })?;
    pixels.into_pyarray(py).reshape(shape)
}

/// Returns the names of all corruptions.
#[pyfunction]
pub fn corruptions() -> Vec<&'static str> {
    Corruption::ALL.map(Corruption::name).to_vec()
}
