//! Reading the weights of other programs, and writing them for PyTorch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::store::pytorch::PytorchReader;
use burn::tensor::{Device, TensorData};
use safetensors::tensor::SafeTensors;

use super::graph::state_dict;
use super::native::{serialise, to_data};
use super::{Checkpoint, LoadReport};
use crate::backbone::{Architecture, Network, Parameter, load_tensors, parameters, tensors};
use crate::{Error, Result, write_atomically};

/// Reads the weights of another program into a new network of an architecture. Files are PyTorch's `.pt`, `.pth` and `.th` (zip,
/// tar or the legacy stream; nothing in them is ever executed) or safetensors.
///
/// Keys may lie under any prefix, as in `{"state_dict": {"module.conv1.weight": ..}}`: the one under
/// which most keys fit is taken. Unless `allow_partial` is set, every parameter has to be there with
/// its shape, and nothing else. NaN and infinite weights are refused in any case. The report says what became of every key.
pub fn import(
    path: &Path,
    architecture: &Architecture,
    allow_partial: bool,
    device: &Device,
) -> Result<(Network, LoadReport)> {
    let found = read_foreign(path)?;
    import_tensors(path, found, architecture, allow_partial, device)
}

/// Does what [`import`] does with tensors that are in memory, by their keys; `origin` names them in messages.
pub fn import_tensors(
    origin: &Path,
    found: BTreeMap<String, TensorData>,
    architecture: &Architecture,
    allow_partial: bool,
    device: &Device,
) -> Result<(Network, LoadReport)> {
    let network = architecture.init(0, device)?;
    let expected = parameters(&network);
    let mut found = strip_prefix(&expected, found);
    found.retain(|key, _| !architecture.ignores(key));
    let (report, fitting) = LoadReport::sort(architecture, &network, found);
    let usable = report.is_complete()
        || (allow_partial && report.not_finite.is_empty() && report.loaded > 0);
    if !usable {
        return Err(report.into_error(origin, architecture));
    }
    Ok((load_tensors(network, &fitting), report))
}

/// Lists the keys and shapes of the float tensors in another program's weights.
pub fn foreign_tensors(path: &Path) -> Result<Vec<(String, Vec<usize>)>> {
    let found = read_foreign(path)?;
    let shapes = found.into_iter();
    Ok(shapes
        .map(|(key, data)| (key, data.shape().to_vec()))
        .collect())
}

/// Writes plain safetensors with PyTorch's keys and batch counters, which `load_state_dict` takes strictly. A network that came as a
/// graph has all tensors of its `state_dict` there, under all their names and with the types of element they came with.
pub fn export(checkpoint: &Checkpoint, path: &Path) -> Result<()> {
    write_atomically(path, &export_bytes(&checkpoint.network))
}

/// Returns the bytes that [`export`] writes.
pub fn export_bytes(network: &Network) -> Vec<u8> {
    if let Network::Graph(network) = network {
        return state_dict(network);
    }
    let values = tensors(network);
    let norms = values
        .keys()
        .filter_map(|key| key.strip_suffix("running_mean"));
    let counters: Vec<String> = norms
        .map(|norm| format!("{norm}num_batches_tracked"))
        .collect();
    serialise(&values, &counters, None)
}

/// Reads all float tensors of a file, by key.
fn read_foreign(path: &Path) -> Result<BTreeMap<String, TensorData>> {
    let head = {
        use std::io::Read;
        let mut head = Vec::new();
        let file = std::fs::File::open(path).map_err(Error::io("read", path))?;
        file.take(16)
            .read_to_end(&mut head)
            .map_err(Error::io("read", path))?;
        head
    };
    // Safetensors begin with the length of their JSON header and its opening brace.
    if head.get(8) == Some(&b'{') {
        return read_safetensors(path);
    }
    read_pytorch(path)
}

fn read_safetensors(path: &Path) -> Result<BTreeMap<String, TensorData>> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| Error::Format {
        path: path.to_owned(),
        expected: "a safetensors file",
        problem: e.to_string(),
        hint: Some("it is damaged or was cut short: fetch it again".to_owned()),
    })?;
    let tensors = file.tensors().into_iter();
    // Integer tensors are counters; a missing weight of another type is reported as missing.
    Ok(tensors
        .filter_map(|(key, view)| Some((key, to_data(&view).ok()?)))
        .collect())
}

fn read_pytorch(path: &Path) -> Result<BTreeMap<String, TensorData>> {
    let format_error = |problem: String| {
        Error::Format {
        path: path.to_owned(),
        expected: "a PyTorch checkpoint",
        problem,
        hint: Some(
            "expected is what `torch.save(model.state_dict(), path)` writes, or safetensors; a file \
             that was cut short has to be fetched again"
                .to_owned(),
        ),
    }
    };
    let reader = PytorchReader::new(path).map_err(|e| format_error(e.to_string()))?;
    let mut found = BTreeMap::new();
    for (key, tensor) in reader.into_tensors() {
        let packed = burn::store::bridge::from_pytorch(tensor);
        let data = burn::store::bridge::into_data(packed)
            .map_err(|e| format_error(format!("tensor `{key}`: {e}")))?;
        if data.dtype().is_float() {
            found.insert(key, data.convert::<f32>());
        } else if key.ends_with("num_batches_tracked") {
            // Kept for the count in the report; its value is never used.
            found.insert(key, TensorData::new(Vec::<f32>::new(), [0]));
        }
    }
    if found.is_empty() {
        return Err(format_error("it holds no float tensor".to_owned()));
    }
    Ok(found)
}

/// Removes the prefix under which most of the expected keys lie. Keys that fit as they are stay.
fn strip_prefix(
    expected: &[Parameter],
    found: BTreeMap<String, TensorData>,
) -> BTreeMap<String, TensorData> {
    let keys: BTreeSet<&str> = expected.iter().map(|p| p.key.as_str()).collect();
    let prefixes: BTreeSet<&str> = found
        .keys()
        .flat_map(|key| key.match_indices('.').map(|(dot, _)| &key[..=dot]))
        .collect();
    let fitting = |prefix: &str| {
        let stripped = found.keys().filter_map(|key| key.strip_prefix(prefix));
        stripped.filter(|key| keys.contains(key)).count()
    };
    // Of two prefixes that fit equally well the shorter one wins.
    let mut best = ("", fitting(""));
    for prefix in prefixes {
        let count = fitting(prefix);
        if count > best.1 {
            best = (prefix, count);
        }
    }
    let prefix = best.0.to_owned();
    found
        .into_iter()
        .map(|(key, data)| match key.strip_prefix(&prefix) {
            Some(stripped) => (stripped.to_owned(), data),
            None => (key, data),
        })
        .collect()
}
