//! The micro-kernel of forward passes and input gradients: pixels of a row, side by side in registers, times the weights of their lanes.

use crate::activation::kernel::{Activation, activated};
use crate::conv::kernel::Epilogue;
use crate::conv::kernel::gemm::Finish;
use crate::core::parallel::Out;
use crate::core::simd::{Kernel, Simd};

/// What the pixels see of one plane of one row, in the first block: the column that the first tap sees at the first pixel, and the weights `[tap][LANES]`.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    pub(super) x: *const f32,
    pub(super) weights: *const f32,
}

/// `out[pixel] = sum over planes and taps of x[step * pixel + offsets[tap]] * weights[tap]`, for some blocks of channels, a vector each.
pub(super) struct Product<'a> {
    pub(super) planes: &'a [Plane],
    pub(super) blocks: usize,
    /// Floats from what is kept of a block to the next.
    pub(super) x_block: usize,
    /// Floats from the weights of a block to the next.
    pub(super) weights_block: usize,
    /// The pixels of a tile, see [`tile`]. The planes go on for as many pixels as fill the last tile.
    pub(super) tile: usize,
    /// Columns from what a pixel sees to what the next one sees.
    pub(super) step: usize,
    /// Columns from the first tap to each.
    pub(super) offsets: &'a [usize],
    /// Whether the offsets are 0, 1, 2 ..
    pub(super) is_dense: bool,
    pub(super) target: Target,
    /// How many floats ahead the output is asked for, if it is far away.
    pub(super) fetch: Option<usize>,
}

/// Where sums go, and what is done to them before they are stored.
pub(super) struct Target {
    /// The first pixel and channel.
    out: *mut f32,
    pub(super) pixels: usize,
    /// Floats from a pixel to the next.
    out_pixel: usize,
    /// The channels from the first on that are stored.
    channels: usize,
    finish: Finish,
}

impl Target {
    /// One pixel: `channels` channels from index `at` of the output on, the first of which is number `channel`.
    pub(super) fn new(
        epilogue: &Epilogue,
        out: Out,
        [at, channel]: [usize; 2],
        channels: usize,
    ) -> Self {
        let (null, residual) = (std::ptr::null(), epilogue.residual);
        Self {
            out: out.at(at),
            pixels: 1,
            out_pixel: 0,
            channels,
            finish: Finish {
                bias: epilogue.bias.map_or(null, |b| b[channel..].as_ptr()),
                residual: residual.map_or(null, |r| r.as_ptr().wrapping_add(at)),
                activation: epilogue.activation,
            },
        }
    }

    /// As many pixels, `distance` floats from each to the next.
    pub(super) fn with_pixels(self, pixels: usize, distance: usize) -> Self {
        Self {
            pixels,
            out_pixel: distance,
            ..self
        }
    }
}

/// Returns how many of `count` pixels are computed together: the size whose last tile hangs over the least. (Images of 224 pixels lead to multiples of 7.)
pub(super) fn tile(count: usize) -> usize {
    [8, 7, 4]
        .into_iter()
        .min_by_key(|&tile| count.next_multiple_of(tile))
        .unwrap_or(8)
}

impl Kernel for &Product<'_> {
    /// # Safety
    /// Besides the instruction set: the pointers cover what the fields say, and nobody else writes the output.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.tile {
                8 => self.tiles::<S, 8>(),
                7 => self.tiles::<S, 7>(),
                _ => self.tiles::<S, 4>(),
            }
        }
    }
}

impl Product<'_> {
    /// Computes all pixels, `T` at a time.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn tiles<S: Simd, const T: usize>(&self) {
        macro_rules! tiles {
            ($($taps:literal $step:literal),*) => {
                match (self.offsets.len(), self.step) {
                    // SAFETY: the caller's promise.
                    $(($taps, $step) if self.is_dense => unsafe { S::enter(Tiles::<T, $taps, $step>(self)) },)*
                    // SAFETY: the caller's promise.
                    _ => unsafe { S::enter(AnyTiles::<T>(self)) },
                }
            };
        }
        // Kernels of stride 1 and their gradients, those of stride 2, and the gradients of the latter: they have 1 and 2, 2 and 3, or 3 and 4 taps.
        tiles!(3 1, 5 1, 7 1, 3 2, 5 2, 7 2, 1 1, 2 1, 4 1);
    }
}

impl Target {
    /// The address of a pixel, and some floats more.
    #[inline(always)]
    fn at(&self, more: usize, pixel: usize) -> *mut f32 {
        self.out.wrapping_add(more + pixel * self.out_pixel)
    }

    /// Finishes and stores the sums of a tile, those of its pixels that exist.
    ///
    /// # Safety
    /// The processor has `S`; pixel and block (a vector of channels) exist in the output and in the epilogue, and nobody else uses them in the output.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd, const T: usize>(
        &self,
        block: usize,
        pixel: usize,
        sums: [S::V; T],
    ) {
        let (count, finish) = (self.pixels - pixel, &self.finish);
        let plain = finish.bias.is_null()
            && finish.residual.is_null()
            && finish.activation == Activation::None;
        let channel = block * S::LANES;
        let lanes = self.channels - channel;
        let at = pixel * self.out_pixel + channel;
        // SAFETY: the caller's promise; a tile has at most 8 pixels.
        unsafe {
            if count >= T && plain && lanes >= S::LANES {
                for t in 0..T {
                    S::store(self.out.add(at + t * self.out_pixel), sums[t]);
                }
                return;
            }
            // Through memory, in a loop that is not unrolled: an unrolled one would not leave the sums in registers above.
            let mut buffer = [0f32; 8 * 16];
            for t in 0..T {
                S::store(buffer.as_mut_ptr().add(t * S::LANES), sums[t]);
            }
            for t in 0..T.min(count) {
                let at = at + t * self.out_pixel;
                let mut sum = S::load(buffer.as_ptr().add(t * S::LANES));
                if !finish.bias.is_null() {
                    sum = S::add(sum, S::load_partial(finish.bias.add(channel), lanes));
                }
                if !finish.residual.is_null() {
                    sum = S::add(sum, S::load_partial(finish.residual.add(at), lanes));
                }
                let [y] = activated::<S, 1>(finish.activation, [sum]);
                S::store_partial(self.out.add(at), y, lanes);
            }
        }
    }
}

/// Tiles of `T` pixels for `K` neighbouring taps: each value is loaded once and meets all taps that see it.
struct Tiles<'a, const T: usize, const K: usize, const STEP: usize>(&'a Product<'a>);

impl<const T: usize, const K: usize, const STEP: usize> Kernel for Tiles<'_, T, K, STEP> {
    /// # Safety
    /// The product is one of `K` neighbouring taps and this step, and its pointers cover what its fields say.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.0;
        for block in 0..p.blocks {
            for pixel in (0..p.target.pixels).step_by(T) {
                let first = block * p.x_block + pixel * STEP * S::LANES;
                if let Some(ahead) = p.fetch {
                    let at = ahead + block * S::LANES;
                    for t in 0..T {
                        S::prefetch_write(p.target.at(at, pixel + t));
                    }
                }
                // SAFETY: the planes go on to the end of the last tile; every pixel of it that is stored exists.
                unsafe {
                    let mut sums = [S::splat(0.); T];
                    for plane in p.planes {
                        let x = plane.x.add(first);
                        let weights = plane.weights.add(block * p.weights_block);
                        for k in 0..K {
                            let weight = S::load(weights.add(k * S::LANES));
                            for t in 0..T {
                                let x = S::load(x.add((t * STEP + k) * S::LANES));
                                sums[t] = S::fma(x, weight, sums[t]);
                            }
                        }
                    }
                    p.target.store::<S, T>(block, pixel, sums);
                }
            }
        }
    }
}

/// Tiles of `T` pixels for any taps.
struct AnyTiles<'a, const T: usize>(&'a Product<'a>);

impl<const T: usize> Kernel for AnyTiles<'_, T> {
    /// # Safety
    /// The product's pointers cover what its fields say.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.0;
        let step = p.step * S::LANES;
        for block in 0..p.blocks {
            for pixel in (0..p.target.pixels).step_by(T) {
                let first = block * p.x_block + pixel * step;
                // SAFETY: as in `Tiles`.
                unsafe {
                    let mut sums = [S::splat(0.); T];
                    for plane in p.planes {
                        let x = plane.x.add(first);
                        let weights = plane.weights.add(block * p.weights_block);
                        for (k, offset) in p.offsets.iter().enumerate() {
                            let weight = S::load(weights.add(k * S::LANES));
                            let x = x.add(offset * S::LANES);
                            for t in 0..T {
                                sums[t] = S::fma(S::load(x.add(t * step)), weight, sums[t]);
                            }
                        }
                    }
                    p.target.store::<S, T>(block, pixel, sums);
                }
            }
        }
    }
}
