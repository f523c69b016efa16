//! A container as a program.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use super::super::program::Program;
use super::calls;
use super::container::{Container, Layout};
use super::fault::{Fault, Result};
use super::schema::{ExportedProgram, Versions};
use super::signature::Interface;
use super::tensors::{self, Tensors, Unpickled};

/// Reads the tensors of a `torch.save` file; a fault calls it by its name.
pub(super) type Unpickle<'a> = &'a dyn Fn(&[u8], &str) -> Result<BTreeMap<String, Unpickled>>;

/// Reads the only program of a file.
pub(super) fn parse<R: Read + Seek>(
    container: &mut Container<R>,
    unpickle: Unpickle<'_>,
) -> Result<Program> {
    container.check_byte_order()?;
    let mut notes = Vec::new();
    let program = exported(container, &mut notes)?;
    let (graph, signature) = (program.graph_module.graph, program.graph_module.signature);
    let interface = Interface::new(&signature, &graph.tensor_values)?;
    let Tensors {
        stored,
        tied,
        notes: about_tensors,
    } = match container.layout {
        Layout::Raw => tensors::read_raw(container, &interface.named)?,
        Layout::Flat | Layout::Pickled => {
            tensors::read_pickled(container, &interface.named, unpickle)?
        }
    };
    notes.extend(about_tensors);
    if let Some(first) = interface.mutated.first() {
        notes.push(format!(
            "The program changes {} buffers when it runs, such as `{first}`: it was exported in training mode.",
            interface.mutated.len()
        ));
    }
    let calls = graph.nodes.into_iter().map(|node| calls::call(node, &tied));
    let calls = calls.collect::<Result<_>>()?;
    let values = graph.tensor_values.iter();
    let shapes = values
        .filter(|(name, _)| !stored.contains_key(*name) && !tied.contains_key(*name))
        .filter_map(|(name, meta)| Some((name.clone(), calls::shape(meta)?)))
        .collect();
    let output = tied.get(&interface.output).cloned();
    Ok(Program {
        input: interface.input,
        output: output.unwrap_or(interface.output),
        calls,
        tensors: stored,
        shapes,
        notes,
    })
}

/// Reads the JSON of the program, after its version.
fn exported<R: Read + Seek>(
    container: &mut Container<R>,
    notes: &mut Vec<String>,
) -> Result<ExportedProgram> {
    let name = match container.layout {
        Layout::Flat => "serialized_exported_program.json".to_owned(),
        Layout::Pickled | Layout::Raw => format!("models/{}.json", container.model),
    };
    let bytes = container.read(&name)?;
    let broken =
        |e: serde_json::Error| Fault::damaged(format!("the graph `{name}` cannot be read: {e}"));
    let versions: Versions = serde_json::from_slice(&bytes).map_err(broken)?;
    let version = versions.schema_version;
    let torch = versions
        .torch_version
        .unwrap_or_else(|| "unknown".to_owned());
    match version.major {
        8 => {}
        5 | 7 => notes.push(format!(
            "The file has version {}.{} of PyTorch's schema, which is old and hardly tested: compare the outputs, or export again \
             with PyTorch 2.9 or newer.",
            version.major, version.minor
        )),
        other => {
            return Err(Fault::new(
                format!(
                    "its schema has version {other}.{} (PyTorch {torch}), known are 8, 7 and 5",
                    version.minor
                ),
                "export the network with PyTorch 2.9 to 2.15",
            ));
        }
    }
    serde_json::from_slice(&bytes).map_err(broken)
}
