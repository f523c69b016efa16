//! The steps of a plan: what is computed, on values as they lie in memory.

use ttac_kernels::Activation;

use crate::graph::ir::{Dim, TensorId};
use crate::graph::op::{Function, Pool, Reduction};

/// Something that a step reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Read {
    /// The value in a slot.
    Slot {
        /// The number of the slot.
        slot: usize,
        /// Whether nobody reads it afterwards, so that the step may have its memory.
        last: bool,
    },
    /// A tensor of the network.
    Tensor(TensorId),
    /// A number.
    Scalar(f64),
}

/// One step.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// What is computed.
    pub work: Work,
    /// The slot of the result.
    pub output: usize,
}

/// The convolution of a step, on images whose channels come last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conv {
    pub weight: Read,
    pub bias: Option<Read>,
    pub stride: [usize; 2],
    pub padding: [[usize; 2]; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

/// The batch norm of a step, on channels that come last, with the activation behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub weight: Read,
    pub bias: Read,
    pub mean: TensorId,
    pub variance: TensorId,
    pub epsilon: f64,
    pub momentum: f64,
    pub activation: Activation,
}

/// What a step computes. Axes are places in memory.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// `conv(x) [+ residual]`.
    Conv {
        x: Read,
        conv: Conv,
        residual: Option<Read>,
    },
    /// `activation(norm(x) [+ residual])`.
    Norm {
        x: Read,
        norm: Norm,
        residual: Option<Read>,
    },
    /// `activation(norm(conv(x)) [+ residual])` in one pass, with running statistics and without gradients.
    ConvNorm {
        x: Read,
        conv: Conv,
        norm: Norm,
        residual: Option<Read>,
    },
    /// `conv(activation(norm(x))) [+ residual]`; the norm's result is never stored.
    NormConv {
        x: Read,
        norm: Norm,
        conv: Conv,
        residual: Option<Read>,
    },
    /// Normalises rows over all of them, by their own statistics: a standardised weight.
    Standardise {
        x: Read,
        weight: Option<Read>,
        epsilon: f64,
    },
    LayerNorm {
        x: Read,
        affine: [Option<Read>; 2],
        epsilon: f64,
    },
    GroupNorm {
        x: Read,
        affine: [Option<Read>; 2],
        groups: usize,
        epsilon: f64,
        activation: Activation,
    },
    /// `before(x) weight^T [+ bias] [+ residual]`.
    Linear {
        x: Read,
        weight: Read,
        bias: Option<Read>,
        residual: Option<Read>,
        before: Activation,
        /// Whether it is the classifier, which is computed as the classifiers of hand-written networks are, bit for bit.
        classifier: bool,
    },
    /// The product of the last two axes. The orders bring the values from memory to the graph's axes.
    MatMul {
        a: Read,
        b: Read,
        orders: [Vec<usize>; 2],
    },
    /// Attention of queries, keys and values that lie in one value, `[b, t, 3, h, d]`.
    PackedAttention {
        qkv: Read,
        scale: f64,
    },
    /// Attention. The orders bring queries, keys and values from memory to `[b, h, t, d]`.
    Attention {
        qkv: [Read; 3],
        orders: [Vec<usize>; 3],
        mask: Option<Read>,
        scale: f64,
    },
    Softmax {
        x: Read,
        axis: usize,
    },
    Apply {
        x: Read,
        function: Function,
    },
    /// `activation(a + b)`, of equal shapes where an activation follows.
    Add {
        a: Read,
        b: Read,
        activation: Activation,
    },
    Sub {
        a: Read,
        b: Read,
    },
    Mul {
        a: Read,
        b: Read,
    },
    Div {
        a: Read,
        b: Read,
    },
    /// Multiplies each channel of each image by a number: `x [b, h, w, c]`, `scale [b, 1, 1, c]`.
    ScaleChannels {
        x: Read,
        scale: Read,
    },
    /// `x * scale [+ residual]` by the last axis.
    ScaleLast {
        x: Read,
        scale: Read,
        residual: Option<Read>,
    },
    Reduce {
        x: Read,
        how: Reduction,
        axes: Vec<usize>,
        /// The sizes of the result.
        shape: Vec<Dim>,
    },
    /// The mean over the pixels of images, as `[b, 1, 1, c]` or `[b, c]`.
    GlobalAverage {
        x: Read,
        shape: Vec<Dim>,
    },
    /// Every `stride`-th pixel of images, with zeros around the channels, half of them on each side.
    Shortcut {
        x: Read,
        channels: usize,
        stride: usize,
    },
    MaxPool {
        x: Read,
        pool: Pool,
    },
    AveragePool {
        x: Read,
        pool: Pool,
        count_padding: bool,
        divisor: Option<usize>,
    },
    Resize {
        x: Read,
        size: [usize; 2],
    },
    /// Gives the elements, in the order of memory, other sizes.
    Reshape {
        x: Read,
        shape: Vec<Dim>,
    },
    /// Copies into another order: place `i` of the result is place `places[i]` of the value.
    Reorder {
        x: Read,
        places: Vec<usize>,
    },
    Slice {
        x: Read,
        axis: usize,
        start: usize,
        end: usize,
        step: usize,
    },
    Concat {
        parts: Vec<Read>,
        axis: usize,
    },
    Pad {
        x: Read,
        padding: Vec<[usize; 2]>,
        value: f64,
    },
    Expand {
        x: Read,
        shape: Vec<Dim>,
    },
    Gather {
        x: Read,
        axis: usize,
        indices: usize,
    },
    Dropout {
        x: Read,
        probability: f64,
    },
}

impl Work {
    /// Lists everything that the step reads.
    pub fn reads(&mut self) -> Vec<&mut Read> {
        fn of_conv(conv: &mut Conv) -> impl Iterator<Item = &mut Read> {
            std::iter::once(&mut conv.weight).chain(&mut conv.bias)
        }
        fn of_norm(norm: &mut Norm) -> [&mut Read; 2] {
            [&mut norm.weight, &mut norm.bias]
        }
        let mut reads = Vec::new();
        match self {
            Self::Conv { x, conv, residual } => {
                reads.push(x);
                reads.extend(of_conv(conv));
                reads.extend(residual);
            }
            Self::Norm { x, norm, residual } => {
                reads.push(x);
                reads.extend(of_norm(norm));
                reads.extend(residual);
            }
            Self::ConvNorm {
                x,
                conv,
                norm,
                residual,
            }
            | Self::NormConv {
                x,
                norm,
                conv,
                residual,
            } => {
                reads.push(x);
                reads.extend(of_conv(conv));
                reads.extend(of_norm(norm));
                reads.extend(residual);
            }
            Self::Standardise { x, weight, .. } => {
                reads.push(x);
                reads.extend(weight);
            }
            Self::LayerNorm { x, affine, .. } | Self::GroupNorm { x, affine, .. } => {
                reads.push(x);
                reads.extend(affine.iter_mut().flatten());
            }
            Self::Linear {
                x,
                weight,
                bias,
                residual,
                ..
            } => {
                reads.extend([x, weight]);
                reads.extend(bias.iter_mut().chain(residual));
            }
            Self::MatMul { a, b, .. }
            | Self::Add { a, b, .. }
            | Self::Sub { a, b }
            | Self::Mul { a, b }
            | Self::Div { a, b } => reads.extend([a, b]),
            Self::ScaleChannels { x, scale } => reads.extend([x, scale]),
            Self::ScaleLast { x, scale, residual } => {
                reads.extend([x, scale]);
                reads.extend(residual);
            }
            Self::PackedAttention { qkv, .. } => reads.push(qkv),
            Self::Attention { qkv, mask, .. } => {
                reads.extend(qkv);
                reads.extend(mask);
            }
            Self::Concat { parts, .. } => reads.extend(parts),
            Self::Softmax { x, .. }
            | Self::Apply { x, .. }
            | Self::Reduce { x, .. }
            | Self::GlobalAverage { x, .. }
            | Self::Shortcut { x, .. }
            | Self::MaxPool { x, .. }
            | Self::AveragePool { x, .. }
            | Self::Resize { x, .. }
            | Self::Reshape { x, .. }
            | Self::Reorder { x, .. }
            | Self::Slice { x, .. }
            | Self::Pad { x, .. }
            | Self::Expand { x, .. }
            | Self::Gather { x, .. }
            | Self::Dropout { x, .. } => reads.push(x),
        }
        reads
    }
}
