//! What goes into the graph and what comes out, and where the graph's names meet those of the `state_dict`.

use std::collections::{BTreeMap, BTreeSet};

use super::super::program::Role;
use super::calls::{tagged, tensor_name};
use super::fault::{Fault, Result};
use super::schema::{InputSpec, OutputSpec, Signature, TensorMeta};
use super::storage::{element_type, is_float};

/// The interface of a classifier.
pub(super) struct Interface {
    /// The only input, images of rank 4.
    pub(super) input: String,
    /// The only output.
    pub(super) output: String,
    /// The tensors of the file that the graph has names for, in the order of the signature.
    pub(super) named: Vec<Named>,
    /// The buffers that the program changes when it runs, by their keys.
    pub(super) mutated: Vec<String>,
}

/// A tensor of the file that the graph has a name for.
pub(super) struct Named {
    /// The name that calls use.
    pub(super) graph: String,
    /// The key in the `state_dict`, or the name of a constant.
    pub(super) key: String,
    pub(super) role: Role,
}

impl Interface {
    /// Reads the signature, and refuses all but one image input and one output.
    pub(super) fn new(
        signature: &Signature,
        values: &BTreeMap<String, TensorMeta>,
    ) -> Result<Self> {
        let (mut inputs, mut named) = (Vec::new(), Vec::new());
        for spec in &signature.input_specs {
            let mut kinds = spec.iter();
            let (Some((kind, spec)), None) = (kinds.next(), kinds.next()) else {
                return Err(Fault::damaged("an input of the graph is malformed"));
            };
            match kind.as_str() {
                "user_input" => inputs.extend(user_input(spec)?),
                "parameter" | "buffer" | "tensor_constant" => named.push(file_tensor(kind, spec)?),
                // Numbers that are written into the calls as well, and marks of the order of side effects.
                "constant_input" | "token" => {}
                other => {
                    return Err(Fault::new(
                        format!("an input of the graph is of the kind `{other}`"),
                        "only tensors can be the inputs, parameters, buffers and constants of a network",
                    ));
                }
            }
        }
        let mut seen: BTreeSet<&str> = inputs.iter().map(String::as_str).collect();
        for tensor in &named {
            if !seen.insert(&tensor.graph) {
                return Err(Fault::damaged(format!(
                    "two inputs of the graph have the name `{}`",
                    tensor.graph
                )));
            }
        }
        let (output, mutated) = outputs(&signature.output_specs)?;
        Ok(Self {
            input: image_input(&inputs, values)?,
            output,
            named,
            mutated,
        })
    }
}

/// Returns the name of an input that the user passes; one that is a fixed number or nothing has none.
fn user_input(spec: &InputSpec) -> Result<Option<String>> {
    if let Some(name) = tensor_name(&spec.arg) {
        return Ok(Some(name.to_owned()));
    }
    match tagged(&spec.arg) {
        Some(("as_none" | "as_int" | "as_float" | "as_bool" | "as_string", _)) => Ok(None),
        found => Err(Fault::new(
            format!(
                "an input of the network is no tensor but `{}`",
                found.map_or("nothing", |(tag, _)| tag)
            ),
            "export the network with its images as its only input",
        )),
    }
}

fn file_tensor(kind: &str, spec: &InputSpec) -> Result<Named> {
    let key = match kind {
        "parameter" => &spec.parameter_name,
        "buffer" => &spec.buffer_name,
        _ => &spec.tensor_constant_name,
    };
    let graph = spec.arg.get("name").and_then(|name| name.as_str());
    let (Some(graph), Some(key)) = (graph, key) else {
        return Err(Fault::damaged(format!("a {kind} of the graph has no name")));
    };
    let role = match kind {
        "parameter" => Role::Parameter,
        "buffer" if spec.persistent != Some(false) => Role::Buffer,
        _ => Role::Constant,
    };
    Ok(Named {
        graph: graph.to_owned(),
        key: key.clone(),
        role,
    })
}

/// Returns the only input, if it is a batch of images.
fn image_input(inputs: &[String], values: &BTreeMap<String, TensorMeta>) -> Result<String> {
    let [input] = inputs else {
        return Err(Fault::new(
            format!(
                "the network has {} inputs{}, expected is one, a batch of images",
                inputs.len(),
                listed(inputs)
            ),
            "wrap the network in a module whose `forward` takes the images alone, and export that",
        ));
    };
    let Some(meta) = values.get(input) else {
        return Err(Fault::damaged(format!(
            "the shape of the input `{input}` is missing"
        )));
    };
    if meta.sizes.len() != 4 {
        return Err(Fault::new(
            format!(
                "the input `{input}` has {} axes, expected are 4: batch, channels, height, width",
                meta.sizes.len()
            ),
            "export an image classifier, with an example batch such as `torch.randn(2, 3, 224, 224)`",
        ));
    }
    if element_type(meta.dtype).is_some_and(is_float) {
        return Ok(input.clone());
    }
    Err(Fault::new(
        format!("the input `{input}` does not hold floating-point numbers"),
        "export the network with an example such as `torch.randn(2, 3, 224, 224)`",
    ))
}

/// Returns the only output of the network, and the buffers that the program changes.
fn outputs(specs: &[BTreeMap<String, OutputSpec>]) -> Result<(String, Vec<String>)> {
    let (mut found, mut mutated) = (Vec::new(), Vec::new());
    for spec in specs {
        let mut kinds = spec.iter();
        let (Some((kind, spec)), None) = (kinds.next(), kinds.next()) else {
            return Err(Fault::damaged("an output of the graph is malformed"));
        };
        match kind.as_str() {
            "user_output" => found.extend(tensor_name(&spec.arg).map(str::to_owned)),
            "buffer_mutation" => mutated.extend(spec.buffer_name.clone()),
            "token" => {}
            other => {
                return Err(Fault::new(
                    format!("an output of the graph is of the kind `{other}`"),
                    "export the network's `forward` alone, without a loss and without changing its input",
                ));
            }
        }
    }
    match &found[..] {
        [output] => Ok((output.clone(), mutated)),
        _ => Err(Fault::new(
            format!(
                "the network has {} outputs{}, expected is one, the scores of the classes",
                found.len(),
                listed(&found)
            ),
            "wrap the network in a module that returns the scores alone, and export that in eval mode, in which \
             auxiliary heads are left out",
        )),
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(" (`{}`)", names.join("`, `"))
}
