//! Activation functions on slices, and for other kernels.
//!
//! | file | what |
//! |---|---|
//! | `functions` | the functions and their derivatives, on vectors |
//! | `apply` | over whole tensors, also over the sum of two |
//! | `outlined` | inside kernels that have no registers to spare |

mod apply;
mod functions;
mod outlined;

pub use apply::{activate_backward, activate_forward, activate_forward_in_place};
pub(crate) use functions::Function;
pub(crate) use outlined::{activate_rows, activated};

use crate::core::simd::{Portable, Simd};

/// An activation function, as PyTorch defines it.
///
/// Below `z` is the argument. Derivatives are computed from it, and results need not be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `z` itself.
    #[default]
    None,
    /// `max(z, 0)`. The derivative at 0 is 0.
    Relu,
    /// `min(max(z, 0), 6)`. The derivative is 0 at both ends.
    Relu6,
    /// `z / (1 + e^-z)`, which is also called swish.
    Silu,
    /// `z min(max(z + 3, 0), 6) / 6`. The derivative is 0 up to -3, 1 from 3 on, and `z / 3 + 1 / 2` between.
    HardSwish,
    /// `z Phi(z)`, with `Phi` the distribution function of the standard normal.
    Gelu,
    /// `z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2`, the approximation of the GELU.
    GeluTanh,
    /// `1 / (1 + e^-z)`.
    Sigmoid,
    /// `min(max(z + 3, 0), 6) / 6`. The derivative is 1/6 between -3 and 3, 0 elsewhere and at both ends.
    HardSigmoid,
}

/// Evaluates an expression in which a name is the [`Function`] of an activation: the one place where a kernel is chosen.
macro_rules! with_function {
    ($activation:expr, $function:ident => $work:expr) => {{
        use crate::activation::kernel::{Activation, chosen};
        match $activation {
            Activation::None => {
                let $function = chosen::Identity;
                $work
            }
            Activation::Relu => {
                let $function = chosen::Relu;
                $work
            }
            Activation::Relu6 => {
                let $function = chosen::Relu6;
                $work
            }
            Activation::Silu => {
                let $function = chosen::Silu;
                $work
            }
            Activation::HardSwish => {
                let $function = chosen::HardSwish;
                $work
            }
            Activation::Gelu => {
                let $function = chosen::Gelu;
                $work
            }
            Activation::GeluTanh => {
                let $function = chosen::GeluTanh;
                $work
            }
            Activation::Sigmoid => {
                let $function = chosen::Sigmoid;
                $work
            }
            Activation::HardSigmoid => {
                let $function = chosen::HardSigmoid;
                $work
            }
        }
    }};
}
pub(crate) use with_function;

/// The functions, for [`with_function`].
pub(crate) mod chosen {
    pub(crate) use super::functions::{
        Gelu, GeluTanh, HardSigmoid, HardSwish, Identity, Relu, Relu6, Sigmoid, Silu,
    };
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Relu,
        Self::Relu6,
        Self::Silu,
        Self::HardSwish,
        Self::Gelu,
        Self::GeluTanh,
        Self::Sigmoid,
        Self::HardSigmoid,
    ];

    /// Computes the function of one number.
    pub fn value(self, z: f32) -> f32 {
        with_function!(self, function => value_of(function, z))
    }

    /// Computes the derivative at one number.
    pub fn derivative(self, z: f32) -> f32 {
        with_function!(self, function => derivative_of(function, z))
    }

    /// Whether it takes dozens of operations.
    pub(crate) fn is_long(self) -> bool {
        with_function!(self, function => length_of(function))
    }

    /// Tells whether the derivative at an argument is the derivative at the function's result too. So it is for functions that are pieces of the identity
    /// and constants at its ends; a backward pass may then look at either.
    pub fn slope_shows_in_result(self) -> bool {
        matches!(self, Self::None | Self::Relu | Self::Relu6)
    }
}

fn length_of<F: Function>(_: F) -> bool {
    F::LONG
}

fn value_of<F: Function>(function: F, z: f32) -> f32 {
    // SAFETY: the portable instruction set is everywhere, and nothing is read or written.
    unsafe { function.value::<Portable>(Portable::splat(z))[0] }
}

fn derivative_of<F: Function>(function: F, z: f32) -> f32 {
    // SAFETY: as above.
    unsafe { function.gradient::<Portable>(Portable::splat(z), Portable::splat(1.))[0] }
}
