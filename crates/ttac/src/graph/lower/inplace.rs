//! In-place functions as pure ones.
//!
//! The exporter points later readers at the result of an in-place call, so that the pure function gives the same numbers, unless
//! somebody reads another view of the changed elements, made before, afterwards. Such programs are refused: the pure form would
//! be silently wrong.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::program::{Argument, Call, Program};

/// Functions whose result may be their first tensor or a view of it.
const VIEWS: &[&str] = &[
    "_unsafe_view",
    "alias",
    "alpha_dropout",
    "chunk",
    "contiguous",
    "detach",
    "diagonal",
    "dropout",
    "expand",
    "expand_as",
    "feature_alpha_dropout",
    "feature_dropout",
    "flatten",
    "lift_fresh",
    "movedim",
    "narrow",
    "permute",
    "reshape",
    "reshape_as",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "to",
    "transpose",
    "type_as",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
    "view_as",
];

/// Splits a target such as `aten.add_.Tensor` into the function without its final underscore, whether it works in place, and
/// the overload. Targets outside `aten` are one name.
pub(super) fn parts(target: &str) -> (&str, bool, &str) {
    let Some(rest) = target.strip_prefix("aten.") else {
        return (target, false, "");
    };
    let (name, overload) = rest.split_once('.').unwrap_or((rest, ""));
    match name.strip_suffix('_') {
        Some(pure) if !name.ends_with("__") => (pure, true, overload),
        _ => (name, false, overload),
    }
}

/// Returns the names of the tensors that a call reads.
pub(super) fn tensors_read(call: &Call) -> impl Iterator<Item = &str> {
    call.arguments
        .iter()
        .flat_map(|(_, argument)| -> Vec<&str> {
            match argument {
                Argument::Tensor(name) => vec![name],
                Argument::Tensors(names) => names.iter().flatten().map(String::as_str).collect(),
                _ => Vec::new(),
            }
        })
}

/// Who shares elements with whom in a program, and until when each name is read.
#[derive(Debug)]
pub(super) struct Aliases<'a> {
    /// The name whose elements a name shares.
    base: BTreeMap<&'a str, &'a str>,
    /// The names that share the elements of a base, with the number of the call that made them.
    views: BTreeMap<&'a str, Vec<(usize, &'a str)>>,
    /// The number of the last call that reads a name.
    last: BTreeMap<&'a str, usize>,
    /// The calls of the program.
    calls: &'a [Call],
}

impl<'a> Aliases<'a> {
    /// Follows the views through a program.
    pub(super) fn of(program: &'a Program) -> Self {
        let mut aliases = Self {
            base: BTreeMap::new(),
            views: BTreeMap::new(),
            last: BTreeMap::new(),
            calls: &program.calls,
        };
        for (number, call) in program.calls.iter().enumerate() {
            for name in tensors_read(call) {
                aliases.last.insert(name, number);
            }
            let (function, in_place, _) = parts(&call.target);
            let shared = (in_place || VIEWS.contains(&function)).then(|| tensors_read(call).next());
            for result in &call.results {
                let base = match shared.flatten() {
                    Some(from) => aliases.base.get(from).copied().unwrap_or(from),
                    None => result.as_str(),
                };
                aliases.base.insert(result, base);
                aliases
                    .views
                    .entry(base)
                    .or_default()
                    .push((number, result));
            }
        }
        aliases.last.insert(&program.output, program.calls.len());
        aliases
    }

    /// Checks that nobody reads elements that an in-place call changes through a name made before. The changed name itself
    /// means the result afterwards, and is no problem.
    pub(super) fn check(&self, number: usize, call: &'a Call) -> Result<(), String> {
        let Some(changed) = tensors_read(call).next() else {
            return Ok(());
        };
        match self.late(number, changed).next() {
            None => Ok(()),
            Some(name) => Err(format!(
                "it changes `{changed}` in place, and `{name}`, which shares its elements, is read afterwards"
            )),
        }
    }

    /// Returns the names made before a call that share elements with a name and are read after the call.
    fn late(&self, number: usize, changed: &'a str) -> impl Iterator<Item = &'a str> {
        let base = self.base.get(changed).copied().unwrap_or(changed);
        let before = self.views.get(base).into_iter().flatten();
        let before = before.filter(|(made, _)| *made < number);
        let names: BTreeSet<&str> = before.map(|(_, name)| *name).chain([base]).collect();
        let late = move |name: &&str| self.last.get(name).is_some_and(|&last| last > number);
        let others = names.into_iter().filter(move |&name| name != changed);
        others.filter(late)
    }

    /// Returns the number of the call of `slice` whose result a call changes, if the whole it is cut from is all that is read
    /// afterwards: then the whole can be put together again from what is left of it and the result.
    pub(super) fn part(&self, number: usize, call: &'a Call) -> Option<usize> {
        let changed = tensors_read(call).next()?;
        let mut made = self.calls[..number].iter();
        let slice = made.rposition(|call| call.results.iter().any(|name| name == changed))?;
        let whole = tensors_read(&self.calls[slice]).next()?;
        let (function, _, _) = parts(&self.calls[slice].target);
        let only = self.late(number, changed).all(|name| name == whole);
        (function == "slice" && only).then_some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(target: &str, reads: &[&str], result: &str) -> Call {
        let reads = reads
            .iter()
            .map(|&name| ("self".to_owned(), Argument::Tensor(name.to_owned())));
        Call {
            target: target.to_owned(),
            arguments: reads.collect(),
            results: vec![result.to_owned()],
            at: String::new(),
        }
    }

    fn program(calls: Vec<Call>) -> Program {
        Program {
            input: "x".to_owned(),
            output: calls.last().unwrap().results[0].clone(),
            calls,
            ..Program::default()
        }
    }

    #[test]
    fn targets_come_apart() {
        assert_eq!(parts("aten.add_.Tensor"), ("add", true, "Tensor"));
        assert_eq!(parts("aten.relu.default"), ("relu", false, "default"));
        assert_eq!(parts("aten.__and__.Tensor"), ("__and__", false, "Tensor"));
        assert_eq!(parts("_operator.mul"), ("_operator.mul", false, ""));
    }

    #[test]
    fn a_view_read_after_the_change_is_refused() {
        let program = program(vec![
            call("aten.conv2d.default", &["x"], "y"),
            call("aten.slice.Tensor", &["y"], "part"),
            call("aten.clamp_.default", &["part"], "changed"),
            call("aten.cat.default", &["y", "changed"], "out"),
        ]);
        let aliases = Aliases::of(&program);
        let problem = aliases.check(2, &program.calls[2]).unwrap_err();
        assert!(problem.contains("`y`"), "{problem}");
    }

    #[test]
    fn results_and_later_views_are_no_problem() {
        let program = program(vec![
            call("aten.conv2d.default", &["x"], "y"),
            call("aten.slice.Tensor", &["y"], "part"),
            call("aten.clamp_.default", &["y"], "changed"),
            call("aten.slice.Tensor", &["changed"], "later"),
            call("aten.add.Tensor", &["later", "changed"], "out"),
        ]);
        let aliases = Aliases::of(&program);
        aliases.check(2, &program.calls[2]).unwrap();
    }

    #[test]
    fn a_view_that_is_the_output_counts_as_read() {
        let program = program(vec![
            call("aten.conv2d.default", &["x"], "y"),
            call("aten.relu_.default", &["y"], "changed"),
            call("aten.view.default", &["y"], "out"),
        ]);
        let aliases = Aliases::of(&program);
        aliases.check(1, &program.calls[1]).unwrap();
        let program = Program {
            output: "view".to_owned(),
            calls: vec![
                call("aten.conv2d.default", &["x"], "y"),
                call("aten.view.default", &["y"], "view"),
                call("aten.relu_.default", &["y"], "changed"),
            ],
            ..program
        };
        let aliases = Aliases::of(&program);
        assert!(aliases.check(2, &program.calls[2]).is_err());
    }
}
