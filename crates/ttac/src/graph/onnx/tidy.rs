//! Puts layers together that exporters take apart, and drops what nothing reads.
//!
//! A norm that is written out has the same numbers, but nobody would find its scale and shift: they are what most methods
//! adapt.

use std::collections::{BTreeMap, BTreeSet};

use super::super::ir::Dim;
use super::super::program::{Argument, Call, Integer, Program, Role};
use super::translate::tensor;

/// Puts layers together and drops what nothing reads. `dims` are the shapes of what calls make.
pub fn tidy(program: &mut Program, dims: &BTreeMap<String, Vec<Dim>>) {
    let found = Search::of(program, dims).layers();
    for (index, call) in found {
        program.calls[index] = call;
    }
    drop_unread(program);
}

/// Drops calls and constants that nothing reads. Other tensors stay for the way back, unless they are stored transposed.
fn drop_unread(program: &mut Program) {
    let mut needed = BTreeSet::from([program.output.clone()]);
    let mut kept = Vec::new();
    for call in std::mem::take(&mut program.calls).into_iter().rev() {
        if call.results.iter().any(|name| needed.contains(name)) {
            needed.extend(reads(&call).map(str::to_owned));
            kept.push(call);
        }
    }
    kept.reverse();
    program.calls = kept;
    let replaced: BTreeSet<String> = program
        .tensors
        .keys()
        .filter_map(|name| name.strip_suffix(".transposed"))
        .map(str::to_owned)
        .collect();
    program.tensors.retain(|name, stored| {
        needed.contains(name) || stored.role != Role::Constant && !replaced.contains(name)
    });
}

/// Iterates over the names that a call reads, of tensors and of integers.
fn reads(call: &Call) -> impl Iterator<Item = &str> {
    call.arguments.iter().flat_map(|(_, argument)| {
        let mut names: Vec<&str> = Vec::new();
        match argument {
            Argument::Tensor(name) | Argument::Integer(Integer::Symbol(name)) => names.push(name),
            Argument::Tensors(tensors) => {
                names.extend(tensors.iter().flatten().map(String::as_str));
            }
            Argument::Integers(integers) => {
                names.extend(integers.iter().filter_map(|integer| match integer {
                    Integer::Symbol(name) => Some(name.as_str()),
                    Integer::Number(_) => None,
                }));
            }
            _ => {}
        }
        names
    })
}

/// A program with what is asked about its calls.
struct Search<'p> {
    program: &'p Program,
    dims: &'p BTreeMap<String, Vec<Dim>>,
    makers: BTreeMap<&'p str, usize>,
    readers: BTreeMap<&'p str, usize>,
}

impl<'p> Search<'p> {
    fn of(program: &'p Program, dims: &'p BTreeMap<String, Vec<Dim>>) -> Self {
        let mut makers = BTreeMap::new();
        let mut readers = BTreeMap::from([(program.output.as_str(), 1)]);
        for (index, call) in program.calls.iter().enumerate() {
            for result in &call.results {
                makers.insert(result.as_str(), index);
            }
            for name in reads(call) {
                *readers.entry(name).or_default() += 1;
            }
        }
        Self {
            program,
            dims,
            makers,
            readers,
        }
    }

    /// Finds all layers that are written out: where they end, and the call that replaces the end.
    fn layers(&self) -> Vec<(usize, Call)> {
        let calls = self.program.calls.iter().enumerate();
        calls
            .filter_map(|(index, call)| {
                let found = match call.target.as_str() {
                    "aten.add.Tensor" => self
                        .linear(call)
                        .or_else(|| self.group_norm(call))
                        .or_else(|| self.layer_norm(call)),
                    _ => None,
                };
                Some((index, found?))
            })
            .collect()
    }

    /// Returns the call of this function that makes an argument of another call, if nothing else reads it `times`.
    fn from(&self, call: &Call, argument: &str, target: &str, times: usize) -> Option<&'p Call> {
        let Some(Argument::Tensor(name)) = call.argument(argument) else {
            return None;
        };
        let found = &self.program.calls[*self.makers.get(name.as_str())?];
        let read = self.readers.get(name.as_str()).copied().unwrap_or(0);
        (found.target == target && read == times).then_some(found)
    }

    /// Returns the name of a tensor of the program with one axis, itself or in a shape where it lies along the channels.
    fn vector(&self, argument: Option<&Argument>, channels: Option<usize>) -> Option<&'p str> {
        let Some(Argument::Tensor(name)) = argument else {
            return None;
        };
        let stored = |name: &str| {
            let (name, stored) = self.program.tensors.get_key_value(name)?;
            (stored.shape.len() == 1).then_some(name.as_str())
        };
        let Some(behind) = channels else {
            return stored(name);
        };
        let maker = &self.program.calls[*self.makers.get(name.as_str())?];
        let dims = self.dims.get(name.as_str())?;
        // `[c, 1, 1]` or `[1, c, 1, 1]`: as many ones behind the channels as the images have axes there.
        let axis = dims.len().checked_sub(behind + 1)?;
        let mut others = dims.iter().enumerate().filter(|(at, _)| *at != axis);
        let along = others.all(|(_, dim)| *dim == Dim::fixed(1));
        let Some(Argument::Tensor(original)) = maker.argument("self") else {
            return None;
        };
        (maker.target == "aten.reshape.default" && along)
            .then(|| stored(original))
            .flatten()
    }

    fn shape(&self, argument: Option<&Argument>) -> Option<&'p [Dim]> {
        let Some(Argument::Tensor(name)) = argument else {
            return None;
        };
        self.dims.get(name.as_str()).map(Vec::as_slice)
    }

    /// `x weight^T` and then `+ bias`.
    fn linear(&self, add: &Call) -> Option<Call> {
        let product = self.from(add, "self", "aten.linear.default", 1)?;
        let bias = self.vector(add.argument("other"), None)?;
        let outputs = self.shape(add.argument("self"))?.last()?;
        let fits = self.program.tensors[bias].shape == [outputs.size];
        if !fits || product.argument("bias") != Some(&Argument::None) {
            return None;
        }
        let mut call = product.clone();
        replace(&mut call, "bias", tensor(bias));
        call.results.clone_from(&add.results);
        Some(call)
    }

    /// A group norm as a norm of groups without channels, scaled and shifted afterwards.
    fn group_norm(&self, add: &Call) -> Option<Call> {
        let scaled = self.from(add, "self", "aten.mul.Tensor", 1)?;
        let back = self.from(scaled, "self", "aten.reshape.default", 1)?;
        let norm = self.from(back, "self", "aten.group_norm.default", 1)?;
        let groups = self.from(norm, "input", "aten.reshape.default", 1)?;
        let x = groups.argument("self")?;
        let shape = self.shape(Some(x))?;
        let after = self.dims.get(back.results.first()?)?;
        let behind = shape.len().checked_sub(2)?;
        let weight = self.vector(scaled.argument("other"), Some(behind))?;
        let bias = self.vector(add.argument("other"), Some(behind))?;
        let fits = |name: &str| self.program.tensors[name].shape == [shape[1].size];
        let plain = norm.argument("weight") == Some(&Argument::None);
        if after != shape || !plain || !fits(weight) || !fits(bias) {
            return None;
        }
        let mut call = norm.clone();
        replace(&mut call, "input", x.clone());
        replace(&mut call, "weight", tensor(weight));
        replace(&mut call, "bias", tensor(bias));
        call.results.clone_from(&add.results);
        Some(call)
    }

    /// `(x - mean) / sqrt(mean of squares + epsilon) * weight + bias` over the last axis, as versions below 17 write it.
    fn layer_norm(&self, add: &Call) -> Option<Call> {
        let scaled = self.from(add, "self", "aten.mul.Tensor", 1)?;
        let divided = self.from(scaled, "self", "aten.div.Tensor", 1)?;
        let centred = self.from(divided, "self", "aten.sub.Tensor", 2)?;
        let root = self.from(divided, "other", "aten.sqrt.default", 1)?;
        let raised = self.from(root, "self", "aten.add.Tensor", 1)?;
        let variance = self.from(raised, "self", "aten.mean.dim", 1)?;
        let squares = self.from(variance, "self", "aten.pow.Tensor_Scalar", 1)?;
        let mean = self.from(centred, "other", "aten.mean.dim", 1)?;
        let x = centred.argument("self")?;
        let shape = self.shape(Some(x))?;
        let last = shape.last().filter(|dim| !dim.batch)?.size;
        let along = |call: &Call| {
            let axis = call.argument("dim") == Some(&super::translate::numbers(&[shape.len() - 1]));
            axis && call.argument("keepdim") == Some(&Argument::Bool(true))
        };
        let Some(Argument::Float(epsilon)) = raised.argument("other") else {
            return None;
        };
        let weight = self.vector(scaled.argument("other"), None)?;
        let bias = self.vector(add.argument("other"), None)?;
        let fits = |name: &str| self.program.tensors[name].shape == [last];
        let same = mean.argument("self") == Some(x)
            && squares.argument("self") == divided.argument("self")
            && squares.argument("exponent") == Some(&Argument::Float(2.0));
        if !(same && along(mean) && along(variance) && fits(weight) && fits(bias)) {
            return None;
        }
        let arguments = [
            ("input", x.clone()),
            (
                "normalized_shape",
                Argument::Integers(vec![Integer::Number(last as i64)]),
            ),
            ("weight", tensor(weight)),
            ("bias", tensor(bias)),
            ("eps", Argument::Float(*epsilon)),
        ];
        Some(Call {
            target: "aten.layer_norm.default".to_owned(),
            arguments: arguments.map(|(name, a)| (name.to_owned(), a)).into(),
            results: add.results.clone(),
            at: add.at.clone(),
        })
    }
}

fn replace(call: &mut Call, name: &str, argument: Argument) {
    let mut arguments = call.arguments.iter_mut();
    if let Some(place) = arguments.find(|(found, _)| found == name) {
        place.1 = argument;
    }
}
