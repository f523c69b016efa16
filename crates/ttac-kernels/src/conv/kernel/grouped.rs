//! Convolutions in groups of channels.
//!
//! Depthwise convolutions and groups of up to 64 channels have programs of their own. Where the groups are larger, and for the weight gradients of all but the
//! smallest, each is a dense convolution: the channels of a group are brought together for a few images at a time, which stay in the cache, and what comes out goes
//! back to its place.

use std::ops::Range;

use rayon::prelude::*;

use super::depthwise::{self, Lanes};
use super::{
    Algorithm, ConvShape, Epilogue, Input, Pass, conv_forward, conv_input_gradient,
    conv_weight_gradient,
};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::simd::{Isa, Kernel, Simd};
use crate::norm::kernel::Normalise;

/// Images that are brought together hold at most about this many floats in a group.
const TOGETHER: usize = 128 * 1024;

/// The most channels of a group that is computed without gathering.
const MOST_WHOLE: usize = 64;
/// The longest padded row that is kept in the cache. (Absurd paddings have longer ones.)
const LONGEST: usize = 64 * 1024;

/// How a convolution in several groups is computed.
enum Route {
    /// Each lane with kernels of its own.
    Lanes(Lanes),
    /// Each group in vectors of its own.
    Whole,
    /// Each group as a dense convolution.
    Dense,
}

impl Route {
    /// The route that is likely the fastest.
    fn of(s: &ConvShape, isa: Isa) -> Self {
        let [before, after] = s.window.padding[1];
        let (inputs, outputs) = (s.in_channels / s.groups, s.out_channels / s.groups);
        if before + s.width + after + 8 * s.window.stride[1] > LONGEST {
            Self::Dense
        } else if let Some(order) = Lanes::of(s, isa) {
            Self::Lanes(order)
        } else if inputs.min(outputs) > 0 && inputs.max(outputs) <= MOST_WHOLE {
            Self::Whole
        } else {
            Self::Dense
        }
    }
}

/// Computes `y` from `x`.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn forward(pass: &Pass, x: Input, algorithm: Algorithm) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    match Route::of(s, context.isa()) {
        // SAFETY: the caller's promise.
        Route::Lanes(order) => return unsafe { depthwise::forward(pass, x, order) },
        // SAFETY: the caller's promise.
        Route::Whole => return unsafe { depthwise::whole_forward(pass, x) },
        Route::Dense => {}
    }
    let write = |out: Out| {
        each_part(s, |part| {
            let (inputs, outputs) = (part.inputs(), part.outputs());
            let channels = outputs.channels.clone();
            let values = inputs.gathered(context, x.values);
            let residual = pass.epilogue.residual.map(|r| outputs.gathered(context, r));
            let epilogue = Epilogue {
                bias: pass.epilogue.bias.map(|bias| &bias[channels]),
                residual: residual.as_deref(),
                ..pass.epilogue
            };
            let input = Input {
                values: &values,
                norm: x.norm.map(|norm| part.norm(norm)),
            };
            let weight = part.weight(pass.weight);
            let y = conv_forward(context, input, weight, &part.shape, algorithm, &epilogue);
            // SAFETY: the output has room for all parts, and no two have a pixel and a channel in common.
            unsafe { outputs.scatter(context, &y, out) };
            for buffer in [Some(values), residual, Some(y)].into_iter().flatten() {
                context.recycle(buffer);
            }
        });
    };
    // SAFETY: the parts cover all pixels and channels.
    unsafe { filled(context, s.out_len(), write) }
}

/// Computes `dx` from `dy`.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn input_gradient(pass: &Pass, dy: &[f32], algorithm: Algorithm) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    match Route::of(s, context.isa()) {
        // SAFETY: the caller's promise.
        Route::Lanes(order) => return unsafe { depthwise::input_gradient(pass, dy, order) },
        // SAFETY: the caller's promise.
        Route::Whole => return unsafe { depthwise::whole_input_gradient(pass, dy) },
        Route::Dense => {}
    }
    let write = |out: Out| {
        each_part(s, |part| {
            let (inputs, outputs) = (part.inputs(), part.outputs());
            let dy = outputs.gathered(context, dy);
            let other = pass.epilogue.residual.map(|r| inputs.gathered(context, r));
            let (weight, shape) = (part.weight(pass.weight), &part.shape);
            let dx = conv_input_gradient(context, &dy, weight, shape, algorithm, other.as_deref());
            // SAFETY: the output has room for all parts, and no two have a pixel and a channel in common.
            unsafe { inputs.scatter(context, &dx, out) };
            for buffer in [Some(dy), other, Some(dx)].into_iter().flatten() {
                context.recycle(buffer);
            }
        });
    };
    // SAFETY: the parts cover all pixels and channels.
    unsafe { filled(context, s.in_len(), write) }
}

/// Computes `dw` from `x` and `dy`.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn weight_gradient(
    context: &Context,
    x: Input,
    dy: &[f32],
    s: &ConvShape,
    algorithm: Algorithm,
) -> Vec<f32> {
    if let Route::Lanes(order) = Route::of(s, context.isa()) {
        // SAFETY: the caller's promise.
        return unsafe { depthwise::weight_gradient(context, x, dy, s, order) };
    }
    let len = s.weight_len() / s.groups;
    let write = |out: Out| {
        // Each group with all images, as the sums go over them.
        (0..s.groups).into_par_iter().for_each(|group| {
            let part = Part::new(s, group, 0..s.batch);
            let values = part.inputs().gathered(context, x.values);
            let dy = part.outputs().gathered(context, dy);
            let input = Input {
                values: &values,
                norm: x.norm.map(|norm| part.norm(norm)),
            };
            let dw = conv_weight_gradient(context, input, &dy, &part.shape, algorithm);
            // SAFETY: the weights of a group lie together, and each group is one task's.
            unsafe {
                out.at(group * len)
                    .copy_from_nonoverlapping(dw.as_ptr(), len);
            };
            for buffer in [values, dy, dw] {
                context.recycle(buffer);
            }
        });
    };
    // SAFETY: the groups cover all weights.
    unsafe { filled(context, s.weight_len(), write) }
}

/// A group of some images.
struct Part<'a> {
    whole: &'a ConvShape,
    /// The shape of the dense convolution.
    shape: ConvShape,
    group: usize,
    images: Range<usize>,
}

/// Calls `work` for all groups of some images at a time, in parallel.
fn each_part(s: &ConvShape, work: impl Fn(&Part) + Sync) {
    let image = (s.in_len() + s.out_len()) / (s.batch * s.groups).max(1);
    let images = (TOGETHER / image.max(1)).clamp(1, s.batch.max(1));
    let tasks = s.batch.div_ceil(images) * s.groups;
    (0..tasks).into_par_iter().for_each(|task| {
        let (first, group) = (task / s.groups * images, task % s.groups);
        work(&Part::new(s, group, first..(first + images).min(s.batch)));
    });
}

impl<'a> Part<'a> {
    fn new(s: &'a ConvShape, group: usize, images: Range<usize>) -> Self {
        Self {
            whole: s,
            shape: ConvShape {
                batch: images.len(),
                in_channels: s.in_channels / s.groups,
                out_channels: s.out_channels / s.groups,
                groups: 1,
                ..*s
            },
            group,
            images,
        }
    }

    /// The part of the input.
    fn inputs(&self) -> Selection {
        let pixels = self.whole.height * self.whole.width;
        self.channels(pixels, self.whole.in_channels)
    }

    /// The part of the output.
    fn outputs(&self) -> Selection {
        let pixels = self.whole.out_height() * self.whole.out_width();
        self.channels(pixels, self.whole.out_channels)
    }

    fn channels(&self, pixels: usize, all: usize) -> Selection {
        let channels = all / self.whole.groups;
        Selection {
            pixels: self.images.start * pixels..self.images.end * pixels,
            channels: self.group * channels..(self.group + 1) * channels,
            all,
        }
    }

    /// The weights of the group.
    fn weight<'b>(&self, weight: &'b [f32]) -> &'b [f32] {
        let len = weight.len() / self.whole.groups;
        &weight[self.group * len..][..len]
    }

    /// The norm of the group's inputs.
    fn norm<'b>(&self, norm: Normalise<'b>) -> Normalise<'b> {
        let channels = self.inputs().channels;
        Normalise {
            scale: &norm.scale[channels.clone()],
            shift: &norm.shift[channels],
            ..norm
        }
    }
}

/// Some channels of some pixels of a tensor.
#[derive(Clone)]
struct Selection {
    pixels: Range<usize>,
    channels: Range<usize>,
    /// The number of channels of a pixel of the tensor.
    all: usize,
}

impl Selection {
    /// Brings them together.
    fn gathered(&self, context: &Context, tensor: &[f32]) -> Vec<f32> {
        let (pixels, channels) = (self.pixels.len(), self.channels.len());
        let first = self.pixels.start * self.all + self.channels.start;
        let write = |out: Out| {
            let copy = Copy {
                from: tensor.as_ptr().wrapping_add(first),
                from_pixel: self.all,
                to: out,
                to_pixel: channels,
                pixels,
                channels,
            };
            // SAFETY: the tensor has these pixels and channels, and the buffer has room for them.
            unsafe { context.isa().run(copy) };
        };
        // SAFETY: the copy writes every channel of every pixel.
        unsafe { filled(context, pixels * channels, write) }
    }

    /// Brings them back to their place in a tensor.
    ///
    /// # Safety
    /// The tensor has these pixels and channels, `values` are as many, and nobody else uses them in the tensor.
    unsafe fn scatter(&self, context: &Context, values: &[f32], tensor: Out) {
        let first = self.pixels.start * self.all + self.channels.start;
        let channels = self.channels.len();
        let copy = Copy {
            from: values.as_ptr(),
            from_pixel: channels,
            to: Out(tensor.at(first)),
            to_pixel: self.all,
            pixels: self.pixels.len(),
            channels,
        };
        // SAFETY: the caller's promise.
        unsafe { context.isa().run(copy) };
    }
}

/// Copies the channels of pixels that are some floats apart.
struct Copy {
    from: *const f32,
    from_pixel: usize,
    to: Out,
    to_pixel: usize,
    pixels: usize,
    channels: usize,
}

impl Kernel for Copy {
    /// # Safety
    /// Both sides have the channels of all pixels, and nobody else uses those that are written.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for pixel in 0..self.pixels {
            let from = self.from.wrapping_add(pixel * self.from_pixel);
            let to = self.to.at(pixel * self.to_pixel);
            let mut at = 0;
            while at < self.channels {
                let lanes = self.channels - at;
                // SAFETY: `lanes` channels are left.
                unsafe {
                    S::store_partial(to.add(at), S::load_partial(from.add(at), lanes), lanes);
                };
                at += S::LANES;
            }
        }
    }
}
