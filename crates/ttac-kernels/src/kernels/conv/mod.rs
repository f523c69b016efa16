//! Convolution without bias: forward, gradient of the input, gradient of the weights.
//!
//! | file | what |
//! |---|---|
//! | `direct` | gathers the patches of a block of pixels and multiplies (implicit GEMM); any kernel, stride and padding |
//! | `winograd` | F(2x2, 3x3) and F(4x4, 3x3): fewer multiplications for 3x3 kernels of stride 1 |
//! | `weight_gradient` | the gradient of the weights, direct |
//! | `input` | what is read: a tensor as it is, or normalised on the way in |
//! | `patches` | which source pixels an output pixel sees, and copying them together |
//! | `gemm` | the micro-kernels under all of them |

mod direct;
mod gemm;
mod input;
mod patches;
mod weight_gradient;
mod winograd;

use super::simd::Isa;

pub use input::{Input, Normalise};

/// The sizes of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Edge of the kernel.
    pub kernel: usize,
    /// Distance between the kernel's places, in both directions.
    pub stride: usize,
    /// Zeros around the input, on every side.
    pub padding: usize,
}

impl ConvShape {
    /// Rows of the output.
    pub fn out_height(&self) -> usize {
        self.places(self.height)
    }

    /// Columns of the output.
    pub fn out_width(&self) -> usize {
        self.places(self.width)
    }

    /// Length of the input, `[batch, height, width, in_channels]`.
    pub fn in_len(&self) -> usize {
        self.batch * self.height * self.width * self.in_channels
    }

    /// Length of the output, `[batch, out_height, out_width, out_channels]`.
    pub fn out_len(&self) -> usize {
        self.batch * self.out_height() * self.out_width() * self.out_channels
    }

    /// Length of the weights, `[out_channels, in_channels, kernel, kernel]`.
    pub fn weight_len(&self) -> usize {
        self.out_channels * self.in_channels * self.kernel * self.kernel
    }

    /// How often the kernel fits along an edge.
    fn places(&self, edge: usize) -> usize {
        let padded = edge + 2 * self.padding;
        if padded < self.kernel {
            0
        } else {
            (padded - self.kernel) / self.stride + 1
        }
    }

    fn check(&self) {
        assert!(
            self.kernel > 0 && self.stride > 0,
            "a convolution needs a kernel and a stride of at least 1, found {self:?}"
        );
    }
}

/// How a convolution is computed.
///
/// The error bounds are the largest difference from the exact result over its largest value, for inputs and weights of unit variance, up to 512 channels,
/// in all three passes. They are tested against sums in `f64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The fastest, by a small table of measurements.
    #[default]
    Auto,
    /// Implicit matrix product; any shape. Error at most 2e-6.
    Direct,
    /// Winograd F(2x2, 3x3): 2.25 times fewer multiplications. Shapes it cannot do (kernel not 3, stride not 1) run as `Direct`. Error at most 2e-6.
    Winograd2,
    /// Winograd F(4x4, 3x3): 4 times fewer multiplications. Shapes it cannot do (kernel not 3, stride not 1) run as `Direct`. Error at most 1e-5.
    Winograd4,
}

impl Algorithm {
    /// The algorithm that runs: never `Auto`, and never one that cannot do the shape.
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
    /// One per output channel.
    pub bias: Option<&'a [f32]>,
    /// As the output.
    pub residual: Option<&'a [f32]>,
    /// Whether negative values become 0.
    pub relu: bool,
}

/// Panics unless `data` is as long as `shape` says.
fn check_len(what: &str, data: &[f32], expected: [usize; 4], shape: &ConvShape) {
    assert!(
        data.len() == expected.iter().product::<usize>(),
        "{what} of a convolution: expected the shape {expected:?}, found {} values, for {shape:?}",
        data.len()
    );
}

fn check_input(x: &Input, s: &ConvShape) {
    let shape = [s.batch, s.height, s.width, s.in_channels];
    check_len("input", x.values, shape, s);
    if let Some(norm) = x.norm {
        let found = [norm.scale.len(), norm.shift.len()];
        assert!(
            found == [s.in_channels; 2],
            "scale and shift of a convolution's input: expected {} values each, found {found:?}, for {s:?}",
            s.in_channels
        );
    }
}

fn check_output(what: &str, y: &[f32], s: &ConvShape) {
    check_len(
        what,
        y,
        [s.batch, s.out_height(), s.out_width(), s.out_channels],
        s,
    );
}

fn check_weight(w: &[f32], s: &ConvShape) {
    check_len(
        "weights",
        w,
        [s.out_channels, s.in_channels, s.kernel, s.kernel],
        s,
    );
}

/// `y[n, i, j, o] = sum over a, b, c of x[n, stride i + a - padding, stride j + b - padding, c] w[o, c, a, b]`, then the epilogue.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn conv_forward<'a>(
    x: impl Into<Input<'a>>,
    weight: &[f32],
    shape: &ConvShape,
    algorithm: Algorithm,
    epilogue: &Epilogue,
) -> Vec<f32> {
    let x = x.into();
    shape.check();
    check_input(&x, shape);
    check_weight(weight, shape);
    if let Some(bias) = epilogue.bias {
        assert!(
            bias.len() == shape.out_channels,
            "bias of a convolution: expected {} values, found {}, for {shape:?}",
            shape.out_channels,
            bias.len()
        );
    }
    if let Some(residual) = epilogue.residual {
        check_output("residual", residual, shape);
    }
    let isa = Isa::current();
    match algorithm.resolve(shape) {
        Algorithm::Winograd2 => winograd::forward::<4>(x, weight, shape, epilogue, isa),
        Algorithm::Winograd4 => winograd::forward::<6>(x, weight, shape, epilogue, isa),
        _ => direct::forward(x, weight, shape, epilogue, isa),
    }
}

/// The gradient of the input, from the gradient `dy` of the output; plus `other`, the gradient that the input has from elsewhere.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn conv_input_gradient(
    dy: &[f32],
    weight: &[f32],
    shape: &ConvShape,
    algorithm: Algorithm,
    other: Option<&[f32]>,
) -> Vec<f32> {
    shape.check();
    check_output("output gradient", dy, shape);
    check_weight(weight, shape);
    if let Some(other) = other {
        check_input(&other.into(), shape);
    }
    let epilogue = Epilogue {
        residual: other,
        ..Epilogue::default()
    };
    let isa = Isa::current();
    match algorithm.resolve(shape) {
        Algorithm::Winograd2 => winograd::input_gradient::<4>(dy, weight, shape, epilogue, isa),
        Algorithm::Winograd4 => winograd::input_gradient::<6>(dy, weight, shape, epilogue, isa),
        _ => direct::input_gradient(dy, weight, shape, epilogue, isa),
    }
}

/// The gradient of the weights, `[out][in][kh][kw]`, from the input and the gradient `dy` of the output.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn conv_weight_gradient<'a>(
    x: impl Into<Input<'a>>,
    dy: &[f32],
    shape: &ConvShape,
    algorithm: Algorithm,
) -> Vec<f32> {
    let x = x.into();
    shape.check();
    check_input(&x, shape);
    check_output("output gradient", dy, shape);
    let isa = Isa::current();
    match algorithm.resolve(shape) {
        Algorithm::Winograd2 => winograd::weight_gradient::<4>(x, dy, shape, isa),
        Algorithm::Winograd4 => winograd::weight_gradient::<6>(x, dy, shape, isa),
        _ => weight_gradient::direct(x, dy, shape, isa),
    }
}
