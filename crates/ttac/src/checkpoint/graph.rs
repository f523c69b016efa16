//! Networks of any architecture: from what another framework exported to a checkpoint, and back.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType, Device, TensorData};
use safetensors::tensor::{Dtype, TensorView};

use super::Checkpoint;
use super::report::fill;
use crate::backbone::graph::{GraphConfig, GraphNetwork};
use crate::backbone::{Architecture, Network, tensors};
use crate::graph::{ElementType, Graph, Lowered, TensorInfo, TensorKind, lower, onnx, pt2, read};
use crate::{Error, Result};

/// A network that came as a graph.
#[derive(Debug)]
pub struct ImportedGraph {
    /// The graph, as a checkpoint's header carries it.
    pub architecture: Architecture,
    /// The network with its weights.
    pub network: Network,
    /// What the user should know, in whole sentences.
    pub notes: Vec<String>,
    /// Whether the network normalises its images itself, so that it wants them as they are.
    pub normalises_inside: bool,
}

/// Reads a network that `torch.export.save` or an exporter of ONNX wrote. Nothing in the file is executed.
///
/// `features` names the result of a call, or the module that makes it, whose value becomes the features; without it they are what the
/// last linear layer reads.
pub fn import_graph(path: &Path, features: Option<&str>, device: &Device) -> Result<ImportedGraph> {
    let program = read(path)?;
    let Lowered {
        graph,
        tensors,
        notes,
        normalises_inside,
    } = lower(&program, features)?;
    let architecture = Architecture::Graph(GraphConfig::new(graph));
    let blank = architecture.blank(device)?;
    let network = fill(path, &architecture, blank, tensors)?;
    Ok(ImportedGraph {
        architecture,
        network,
        notes,
        normalises_inside,
    })
}

/// Writes a copy of the file that a network was imported from, with the checkpoint's weights in it. PyTorch loads it by
/// `torch.export.load`. Returns the number of tensors that were replaced.
pub fn export_like(checkpoint: &Checkpoint, original: &Path, out: &Path) -> Result<usize> {
    let Network::Graph(network) = &checkpoint.network else {
        return Err(not_a_graph(checkpoint));
    };
    let values = named(network).map(|(name, _, data)| (name, data));
    let report = pt2::replace_weights(original, &values.collect(), out)?;
    Ok(report.replaced.len())
}

/// Writes the network as ONNX of opset 17, with the statistics and weights of the checkpoint; `producer` names the program that does.
pub fn export_onnx(checkpoint: &Checkpoint, out: &Path, producer: &str) -> Result<()> {
    let Network::Graph(network) = &checkpoint.network else {
        return Err(not_a_graph(checkpoint));
    };
    onnx::write(network.graph(), &tensors(network), out, producer)
}

fn not_a_graph(checkpoint: &Checkpoint) -> Error {
    Error::Mismatch {
        what: "checkpoint".to_owned(),
        expected: "a network that was imported as a graph".to_owned(),
        found: format!("a `{}`", checkpoint.header.architecture.name()),
    }
}

/// Refuses tensors of a checkpoint that are not there or have another number of values than their graph says.
pub(super) fn check_sizes(
    path: &Path,
    graph: &Graph,
    found: &BTreeMap<String, TensorData>,
) -> Result<()> {
    for info in &graph.tensors {
        if matches!(info.kind, TensorKind::Counter(_)) {
            continue;
        }
        let expected = info.shape.iter().product::<usize>();
        let held = found.get(&info.name).map(TensorData::num_elements);
        if held != Some(expected) {
            let held = held.map_or("is missing".to_owned(), |held| {
                format!("holds {held} values")
            });
            return Err(Error::Format {
                path: path.to_owned(),
                expected: "a ttac checkpoint",
                problem: format!(
                    "tensor `{}` {held}, and its header says {:?}",
                    info.name, info.shape
                ),
                hint: None,
            });
        }
    }
    Ok(())
}

/// Iterates over the tensors of the `state_dict`, by all their names, in PyTorch's shape.
fn named(network: &GraphNetwork) -> impl Iterator<Item = (String, TensorInfo, TensorData)> {
    let mut values = tensors(network);
    let infos = network.graph().tensors.iter();
    let own = infos.filter(|info| !info.is_written_in());
    let found = own.filter_map(|info| {
        let data = values.remove(&info.name)?;
        // A number is a vector of one in the network.
        let values: Vec<f32> = data.try_to_vec().expect("tensors are f32");
        Some((info.clone(), TensorData::new(values, info.shape.clone())))
    });
    let found: Vec<(TensorInfo, TensorData)> = found.collect();
    found.into_iter().flat_map(|(info, data)| {
        let names: Vec<String> = std::iter::once(&info.name)
            .chain(&info.also)
            .cloned()
            .collect();
        let same = move |name| (name, info.clone(), data.clone());
        names.into_iter().map(same)
    })
}

/// Returns safetensors of the whole `state_dict`, counters included, each tensor in the type it came with.
pub(super) fn state_dict(network: &GraphNetwork) -> Vec<u8> {
    let tensors = named(network).map(|(name, info, data)| {
        let (ours, theirs) = types(info.element);
        let data = if ours == DType::F32 {
            data
        } else {
            data.convert_dtype(ours)
        };
        (name, (theirs, info.shape, data.as_bytes().to_vec()))
    });
    let infos = network.graph().tensors.iter();
    let counters = infos.flat_map(|info| {
        let value = match info.kind {
            TensorKind::Counter(value) => Some(value),
            _ => None,
        };
        let names = std::iter::once(&info.name).chain(&info.also);
        names.filter_map(move |name| {
            let bytes = value?.to_le_bytes().to_vec();
            Some((name.clone(), (Dtype::I64, info.shape.clone(), bytes)))
        })
    });
    let all: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = tensors.chain(counters).collect();
    let views = all.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        (name, view.expect("shape and bytes agree"))
    });
    safetensors::serialize(views, None).expect("serialising to memory cannot fail")
}

/// Returns a type of element as Burn and as safetensors name it.
fn types(element: ElementType) -> (DType, Dtype) {
    match element {
        ElementType::U8 => (DType::U8, Dtype::U8),
        ElementType::I8 => (DType::I8, Dtype::I8),
        ElementType::I16 => (DType::I16, Dtype::I16),
        ElementType::I32 => (DType::I32, Dtype::I32),
        ElementType::I64 => (DType::I64, Dtype::I64),
        ElementType::F16 => (DType::F16, Dtype::F16),
        ElementType::F32 => (DType::F32, Dtype::F32),
        ElementType::F64 => (DType::F64, Dtype::F64),
        // A byte each, 0 or 1.
        ElementType::Bool => (DType::U8, Dtype::BOOL),
        ElementType::Bf16 => (DType::BF16, Dtype::BF16),
    }
}
