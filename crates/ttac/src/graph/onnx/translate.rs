//! Translates the operations of ONNX to calls of PyTorch's functions.
//!
//! Shapes are followed on the way, with the number of images as a symbol, because ONNX computes with them: `Shape`, `Gather`
//! and `Concat` before a `Reshape` become the sizes of one call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::ir::Dim;
use super::super::program::{
    Argument, Call, ElementType, Integer, Program, Role, Size, Stored, Values,
};
use super::fold::fold;
use super::known::{Known, Numbers, Whole};
use super::message::Node;
use super::problem::{Problem, Result};
use super::tensor::Array;

/// The most values of constants that are computed in all.
const MOST_FOLDED: usize = 1 << 25;

/// A value of the ONNX graph.
#[derive(Clone, Debug)]
pub enum Value {
    /// It depends on no image and no weight.
    Known(Known),
    /// The program computes it, or it is a tensor of the program.
    Made(Handle),
}

/// A value of the program.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The name it has there.
    pub name: String,
    /// Its shape.
    pub dims: Vec<Dim>,
    /// Where axes were merged with the batch's: how many of the merged elements lie outside the images. Of tokens times images
    /// `[197 b, 768]` these are 197, of images times windows `[64 b, 49, 96]` it is 1.
    pub outer: usize,
}

/// What is known while nodes are translated one after the other.
pub struct Translator<'a> {
    /// The version of the set of operators.
    pub opset: i64,
    /// The folder for tensors outside the file.
    pub folder: Option<&'a Path>,
    /// The number of images, if the file fixes it.
    pub batch: Option<usize>,
    /// What was translated.
    pub program: Program,
    pub(super) values: BTreeMap<String, Value>,
    pub(super) at: String,
    names: BTreeSet<String>,
    keys: BTreeSet<String>,
    symbol: String,
    /// How many values of constants were computed.
    folded: usize,
    /// The part that a tensor was first seen to play, and copies for other parts.
    parts: BTreeMap<String, String>,
    copies: BTreeMap<(String, String), String>,
    /// Matrices that are tensors of the file the other way round, with the original.
    pub(super) turned: BTreeMap<String, Handle>,
    /// The input, and what it becomes by shifts and scales of its channels alone.
    pub(super) normalised: BTreeSet<String>,
    /// What linear layers without a bias make, with the names of their weights.
    pub(super) products: BTreeMap<String, String>,
    /// The shapes of what calls make.
    pub(super) dims: BTreeMap<String, Vec<Dim>>,
}

impl<'a> Translator<'a> {
    /// Starts with the input, of this shape. `names` are those that the file uses.
    pub fn new(
        opset: i64,
        folder: Option<&'a Path>,
        names: BTreeSet<String>,
        input: &str,
        shape: &[Size],
    ) -> Self {
        let mut translator = Self {
            opset,
            folder,
            batch: None,
            program: Program::default(),
            values: BTreeMap::new(),
            at: String::new(),
            names,
            keys: BTreeSet::new(),
            symbol: String::new(),
            folded: 0,
            parts: BTreeMap::new(),
            copies: BTreeMap::new(),
            turned: BTreeMap::new(),
            normalised: BTreeSet::from([input.to_owned()]),
            products: BTreeMap::new(),
            dims: BTreeMap::new(),
        };
        input.clone_into(&mut translator.program.input);
        let dims: Vec<Dim> = shape
            .iter()
            .map(|size| {
                if size.symbolic {
                    Dim::per_image(1)
                } else {
                    Dim::fixed(size.example)
                }
            })
            .collect();
        let shapes = &mut translator.program.shapes;
        shapes.insert(input.to_owned(), shape.to_vec());
        let handle = Handle {
            name: input.to_owned(),
            dims,
            outer: 1,
        };
        translator
            .values
            .insert(input.to_owned(), Value::Made(handle));
        translator.symbol = translator.fresh("batch");
        translator.program.calls.push(Call {
            target: "aten.sym_size.int".to_owned(),
            arguments: named(vec![("self", tensor(input)), ("dim", integer(0))]),
            results: vec![translator.symbol.clone()],
            at: String::new(),
        });
        translator
    }

    /// Makes a name that nothing has yet.
    pub fn fresh(&mut self, base: &str) -> String {
        let numbered = (1..).map(|number| format!("{base}:{number}"));
        let mut names = std::iter::once(base.to_owned()).chain(numbered);
        let name = names.find(|name| !self.names.contains(name));
        let name = name.expect("there is always a further number");
        self.names.insert(name.clone());
        name
    }

    /// Makes a key of a tensor that no other has, of parts that are not empty.
    fn key(&mut self, wanted: &str) -> String {
        let parts = wanted.split('.').filter(|part| !part.is_empty());
        let base = parts.collect::<Vec<_>>().join(".");
        let base = if base.is_empty() {
            "tensor".to_owned()
        } else {
            base
        };
        let numbered = (1..).map(|number| format!("{base}:{number}"));
        let mut keys = std::iter::once(base.clone()).chain(numbered);
        let key = keys.find(|key| !self.keys.contains(key));
        let key = key.expect("there is always a further number");
        self.keys.insert(key.clone());
        key
    }

    /// Adds a tensor of the file. Integers, and single numbers that the exporter made up, are constants; the others are taken
    /// for weights until a node says otherwise.
    pub fn initialiser(&mut self, name: &str, array: Array) -> Result<()> {
        let constant = !matches!(array.values, Values::F32(_))
            || array.shape.is_empty() && !name.contains('.');
        let value = if constant {
            Value::Known(Known::of(&array))
        } else {
            let key = self.key(name);
            Value::Made(self.store(name, key, array, Role::Parameter))
        };
        self.bind(name, value)
    }

    /// Adds a tensor to the program.
    fn store(&mut self, name: &str, key: String, array: Array, role: Role) -> Handle {
        let handle = Handle {
            name: name.to_owned(),
            dims: array.shape.iter().copied().map(Dim::fixed).collect(),
            outer: 1,
        };
        let stored = Stored {
            key,
            also: Vec::new(),
            role,
            shape: array.shape,
            values: array.values,
            element: array.element,
        };
        self.program.tensors.insert(name.to_owned(), stored);
        handle
    }

    /// Copies a tensor of the file under another name. `None` if it is no tensor of the file.
    pub fn copy(&mut self, handle: &Handle, name: &str) -> Option<Handle> {
        let mut stored = self.program.tensors.get(&handle.name)?.clone();
        stored.key = self.key(name);
        self.program.tensors.insert(name.to_owned(), stored);
        Some(Handle {
            name: name.to_owned(),
            ..handle.clone()
        })
    }

    /// Adds a tensor that replaces one of the file and says so in its key.
    pub fn store_derived(&mut self, name: &str, mut stored: Stored) {
        stored.key = self.key(&format!("{}.transposed", stored.key));
        self.names.insert(name.to_owned());
        self.program.tensors.insert(name.to_owned(), stored);
    }

    /// Gives a value its name in the file.
    pub fn bind(&mut self, name: &str, value: Value) -> Result<()> {
        if self.values.insert(name.to_owned(), value).is_some() {
            return Err(format!("`{name}` is made twice").into());
        }
        Ok(())
    }

    /// Translates a node.
    pub fn translate(&mut self, node: &Node<'_>) -> Result<()> {
        if !matches!(node.domain.as_str(), "" | "ai.onnx") {
            return Err(Problem::with_hint(
                format!("`{}` of `{}` is no operator of ONNX", node.op, node.domain),
                "export the network without optimising it for a runtime, or as `.pt2`",
            ));
        }
        if let Some(value) = self.folded(node)? {
            let name = node.outputs.first().ok_or("it makes nothing")?;
            return self.bind(name, Value::Known(value));
        }
        if node.op == "Split" {
            return self.split(node);
        }
        let handle = self.made(node)?;
        let name = node.outputs.first().ok_or("it makes nothing")?;
        self.bind(name, Value::Made(handle))
    }

    /// Computes the result of a node that needs no image and no weight.
    fn folded(&mut self, node: &Node<'_>) -> Result<Option<Known>> {
        if node.op == "Shape" {
            return self.shape_of(node).map(Some);
        }
        if node.op == "CastLike"
            && let Some(Value::Known(known)) = node.input(0).and_then(|name| self.values.get(name))
        {
            return Ok(Some(known.clone()));
        }
        let mut inputs = Vec::new();
        for name in &node.inputs {
            match self.values.get(name) {
                Some(Value::Known(known)) => inputs.push(Some(known)),
                None if name.is_empty() => inputs.push(None),
                Some(Value::Made(_)) => return Ok(None),
                None => return Err(format!("it reads `{name}`, which nothing makes").into()),
            }
        }
        let known = fold(node, &inputs, self.folder)?;
        // What the file itself holds is as large as the file; what is computed must not be larger without end.
        let computed = known.as_ref().filter(|_| node.op != "Constant");
        self.folded += computed.map_or(0, |known| known.numbers.len());
        if self.folded > MOST_FOLDED {
            return Err(format!("constants of more than {MOST_FOLDED} values are computed").into());
        }
        Ok(known)
    }

    fn shape_of(&self, node: &Node<'_>) -> Result<Known> {
        let sizes: Vec<Whole> = match self.value(node, 0)? {
            Value::Known(known) => {
                let sizes = known.shape.iter().copied().map(Dim::fixed);
                sizes.map(Whole::from).collect()
            }
            Value::Made(handle) => handle.dims.iter().copied().map(Whole::from).collect(),
        };
        let rank = sizes.len() as i64;
        let counted = |at: i64| {
            let at = if at < 0 { at.saturating_add(rank) } else { at };
            at.clamp(0, rank) as usize
        };
        let start = counted(node.integer("start", 0));
        let end = counted(node.integer("end", rank)).max(start);
        Ok(Known::list(sizes[start..end].to_vec()))
    }

    /// Returns what a node reads.
    pub fn value(&self, node: &Node<'_>, index: usize) -> Result<&Value> {
        let name = node
            .input(index)
            .ok_or_else(|| format!("input {index} is missing"))?;
        let value = self.values.get(name);
        value.ok_or_else(|| format!("it reads `{name}`, which nothing makes").into())
    }

    /// Returns what a node reads as a value of the program. Something that is known becomes a constant of the program.
    pub fn tensor(&mut self, node: &Node<'_>, index: usize) -> Result<Handle> {
        match self.value(node, index)?.clone() {
            Value::Made(handle) => Ok(handle),
            Value::Known(known) => {
                let name = node.input(index).unwrap_or_default();
                self.constant(name, &known)
            }
        }
    }

    /// Makes a tensor of the program from something that is known, once for each name.
    pub fn constant(&mut self, name: &str, known: &Known) -> Result<Handle> {
        if let Some(stored) = self.program.tensors.get(name) {
            return Ok(Handle {
                name: name.to_owned(),
                dims: stored.shape.iter().copied().map(Dim::fixed).collect(),
                outer: 1,
            });
        }
        let element = match &known.numbers {
            Numbers::Real(_) => ElementType::F32,
            Numbers::Whole(_) => ElementType::I64,
            Numbers::Truth(_) => ElementType::Bool,
        };
        let array = Array {
            shape: known.shape.clone(),
            values: known.values()?,
            element,
        };
        let key = self.key(name);
        Ok(self.store(name, key, array, Role::Constant))
    }

    /// Returns what a node reads if it is known or a tensor of the file, whose values are then constants; `None` if it is absent.
    pub fn known(&mut self, node: &Node<'_>, index: usize) -> Result<Option<Known>> {
        let Some(name) = node.input(index) else {
            return Ok(None);
        };
        match self.value(node, index)?.clone() {
            Value::Known(known) => Ok(Some(known)),
            Value::Made(handle) => {
                let computed = || {
                    Problem::with_hint(
                        format!("`{name}` has to be known, and depends on the images"),
                        "export the network as `.pt2`",
                    )
                };
                let stored = self.program.tensors.get_mut(&handle.name);
                let stored = stored.ok_or_else(computed)?;
                stored.role = Role::Constant;
                Ok(Some(Known::of(&Array {
                    shape: stored.shape.clone(),
                    values: stored.values.clone(),
                    element: stored.element,
                })))
            }
        }
    }

    /// Collects the inputs of a node that are known, for functions that read lists of integers.
    pub fn knowns(&mut self, node: &Node<'_>) -> Result<Vec<Option<Known>>> {
        let indices = 1..node.inputs.len();
        let rest = indices.map(|index| self.known(node, index));
        std::iter::once(Ok(None)).chain(rest).collect()
    }

    /// Returns a tensor of a layer that plays a part there: its weight, bias or running statistics. `owner` tells layers apart.
    /// Exporters merge equal tensors; one that plays a second part is copied, so that each can be learned on its own.
    pub fn part(
        &mut self,
        node: &Node<'_>,
        index: usize,
        part: &str,
        owner: &str,
    ) -> Result<Handle> {
        let handle = self.tensor(node, index)?;
        let running = part.starts_with("running");
        let role = format!("{part} of {owner}");
        let Some(stored) = self.program.tensors.get_mut(&handle.name) else {
            return Ok(handle);
        };
        let first = self.parts.get(&handle.name);
        if first.is_none_or(|first| *first == role) {
            if running {
                stored.role = Role::Buffer;
            }
            self.parts.insert(handle.name.clone(), role);
            return Ok(handle);
        }
        let place = (handle.name.clone(), role);
        if let Some(copy) = self.copies.get(&place) {
            return Ok(Handle {
                name: copy.clone(),
                ..handle
            });
        }
        let mut copied = stored.clone();
        if copied.role != Role::Constant || running {
            copied.role = if running {
                Role::Buffer
            } else {
                Role::Parameter
            };
        }
        let wanted = match self.at.as_str() {
            "" => format!("{}.{part}", copied.key),
            at => format!("{at}.{part}"),
        };
        copied.key = self.key(&wanted);
        let name = self.fresh(&copied.key.clone());
        self.program.tensors.insert(name.clone(), copied);
        self.copies.insert(place, name.clone());
        Ok(Handle { name, ..handle })
    }

    /// Adds a call that makes one value.
    pub fn call(
        &mut self,
        target: &str,
        arguments: Vec<(&str, Argument)>,
        result: &str,
        dims: Vec<Dim>,
        outer: usize,
    ) -> Handle {
        self.program.calls.push(Call {
            target: target.to_owned(),
            arguments: named(arguments),
            results: vec![result.to_owned()],
            at: self.at.clone(),
        });
        self.dims.insert(result.to_owned(), dims.clone());
        Handle {
            name: result.to_owned(),
            dims,
            outer,
        }
    }

    /// Returns a size as an argument: a number, or a multiple of the number of images.
    pub fn size(&mut self, dim: Dim) -> Integer {
        match dim {
            Dim { size, batch: false } => Integer::Number(size as i64),
            Dim {
                size: 1,
                batch: true,
            } => Integer::Symbol(self.symbol.clone()),
            Dim { size, batch: true } => {
                let name = format!("{}*{size}", self.symbol);
                if self.names.insert(name.clone()) {
                    let symbol = Argument::Integer(Integer::Symbol(self.symbol.clone()));
                    let arguments = vec![("a", symbol), ("b", integer(size as i64))];
                    self.program.calls.push(Call {
                        target: "_operator.mul".to_owned(),
                        arguments: named(arguments),
                        results: vec![name.clone()],
                        at: self.at.clone(),
                    });
                }
                Integer::Symbol(name)
            }
        }
    }

    /// Returns sizes as an argument.
    pub fn sizes(&mut self, dims: &[Dim]) -> Argument {
        Argument::Integers(dims.iter().map(|&dim| self.size(dim)).collect())
    }
}

fn named(arguments: Vec<(&str, Argument)>) -> Vec<(String, Argument)> {
    let arguments = arguments.into_iter();
    arguments.map(|(name, a)| (name.to_owned(), a)).collect()
}

/// Makes an argument of a tensor's name.
pub fn tensor(name: &str) -> Argument {
    Argument::Tensor(name.to_owned())
}

/// Makes an argument of an integer.
pub fn integer(value: i64) -> Argument {
    Argument::Integer(Integer::Number(value))
}

/// Makes an argument of integers.
pub fn integers(values: impl IntoIterator<Item = i64>) -> Argument {
    Argument::Integers(values.into_iter().map(Integer::Number).collect())
}

/// Makes an argument of sizes that do not depend on the number of images.
pub fn numbers(values: &[usize]) -> Argument {
    integers(values.iter().map(|&value| value as i64))
}
