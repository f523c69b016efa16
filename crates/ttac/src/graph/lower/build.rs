//! A graph in the making.

use std::collections::BTreeMap;

use super::batch::{self, Shaped};
use super::fold::{Array, Kind};
use crate::graph::ir::{Dim, Node, Operand, TensorId, TensorInfo, TensorKind, ValueId};
use crate::graph::op::Op;
use crate::graph::program::{ElementType, Program, Role, Stored, Values};
use crate::graph::shape::{Form, infer};

/// What stands for minus infinity in a constant. Beside any score it leaves a share of exactly zero, as infinity does, and files
/// of weights may be checked for numbers that are finite.
pub(super) const MASKED: f64 = -1e30;

/// Why a call cannot be lowered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    /// What is wrong.
    pub problem: String,
    /// What to try.
    pub hint: Option<String>,
}

impl From<String> for Refusal {
    fn from(problem: String) -> Self {
        Self {
            problem,
            hint: None,
        }
    }
}

impl From<&str> for Refusal {
    fn from(problem: &str) -> Self {
        problem.to_owned().into()
    }
}

impl Refusal {
    /// Makes a refusal with advice.
    pub(super) fn with_hint(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            hint: Some(hint.into()),
        }
    }
}

/// An integer of the program, as a size is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    /// Its value for the example's batch.
    pub example: i64,
    /// Whether it changes with the batch.
    pub batch: bool,
}

impl Number {
    /// Makes a number that is the same for every batch.
    pub(super) const fn fixed(example: i64) -> Self {
        Self {
            example,
            batch: false,
        }
    }
}

/// What a name of the program stands for.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    /// A value of the graph or a trained tensor.
    Operand(Operand),
    /// Something that depends on neither.
    Known(Array),
    /// An integer.
    Number(Number),
}

/// The nodes, values and tensors made so far.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    pub program: &'a Program,
    /// The number of images of the example.
    pub batch: usize,
    /// Whether the program was exported for that number of images alone.
    pub fixed_batch: bool,
    /// The path of the module whose calls are lowered.
    pub at: String,
    /// What the names of the program stand for.
    pub names: BTreeMap<String, Meaning>,
    pub nodes: Vec<Node>,
    pub values: Vec<Shaped>,
    pub indices: Vec<Vec<u32>>,
    pub notes: Vec<String>,
    /// The tensors of the file, in the order of their names, then constants.
    pub tensors: Vec<TensorInfo>,
    /// The numbers of the tensors of the file, by the name that calls use.
    ids: BTreeMap<&'a str, TensorId>,
    /// The constants that were made, by shape and bits.
    constants: BTreeMap<(Vec<usize>, Vec<u32>), TensorId>,
}

impl<'a> Builder<'a> {
    /// Begins with the tensors of the file and the input.
    pub(super) fn new(program: &'a Program) -> Result<Self, Refusal> {
        let sizes = program.shapes.get(&program.input);
        let sizes = sizes.ok_or("the file does not tell the shape of the input")?;
        let [images, channels, height, width] = sizes[..] else {
            return Err(Refusal::with_hint(
                format!(
                    "the input has {} axes, expected images [b, 3, height, width]",
                    sizes.len()
                ),
                "export the network with a batch of images as its only input",
            ));
        };
        if channels.example != 3 {
            return Err(format!("the input has {} channels, expected 3", channels.example).into());
        }
        if images.example == 0 || height.example == 0 || width.example == 0 {
            return Err("the input has no elements".into());
        }
        let limit = 1 << 16;
        if sizes.iter().any(|size| size.example > limit) {
            return Err(format!("a size of the input is more than {limit}").into());
        }
        let mut dims: Vec<Dim> = sizes.iter().map(|size| Dim::fixed(size.example)).collect();
        dims[0] = Dim::per_image(1);
        let mut builder = Self {
            program,
            batch: images.example,
            fixed_batch: !images.symbolic,
            at: String::new(),
            names: BTreeMap::new(),
            nodes: Vec::new(),
            values: vec![Shaped { dims, outer: 1 }],
            indices: Vec::new(),
            notes: Vec::new(),
            tensors: Vec::new(),
            ids: BTreeMap::new(),
            constants: BTreeMap::new(),
        };
        let input = Meaning::Operand(Operand::Value(ValueId(0)));
        builder.names.insert(program.input.clone(), input);
        for (name, stored) in &program.tensors {
            builder.add_stored(name, stored);
        }
        Ok(builder)
    }

    fn add_stored(&mut self, name: &'a str, stored: &Stored) {
        let id = TensorId(self.tensors.len() as u32);
        self.ids.insert(name, id);
        self.tensors.push(TensorInfo {
            name: stored.key.clone(),
            shape: stored.shape.clone(),
            kind: TensorKind::Unused,
            also: stored.also.clone(),
            element: stored.element,
        });
        let meaning = match stored.role {
            Role::Parameter => Meaning::Operand(Operand::Tensor(id)),
            Role::Buffer | Role::Constant => Meaning::Known(Array::stored(name, stored)),
        };
        self.names.insert(name.to_owned(), meaning);
    }

    /// Returns the shape of an operand; a number has none.
    pub(super) fn shaped(&self, operand: Operand) -> Shaped {
        match operand {
            Operand::Value(value) => self.values[value.0 as usize].clone(),
            Operand::Tensor(tensor) => Shaped::fixed(&self.tensors[tensor.0 as usize].shape),
            Operand::Scalar(_) => Shaped::fixed(&[]),
        }
    }

    /// Returns the shape of a meaning.
    pub(super) fn shape_of(&self, meaning: &Meaning) -> Result<Shaped, Refusal> {
        match meaning {
            Meaning::Operand(operand) => Ok(self.shaped(*operand)),
            Meaning::Known(array) => Ok(Shaped::fixed(array.shape())),
            Meaning::Number(_) => Err("an integer stands where a tensor was expected".into()),
        }
    }

    /// Adds an operation and returns its result.
    pub(super) fn emit(&mut self, op: Op, inputs: Vec<Operand>) -> Result<Operand, Refusal> {
        let shapes: Vec<Shaped> = inputs.iter().map(|&input| self.shaped(input)).collect();
        let forms: Vec<Form<'_>> = inputs
            .iter()
            .zip(&shapes)
            .map(|(input, shape)| match input {
                Operand::Scalar(_) => Form::Scalar,
                _ => Form::Shaped(&shape.dims),
            })
            .collect();
        let dims = infer(&op, &forms)?;
        let shapes: Vec<&Shaped> = shapes.iter().collect();
        let outer = batch::outer(&op, &shapes, &dims)?;
        let output = ValueId(self.values.len() as u32);
        self.values.push(Shaped { dims, outer });
        self.nodes.push(Node {
            op,
            inputs,
            output,
            at: self.at.clone(),
        });
        Ok(Operand::Value(output))
    }

    /// Makes a meaning something that an operation can read: what is known becomes a tensor.
    pub(super) fn operand(&mut self, meaning: &Meaning) -> Result<Operand, Refusal> {
        match meaning {
            Meaning::Operand(operand) => Ok(*operand),
            Meaning::Known(array) => match array.images() {
                Some(axis) => self.copies(array, axis),
                None => self.constant(array).map(Operand::Tensor),
            },
            Meaning::Number(_) => Err("an integer stands where a tensor was expected".into()),
        }
    }

    /// Gives every image its copy of something known that is the same for all images of the example.
    fn copies(&mut self, array: &Array, axis: usize) -> Result<Operand, Refusal> {
        if !array.repeats(axis) {
            return Err("it reads a constant that differs from image to image".into());
        }
        let size = array.shape()[axis];
        let one = self.constant(&array.slice(axis, 0, 1, 1))?;
        let mut shape = Shaped::fixed(array.shape()).dims;
        shape[axis] = Dim::per_image(size / self.batch);
        self.emit(Op::Expand { shape }, vec![Operand::Tensor(one)])
    }

    /// Makes a tensor of something known, the one of the file where it is that.
    pub(super) fn constant(&mut self, array: &Array) -> Result<TensorId, Refusal> {
        let values = array.to_vec();
        let finite = values.iter().all(|value| value.is_finite());
        if let Some(&id) = array.source().and_then(|name| self.ids.get(name.as_str()))
            && finite
            && self.tensors[id.0 as usize].shape == array.shape()
        {
            return Ok(id);
        }
        if values.iter().any(|value| value.is_nan()) {
            return Err("it reads a constant that is not a number".into());
        }
        let limit = |value: f64| match value {
            f64::INFINITY => -MASKED,
            f64::NEG_INFINITY => MASKED,
            _ => value,
        };
        let values = values.into_iter().map(|value| limit(value) as f32);
        let bits = values.map(f32::to_bits).collect();
        let key = (array.shape().to_vec(), bits);
        if let Some(&id) = self.constants.get(&key) {
            return Ok(id);
        }
        let id = TensorId(self.tensors.len() as u32);
        self.tensors.push(TensorInfo {
            name: String::new(),
            shape: key.0.clone(),
            kind: TensorKind::Constant,
            also: Vec::new(),
            element: ElementType::F32,
        });
        self.constants.insert(key, id);
        Ok(id)
    }

    /// Makes a vector that has the same number everywhere.
    pub(super) fn vector(&mut self, length: usize, number: f64) -> Result<Operand, Refusal> {
        let array = Array::full(Kind::F32, vec![length], number)?;
        self.constant(&array).map(Operand::Tensor)
    }

    /// Adds a list of indices, or finds it.
    pub(super) fn index_list(&mut self, list: &[usize]) -> usize {
        let list: Vec<u32> = list.iter().map(|&index| index as u32).collect();
        let found = self.indices.iter().position(|known| *known == list);
        found.unwrap_or_else(|| {
            self.indices.push(list);
            self.indices.len() - 1
        })
    }

    /// Finds the node that makes an operand.
    pub(super) fn maker(&self, operand: Operand) -> Option<&Node> {
        let Operand::Value(value) = operand else {
            return None;
        };
        // Every node makes one value, and value 0 is the input.
        let node = self.nodes.get((value.0 as usize).checked_sub(1)?)?;
        (node.output == value).then_some(node)
    }

    /// Returns the values of every tensor, in the order of [`tensors`](Self::tensors), and its part in the file it came from.
    pub(super) fn tensor_values(&self) -> Vec<(Option<&'a Stored>, Vec<f32>)> {
        let mut all = vec![(None, Vec::new()); self.tensors.len()];
        for (name, id) in &self.ids {
            let stored = &self.program.tensors[*name];
            let values = match &stored.values {
                Values::F32(values) => values.clone(),
                Values::I64(values) => values.iter().map(|&value| value as f32).collect(),
                Values::Bool(values) => values
                    .iter()
                    .map(|&value| f32::from(u8::from(value)))
                    .collect(),
            };
            all[id.0 as usize] = (Some(stored), values);
        }
        for ((_, bits), id) in &self.constants {
            let values = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            all[id.0 as usize] = (None, values);
        }
        all
    }
}
