//! A program as another framework saved it: calls of its functions, by name. The readers of `.pt2` and ONNX files make one, and
//! [`lower`](super::lower) turns it into a [`Graph`](super::Graph).
//!
//! Calls are those of PyTorch's `ATen` functions with the names of their arguments in PyTorch's schema. The reader of ONNX
//! translates to them, so that there is one place where their meaning is known.

use std::collections::BTreeMap;

/// A classifier as a file of another framework describes it.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The name of the only input.
    pub input: String,
    /// The name of the only output.
    pub output: String,
    /// The calls, in the order in which they run.
    pub calls: Vec<Call>,
    /// The tensors of the file, by the name that calls use for them. Those that no call uses are here as well.
    pub tensors: BTreeMap<String, Stored>,
    /// The shapes of the input and of intermediate values, as far as the file tells, by name.
    pub shapes: BTreeMap<String, Vec<Size>>,
    /// What the user should know about the file, in whole sentences.
    pub notes: Vec<String>,
}

/// One size of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The size, as the example that was exported had it.
    pub example: usize,
    /// Whether the file says that it changes with the batch.
    pub symbolic: bool,
}

/// One call of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function and its overload, such as `aten.conv2d.default` or `_operator.mul`.
    pub target: String,
    /// The arguments, by their names in the function's schema. Those that have their default may be absent.
    pub arguments: Vec<(String, Argument)>,
    /// The names of the results, tensors or integers.
    pub results: Vec<String>,
    /// The path of the module that makes the call, such as `layer1.0.conv1`; empty if the file does not tell.
    pub at: String,
}

/// One argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// Nothing, for an argument that is optional.
    None,
    /// A tensor by its name: an earlier result, the input, or a tensor of the file.
    Tensor(String),
    /// Tensors by their names, some of them absent.
    Tensors(Vec<Option<String>>),
    /// An integer.
    Integer(Integer),
    /// Integers.
    Integers(Vec<Integer>),
    /// A number.
    Float(f64),
    /// Numbers.
    Floats(Vec<f64>),
    /// Yes or no.
    Bool(bool),
    /// A text, such as a mode of padding.
    Text(String),
    /// A type of element.
    Type(ElementType),
    /// Something that no function needs: a device, a layout, a memory format.
    Other,
}

/// An integer that is written out, or that an earlier call computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Integer {
    /// A number that is written out.
    Number(i64),
    /// The name of the result of an earlier call, such as `aten.sym_size.int`.
    Symbol(String),
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The key in the network's `state_dict`, or the name of a constant.
    pub key: String,
    /// Further keys of the same tensor, where weights are tied.
    pub also: Vec<String>,
    /// The part it plays.
    pub role: Role,
    /// The shape, in PyTorch's order.
    pub shape: Vec<usize>,
    /// The values, in row-major order.
    pub values: Values,
    /// The type of the values in the file, to which an export returns.
    pub element: ElementType,
}

/// The part a tensor plays in the network it was saved from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is learned by gradients.
    Parameter,
    /// It belongs to the `state_dict` but is not learned, such as a running mean.
    Buffer,
    /// It is written into the program.
    Constant,
}

/// The values of a tensor, widened to one of three types.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Of floating-point tensors.
    F32(Vec<f32>),
    /// Of integer tensors.
    I64(Vec<i64>),
    /// Of tensors of yes and no.
    Bool(Vec<bool>),
}

/// The type of the elements of a tensor in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// Unsigned bytes.
    U8,
    /// Signed bytes.
    I8,
    /// Integers of 16 bits.
    I16,
    /// Integers of 32 bits.
    I32,
    /// Integers of 64 bits.
    I64,
    /// Half precision.
    F16,
    /// Single precision.
    #[default]
    F32,
    /// Double precision.
    F64,
    /// Yes or no.
    Bool,
    /// Brain floats: single precision cut to 16 bits.
    Bf16,
}

impl Call {
    /// Returns an argument by the name it has in the schema, if it was written down.
    pub fn argument(&self, name: &str) -> Option<&Argument> {
        let mut arguments = self.arguments.iter();
        arguments
            .find(|(found, _)| found == name)
            .map(|(_, argument)| argument)
    }
}
