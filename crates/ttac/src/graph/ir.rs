//! A network as data: what a checkpoint carries in its header.

use serde::{Deserialize, Serialize};

use super::op::Op;
use super::program::ElementType;

/// The version of the graphs this program writes. A graph with another one is refused.
pub const VERSION: u32 = 1;

/// A classifier as a list of operations.
///
/// Shapes are PyTorch's: an image is `[batch, channels, height, width]`. Where a value lies in memory, and which operations run
/// as one, is decided when a network is built and is no part of the graph, so that a later version may decide better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// The version of this description, [`VERSION`].
    pub version: u32,
    /// The normalised images, `[batch, 3, height, width]`.
    pub input: ValueId,
    /// The features, `[batch, num_features]`. The output depends on the input through them alone.
    pub features: ValueId,
    /// The scores of the classes, `[batch, num_classes]`.
    pub output: ValueId,
    /// The linear layers between features and scores. The scores are the mean of their results; each reads its own part of the
    /// features, in this order. It is empty if the scores are no linear function of the features.
    pub head: Vec<HeadLayer>,
    /// The shape of every value.
    pub values: Vec<Vec<Dim>>,
    /// The tensors that belong to the network.
    pub tensors: Vec<TensorInfo>,
    /// The lists of indices that [gathers](Op::Gather) take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indices: Vec<Vec<u32>>,
    /// The operations, in an order in which they can run.
    pub nodes: Vec<Node>,
}

/// The number of a value: the input or the result of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(pub u32);

/// The number of a tensor that belongs to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// One size of a value: a number, or a multiple of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenDim", into = "WrittenDim")]
pub struct Dim {
    /// The size, or what the number of images is multiplied by.
    pub size: usize,
    /// Whether the size is a multiple of the number of images.
    pub batch: bool,
}

/// A linear layer of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadLayer {
    /// The weight, `[num_classes, inputs]` or, of a convolution, `[num_classes, inputs, 1, 1]`.
    pub weight: TensorId,
    /// The bias, `[num_classes]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<TensorId>,
}

/// Describes a tensor that belongs to the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorInfo {
    /// The key in the network's `state_dict`; `graph.constant.N` for a constant.
    pub name: String,
    /// The shape, in PyTorch's order.
    pub shape: Vec<usize>,
    /// The part it plays.
    pub kind: TensorKind,
    /// Further keys of the same tensor, where weights are tied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The type of its elements in the file it came from.
    #[serde(default, skip_serializing_if = "is_f32")]
    pub element: ElementType,
}

/// The part that a tensor plays in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorKind {
    /// It is a weight or a bias, learned by gradients.
    Weight,
    /// It is the scale or the shift of a norm, learned by gradients.
    Affine,
    /// It is a running statistic of a batch norm.
    Running,
    /// It is written into the network and never learned.
    Constant,
    /// No operation reads it. It is kept for the way back.
    Unused,
    /// It is an integer that no operation reads, such as `num_batches_tracked`, with this value. It has no entry among the
    /// tensors of a file.
    Counter(i64),
}

/// One operation with what it reads and makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// What it reads, in the order that the [operation](Op) gives.
    pub inputs: Vec<Operand>,
    /// The value it makes.
    pub output: ValueId,
    /// The path of the module it belongs to, such as `layer1.0.conv1`, for messages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// Something that an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operand {
    /// The input or the result of an earlier operation.
    #[serde(rename = "v")]
    Value(ValueId),
    /// A tensor of the network.
    #[serde(rename = "t")]
    Tensor(TensorId),
    /// A number.
    #[serde(rename = "s")]
    Scalar(f64),
}

impl Dim {
    /// Makes a size that is the same for any number of images.
    pub const fn fixed(size: usize) -> Self {
        Self { size, batch: false }
    }

    /// Makes a size of so many for each image.
    pub const fn per_image(size: usize) -> Self {
        Self { size, batch: true }
    }

    /// Returns the size for a number of images.
    pub const fn at(self, batch: usize) -> usize {
        if self.batch {
            self.size * batch
        } else {
            self.size
        }
    }
}

impl Graph {
    /// Returns the shape of a value.
    ///
    /// # Panics
    /// If the graph has no such value; [`problems`](Self::problems) finds that.
    pub fn shape(&self, value: ValueId) -> &[Dim] {
        &self.values[value.0 as usize]
    }

    /// Describes a tensor of the network.
    ///
    /// # Panics
    /// If the graph has no such tensor; [`problems`](Self::problems) finds that.
    pub fn tensor(&self, tensor: TensorId) -> &TensorInfo {
        &self.tensors[tensor.0 as usize]
    }

    /// Returns the height and width of the images the graph was made for.
    pub fn image_size(&self) -> [usize; 2] {
        let shape = self.shape(self.input);
        [shape[2].size, shape[3].size]
    }

    /// Returns the length of a feature vector.
    pub fn num_features(&self) -> usize {
        self.shape(self.features)[1].size
    }

    /// Returns the number of classes.
    pub fn num_classes(&self) -> usize {
        self.shape(self.output)[1].size
    }
}

impl TensorInfo {
    /// Tells whether the tensor is written into the network and no part of its `state_dict`.
    pub fn is_written_in(&self) -> bool {
        self.kind == TensorKind::Constant && self.name.starts_with("graph.constant.")
    }
}

impl Node {
    /// Iterates over the values that the operation reads.
    pub fn values(&self) -> impl Iterator<Item = ValueId> {
        self.inputs.iter().filter_map(|operand| match operand {
            Operand::Value(value) => Some(*value),
            Operand::Tensor(_) | Operand::Scalar(_) => None,
        })
    }

    /// Iterates over the tensors that the operation reads.
    pub fn tensors(&self) -> impl Iterator<Item = TensorId> {
        self.inputs.iter().filter_map(|operand| match operand {
            Operand::Tensor(tensor) => Some(*tensor),
            Operand::Value(_) | Operand::Scalar(_) => None,
        })
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_f32(element: &ElementType) -> bool {
    *element == ElementType::F32
}

/// A size as JSON has it: `7`, or `"7b"` for seven times the batch.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenDim {
    Fixed(usize),
    PerImage(PerImage),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct PerImage(usize);

impl TryFrom<String> for PerImage {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_suffix('b').and_then(|n| n.parse().ok());
        number
            .map(Self)
            .ok_or_else(|| format!("expected a size such as `7b`, found `{text}`"))
    }
}

impl From<PerImage> for String {
    fn from(PerImage(size): PerImage) -> Self {
        format!("{size}b")
    }
}

impl From<WrittenDim> for Dim {
    fn from(written: WrittenDim) -> Self {
        match written {
            WrittenDim::Fixed(size) => Self::fixed(size),
            WrittenDim::PerImage(PerImage(size)) => Self::per_image(size),
        }
    }
}

impl From<Dim> for WrittenDim {
    fn from(dim: Dim) -> Self {
        if dim.batch {
            Self::PerImage(PerImage(dim.size))
        } else {
            Self::Fixed(dim.size)
        }
    }
}
