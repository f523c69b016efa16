//! Convolution without bias: forward, gradient of the input, gradient of the weights.
//!
//! | file | what |
//! |---|---|
//! | `direct` | gathers the patches of a block of pixels and multiplies (implicit GEMM); any kernel, stride and padding |
//! | `winograd` | F(2x2, 3x3) and F(4x4, 3x3): fewer multiplications for 3x3 kernels of stride 1 |
//! | `weight_gradient` | the gradient of the weights, direct |
//! | `packing` | the weights of a direct convolution in the order in which they are read |
//! | `input` | what is read: a tensor as it is, or normalised on the way in |
//! | `patches` | which source pixels an output pixel sees, and copying them together |
//! | `gemm` | the micro-kernels under all of them |

mod direct;
mod gemm;
mod input;
mod packing;
mod patches;
mod weight_gradient;
mod winograd;

use crate::Context;
use crate::core::shape::{check_len, check_window, elements, places};

pub use input::Input;

/// The sizes of a convolution with a square kernel.
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
    /// The edge of the square kernel, in pixels.
    pub kernel: usize,
    /// The distance between neighbouring places of the kernel, in both directions.
    pub stride: usize,
    /// The width of the border of zeros on every side of the input.
    pub padding: usize,
}

impl ConvShape {
    /// Makes the shape of a convolution of `[batch, height, width, in_channels]` with some output channels and `[kernel, stride, padding]`.
    pub fn new(
        [batch, height, width, in_channels]: [usize; 4],
        out_channels: usize,
        [kernel, stride, padding]: [usize; 3],
    ) -> Self {
        Self {
            batch,
            height,
            width,
            in_channels,
            out_channels,
            kernel,
            stride,
            padding,
        }
    }

    /// Returns the height of the output, in pixels.
    pub fn out_height(&self) -> usize {
        self.places(self.height)
    }

    /// Returns the width of the output, in pixels.
    pub fn out_width(&self) -> usize {
        self.places(self.width)
    }

    fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.in_channels]
    }

    fn out_shape(&self) -> [usize; 4] {
        let (height, width) = (self.out_height(), self.out_width());
        [self.batch, height, width, self.out_channels]
    }

    fn weight_shape(&self) -> [usize; 4] {
        let kernel = self.kernel;
        [self.out_channels, self.in_channels, kernel, kernel]
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

    /// Returns the length of the weights, `[out_channels, in_channels, kernel, kernel]`.
    ///
    /// # Panics
    /// If no slice could hold them.
    pub fn weight_len(&self) -> usize {
        elements("weights of a convolution", &self.weight_shape())
    }

    /// How often the kernel fits along an edge.
    fn places(&self, edge: usize) -> usize {
        places(edge, [self.kernel, self.stride, self.padding])
    }

    /// Panics if a size of the window is 0 or absurd.
    fn check_window(&self) {
        let window = [self.kernel, self.stride, self.padding];
        check_window("a convolution", window, self);
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
    /// A matrix product of gathered patches, for any shape. The error is at most 2e-6.
    Direct,
    /// Winograd F(2x2, 3x3): 2.25 times fewer multiplications. Shapes it cannot do (kernel not 3, stride not 1) run as `Direct`. Error at most 2e-6.
    Winograd2,
    /// Winograd F(4x4, 3x3): 4 times fewer multiplications. Shapes it cannot do (kernel not 3, stride not 1) run as `Direct`. Error at most 1e-5.
    Winograd4,
}

impl Algorithm {
    /// Returns the algorithm that runs: never `Auto`, and never one that cannot do the shape.
    pub fn resolve(self, s: &ConvShape) -> Self {
        let winograd = s.kernel == 3 && s.stride == 1 && s.in_channels > 0 && s.out_len() > 0;
        match self {
            _ if !winograd => Self::Direct,
            Self::Auto => Self::fastest(s),
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

/// What is done to the output of a convolution before it is stored: `relu(y + bias + residual)`, each part optional.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value for each output channel, added to the result.
    pub bias: Option<&'a [f32]>,
    /// A tensor of the output's shape, added to the result.
    pub residual: Option<&'a [f32]>,
    /// Whether negative values become 0.
    pub relu: bool,
}

/// A convolution or its input gradient, all but what it reads. The lengths of the slices and the products of the sizes were checked.
#[derive(Clone, Copy)]
struct Pass<'a> {
    context: &'a Context,
    weight: &'a [f32],
    shape: &'a ConvShape,
    epilogue: Epilogue<'a>,
}

/// Convolves: `y[n, i, j, o] = sum over a, b, c of x[n, stride i + a - padding, stride j + b - padding, c] w[o, c, a, b]`, then the epilogue.
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
    shape.check_window();
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
    shape.check_window();
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
    shape.check_window();
    shape.check_input(&x);
    shape.check_output("output gradient of a convolution", dy);
    shape.check_products();
    // SAFETY: the lengths of the slices and the products of the sizes were checked above.
    unsafe {
        match algorithm.resolve(shape) {
            Algorithm::Winograd2 => winograd::weight_gradient::<4>(context, x, dy, shape),
            Algorithm::Winograd4 => winograd::weight_gradient::<6>(context, x, dy, shape),
            _ => weight_gradient::direct(context, x, dy, shape),
        }
    }
}
