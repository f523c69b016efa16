//! Reading the arguments of a call by their names. Those that have their default may be absent.

use super::batch::Shaped;
use super::build::{Builder, Meaning, Number, Refusal};
use super::fold::{Array, Kind};
use super::inplace;
use crate::graph::ir::Operand;
use crate::graph::program::{Argument, Call, Integer};

/// What a lowering returns: the meaning of each result, in order.
pub(super) type Outcome = Result<Vec<Meaning>, Refusal>;

/// A call that is being lowered.
#[derive(Debug)]
pub(super) struct Scope<'s, 'a> {
    pub builder: &'s mut Builder<'a>,
    pub call: &'a Call,
}

impl<'a> Scope<'_, 'a> {
    /// Returns the overload of the function, such as `Tensor`.
    pub(super) fn overload(&self) -> &'a str {
        inplace::parts(&self.call.target).2
    }

    /// Returns an argument that is there and is something.
    pub(super) fn argument(&self, name: &str) -> Option<&'a Argument> {
        let argument = self.call.argument(name);
        argument.filter(|argument| **argument != Argument::None)
    }

    fn wrong(name: &str, expected: &str, found: &Argument) -> Refusal {
        format!("argument `{name}`: expected {expected}, found {found:?}").into()
    }

    fn named(&self, name: &str) -> Result<Meaning, Refusal> {
        let meaning = self.builder.names.get(name).cloned();
        meaning.ok_or_else(|| format!("it reads `{name}`, which nothing makes before it").into())
    }

    /// Returns a tensor that may be absent. A number counts as a tensor without axes.
    pub(super) fn optional(&self, name: &str) -> Result<Option<Meaning>, Refusal> {
        let scalar = |kind, number| Ok(Some(Meaning::Known(Array::scalar(kind, number))));
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Tensor(tensor)) => match self.named(tensor)? {
                Meaning::Number(number) => scalar(Kind::I64, fixed(name, number)? as f64),
                meaning => Ok(Some(meaning)),
            },
            Some(Argument::Float(number)) => scalar(Kind::F32, *number),
            Some(Argument::Bool(flag)) => scalar(Kind::Bool, f64::from(*flag)),
            Some(argument @ Argument::Integer(_)) => {
                let number = self.read_number(name, argument)?;
                scalar(Kind::I64, fixed(name, number)? as f64)
            }
            Some(other) => Err(Self::wrong(name, "a tensor or a number", other)),
        }
    }

    /// Returns a tensor.
    pub(super) fn tensor(&self, name: &str) -> Result<Meaning, Refusal> {
        let found = self.optional(name)?;
        found.ok_or_else(|| format!("argument `{name}` is missing").into())
    }

    /// Returns the first tensor, which the schema calls `self` or `input`.
    pub(super) fn subject(&self) -> Result<Meaning, Refusal> {
        if self.argument("self").is_some() {
            return self.tensor("self");
        }
        self.tensor("input")
    }

    /// Returns the first tensor as something that an operation can read.
    pub(super) fn subject_operand(&mut self) -> Result<Operand, Refusal> {
        let meaning = self.subject()?;
        self.builder.operand(&meaning)
    }

    /// Returns a tensor as something that an operation can read, if it is there.
    pub(super) fn operand(&mut self, name: &str) -> Result<Option<Operand>, Refusal> {
        let meaning = self.optional(name)?;
        meaning
            .map(|meaning| self.builder.operand(&meaning))
            .transpose()
    }

    /// Returns a list of tensors, some of which may be absent.
    pub(super) fn tensors(&self, name: &str) -> Result<Vec<Option<Meaning>>, Refusal> {
        match self.argument(name) {
            Some(Argument::Tensors(names)) => names
                .iter()
                .map(|name| name.as_ref().map(|name| self.named(name)).transpose())
                .collect(),
            Some(Argument::Tensor(name)) => Ok(vec![Some(self.named(name)?)]),
            Some(other) => Err(Self::wrong(name, "tensors", other)),
            None => Err(format!("argument `{name}` is missing").into()),
        }
    }

    fn read_integer(&self, integer: &Integer) -> Result<Number, Refusal> {
        match integer {
            Integer::Number(number) => Ok(Number::fixed(*number)),
            Integer::Symbol(symbol) => match self.named(symbol)? {
                Meaning::Number(number) => Ok(number),
                Meaning::Known(array) if array.len() == 1 && array.kind() != Kind::F32 => {
                    Ok(Number::fixed(array.only().unwrap_or_default() as i64))
                }
                _ => Err(format!("`{symbol}` is no integer").into()),
            },
        }
    }

    fn read_number(&self, name: &str, argument: &Argument) -> Result<Number, Refusal> {
        match argument {
            Argument::Integer(integer) => self.read_integer(integer),
            Argument::Tensor(symbol) => self.read_integer(&Integer::Symbol(symbol.clone())),
            other => Err(Self::wrong(name, "an integer", other)),
        }
    }

    /// Returns an integer that may depend on the batch.
    pub(super) fn number(&self, name: &str) -> Result<Option<Number>, Refusal> {
        let argument = self.argument(name);
        argument
            .map(|argument| self.read_number(name, argument))
            .transpose()
    }

    /// Returns an integer, or what it is by default.
    pub(super) fn integer(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        match self.number(name)? {
            Some(number) => fixed(name, number),
            None => Ok(default),
        }
    }

    /// Returns an integer that is not negative, or what it is by default.
    pub(super) fn count(&self, name: &str, default: usize) -> Result<usize, Refusal> {
        let found = self.integer(name, default as i64)?;
        usize::try_from(found)
            .map_err(|_| format!("argument `{name}`: expected a size, found {found}").into())
    }

    /// Returns integers, each of which may depend on the batch. One integer counts as a list of one.
    pub(super) fn numbers(&self, name: &str) -> Result<Option<Vec<Number>>, Refusal> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Integers(integers)) => {
                let numbers = integers.iter().map(|integer| self.read_integer(integer));
                numbers.collect::<Result<_, _>>().map(Some)
            }
            Some(Argument::Tensors(names)) if names.is_empty() => Ok(Some(Vec::new())),
            Some(Argument::Floats(numbers)) if numbers.is_empty() => Ok(Some(Vec::new())),
            Some(argument) => Ok(Some(vec![self.read_number(name, argument)?])),
        }
    }

    /// Returns integers that do not depend on the batch.
    pub(super) fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        let numbers = self.numbers(name)?;
        let fixed = numbers.map(|numbers| {
            let fixed = numbers.into_iter().map(|number| fixed(name, number));
            fixed.collect()
        });
        fixed.transpose()
    }

    /// Returns a number for each of two axes; one number counts for both.
    pub(super) fn pair(&self, name: &str, default: [usize; 2]) -> Result<[usize; 2], Refusal> {
        let found = self.integers(name)?.unwrap_or_default();
        let sizes: Result<Vec<usize>, _> = found.iter().map(|&size| size.try_into()).collect();
        match sizes.as_deref() {
            Ok([]) => Ok(default),
            Ok([both]) => Ok([*both; 2]),
            Ok([down, across]) => Ok([*down, *across]),
            _ => Err(format!("argument `{name}`: expected two sizes, found {found:?}").into()),
        }
    }

    /// Returns a number, or what it is by default.
    pub(super) fn float(&self, name: &str, default: f64) -> Result<f64, Refusal> {
        Ok(self.optional_float(name)?.unwrap_or(default))
    }

    /// Returns a number that may be absent.
    pub(super) fn optional_float(&self, name: &str) -> Result<Option<f64>, Refusal> {
        match self.argument(name) {
            None => Ok(None),
            Some(Argument::Float(number)) => Ok(Some(*number)),
            Some(Argument::Bool(flag)) => Ok(Some(f64::from(*flag))),
            Some(argument) => {
                if let Argument::Tensor(tensor) = argument
                    && let Some(Meaning::Known(array)) = self.builder.names.get(tensor)
                    && let Some(number) = array.only()
                {
                    return Ok(Some(number));
                }
                let number = self.read_number(name, argument)?;
                Ok(Some(fixed(name, number)? as f64))
            }
        }
    }

    /// Returns yes or no, or what it is by default.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Refusal> {
        match self.argument(name) {
            None => Ok(default),
            Some(Argument::Bool(flag)) => Ok(*flag),
            Some(other) => Err(Self::wrong(name, "yes or no", other)),
        }
    }

    /// Returns a text, or what it is by default.
    pub(super) fn text(&self, name: &str, default: &'static str) -> Result<&'a str, Refusal> {
        match self.argument(name) {
            None => Ok(default),
            Some(Argument::Text(text)) => Ok(text),
            Some(other) => Err(Self::wrong(name, "a text", other)),
        }
    }

    /// Returns the kind of the `dtype` argument, if it is given.
    pub(super) fn dtype(&self) -> Result<Option<Kind>, Refusal> {
        match self.argument("dtype") {
            None | Some(Argument::Other) => Ok(None),
            Some(Argument::Type(element)) => Ok(Some((*element).into())),
            Some(other) => Err(Self::wrong("dtype", "a type", other)),
        }
    }

    /// Returns an axis, which may be counted from the end.
    pub(super) fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize, Refusal> {
        axis_of(self.integer(name, default)?, rank)
    }

    /// Returns axes in ascending order; absent or empty means all of them.
    pub(super) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, Refusal> {
        let given = self.integers(name)?.unwrap_or_default();
        if given.is_empty() {
            return Ok((0..rank).collect());
        }
        let axes = given.into_iter().map(|axis| axis_of(axis, rank));
        let mut axes = axes.collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    /// Returns the shape of a meaning.
    pub(super) fn shape(&self, meaning: &Meaning) -> Result<Shaped, Refusal> {
        self.builder.shape_of(meaning)
    }

    /// Returns the sizes of a meaning for the example's batch.
    pub(super) fn sizes(&self, meaning: &Meaning) -> Result<Vec<usize>, Refusal> {
        Ok(self.shape(meaning)?.at(self.builder.batch))
    }
}

/// Returns an integer that must not depend on the batch.
fn fixed(name: &str, number: Number) -> Result<i64, Refusal> {
    if number.batch {
        return Err(format!("argument `{name}` depends on the number of images").into());
    }
    Ok(number.example)
}

/// Resolves an axis that may be counted from the end.
pub(super) fn axis_of(axis: i64, rank: usize) -> Result<usize, Refusal> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(from_start)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| format!("there is no axis {axis} among {rank}").into())
}
