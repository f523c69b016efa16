//! The `torch.save` files inside the files of PyTorch up to 2.8.

use std::collections::BTreeMap;
use std::io::Write;

use burn::store::bridge;
use burn::store::pytorch::PytorchReader;
use burn::tensor::{DType, TensorData};

use super::super::program::{ElementType, Values};
use super::fault::{Fault, Result};
use super::tensors::Unpickled;

/// Reads the tensors of a `torch.save` file, which a fault calls by its name. Nothing in it is executed.
pub(super) fn unpickle(bytes: &[u8], name: &str) -> Result<BTreeMap<String, Unpickled>> {
    let broken = |e: &dyn std::fmt::Display| {
        Fault::damaged(format!("the weights `{name}` cannot be read: {e}"))
    };
    // Burn reads such a file from a path only.
    let mut file = tempfile::NamedTempFile::new().map_err(|e| broken(&e))?;
    file.write_all(bytes).map_err(|e| broken(&e))?;
    file.flush().map_err(|e| broken(&e))?;
    let reader = PytorchReader::new(file.path()).map_err(|e| broken(&e))?;
    let mut found = BTreeMap::new();
    for (key, tensor) in reader.into_tensors() {
        let packed = bridge::from_pytorch(tensor);
        let data =
            bridge::into_data(packed).map_err(|e| broken(&format!("tensor `{key}`: {e}")))?;
        let tensor = widen(&data).ok_or_else(|| {
            broken(&format!(
                "tensor `{key}` has elements of type {:?}",
                data.dtype()
            ))
        })?;
        found.insert(key, tensor);
    }
    Ok(found)
}

fn widen(data: &TensorData) -> Option<Unpickled> {
    let element = match data.dtype() {
        DType::U8 => ElementType::U8,
        DType::I8 => ElementType::I8,
        DType::I16 => ElementType::I16,
        DType::I32 => ElementType::I32,
        DType::I64 => ElementType::I64,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::Bf16,
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
        DType::Bool(_) => ElementType::Bool,
        _ => return None,
    };
    let values = match element {
        ElementType::F16 | ElementType::Bf16 | ElementType::F32 | ElementType::F64 => {
            Values::F32(data.iter::<f32>().collect())
        }
        ElementType::Bool => Values::Bool(data.iter::<bool>().collect()),
        _ => Values::I64(data.iter::<i64>().collect()),
    };
    Some(Unpickled {
        shape: data.shape().to_vec(),
        values,
        element,
    })
}
