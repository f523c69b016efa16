//! Activations inside kernels that have no registers to spare.
//!
//! A convolution keeps its sums in registers up to the last. A long function inlined there would push them out, for every other activation too, and be
//! compiled once for each size of tile. So only ReLU is inlined; the others run in a function of their own, on values that go through memory.

use super::{Activation, Function, with_function};
use crate::core::simd::{Kernel, Simd};

/// Applies an activation to some vectors.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn activated<S: Simd, const N: usize>(
    activation: Activation,
    mut z: [S::V; N],
) -> [S::V; N] {
    // SAFETY: the caller's promise; a row of the buffer holds any vector.
    unsafe {
        match activation {
            Activation::None => {}
            Activation::Relu => {
                for i in 0..N {
                    z[i] = S::relu(z[i]);
                }
            }
            activation => {
                let mut buffer = [[0f32; 16]; N];
                for i in 0..N {
                    S::store(buffer[i].as_mut_ptr(), z[i]);
                }
                activate_rows::<S>(activation, buffer.as_mut_ptr().cast(), N, 16);
                for i in 0..N {
                    z[i] = S::load(buffer[i].as_ptr());
                }
            }
        }
    }
    z
}

/// Applies an activation to `rows` vectors, which begin `distance` floats apart, in place.
///
/// # Safety
/// The processor has `S`, the vectors exist, and nobody else uses them.
#[inline(always)]
pub(crate) unsafe fn activate_rows<S: Simd>(
    activation: Activation,
    first: *mut f32,
    rows: usize,
    distance: usize,
) {
    let work = InPlace {
        activation,
        first,
        rows,
        distance,
    };
    // SAFETY: the caller's promise.
    unsafe { S::enter(work) };
}

struct InPlace {
    activation: Activation,
    first: *mut f32,
    rows: usize,
    distance: usize,
}

impl Kernel for InPlace {
    /// # Safety
    /// Vectors begin at `first` and at every `distance` floats after it, and nobody else uses them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { with_function!(self.activation, function => self.each::<S, _>(function)) }
    }
}

impl InPlace {
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn each<S: Simd, F: Function>(&self, function: F) {
        for row in 0..self.rows {
            // SAFETY: the caller's promise.
            unsafe {
                let at = self.first.add(row * self.distance);
                S::store(at, function.value::<S>(S::load(at)));
            }
        }
    }
}
