//! The operations a graph is made of.

use serde::{Deserialize, Serialize};

use super::ir::Dim;

/// What a node computes. Each operation lists what it reads; what stands in brackets may be absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// Convolves images. Reads `x [b, c, h, w]`, `weight [o, c / groups, kh, kw]`, (`bias [o]`).
    Conv2d {
        /// The distance between windows, down and across.
        stride: [usize; 2],
        /// The zeros that are added: above and below, left and right.
        padding: [[usize; 2]; 2],
        /// The distance between taps, down and across.
        dilation: [usize; 2],
        /// The number of groups of channels, each of which sees its own inputs alone.
        groups: usize,
    },
    /// Normalises each channel (axis 1) by running statistics or by those of the batch, as the pass says.
    /// Reads `x [b, c, ..]`, `weight [c]`, `bias [c]`, `running_mean [c]`, `running_var [c]`.
    BatchNorm {
        /// The number added to the variance.
        epsilon: f64,
        /// The share of the batch in an update of the running statistics.
        momentum: f64,
    },
    /// Normalises axis 1 of a weight by its own mean and biased variance, whatever the images are.
    /// Reads `x [_, c, _]`, (`weight [c]`).
    Standardise {
        /// The number added to the variance.
        epsilon: f64,
    },
    /// Normalises the last axis. Reads `x [.., c]`, (`weight [c]`, (`bias [c]`)).
    LayerNorm {
        /// The number added to the variance.
        epsilon: f64,
    },
    /// Normalises groups of channels of each image. Reads `x [b, c, ..]`, (`weight [c]`, `bias [c]`).
    GroupNorm {
        /// The number of groups.
        groups: usize,
        /// The number added to the variance.
        epsilon: f64,
    },
    /// Computes `x weight^T + bias` over the last axis. Reads `x [.., i]`, `weight [o, i]`, (`bias [o]`).
    Linear,
    /// Multiplies matrices of the last two axes; the axes before them broadcast. Reads `a [.., n, k]`, `b [.., k, m]`.
    MatMul,
    /// Attends: `softmax(scale * q k^T + mask) v`. Reads `q [b, h, t, d]`, `k [b, h, s, d]`, `v [b, h, s, e]`, (`mask`, broadcast to `[b, h, t, s]`).
    Attention {
        /// The number that products of queries and keys are multiplied by.
        scale: f64,
    },
    /// Makes shares that add up to 1 along an axis. Reads `x`.
    Softmax {
        /// The axis.
        axis: usize,
    },
    /// Applies a function to each element. Reads `x`.
    Apply(Function),
    /// Adds, with broadcasting. Reads `a`, `b`; one of them may be a number.
    Add,
    /// Subtracts, with broadcasting. Reads `a`, `b`; one of them may be a number.
    Sub,
    /// Multiplies, with broadcasting. Reads `a`, `b`; one of them may be a number.
    Mul,
    /// Divides, with broadcasting. Reads `a`, `b`; one of them may be a number.
    Div,
    /// Reduces axes to one number. Reads `x`.
    Reduce {
        /// What becomes of the numbers.
        how: Reduction,
        /// The axes, in ascending order.
        axes: Vec<usize>,
        /// Whether the axes stay, with size 1.
        keep: bool,
    },
    /// Takes the maximum over windows. Reads `x [b, c, h, w]`.
    MaxPool(Pool),
    /// Takes the mean over windows. Reads `x [b, c, h, w]`.
    AveragePool {
        /// The windows.
        pool: Pool,
        /// Whether padding counts as zeros.
        count_padding: bool,
        /// What sums are divided by instead of the number of elements.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        divisor: Option<usize>,
    },
    /// Gives the elements, in row-major order, another shape. Reads `x`.
    Reshape {
        /// The new shape.
        shape: Vec<Dim>,
    },
    /// Reorders axes: axis `i` of the result is axis `axes[i]` of the input. Reads `x`.
    Permute {
        /// The axes of the input, in the order of the result.
        axes: Vec<usize>,
    },
    /// Takes every `step`-th index from `start` up to `end`, which is left out. Reads `x`.
    Slice {
        /// The axis.
        axis: usize,
        /// The first index.
        start: usize,
        /// The index that ends the slice.
        end: usize,
        /// The distance between indices.
        step: usize,
    },
    /// Joins values along an axis. Reads any number of them.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Surrounds with a constant. Reads `x`.
    Pad {
        /// How many are added before and after each axis.
        padding: Vec<[usize; 2]>,
        /// What is added.
        value: f64,
    },
    /// Repeats axes of size 1, and adds axes at the front, until the shape is reached. Reads `x`.
    Expand {
        /// The shape.
        shape: Vec<Dim>,
    },
    /// Takes the given indices along an axis, as often as they are given. Reads `x`.
    Gather {
        /// The axis.
        axis: usize,
        /// Which of the graph's lists of indices it takes.
        indices: usize,
        /// The length of that list.
        count: usize,
    },
    /// Enlarges or shrinks images by taking the nearest pixel, `floor(i * from / to)`. Reads `x [b, c, h, w]`.
    Resize {
        /// The new height and width.
        size: [usize; 2],
    },
    /// Sets elements to zero at random in source training, and scales the others; does nothing elsewhere. Reads `x`.
    Dropout {
        /// The probability that an element becomes zero.
        probability: f64,
    },
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Function {
    /// `max(x, 0)`.
    Relu,
    /// `x Phi(x)` with the distribution function of the normal distribution.
    Gelu,
    /// The approximation of GELU by `tanh`.
    GeluTanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x sigmoid(x)`.
    Silu,
    /// `x min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid,
    /// `x` where it is positive, and `slope x` elsewhere.
    LeakyRelu {
        /// The slope of the negative side.
        slope: f64,
    },
    /// `x` where it is positive, and `alpha (exp(x) - 1)` elsewhere.
    Elu {
        /// The scale of the negative side.
        alpha: f64,
    },
    /// `x tanh(ln(1 + exp(x)))`.
    Mish,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `min(max(x, min), max)`.
    Clip {
        /// The least result.
        min: f64,
        /// The largest result.
        max: f64,
    },
    /// The hyperbolic tangent.
    Tanh,
    /// `exp(x)`.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// The error function.
    Erf,
    /// `|x|`.
    Abs,
    /// `x` to a power.
    Power {
        /// The exponent.
        exponent: f64,
    },
}

/// What becomes of the numbers along reduced axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
    /// Their maximum.
    Maximum,
    /// The square root of the sum of their squares.
    Euclidean,
}

/// The windows of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// The height and width of a window.
    pub kernel: [usize; 2],
    /// The distance between windows, down and across.
    pub stride: [usize; 2],
    /// What is added on both sides, down and across. It never wins a maximum.
    pub padding: [usize; 2],
    /// The distance between taps, down and across.
    pub dilation: [usize; 2],
    /// Whether a window may hang over the far edge.
    pub ceil: bool,
}

impl Op {
    /// Returns the name of the operation, as it stands in a checkpoint's header.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv2d { .. } => "conv2d",
            Self::BatchNorm { .. } => "batch-norm",
            Self::Standardise { .. } => "standardise",
            Self::LayerNorm { .. } => "layer-norm",
            Self::GroupNorm { .. } => "group-norm",
            Self::Linear => "linear",
            Self::MatMul => "mat-mul",
            Self::Attention { .. } => "attention",
            Self::Softmax { .. } => "softmax",
            Self::Apply(function) => function.name(),
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Reduce { .. } => "reduce",
            Self::MaxPool(_) => "max-pool",
            Self::AveragePool { .. } => "average-pool",
            Self::Reshape { .. } => "reshape",
            Self::Permute { .. } => "permute",
            Self::Slice { .. } => "slice",
            Self::Concat { .. } => "concat",
            Self::Pad { .. } => "pad",
            Self::Expand { .. } => "expand",
            Self::Gather { .. } => "gather",
            Self::Resize { .. } => "resize",
            Self::Dropout { .. } => "dropout",
        }
    }
}

impl Function {
    /// Returns the name of the function, as it stands in a checkpoint's header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu-tanh",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
            Self::HardSwish => "hard-swish",
            Self::HardSigmoid => "hard-sigmoid",
            Self::LeakyRelu { .. } => "leaky-relu",
            Self::Elu { .. } => "elu",
            Self::Mish => "mish",
            Self::Softplus => "softplus",
            Self::Clip { .. } => "clip",
            Self::Tanh => "tanh",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sqrt => "sqrt",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Erf => "erf",
            Self::Abs => "abs",
            Self::Power { .. } => "power",
        }
    }
}
