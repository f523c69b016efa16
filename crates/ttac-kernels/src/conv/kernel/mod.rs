//! Convolution without bias: forward, gradient of the input, gradient of the weights.
//!
//! | file | what |
//! |---|---|
//! | `grouped` | chooses for convolutions in several groups: a dense one for each, or `depthwise` |
//! | `depthwise` | groups of one channel, or of some; any window |
//! | `direct` | gathers the patches of a block of pixels and multiplies (implicit GEMM); any window |
//! | `winograd` | F(2x2, 3x3) and F(4x4, 3x3): fewer multiplications for 3x3 kernels of stride 1 |
//! | `weight_gradient` | the gradient of the weights, direct |
//! | `packing` | the weights of a direct convolution in the order in which they are read |
//! | `input` | what is read: a tensor as it is, or normalised on the way in |
//! | `patches` | which source pixels an output pixel sees, and copying them together |
//! | `gemm` | the micro-kernels under all of them |

mod depthwise;
mod direct;
mod gemm;
mod grouped;
mod input;
mod packing;
mod patches;
mod weight_gradient;
mod winograd;

use crate::Context;
use crate::activation::kernel::Activation;
use crate::core::shape::{check_len, elements};
use crate::core::window::Window;

pub use input::Input;

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// The number of images.
    pub batch: usize,
    /// The height of the input, in pixels.
    pub height: usize,
    /// The width of the input, in pixels.
    pub width: usize,
    /// The number of channels of the input.
    pub in_channels: usize,
    /// The number of channels of the output.
    pub out_channels: usize,
    /// The number of groups. Channels of the input and of the output are cut into as many equal parts, and a part of the output sees only its part of the input.
    pub groups: usize,
    /// The kernel and how it moves over the input; the padding is zeros.
    pub window: Window,
}

impl ConvShape {
    /// Makes the shape of a convolution of `[batch, height, width, in_channels]` with some output channels, in one group.
    pub fn new(
        [batch, height, width, in_channels]: [usize; 4],
        out_channels: usize,
        window: Window,
    ) -> Self {
        Self {
            batch,
            height,
            width,
            in_channels,
            out_channels,
            groups: 1,
            window,
        }
    }

    /// Returns the height of the output, in pixels.
    pub fn out_height(&self) -> usize {
        self.places()[0]
    }

    /// Returns the width of the output, in pixels.
    pub fn out_width(&self) -> usize {
        self.places()[1]
    }

    fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.in_channels]
    }

    fn out_shape(&self) -> [usize; 4] {
        let [height, width] = self.places();
        [self.batch, height, width, self.out_channels]
    }

    pub(crate) fn weight_shape(&self) -> [usize; 4] {
        let [height, width] = self.window.kernel;
        [
            self.out_channels,
            self.in_channels / self.groups,
            height,
            width,
        ]
    }

    /// Returns the length of the input, `[batch, height, width, in_channels]`.
    ///
    /// # Panics
    /// If no slice could hold it.
    pub fn in_len(&self) -> usize {
        elements("input of a convolution", &self.in_shape())
    }

    /// Returns the length of the output, `[batch, out_height, out_width, out_channels]`.
    ///
    /// # Panics
    /// If no slice could hold it.
    pub fn out_len(&self) -> usize {
        elements("output of a convolution", &self.out_shape())
    }

    /// Returns the length of the weights, `[out_channels, in_channels / groups, kernel height, kernel width]`.
    ///
    /// # Panics
    /// If no slice could hold them.
    pub fn weight_len(&self) -> usize {
        elements("weights of a convolution", &self.weight_shape())
    }

    /// Returns how often the kernel fits along each edge.
    fn places(&self) -> [usize; 2] {
        self.window.places([self.height, self.width])
    }

    /// Returns the number of taps of the kernel.
    fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Panics if a size of the window is 0 or absurd, or if the groups do not divide the channels.
    fn check(&self) {
        self.window.check("a convolution", self);
        let Self {
            groups,
            in_channels,
            out_channels,
            ..
        } = *self;
        assert!(
            groups > 0 && in_channels.is_multiple_of(groups) && out_channels.is_multiple_of(groups),
            "a convolution needs groups that divide its channels, found {self:?}"
        );
    }

    /// Panics if one of the tensors would be longer than any slice. The kernels rely on it: no product of some of its sizes wraps.
    fn check_products(&self) {
        self.in_len();
        self.out_len();
        self.weight_len();
    }

    fn check_input(&self, x: &Input) {
        let what = "input of a convolution";
        check_len(what, x.values.len(), &self.in_shape(), self);
        if let Some(norm) = x.norm {
            let found = [norm.scale.len(), norm.shift.len()];
            assert!(
                found == [self.in_channels; 2],
                "scale and shift of a convolution's input: expected {} values each, found {found:?}, for {self:?}",
                self.in_channels
            );
        }
    }

    fn check_output(&self, what: &str, y: &[f32]) {
        check_len(what, y.len(), &self.out_shape(), self);
    }

    fn check_weight(&self, w: &[f32]) {
        let what = "weights of a convolution";
        check_len(what, w.len(), &self.weight_shape(), self);
    }
}

/// How a convolution is computed.
///
/// The error bounds are the largest difference from the exact result over its largest value, for inputs and weights of unit variance, up to 512 channels,
/// in all three passes. They are tested against sums in `f64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The algorithm that is likely the fastest for the shape, by an estimate fitted to measurements.
    #[default]
    Auto,
    /// The same for batches of this many images, whatever the size of the batch: a small batch then has the bits that its images have in
    /// others.
    AutoForBatch(usize),
    /// A matrix product of gathered patches, for any shape. The error is at most 2e-6.
    Direct,
    /// Winograd F(2x2, 3x3): 2.25 times fewer multiplications. Shapes it cannot do run as `Direct`: it needs a 3x3 kernel of stride 1 without dilation, equal padding on every side, one group. Error at most 2e-6.
    Winograd2,
    /// Winograd F(4x4, 3x3): 4 times fewer multiplications. Shapes it cannot do run as `Direct`: it needs a 3x3 kernel of stride 1 without dilation, equal padding on every side, one group. Error at most 1e-5.
    Winograd4,
}

impl Algorithm {
    /// Returns the algorithm that runs: never one of the automatic choices, and never one that cannot do the shape. In several groups it is `Direct`; where groups are so large that
    /// each is computed as a dense convolution, those resolve it again.
    pub fn resolve(self, s: &ConvShape) -> Self {
        let winograd = matches!(s.window.as_square(), Some([3, 1, _]))
            && s.groups == 1
            && s.in_channels > 0
            && s.out_len() > 0;
        match self {
            _ if !winograd => Self::Direct,
            Self::Auto => Self::fastest(s),
            Self::AutoForBatch(batch) => Self::fastest(&ConvShape { batch, ..*s }),
            chosen => chosen,
        }
    }

    /// The algorithm of the least cost, for 3x3 kernels of stride 1.
    ///
    /// The cost counts multiplications, in units of all pairs of channels. Bringing in the weights costs as much as some 96 pixels or tiles. A tile's
    /// transformations take a time in proportion to the channels and not to the pairs, ten multiplications' worth. Both constants are fitted to
    /// measured times; the choice is the same for all three passes.
    fn fastest(s: &ConvShape) -> Self {
        let cost = |multiplications: usize, edge: usize, transformations: f64| {
            let places = s.batch * s.out_height().div_ceil(edge) * s.out_width().div_ceil(edge);
            let per_pair =
                1. + transformations * (1. / s.in_channels as f64 + 1. / s.out_channels as f64);
            (multiplications * (places + 96)) as f64 * per_pair
        };
        [
            (Self::Direct, cost(9, 1, 0.)),
            (Self::Winograd2, cost(16, 2, 10.)),
            (Self::Winograd4, cost(36, 4, 10.)),
        ]
        .into_iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map_or(Self::Direct, |best| best.0)
    }
}

/// What is done to the output of a convolution before it is stored: `act(y + bias + residual)`, each part optional.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value for each output channel, added to the result.
    pub bias: Option<&'a [f32]>,
    /// A tensor of the output's shape, added to the result.
    pub residual: Option<&'a [f32]>,
    /// What is applied to the sum.
    pub activation: Activation,
}

/// A convolution or its input gradient, all but what it reads. The lengths of the slices and the products of the sizes were checked.
#[derive(Clone, Copy)]
struct Pass<'a> {
    context: &'a Context,
    weight: &'a [f32],
    shape: &'a ConvShape,
    epilogue: Epilogue<'a>,
}

/// Convolves: `y[n, i, j, o] = sum over a, b, c of x[n, stride i + dilation a - padding, stride j + dilation b - padding, c] w[o, c, a, b]`, then the epilogue.
/// Stride, dilation and padding are those of the axis, and the padding is the one before it.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn conv_forward<'a>(
    context: &Context,
    x: impl Into<Input<'a>>,
    weight: &[f32],
    shape: &ConvShape,
    algorithm: Algorithm,
    epilogue: &Epilogue,
) -> Vec<f32> {
    let x = x.into();
    shape.check();
    shape.check_input(&x);
    shape.check_weight(weight);
    if let Some(bias) = epilogue.bias {
        assert!(
            bias.len() == shape.out_channels,
            "bias of a convolution: expected {} values, found {}, for {shape:?}",
            shape.out_channels,
            bias.len()
        );
    }
    if let Some(residual) = epilogue.residual {
        shape.check_output("residual of a convolution", residual);
    }
    let pass = Pass {
        context,
        weight,
        shape,
        epilogue: *epilogue,
    };
    shape.check_products();
    // SAFETY: the lengths of the slices and the products of the sizes were checked above.
    unsafe {
        match algorithm.resolve(shape) {
            Algorithm::Winograd2 => winograd::forward::<4>(&pass, x),
            Algorithm::Winograd4 => winograd::forward::<6>(&pass, x),
            _ if shape.groups > 1 => grouped::forward(&pass, x, algorithm),
            _ => direct::forward(&pass, x),
        }
    }
}

/// Computes the gradient of the input from the gradient `dy` of the output, and adds `other`, the gradient that the input has from elsewhere.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn conv_input_gradient(
    context: &Context,
    dy: &[f32],
    weight: &[f32],
    shape: &ConvShape,
    algorithm: Algorithm,
    other: Option<&[f32]>,
) -> Vec<f32> {
    shape.check();
    shape.check_output("output gradient of a convolution", dy);
    shape.check_weight(weight);
    if let Some(other) = other {
        shape.check_input(&other.into());
    }
    let epilogue = Epilogue {
        residual: other,
        ..Epilogue::default()
    };
    let pass = Pass {
        context,
        weight,
        shape,
        epilogue,
    };
    shape.check_products();
    // SAFETY: the lengths of the slices and the products of the sizes were checked above.
    unsafe {
        match algorithm.resolve(shape) {
            Algorithm::Winograd2 => winograd::input_gradient::<4>(&pass, dy),
            Algorithm::Winograd4 => winograd::input_gradient::<6>(&pass, dy),
            _ if shape.groups > 1 => grouped::input_gradient(&pass, dy, algorithm),
            _ => direct::input_gradient(&pass, dy),
        }
    }
}

/// Computes the gradient of the weights, `[out][in][kh][kw]`, from the input and the gradient `dy` of the output.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn conv_weight_gradient<'a>(
    context: &Context,
    x: impl Into<Input<'a>>,
    dy: &[f32],
    shape: &ConvShape,
    algorithm: Algorithm,
) -> Vec<f32> {
    let x = x.into();
    shape.check();
    shape.check_input(&x);
    shape.check_output("output gradient of a convolution", dy);
    shape.check_products();
    // SAFETY: the lengths of the slices and the products of the sizes were checked above.
    unsafe {
        match algorithm.resolve(shape) {
            Algorithm::Winograd2 => winograd::weight_gradient::<4>(context, x, dy, shape),
            Algorithm::Winograd4 => winograd::weight_gradient::<6>(context, x, dy, shape),
            _ if shape.groups > 1 => grouped::weight_gradient(context, x, dy, shape, algorithm),
            _ => weight_gradient::direct(context, x, dy, shape),
        }
    }
}
