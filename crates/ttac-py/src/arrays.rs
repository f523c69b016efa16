//! Batches and tensors between Python and the library.

use std::collections::BTreeMap;

use numpy::{PyReadonlyArray3, PyReadonlyArray4, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use safetensors::SafeTensors;
use ttac::burn::tensor::TensorData;
use ttac::data::{Clouds, Images, Samples};
use ttac::input::InputContract;

use crate::errors::invalid;

/// The module that reads arrays of other libraries.
fn python(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("ttac._arrays")
}

/// Reads a batch for a network: images or, for a network of clouds, coordinates. The values are copied, since the batch
/// is used without the interpreter's lock, when another thread might write to the array.
pub fn samples(input: &InputContract, batch: &Bound<'_, PyAny>) -> PyResult<Samples> {
    match input {
        InputContract::Images { .. } => Ok(images(batch)?.into()),
        InputContract::Clouds { .. } => Ok(clouds(batch)?.into()),
    }
}

/// Reads images, `[count, height, width, 3]` in the end.
pub fn images(batch: &Bound<'_, PyAny>) -> PyResult<Images> {
    let array = python(batch.py())?.call_method1("pixels", (batch,))?;
    let array: PyReadonlyArray4<'_, u8> = array.extract()?;
    let &[_, height, width, _] = array.shape() else {
        return Err(invalid("`pixels` returns four axes"));
    };
    Ok(Images {
        height,
        width,
        pixels: array.as_slice()?.to_vec(),
    })
}

fn clouds(batch: &Bound<'_, PyAny>) -> PyResult<Clouds> {
    let array = python(batch.py())?.call_method1("points", (batch,))?;
    let array: PyReadonlyArray3<'_, f32> = array.extract()?;
    let &[_, points, _] = array.shape() else {
        return Err(invalid("`points` returns three axes"));
    };
    Ok(Clouds {
        points,
        values: array.as_slice()?.to_vec(),
    })
}

/// Reads true classes.
pub fn labels(labels: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    python(labels.py())?
        .call_method1("labels", (labels,))?
        .extract()
}

/// Reads the float tensors of a `state_dict`.
pub fn tensors(state_dict: &Bound<'_, PyAny>) -> PyResult<BTreeMap<String, TensorData>> {
    let flat = python(state_dict.py())?.call_method1("tensors", (state_dict,))?;
    let mut found = BTreeMap::new();
    for (key, value) in flat.cast_into::<PyDict>()? {
        let array: PyReadonlyArrayDyn<'_, f32> = value.extract()?;
        let shape = array.shape().to_vec();
        let data = TensorData::new(array.as_slice()?.to_vec(), shape);
        found.insert(key.extract()?, data);
    }
    Ok(found)
}

/// Makes the `state_dict` of safetensors, as tensors of PyTorch or as arrays.
pub fn state_dict<'py>(py: Python<'py>, bytes: &[u8], numpy: bool) -> PyResult<Bound<'py, PyAny>> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut listed: Vec<(String, String, Vec<usize>, Bound<'py, PyBytes>)> = file
        .iter()
        .map(|(name, view)| {
            let kind = format!("{:?}", view.dtype());
            let data = PyBytes::new(py, view.data());
            (name.to_owned(), kind, view.shape().to_vec(), data)
        })
        .collect();
    // The reader of the file hands them out in any order.
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    python(py)?.call_method1("state_dict", (listed, numpy))
}
