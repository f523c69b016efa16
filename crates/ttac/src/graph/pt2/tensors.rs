//! The tensors of the file under the names of the graph.
//!
//! Where two names mean one tensor (the same record, offset, sizes and strides, as tied weights have), the program keeps the name
//! that comes first in the signature; the other keys are in [`Stored::also`], and calls that use another of the names are
//! rewritten to the one that is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

use super::super::program::{ElementType, Role, Stored, Values};
use super::container::{Container, Layout};
use super::fault::{Fault, Result};
use super::parse::Unpickle;
use super::schema::{Payload, PayloadConfig};
use super::signature::Named;
use super::storage::{View, bytes_of};

/// What all tensors together may be, as a multiple of the file's length: views of one storage may overlap.
const OVERLAP: u64 = 4;

/// The tensors of a program.
#[derive(Default)]
pub(super) struct Tensors {
    /// The tensors, by the name that is kept.
    pub(super) stored: BTreeMap<String, Stored>,
    /// The names that are not kept, with those that stand for them.
    pub(super) tied: BTreeMap<String, String>,
    pub(super) notes: Vec<String>,
}

/// A tensor that is in a record, and not read yet.
pub(super) struct Placed {
    /// The name in the graph, or one that no graph has.
    pub(super) graph: String,
    pub(super) key: String,
    pub(super) role: Role,
    /// The record below the root folder.
    pub(super) record: String,
    pub(super) view: View,
    pub(super) element: ElementType,
}

/// Returns the name of a tensor of the `state_dict` for which the graph has none. Names in a graph have no colon.
pub(super) fn unnamed(key: &str) -> String {
    format!("state_dict:{key}")
}

/// Reads all tensors of a file of PyTorch 2.9 or later.
pub(super) fn read_raw<R: Read + Seek>(
    container: &mut Container<R>,
    named: &[Named],
) -> Result<Tensors> {
    let placed = place(container, named)?;
    let mut tensors = Tensors::default();
    let kept = tie(placed, &mut tensors);
    let claimed = kept.iter().map(|(one, _)| {
        let bytes = one.view.count() as u64;
        bytes.saturating_mul(bytes_of(one.element) as u64)
    });
    let claimed = claimed.fold(0_u64, u64::saturating_add);
    let length = container.length();
    if claimed > length.saturating_mul(OVERLAP) {
        return Err(Fault::damaged(format!(
            "its tensors claim {claimed} bytes, more than {OVERLAP} times the file's {length}"
        )));
    }
    note_overlaps(&kept, &mut tensors.notes);
    let mut by_record: BTreeMap<String, Vec<(Placed, Vec<String>)>> = BTreeMap::new();
    for (one, also) in kept {
        let record = by_record.entry(one.record.clone()).or_default();
        record.push((one, also));
    }
    for (record, members) in by_record {
        let storage = container.read(&record)?;
        for (one, also) in members {
            let stored = Stored {
                values: one.view.gather(one.element, &storage),
                key: one.key,
                also,
                role: one.role,
                shape: one.view.sizes,
                element: one.element,
            };
            tensors.stored.insert(one.graph, stored);
        }
    }
    Ok(tensors)
}

/// Finds the place of every tensor and holds it against its record. Those with a name come first, in the signature's order.
pub(super) fn place<R: Read + Seek>(
    container: &mut Container<R>,
    named: &[Named],
) -> Result<Vec<Placed>> {
    let weights = payloads(container, "weights")?;
    let constants = payloads(container, "constants")?;
    let mut placed = Vec::with_capacity(named.len());
    for tensor in named {
        let constant = tensor.role == Role::Constant;
        let (first, second) = if constant {
            (("constants", &constants), ("weights", &weights))
        } else {
            (("weights", &weights), ("constants", &constants))
        };
        let found = [first, second]
            .into_iter()
            .find_map(|(folder, payloads)| Some((folder, payloads.get(&tensor.key)?)));
        let Some((folder, payload)) = found else {
            return Err(missing(&tensor.key));
        };
        let graph = tensor.graph.clone();
        placed.push(at(
            container,
            folder,
            payload,
            graph,
            &tensor.key,
            tensor.role,
        )?);
    }
    let used: BTreeSet<&str> = named.iter().map(|tensor| tensor.key.as_str()).collect();
    let unused = weights
        .iter()
        .filter(|(key, _)| !used.contains(key.as_str()));
    for (key, payload) in unused {
        let role = if payload.is_param {
            Role::Parameter
        } else {
            Role::Buffer
        };
        placed.push(at(container, "weights", payload, unnamed(key), key, role)?);
    }
    Ok(placed)
}

/// Reads the list of the weights or of the constants. A file without constants may have no list of them.
fn payloads<R: Read + Seek>(
    container: &mut Container<R>,
    folder: &str,
) -> Result<BTreeMap<String, Payload>> {
    let name = format!("data/{folder}/{}_{folder}_config.json", container.model);
    if container.size(&name).is_none() {
        return Ok(BTreeMap::new());
    }
    let bytes = container.read(&name)?;
    let list: PayloadConfig = serde_json::from_slice(&bytes)
        .map_err(|e| Fault::damaged(format!("the list `{name}` cannot be read: {e}")))?;
    Ok(list.config)
}

/// Places one tensor.
fn at<R: Read + Seek>(
    container: &Container<R>,
    folder: &str,
    payload: &Payload,
    graph: String,
    key: &str,
    role: Role,
) -> Result<Placed> {
    if payload.use_pickle {
        return Err(Fault::new(
            format!("the tensor `{key}` is pickled, as tensors of a class of their own are"),
            "convert it to an ordinary tensor before the export; quantised or distributed weights cannot be read",
        ));
    }
    let Some(meta) = &payload.tensor_meta else {
        return Err(Fault::damaged(format!(
            "the tensor `{key}` has no shape and no type"
        )));
    };
    let (view, element) = View::new(key, meta)?;
    let record = format!("data/{folder}/{}", payload.path_name);
    let Some(bytes) = container.size(&record) else {
        return Err(Fault::damaged(format!(
            "the record `{record}` of the tensor `{key}` is missing"
        )));
    };
    view.check(key, element, bytes)?;
    Ok(Placed {
        graph,
        key: key.to_owned(),
        role,
        record,
        view,
        element,
    })
}

/// Keeps the first of every group of names for one tensor, with the keys of the others.
fn tie(placed: Vec<Placed>, tensors: &mut Tensors) -> Vec<(Placed, Vec<String>)> {
    let mut kept: Vec<(Placed, Vec<String>)> = Vec::with_capacity(placed.len());
    let mut seen: BTreeMap<(String, View), usize> = BTreeMap::new();
    for one in placed {
        let place = (one.record.clone(), one.view.clone());
        let first = seen.get(&place).copied().filter(|&first| {
            // A tensor without elements shares nothing.
            kept[first].0.element == one.element && one.view.count() > 0
        });
        let Some(first) = first else {
            seen.insert(place, kept.len());
            kept.push((one, Vec::new()));
            continue;
        };
        let (keeper, also) = &mut kept[first];
        tensors.tied.insert(one.graph, keeper.graph.clone());
        if one.role == Role::Parameter {
            keeper.role = Role::Parameter;
        }
        if one.key != keeper.key {
            also.push(one.key);
        }
    }
    kept
}

/// Notes parameters that overlap without being the same: they are learned apart from here on.
fn note_overlaps(kept: &[(Placed, Vec<String>)], notes: &mut Vec<String>) {
    let mut by_record: BTreeMap<&str, Vec<(usize, usize, &str)>> = BTreeMap::new();
    for (one, _) in kept.iter().filter(|(one, _)| one.role == Role::Parameter) {
        if let Some((_, end)) = one.view.reach() {
            let record = by_record.entry(&one.record).or_default();
            record.push((one.view.offset, end, &one.key));
        }
    }
    for spans in by_record.values_mut() {
        spans.sort_unstable();
        let pairs = spans.windows(2).filter(|pair| pair[1].0 < pair[0].1);
        notes.extend(pairs.map(|pair| {
            format!(
                "The parameters `{}` and `{}` share memory in PyTorch and are learned apart here.",
                pair[0].2, pair[1].2
            )
        }));
    }
}

/// A tensor of a `torch.save` file.
pub(super) struct Unpickled {
    pub(super) shape: Vec<usize>,
    pub(super) values: Values,
    pub(super) element: ElementType,
}

/// Reads all tensors of a file of PyTorch up to 2.8. Such a file does not tell which weights are tied.
pub(super) fn read_pickled<R: Read + Seek>(
    container: &mut Container<R>,
    named: &[Named],
    unpickle: Unpickle<'_>,
) -> Result<Tensors> {
    let flat = container.layout == Layout::Flat;
    let names = if flat {
        ["serialized_state_dict.pt", "serialized_constants.pt"].map(str::to_owned)
    } else {
        ["weights", "constants"].map(|folder| format!("data/{folder}/{}.pt", container.model))
    };
    let [mut weights, mut constants] = [BTreeMap::new(), BTreeMap::new()];
    for (name, found) in names.iter().zip([&mut weights, &mut constants]) {
        if container.size(name).is_some() {
            *found = unpickle(&container.read(name)?, name)?;
        }
    }
    let mut tensors = Tensors::default();
    for tensor in named {
        let (first, second) = if tensor.role == Role::Constant {
            (&mut constants, &mut weights)
        } else {
            (&mut weights, &mut constants)
        };
        let found = first.remove(&tensor.key);
        let Some(found) = found.or_else(|| second.remove(&tensor.key)) else {
            return Err(missing(&tensor.key));
        };
        let stored = found.into_stored(tensor.key.clone(), tensor.role);
        tensors.stored.insert(tensor.graph.clone(), stored);
    }
    for (key, found) in weights {
        // All parameters of a module have a name in its graph, so what is left are buffers that nothing reads.
        let stored = found.into_stored(key.clone(), Role::Buffer);
        tensors.stored.insert(unnamed(&key), stored);
    }
    note_copies(&tensors.stored, &mut tensors.notes);
    Ok(tensors)
}

/// Notes parameters that are equal in a file that does not tell whether they are one. Those whose values are all the same are
/// left out: fresh layers of norms are equal without being tied.
fn note_copies(stored: &BTreeMap<String, Stored>, notes: &mut Vec<String>) {
    let parameters: Vec<&Stored> = stored
        .values()
        .filter(|tensor| tensor.role == Role::Parameter && tensor.shape.len() > 1)
        .collect();
    for (index, one) in parameters.iter().enumerate() {
        let Values::F32(values) = &one.values else {
            continue;
        };
        if values.iter().all(|value| *value == values[0]) {
            continue;
        }
        let mut earlier = parameters[..index].iter();
        let twin = earlier.find(|other| other.shape == one.shape && other.values == one.values);
        notes.extend(twin.map(|twin| {
            format!(
                "The parameters `{}` and `{}` are equal. If they are one in PyTorch, export again with PyTorch 2.9 or newer: \
                 from this older file they are read as two.",
                twin.key, one.key
            )
        }));
    }
}

impl Unpickled {
    fn into_stored(self, key: String, role: Role) -> Stored {
        Stored {
            key,
            also: Vec::new(),
            role,
            shape: self.shape,
            values: self.values,
            element: self.element,
        }
    }
}

fn missing(key: &str) -> Fault {
    Fault::damaged(format!(
        "the tensor `{key}` of the graph is missing among the weights"
    ))
}
