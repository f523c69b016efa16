//! Winograd convolution of 3x3 kernels with stride 1: forward, gradient of the input, gradient of the weights.
//!
//! F(m x m, 3 x 3) computes an `m x m` tile of outputs from an `a x a` tile of inputs, `a = m + 2`, by polynomial multiplication: transform
//! the tile (`V = Bt x B`) and the kernel (`U = G w Gt`), multiply the `a a` positions one by one, transform back (`y = At M A`). Per output and pair of
//! channels that takes `(a / m)^2` multiplications instead of 9: 4 for m = 2, 2.25 for m = 4. Summed over input channels, each position is a
//! matrix product:
//!
//! ```text
//!   tiles x in  ──┐ one product      ┌── tiles x out
//!   tiles x in  ──┤ per position, ───┤   tiles x out
//!   ...  V      ──┘ with U           └── ...  M
//! ```
//!
//! A task transforms a block of tiles, multiplies and transforms back while all of it stays in the second-level cache; whole transformed tensors never exist.

mod convolution;
mod gradient;
mod tiles;
mod transform;
mod weights;

pub(super) use gradient::weight_gradient;

use super::{Input, Pass};
use crate::core::parallel::{Out, filled};
use convolution::Convolution;
use tiles::{Images, Tiles};
use weights::Weights;

/// Positions of a transformed tile with edge `a`.
const fn positions(a: usize) -> usize {
    a * a
}

/// Floats of transformed tiles that a task keeps in the second-level cache, beside what they are multiplied with (432 KiB).
const TASK_TILES: usize = 108 * 1024;
/// What they are multiplied with stays in the second-level cache if it has at most this many floats (1 MiB).
const CACHED: usize = 256 * 1024;
/// Most tiles of a task, and the number when what they are multiplied with is not cached: as many as possible should share its way
/// through the caches. Multiples of every register tile.
const MOST_TILES: usize = 96;
const UNCACHED_TILES: usize = 48;

/// Tiles per task, when each needs `floats` and all are multiplied with `others` floats.
fn tiles_per_task(floats: usize, others: usize) -> usize {
    if others > CACHED {
        UNCACHED_TILES
    } else {
        (TASK_TILES / floats / 12 * 12).clamp(24, MOST_TILES)
    }
}

/// Fewer tasks than this leave cores idle at the end: then each stage is cut for itself.
const FEW_TASKS: usize = 8;
/// Tiles that are transformed at once by one core, when stages are cut for themselves.
const TRANSFORMED_AT_ONCE: usize = 4;

/// Computes `y` from `x`, with tiles of edge `A`.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn forward<const A: usize>(pass: &Pass, x: Input) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let (inputs, outputs) = (s.in_channels, s.out_channels);
    let weights = Weights::new::<A>(context, pass.weight, [inputs, outputs], false, |o, i| {
        (o * inputs + i) * 9
    });
    let zeros = vec![0.; s.width * inputs];
    let out_size = [s.out_height(), s.out_width()];
    let write = |out: Out| {
        let convolution = Convolution {
            context,
            images: Images {
                data: x.values,
                height: s.height,
                width: s.width,
                channels: inputs,
                zeros: &zeros,
                norm: x.norm,
            },
            tiles: Tiles::new(s.batch, out_size[0], out_size[1], A - 2),
            padding: s.window.padding[0][0].cast_signed(),
            weights,
            out,
            out_size,
            epilogue: pass.epilogue,
        };
        // SAFETY: the slices are as long as the shape says; the output has just been allocated.
        unsafe { convolution.run::<A>() };
    };
    // SAFETY: the tiles cover the result.
    unsafe { filled(context, s.out_len(), write) }
}

/// Computes `dx` from `dy`: a convolution with the kernels turned around and the channels exchanged.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn input_gradient<const A: usize>(pass: &Pass, dy: &[f32]) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let (inputs, outputs) = (s.out_channels, s.in_channels);
    let weights = Weights::new::<A>(context, pass.weight, [inputs, outputs], true, |o, i| {
        (i * outputs + o) * 9
    });
    let zeros = vec![0.; s.out_width() * inputs];
    let write = |out: Out| {
        let convolution = Convolution {
            context,
            images: Images {
                data: dy,
                height: s.out_height(),
                width: s.out_width(),
                channels: inputs,
                zeros: &zeros,
                norm: None,
            },
            tiles: Tiles::new(s.batch, s.height, s.width, A - 2),
            padding: 2 - s.window.padding[0][0].cast_signed(),
            weights,
            out,
            out_size: [s.height, s.width],
            epilogue: pass.epilogue,
        };
        // SAFETY: the slices are as long as the shape says; the output has just been allocated.
        unsafe { convolution.run::<A>() };
    };
    // SAFETY: the tiles cover the result.
    unsafe { filled(context, s.in_len(), write) }
}
