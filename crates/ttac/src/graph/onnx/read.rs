//! Reads a network from an ONNX file.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::program::{Program, Role, Size, Stored, Values};
use super::message::{self, Graph, Model, Node, ValueInfo, element};
use super::problem::{Problem, Result};
use super::tensor::Array;
use super::tidy::tidy;
use super::translate::{Translator, Value};
use crate::Error;

/// The versions of ONNX's set of operators whose meaning is known.
const OPSETS: std::ops::RangeInclusive<i64> = 11..=21;

/// The largest file. Protocol buffers end at 2 GiB; larger networks have their weights beside the file.
const LARGEST: u64 = 1 << 31;

/// Images in the example that a program is made for. Sizes are multiples of it, and with one image these could not be told from
/// others.
const EXAMPLE: usize = 2;

/// What to do where an exporter has destroyed what adaptation needs.
const EXPORT_AGAIN: &str = "`torch.export.save` keeps everything; so do `torch.onnx.export(.., optimize=False)` and \
    `torch.onnx.export(.., dynamo=False, training=TrainingMode.PRESERVE, do_constant_folding=False)` in eval mode";

/// Reads a network of opset 11 to 21 as a program of PyTorch's functions.
///
/// Tensors keep the names they have in the file, which are those of the `state_dict` if the exporter kept them. Values outside
/// the file are read from the files beside it that it names.
pub fn read(path: &Path) -> crate::Result<Program> {
    let size = std::fs::metadata(path)
        .map_err(Error::io("read", path))?
        .len();
    if size > LARGEST {
        let problem = Problem::with_hint(
            format!("it has {size} bytes, and the most are {LARGEST}"),
            "export it with its weights in a second file: `external_data=True`",
        );
        return Err(problem.in_file(path));
    }
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    program(&bytes, Some(folder)).map_err(|problem| problem.in_file(path))
}

/// Reads a network from the bytes of a file. Values outside the file are refused.
pub fn read_bytes(bytes: &[u8]) -> crate::Result<Program> {
    program(bytes, None).map_err(|problem| problem.in_file(Path::new("bytes")))
}

fn program(bytes: &[u8], folder: Option<&Path>) -> Result<Program> {
    let model = decode(bytes)?;
    let opset = opset(&model)?;
    let graph = model.graph.as_ref().ok_or_else(foreign)?;
    if graph.sparse > 0 {
        return Err("sparse tensors are not supported".into());
    }
    let input = ends(graph)?;
    let shape = input_shape(input)?;
    let mut translator = Translator::new(opset, folder, names(graph), &input.name, &shape);
    if let Some(Some(message::Size::Number(batch))) = input.shape.as_ref().map(|s| s.first()) {
        translator.batch = usize::try_from(*batch).ok().filter(|&batch| batch > 0);
    }
    let mut unread = Vec::new();
    let read: BTreeSet<&str> = graph
        .nodes
        .iter()
        .flat_map(|node| node.inputs.iter().map(String::as_str))
        .collect();
    for tensor in &graph.initialisers {
        let array = Array::of(tensor, folder)?;
        if !read.contains(tensor.name.as_str()) && !matches!(array.values, Values::F32(_)) {
            unread.push((tensor.name.clone(), array));
        } else {
            translator.initialiser(&tensor.name, array)?;
        }
    }
    for node in &graph.nodes {
        translator.at = module_of(node);
        translator
            .translate(node)
            .map_err(|problem| problem.at(&node.describe()))?;
    }
    finish(translator, graph, unread)
}

/// Names the output, adds tensors that nothing reads, puts layers together and says what the user should know.
fn finish(
    translator: Translator<'_>,
    graph: &Graph<'_>,
    unread: Vec<(String, Array)>,
) -> Result<Program> {
    let name = &graph.outputs[0].name;
    let Translator {
        mut program,
        values,
        dims,
        ..
    } = translator;
    match values.get(name) {
        Some(Value::Made(handle)) if !program.tensors.contains_key(&handle.name) => {
            program.output.clone_from(&handle.name);
        }
        Some(_) => return Err(format!("the output `{name}` does not depend on the images").into()),
        None => return Err(format!("nothing makes the output `{name}`").into()),
    }
    for (name, array) in unread {
        let stored = Stored {
            key: name.clone(),
            also: Vec::new(),
            role: Role::Buffer,
            shape: array.shape,
            values: array.values,
            element: array.element,
        };
        program.tensors.insert(name, stored);
    }
    let mut dims = dims;
    let input = program.shapes[&program.input].iter().map(|size| {
        if size.symbolic {
            super::super::ir::Dim::per_image(1)
        } else {
            super::super::ir::Dim::fixed(size.example)
        }
    });
    dims.insert(program.input.clone(), input.collect());
    tidy(&mut program, &dims);
    program.notes.extend(notes(graph, &program));
    Ok(program)
}

fn decode(bytes: &[u8]) -> Result<Model<'_>> {
    if bytes.starts_with(b"PK\x03\x04") {
        return Err(Problem::with_hint(
            "it is a zip archive",
            "PyTorch's `.pt2` and `.pth` are zip archives: give them these endings",
        ));
    }
    match Model::decode(bytes) {
        Ok(model) if model.graph.is_some() => Ok(model),
        Ok(_) => Err(foreign()),
        Err(problem) => Err(Problem::with_hint(
            problem,
            "copy or download the file again; if it is not ONNX, give it its own ending",
        )),
    }
}

fn foreign() -> Problem {
    Problem::with_hint(
        "it has no graph",
        "an ONNX file is what `torch.onnx.export` writes",
    )
}

fn opset(model: &Model<'_>) -> Result<i64> {
    let mut own = model
        .opsets
        .iter()
        .filter(|(domain, _)| matches!(domain.as_str(), "" | "ai.onnx"));
    let version = own.next().map(|(_, version)| *version);
    version
        .filter(|version| OPSETS.contains(version))
        .ok_or_else(|| {
            let found = version.map_or("none".to_owned(), |version| version.to_string());
            let (least, most) = (OPSETS.start(), OPSETS.end());
            Problem::with_hint(
                format!("its opset is {found}, expected {least} to {most}"),
                "export the network with `opset_version=18`",
            )
        })
}

/// Checks that there is one input and one output, and returns the input.
fn ends<'g>(graph: &'g Graph<'_>) -> Result<&'g ValueInfo> {
    let stored: BTreeSet<&str> = graph
        .initialisers
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect();
    let inputs = graph.inputs.iter();
    let inputs: Vec<&ValueInfo> = inputs
        .filter(|info| !stored.contains(info.name.as_str()))
        .collect();
    let outputs: Vec<&ValueInfo> = graph.outputs.iter().collect();
    for (what, infos) in [("input", &inputs), ("output", &outputs)] {
        if infos.len() != 1 {
            let names = infos.iter().map(|info| format!("`{}`", info.name));
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(Problem::with_hint(
                format!("it has {} {what}s ({names}), expected one", infos.len()),
                "export a module whose `forward` takes images and returns scores alone",
            ));
        }
    }
    Ok(inputs[0])
}

/// Returns the shape of the input: images, any number of them.
fn input_shape(input: &ValueInfo) -> Result<Vec<Size>> {
    let name = &input.name;
    let floats = [
        element::FLOAT,
        element::FLOAT16,
        element::DOUBLE,
        element::BFLOAT16,
    ];
    if !floats.contains(&input.element) {
        return Err(format!("the input `{name}` is no tensor of floating-point numbers").into());
    }
    let shape = input.shape.as_deref().unwrap_or_default();
    let [_, rest @ ..] = shape else {
        return Err(format!("the input `{name}` has no shape").into());
    };
    if rest.len() != 3 {
        return Err(Problem::with_hint(
            format!("the input `{name}` has {} axes, expected 4", shape.len()),
            "only classifiers of images [batch, channels, height, width] can be imported",
        ));
    }
    let fixed = rest.iter().map(|size| match size {
        message::Size::Number(number @ 1..=0x00ff_ffff) => Ok(Size {
            example: *number as usize,
            symbolic: false,
        }),
        other => Err(Problem::with_hint(
            format!("the input `{name}` has the size {other:?}, expected a number"),
            "only the batch may be dynamic: export the network for one size of images",
        )),
    });
    let batch = Size {
        example: EXAMPLE,
        symbolic: true,
    };
    std::iter::once(Ok(batch)).chain(fixed).collect()
}

/// Collects the names that the file uses.
fn names(graph: &Graph<'_>) -> BTreeSet<String> {
    let nodes = graph.nodes.iter();
    let made = nodes.flat_map(|node| node.inputs.iter().chain(&node.outputs));
    let tensors = graph.initialisers.iter().map(|tensor| &tensor.name);
    let infos = graph.inputs.iter().map(|info| &info.name);
    made.chain(tensors).chain(infos).cloned().collect()
}

/// Finds the path of the module a node belongs to: from its weight, the exporter's notes, or its own name.
fn module_of(node: &Node<'_>) -> String {
    let weight = node.inputs.get(1).and_then(|name| name.rsplit_once('.'));
    if let Some((module, "weight")) = weight {
        return module.to_owned();
    }
    let mut notes = node.metadata.iter();
    if let Some((_, scopes)) = notes.find(|(key, _)| key.ends_with("name_scopes")) {
        let scopes: Vec<&str> = scopes.trim_matches(['[', ']']).split(", ").collect();
        // The last scope is the operation itself.
        let module = scopes.len().checked_sub(2).map(|last| scopes[last]);
        return module.unwrap_or("").trim_matches(['\'', '"']).to_owned();
    }
    let Some((path, _)) = node.name.strip_prefix('/').and_then(|n| n.rsplit_once('/')) else {
        return String::new();
    };
    // `/layer1/layer1.0/conv1/Conv`: a container's part repeats the container's name.
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        let repeats = |last: &&str| part.strip_prefix(*last).is_some_and(|r| r.starts_with('.'));
        if parts.last().is_some_and(repeats) {
            parts.pop();
        }
        parts.push(part);
    }
    parts.join(".")
}

/// Says what an exporter may have destroyed.
fn notes(graph: &Graph<'_>, program: &Program) -> Vec<String> {
    let has = |op: &str| graph.nodes.iter().any(|node| node.op == op);
    let norms = ["batch_norm", "layer_norm", "group_norm"];
    let norms = norms.map(|norm| format!("aten.{norm}.default"));
    let normed = program
        .calls
        .iter()
        .any(|call| norms.contains(&call.target));
    let biased = program.calls.iter().any(|call| {
        call.target == "aten.conv2d.default"
            && matches!(call.argument("bias"), Some(bias) if *bias != super::super::program::Argument::None)
    });
    let mut notes = Vec::new();
    if !normed && biased {
        notes.push(format!(
            "The network has convolutions with biases and no norms: if it was trained with batch norms, the exporter has \
             folded them into the convolutions, and `bn`, `tent` and norms-only adaptation have nothing to change. Export it \
             again: {EXPORT_AGAIN}."
        ));
    }
    let training =
        |node: &Node<'_>| node.op == "BatchNormalization" && node.integer("training_mode", 0) == 1;
    if graph.nodes.iter().any(training) {
        notes.push(
            "The network was exported in training mode: its batch norms are read as those of a trained network, with the \
             running statistics of the file."
                .to_owned(),
        );
    }
    if has("Dropout") && graph.nodes.iter().any(training) {
        notes.push("Dropout works in source training alone.".to_owned());
    }
    notes
}
