//! Pooling and the shortcut without parameters on tensors.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::PoolOps;
use super::composed;
use super::kernel::{Divisor, PoolShape};
use crate::core::extension::kernels_for;
use crate::core::window::Window;

/// The options of a max pool, and of the windows of an average pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// The window. Its padding on a side is smaller than itself; it never wins a maximum.
    pub window: Window,
    /// Whether a remainder at the end of an edge has a window of its own, as in PyTorch's `ceil_mode`: see [`Window::places_ceil`].
    pub ceil: bool,
}

impl PoolOptions {
    /// Makes the options of a pooling that leaves out remainders.
    pub const fn new(window: Window) -> Self {
        Self {
            window,
            ceil: false,
        }
    }

    /// Makes the options of a pooling with a square window that leaves out remainders.
    pub const fn square(kernel: usize, stride: usize, padding: usize) -> Self {
        Self::new(Window::square(kernel, stride, padding))
    }

    /// Returns the sizes of a pooling of `[batch, height, width, channels]`.
    pub(super) fn shape(&self, input: [usize; 4]) -> PoolShape {
        PoolShape {
            ceil: self.ceil,
            ..PoolShape::new(input, self.window)
        }
    }
}

/// The options of an average pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AveragePoolOptions {
    /// The windows, which have no dilation.
    pub windows: PoolOptions,
    /// Whether padding counts where a sum is divided by the number of its pixels, as in PyTorch's `count_include_pad`. What hangs over the padding never counts.
    pub count_padding: bool,
    /// The number by which all sums are divided instead, at least 1: PyTorch's `divisor_override`.
    pub divisor: Option<usize>,
}

impl AveragePoolOptions {
    /// Makes the options of an average pool whose padding counts.
    pub const fn new(windows: PoolOptions) -> Self {
        Self {
            windows,
            count_padding: true,
            divisor: None,
        }
    }

    /// Returns how the sums are divided.
    pub(super) fn division(&self) -> Divisor {
        match self.divisor {
            Some(number) => Divisor::Number(number),
            None if self.count_padding => Divisor::Padded,
            None => Divisor::Image,
        }
    }
}

impl From<PoolOptions> for AveragePoolOptions {
    fn from(windows: PoolOptions) -> Self {
        Self::new(windows)
    }
}

/// Checks the sizes of a pooling, for all implementations of it.
fn check_pool(what: &str, x: &Tensor<4>, options: PoolOptions) {
    let shape = options.shape(x.dims());
    shape.check();
    assert!(
        shape.out_height() > 0 && shape.out_width() > 0,
        "{what}: the window does not fit input {:?}: {options:?}",
        x.dims()
    );
}

/// Takes the mean over height and width: `[batch, height, width, channels]` to `[batch, channels]`.
pub fn global_average_pool(x: Tensor<4>) -> Tensor<2> {
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_global_average_pool(x.into_dispatch(), context);
            Tensor::from_dispatch(y)
        }
        None => composed::global_average_pool(x),
    }
}

/// Takes the mean over windows: `[batch, height, width, channels]` to `[batch, out_height, out_width, channels]`. The padding is zeros.
///
/// # Panics
/// If the window has a dilation or does not fit the padded image, or the divisor is 0.
pub fn average_pool(x: Tensor<4>, options: impl Into<AveragePoolOptions>) -> Tensor<4> {
    let options = options.into();
    check_pool("average_pool", &x, options.windows);
    assert!(
        options.windows.window.dilation == [1; 2] && options.divisor != Some(0),
        "average_pool: expected no dilation and a divisor of at least 1, found {options:?}"
    );
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_average_pool(x.into_dispatch(), options, context);
            Tensor::from_dispatch(y)
        }
        None => composed::average_pool(x, options),
    }
}

/// Takes the maximum over windows: `[batch, height, width, channels]` to `[batch, out_height, out_width, channels]`. Padding never wins; of equal values the
/// first, row by row, gets the gradient.
///
/// # Panics
/// If the window does not fit the padded image.
pub fn max_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    check_pool("max_pool", &x, options);
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_max_pool(x.into_dispatch(), options, context);
            Tensor::from_dispatch(y)
        }
        None => composed::max_pool(x, options),
    }
}

/// Takes the parameter-free "option A" shortcut of He et al.: every `stride`-th pixel, with channels padded
/// with zeros to `out_channels`, half of them before and half after.
///
/// `[batch, height, width, channels]` to `[batch, ceil(height / stride), ceil(width / stride), out_channels]`.
pub fn shortcut_a(x: Tensor<4>, out_channels: usize, stride: usize) -> Tensor<4> {
    let [_, _, _, channels] = x.dims();
    assert!(
        out_channels >= channels,
        "shortcut_a: cannot shrink input {:?} to {out_channels} channels",
        x.dims()
    );
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_shortcut_a(x.into_dispatch(), out_channels, stride, context);
            Tensor::from_dispatch(y)
        }
        None => composed::shortcut_a(x, out_channels, stride),
    }
}
