//! Nodes of the graph as calls.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::program::{Argument, Call, Integer, Size};
use super::fault::{Fault, Result};
use super::schema::{Node, TensorMeta};
use super::storage::element_type;

/// What PyTorch writes where a call belongs to no module.
const NO_MODULE: &str = "_empty_nn_module_stack_from_metadata_hook";

/// Makes a call of a node. Names of tied tensors become the one name that the program keeps.
pub(super) fn call(node: Node, tied: &BTreeMap<String, String>) -> Result<Call> {
    let target = node.target.strip_prefix("torch.ops.");
    let target = target.unwrap_or(&node.target).to_owned();
    let stack = node.metadata.nn_module_stack.as_deref();
    let at = module_path(stack.unwrap_or_default());
    let malformed = |what: &str| {
        let place = if at.is_empty() {
            String::new()
        } else {
            format!(" in `{at}`")
        };
        Fault::damaged(format!(
            "{what} of the call of `{target}`{place} is malformed"
        ))
    };
    let mut arguments = Vec::with_capacity(node.inputs.len());
    for input in node.inputs {
        let read = argument(&input.arg, tied);
        let read = read.ok_or_else(|| malformed(&format!("the argument `{}`", input.name)))?;
        arguments.push((input.name, read));
    }
    let mut results = Vec::with_capacity(node.outputs.len());
    for output in &node.outputs {
        results.extend(names(output).ok_or_else(|| malformed("a result"))?);
    }
    Ok(Call {
        target,
        arguments,
        results,
        at,
    })
}

/// Returns the path of the innermost module. Entries are `key,path,type` with semicolons between them.
fn module_path(stack: &str) -> String {
    let last = stack.rsplit(';').next().unwrap_or_default();
    let path = last.split(',').nth(1).unwrap_or_default();
    if path == NO_MODULE {
        return String::new();
    }
    // A module that is called several times has the number of the call behind its path.
    path.split('@').next().unwrap_or_default().to_owned()
}

/// Reads an object with one key.
pub(super) fn tagged(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let (tag, content) = object.iter().next()?;
    Some((tag, content))
}

/// Reads an argument. Kinds that no function needs become [`Argument::Other`]; a known kind with other content is nothing.
fn argument(value: &Value, tied: &BTreeMap<String, String>) -> Option<Argument> {
    let (tag, content) = tagged(value)?;
    let tensor = |value: &Value| {
        let name = name_of(value)?;
        Some(tied.get(name).map_or(name, String::as_str).to_owned())
    };
    let optional = |value: &Value| match tagged(value)? {
        ("as_none", _) => Some(None),
        ("as_tensor", content) => Some(Some(tensor(content)?)),
        _ => None,
    };
    Some(match tag {
        "as_none" => Argument::None,
        "as_tensor" => Argument::Tensor(tensor(content)?),
        "as_tensors" => Argument::Tensors(list(content, |value| Some(Some(tensor(value)?)))?),
        "as_optional_tensor" => optional(content)?.map_or(Argument::None, Argument::Tensor),
        "as_optional_tensors" => Argument::Tensors(list(content, optional)?),
        "as_int" => Argument::Integer(Integer::Number(content.as_i64()?)),
        "as_ints" => Argument::Integers(list(content, |value| {
            Some(Integer::Number(value.as_i64()?))
        })?),
        "as_sym_int" => Argument::Integer(integer(content)?),
        "as_sym_ints" => Argument::Integers(list(content, integer)?),
        "as_float" => Argument::Float(float(content)?),
        "as_floats" => Argument::Floats(list(content, float)?),
        "as_sym_float" => match tagged(content)? {
            ("as_float", content) => Argument::Float(float(content)?),
            _ => Argument::Other,
        },
        "as_bool" => Argument::Bool(content.as_bool()?),
        "as_string" => Argument::Text(content.as_str()?.to_owned()),
        "as_scalar_type" => element_type(content.as_i64()?).map_or(Argument::Other, Argument::Type),
        _ => Argument::Other,
    })
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(read).collect()
}

fn name_of(value: &Value) -> Option<&str> {
    value.get("name")?.as_str()
}

fn integer(value: &Value) -> Option<Integer> {
    match tagged(value)? {
        ("as_int", content) => Some(Integer::Number(content.as_i64()?)),
        ("as_name", content) => Some(Integer::Symbol(content.as_str()?.to_owned())),
        _ => None,
    }
}

/// Reads a number. JSON has no infinity, so PyTorch writes it as text.
fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        None => value.as_f64(),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        Some("NaN") => Some(f64::NAN),
        Some(_) => None,
    }
}

/// Returns the names of a result. A list of tensors has several; a result that is nothing keeps its place with an empty name.
fn names(value: &Value) -> Option<Vec<String>> {
    let (tag, content) = tagged(value)?;
    Some(match tag {
        "as_tensor" => vec![name_of(content)?.to_owned()],
        "as_tensors" => list(content, |value| Some(name_of(value)?.to_owned()))?,
        "as_sym_int" | "as_sym_float" | "as_sym_bool" => {
            vec![content.get("as_name")?.as_str()?.to_owned()]
        }
        _ => vec![String::new()],
    })
}

/// Returns the name of an argument that is one tensor.
pub(super) fn tensor_name(value: &Value) -> Option<&str> {
    match tagged(value)? {
        ("as_tensor", content) => name_of(content),
        _ => None,
    }
}

/// Returns the sizes of an intermediate value, if the file tells all of them.
pub(super) fn shape(meta: &TensorMeta) -> Option<Vec<Size>> {
    let sizes = meta.sizes.iter().map(|size| {
        let hint = size.as_expr.as_ref().map(|expression| &expression.hint);
        let example = size.as_int.or_else(|| hint?.get("as_int")?.as_i64())?;
        Some(Size {
            example: usize::try_from(example).ok()?,
            symbolic: size.as_int.is_none(),
        })
    });
    sizes.collect()
}
