//! From calls of another framework's functions to a graph.
//!
//! | file | pass |
//! |---|---|
//! | `table`, and the families of functions it names | what each function becomes |
//! | `inplace` | in-place functions as pure ones |
//! | `fold` | constants, computed once |
//! | `batch` | where the images lie in every value |
//! | `clean` | dead nodes, chains, padding |
//! | `patterns` | several nodes that are one operation |
//! | `classifier` | features and head |
//!
//! The calls are read once, in order. A name of the program stands for a value, a tensor, a constant or an integer; what depends
//! on neither images nor trained tensors is computed at once, and everything else becomes nodes.

mod algebra;
mod arguments;
mod batch;
mod build;
mod classifier;
mod clean;
mod convolutions;
mod creators;
mod draft;
mod elementwise;
mod extend;
mod finish;
mod fold;
mod inplace;
mod norms;
mod patterns;
mod products;
mod rearrange;
mod reductions;
mod table;
#[cfg(test)]
mod tests;
mod unfold;

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::TensorData;

use self::arguments::Scope;
use self::build::{Builder, Meaning, Refusal};
use self::draft::Draft;
use self::inplace::Aliases;
use super::ir::{Graph, Operand, ValueId};
use super::program::{Call, Program, Role};
use crate::error::{Error, Result};

pub use self::table::SUPPORTED;

/// The most calls of a program. The largest of 82 common networks has 1,086.
const MOST_CALLS: usize = 1 << 16;

/// A program that was understood.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The network. It has no [problems](Graph::problems).
    pub graph: Graph,
    /// The values of all tensors that are no counters, by [name](super::TensorInfo::name), in single precision.
    pub tensors: BTreeMap<String, TensorData>,
    /// Whether the network begins with a normalisation of its own, so that it wants images with mean 0 and deviation 1: as they
    /// are, from 0 to 1.
    pub normalises_inside: bool,
    /// What the user should know, in whole sentences.
    pub notes: Vec<String>,
}

/// Turns a program into a graph.
///
/// `features` names the value that becomes the features: the result of a call, or the path of a module, whose last result is
/// taken. Without it the features are what the last linear layer reads.
///
/// # Errors
/// [`Error::Graph`] if a call cannot be lowered: it names the call, the module it belongs to and what to do.
pub fn lower(program: &Program, features: Option<&str>) -> Result<Lowered> {
    if program.calls.len() > MOST_CALLS {
        let problem = format!(
            "{} calls, and the most are {MOST_CALLS}",
            program.calls.len()
        );
        return Err(whole(problem.into()));
    }
    let mut builder = Builder::new(program).map_err(whole)?;
    builder.notes.clone_from(&program.notes);
    let aliases = Aliases::of(program);
    for (number, call) in program.calls.iter().enumerate() {
        lower_call(&mut builder, &aliases, number, call).map_err(|refusal| at(call, refusal))?;
    }
    let output = end(&builder, &program.output, "output").map_err(whole)?;
    let features = features
        .map(|name| end(&builder, features_result(program, name)?, "features"))
        .transpose()
        .map_err(whole)?;
    let mut draft = Draft {
        nodes: std::mem::take(&mut builder.nodes),
        values: std::mem::take(&mut builder.values),
        tensors: builder
            .tensors
            .iter()
            .map(|info| info.shape.clone())
            .collect(),
        features,
        output,
    };
    if classifier::drop_shares(&mut draft) {
        let note = "The softmax at the end is left out: methods want scores.";
        builder.notes.push(note.to_owned());
    }
    clean::clean(&mut draft);
    while patterns::find(&mut draft) {
        clean::clean(&mut draft);
    }
    let found = classifier::classify(&mut draft, &mut builder.notes);
    let found = found.map_err(|problem| whole(problem.into()))?;
    draft.features = Some(found.features);
    draft.remove_dead();
    finish::finish(builder, draft, &found)
}

/// Lists the functions of a program that cannot be lowered: target, number of calls, and the module of the first call.
pub fn survey(program: &Program) -> Vec<(String, usize, String)> {
    let mut missing: Vec<(String, usize, String)> = Vec::new();
    for call in &program.calls {
        if table::find(&call.target).is_some() {
            continue;
        }
        match missing
            .iter_mut()
            .find(|(target, _, _)| *target == call.target)
        {
            Some((_, count, _)) => *count += 1,
            None => missing.push((call.target.clone(), 1, call.at.clone())),
        }
    }
    missing
}

/// Makes the error of one call.
fn at(call: &Call, refusal: Refusal) -> Error {
    Error::Graph {
        at: call.at.clone(),
        op: call.target.clone(),
        problem: refusal.problem,
        hint: refusal.hint,
    }
}

/// Makes the error of the program as a whole.
fn whole(refusal: Refusal) -> Error {
    Error::Graph {
        at: String::new(),
        op: "the program".to_owned(),
        problem: refusal.problem,
        hint: refusal.hint,
    }
}

/// Lowers one call and names its results.
fn lower_call<'a>(
    builder: &mut Builder<'a>,
    aliases: &Aliases<'a>,
    number: usize,
    call: &'a Call,
) -> Result<(), Refusal> {
    let row = table::find(&call.target).ok_or_else(|| unsupported(call))?;
    builder.at.clone_from(&call.at);
    let (_, in_place, _) = inplace::parts(&call.target);
    let changed = in_place
        .then(|| inplace::tensors_read(call).next())
        .flatten();
    let subject = changed.and_then(|name| builder.names.get(name).cloned());
    let known = match &subject {
        Some(Meaning::Known(array)) => Some(array.clone()),
        _ => None,
    };
    let mut part = None;
    if in_place
        && known.is_none()
        && let Err(problem) = aliases.check(number, call)
    {
        part = aliases.part(number, call);
        if part.is_none() {
            return Err(Refusal::with_hint(
                problem,
                "write the line without in-place functions or assignments to slices, and export again",
            ));
        }
    }
    let mut meanings = (row.lower)(&mut Scope { builder, call })?;
    if let (Some(slice), Some(result)) = (part, meanings.first()) {
        let call = &builder.program.calls[slice];
        rearrange::put_back(&mut Scope { builder, call }, result)?;
    }
    if let (Some(array), Some(first)) = (known, meanings.first_mut()) {
        let Meaning::Known(result) = first else {
            return Err("it changes a constant by something that depends on images".into());
        };
        array.write(result)?;
        *first = Meaning::Known(array);
    }
    if let (Some(name), Some(result)) = (changed, meanings.first()) {
        builder.names.insert(name.to_owned(), result.clone());
    }
    for (name, meaning) in call.results.iter().zip(meanings) {
        let meaning = marked(builder, name, meaning);
        compare(builder, name, &meaning)?;
        builder.names.insert(name.clone(), meaning);
    }
    Ok(())
}

fn unsupported(call: &Call) -> Refusal {
    if call.target.contains("higher_order") || call.target.contains("wrap_with") {
        return Refusal::with_hint(
            "it runs a program inside of the program, which is not supported",
            "export the network without autocast and without torch.no_grad() in its forward pass",
        );
    }
    Refusal::with_hint(
        "this function is not supported",
        "write the layer with other functions, or export another network",
    )
}

/// Notes along which axis of something known the file says that images lie.
fn marked(builder: &Builder<'_>, name: &str, meaning: Meaning) -> Meaning {
    match (meaning, builder.program.shapes.get(name)) {
        (Meaning::Known(array), Some(sizes)) => {
            let axis = sizes.iter().position(|size| size.symbolic);
            Meaning::Known(array.with_images(axis))
        }
        (meaning, _) => meaning,
    }
}

/// Compares a shape with that of the file: one that differs would be a mistake of ours.
fn compare(builder: &Builder<'_>, name: &str, meaning: &Meaning) -> Result<(), Refusal> {
    let (Some(expected), Ok(found)) = (builder.program.shapes.get(name), builder.shape_of(meaning))
    else {
        return Ok(());
    };
    let expected_sizes: Vec<usize> = expected.iter().map(|size| size.example).collect();
    let found_sizes = found.at(builder.batch);
    let expected_axis = expected.iter().position(|size| size.symbolic);
    let known = matches!(meaning, Meaning::Known(_));
    let moved = !known && expected_axis.is_some() && expected_axis != found.axis();
    if expected_sizes != found_sizes || moved {
        return Err(format!(
            "its result `{name}` has the shape {}, and the file says {expected_sizes:?}",
            super::dims::describe(&found.dims)
        )
        .into());
    }
    Ok(())
}

/// Finds the value that a name stands for at an end of the graph.
fn end(builder: &Builder<'_>, name: &str, what: &str) -> Result<ValueId, Refusal> {
    match builder.names.get(name) {
        Some(Meaning::Operand(Operand::Value(value))) => Ok(*value),
        Some(_) => Err(format!("the {what} `{name}` depends on no image").into()),
        None => Err(format!("no call makes the {what} `{name}`").into()),
    }
}

/// Finds the result that the user means by the name of a result or the path of a module.
fn features_result<'a>(program: &'a Program, name: &'a str) -> Result<&'a str, Refusal> {
    let results = || program.calls.iter().flat_map(|call| &call.results);
    if results().any(|result| result == name) {
        return Ok(name);
    }
    let inside = |path: &str| {
        let rest = path.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let last = program.calls.iter().rev().find(|call| inside(&call.at));
    let result = last.and_then(|call| call.results.first());
    result.map(String::as_str).ok_or_else(|| {
        let paths: BTreeSet<&str> = program.calls.iter().map(|call| call.at.as_str()).collect();
        let nearest = crate::error::nearest(name, results().map(String::as_str).chain(paths));
        Refusal {
            problem: format!("no call and no module has the name `{name}`"),
            hint: nearest.map(|nearest| format!("did you mean `{nearest}`?")),
        }
    })
}

/// Tells whether a tensor belongs to the network's `state_dict`.
fn persistent(role: Role) -> bool {
    matches!(role, Role::Parameter | Role::Buffer)
}
