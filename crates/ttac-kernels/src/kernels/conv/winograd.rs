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
//!
//! The gradient of the weights correlates input tiles with gradient tiles, which is F(3 x 3, m x m) over the same points: the same `Bt` for the input,
//! another `G` for the gradient, and the sum over tiles is taken before the transformation back.
//!
//! # Points
//! The polynomials are evaluated at 0, the points below with both signs, and infinity. For m = 4 the textbook takes 1 and 2. Smaller points near 1 in
//! geometric mean round less: with 5/8 and 3/2 (exact in binary, squares too) the error is half as large, at the same cost.

use super::direct::Panels;
use super::gemm::{Finish, Outer, Product, Rows, Step};
use super::{ConvShape, Epilogue};
use crate::kernels::recycle::Scratch;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::kernels::{Out, filled};
use rayon::prelude::*;
use std::ops::Range;

/// The two points of F(4x4, 3x3), and the only one of F(2x2, 3x3).
const POINT_A: f32 = 0.625;
const POINT_B: f32 = 1.5;

/// What a row of `G` is divided by: the product of the point's distances to the others.
const fn divisors() -> [f32; 3] {
    let (a, b) = (
        POINT_A as f64 * POINT_A as f64,
        POINT_B as f64 * POINT_B as f64,
    );
    [
        (1. / (a * b)) as f32,
        (1. / (2. * a * (a - b))) as f32,
        (1. / (2. * b * (b - a))) as f32,
    ]
}

/// Positions of a transformed tile with edge `a`.
const fn positions(a: usize) -> usize {
    a * a
}

/// One dimension of `Bt`: input to positions.
#[inline(always)]
unsafe fn input_transform<S: Simd, const A: usize>(d: [S::V; A]) -> [S::V; A] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut t = d;
        if A == 4 {
            t[0] = S::sub(d[0], d[2]);
            t[1] = S::add(d[2], d[1]);
            t[2] = S::sub(d[2], d[1]);
            t[3] = S::sub(d[3], d[1]);
        } else {
            let (a, b) = (POINT_A * POINT_A, POINT_B * POINT_B);
            let (product, sum) = (S::splat(a * b), S::splat(-(a + b)));
            t[0] = S::fma(product, d[0], S::fma(sum, d[2], d[4]));
            t[5] = S::fma(product, d[1], S::fma(sum, d[3], d[5]));
            let even = S::fma(S::splat(-b), d[2], d[4]);
            let odd = S::mul(S::splat(POINT_A), S::fma(S::splat(-b), d[1], d[3]));
            (t[1], t[2]) = (S::add(even, odd), S::sub(even, odd));
            let even = S::fma(S::splat(-a), d[2], d[4]);
            let odd = S::mul(S::splat(POINT_B), S::fma(S::splat(-a), d[1], d[3]));
            (t[3], t[4]) = (S::add(even, odd), S::sub(even, odd));
        }
        t
    }
}

/// One dimension of `At`: positions to outputs; the first `A - 2` of the result count.
#[inline(always)]
unsafe fn output_transform<S: Simd, const A: usize>(m: [S::V; A]) -> [S::V; 4] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let (p, q) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        if A == 4 {
            [S::add(m[0], p), S::add(q, m[3]), p, q]
        } else {
            let (r, s) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            let power = |x: f32, n: i32| S::splat(x.powi(n));
            [
                S::add(m[0], S::add(p, r)),
                S::fma(S::splat(POINT_A), q, S::mul(S::splat(POINT_B), s)),
                S::fma(power(POINT_A, 2), p, S::mul(power(POINT_B, 2), r)),
                S::add(
                    S::fma(power(POINT_A, 3), q, S::mul(power(POINT_B, 3), s)),
                    m[5],
                ),
            ]
        }
    }
}

/// One dimension of `G`: a kernel of three values to positions.
#[inline(always)]
unsafe fn kernel_transform<S: Simd, const A: usize>(k: [S::V; 3]) -> [S::V; A] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut t = [k[2]; A];
        let pair = |point: f32, divisor: f32| {
            let even = S::mul(
                S::splat(divisor),
                S::fma(S::splat(point * point), k[2], k[0]),
            );
            let odd = S::mul(S::splat(divisor * point), k[1]);
            (S::add(even, odd), S::sub(even, odd))
        };
        if A == 4 {
            t[0] = k[0];
            (t[1], t[2]) = pair(1., 0.5);
        } else {
            let [zero, a, b] = divisors();
            t[0] = S::mul(S::splat(zero), k[0]);
            (t[1], t[2]) = pair(POINT_A, a);
            (t[3], t[4]) = pair(POINT_B, b);
        }
        t
    }
}

/// One dimension of the weight gradient's `G`: a tile of `A - 2` output gradients (the first of `g`) to positions.
#[inline(always)]
unsafe fn gradient_transform<S: Simd, const A: usize>(g: [S::V; 4]) -> [S::V; A] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let mut t = [g[A - 3]; A];
        if A == 4 {
            let half = S::splat(0.5);
            t[0] = g[0];
            t[1] = S::mul(half, S::add(g[0], g[1]));
            t[2] = S::mul(half, S::sub(g[0], g[1]));
        } else {
            let [zero, a, b] = divisors();
            let pair = |point: f32, divisor: f32| {
                let even = S::mul(
                    S::splat(divisor),
                    S::fma(S::splat(point * point), g[2], g[0]),
                );
                let odd = S::mul(
                    S::splat(divisor * point),
                    S::fma(S::splat(point * point), g[3], g[1]),
                );
                (S::add(even, odd), S::sub(even, odd))
            };
            t[0] = S::mul(S::splat(zero), g[0]);
            (t[1], t[2]) = pair(POINT_A, a);
            (t[3], t[4]) = pair(POINT_B, b);
        }
        t
    }
}

/// One dimension of the weight gradient's `At`: positions to three values.
#[inline(always)]
unsafe fn gradient_sum_transform<S: Simd, const A: usize>(m: [S::V; A]) -> [S::V; 3] {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let (p, q) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        if A == 4 {
            [S::add(m[0], p), q, S::add(p, m[3])]
        } else {
            let (r, s) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            let (a, b) = (S::splat(POINT_A), S::splat(POINT_B));
            [
                S::add(m[0], S::add(p, r)),
                S::fma(a, q, S::mul(b, s)),
                S::add(S::fma(S::mul(a, a), p, S::mul(S::mul(b, b), r)), m[5]),
            ]
        }
    }
}

/// The tiles of a batch of images: tile `(i, j)` of image `n` begins at pixel `(step i, step j)` of the output.
#[derive(Clone, Copy)]
struct Tiles {
    batch: usize,
    rows: usize,
    columns: usize,
    step: usize,
}

impl Tiles {
    fn new(batch: usize, height: usize, width: usize, step: usize) -> Self {
        Self {
            batch,
            rows: height.div_ceil(step),
            columns: width.div_ceil(step),
            step,
        }
    }

    fn count(&self) -> usize {
        self.batch * self.rows * self.columns
    }

    /// Image, and first row and column in the output.
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (row, j) = (tile / self.columns, tile % self.columns);
        (row / self.rows, row % self.rows * self.step, j * self.step)
    }
}

/// A batch of images to cut tiles from.
#[derive(Clone, Copy)]
struct Images<'a> {
    data: &'a [f32],
    height: usize,
    width: usize,
    channels: usize,
    /// As long as a row; stands for the rows outside.
    zeros: &'a [f32],
}

impl Images<'_> {
    /// The first pixel of each of `N` rows of image `n`, from `row` on; zeros for rows outside.
    #[inline(always)]
    fn rows<const N: usize>(&self, n: usize, row: isize) -> [*const f32; N] {
        let mut rows = [self.zeros.as_ptr(); N];
        for (i, pointer) in rows.iter_mut().enumerate() {
            let h = (row + i.cast_signed()).cast_unsigned();
            if h < self.height {
                *pointer = self
                    .data
                    .as_ptr()
                    .wrapping_add((n * self.height + h) * self.width * self.channels);
            }
        }
        rows
    }

    /// Asks for the pixels of the next tile: four columns from `column` on, of the rows from `first` on (earlier rows were seen by the tiles above).
    #[inline(always)]
    fn prefetch<S: Simd, const N: usize>(
        &self,
        rows: &[*const f32; N],
        first: usize,
        column: isize,
        channel: usize,
    ) {
        let at = column.cast_unsigned() * self.channels + channel;
        for row in &rows[first..] {
            for j in 0..4 {
                S::prefetch(row.wrapping_add(at + j * self.channels));
            }
        }
    }

    /// The vectors from `channel` on of the pixels in `column` of some rows; zeros for columns outside.
    ///
    /// # Safety
    /// The processor has `S`; `rows` come from [`Images::rows`] and `channel` is a channel.
    #[inline(always)]
    unsafe fn column<S: Simd, const N: usize>(
        &self,
        rows: &[*const f32; N],
        column: isize,
        channel: usize,
    ) -> [S::V; N] {
        // SAFETY: a column inside the image (the zeros are as wide), and a channel that exists.
        unsafe {
            let mut vectors = [S::splat(0.); N];
            if column.cast_unsigned() < self.width {
                let at = column.cast_unsigned() * self.channels + channel;
                for i in 0..N {
                    vectors[i] = S::load_partial(rows[i].add(at), self.channels - channel);
                }
            }
            vectors
        }
    }
}

/// A block of transformed tiles, `[position][channel block][tile][LANES]`.
#[derive(Clone, Copy)]
struct Layout {
    /// Room for this many tiles.
    tiles: usize,
    blocks: usize,
    lanes: usize,
}

impl Layout {
    /// Floats from one channel block to the next.
    fn block(&self) -> usize {
        self.tiles * self.lanes
    }

    /// Floats from one position to the next. Odd in cache lines: the positions of a tile are written together and must not share a cache set.
    fn position(&self) -> usize {
        ((self.tiles * self.blocks) | 1) * self.lanes
    }

    fn len(&self, a: usize) -> usize {
        positions(a) * self.position()
    }
}

/// Transforms windows of `A x A` input pixels, one per tile, each `padding` above and left of its tile. Slot `s` is for tile `first + s`.
///
/// # Safety
/// The processor has `S`; `out` has room for `layout`, which has room for the tiles.
#[inline(always)]
unsafe fn transform_inputs<S: Simd, const A: usize>(
    images: &Images,
    tiles: &Tiles,
    first: usize,
    slots: Range<usize>,
    padding: isize,
    out: *mut f32,
    layout: Layout,
) {
    for slot in slots {
        let (n, row, column) = tiles.place(first + slot);
        let rows = images.rows::<A>(n, row.cast_signed() - padding);
        let column = column.cast_signed() - padding;
        for block in 0..layout.blocks {
            let channel = block * S::LANES;
            // SAFETY: the rows are those of an image or the zeros; the slot is inside the layout.
            unsafe {
                let mut t = [[S::splat(0.); A]; A];
                images.prefetch::<S, A>(&rows, 2, column + A.cast_signed(), channel);
                for j in 0..A {
                    let d = images.column::<S, A>(&rows, column + j.cast_signed(), channel);
                    let d = input_transform::<S, A>(d);
                    for i in 0..A {
                        t[i][j] = d[i];
                    }
                }
                let out = out.add(block * layout.block() + slot * S::LANES);
                for i in 0..A {
                    let d = input_transform::<S, A>(t[i]);
                    for j in 0..A {
                        S::store(out.add((i * A + j) * layout.position()), d[j]);
                    }
                }
            }
        }
    }
}

/// Transforms tiles of output gradients.
///
/// # Safety
/// As [`transform_inputs`].
#[inline(always)]
unsafe fn transform_gradients<S: Simd, const A: usize>(
    images: &Images,
    tiles: &Tiles,
    first: usize,
    slots: Range<usize>,
    out: *mut f32,
    layout: Layout,
) {
    for slot in slots {
        let (n, row, column) = tiles.place(first + slot);
        let rows = images.rows::<4>(n, row.cast_signed());
        for block in 0..layout.blocks {
            let channel = block * S::LANES;
            // SAFETY: the rows are those of an image or the zeros; the slot is inside the layout.
            unsafe {
                let mut t = [[S::splat(0.); 4]; A];
                images.prefetch::<S, 4>(&rows, 0, (column + A - 2).cast_signed(), channel);
                for j in 0..A - 2 {
                    let g = images.column::<S, 4>(&rows, (column + j).cast_signed(), channel);
                    let g = gradient_transform::<S, A>(g);
                    for i in 0..A {
                        t[i][j] = g[i];
                    }
                }
                let out = out.add(block * layout.block() + slot * S::LANES);
                for i in 0..A {
                    let g = gradient_transform::<S, A>(t[i]);
                    for j in 0..A {
                        S::store(out.add((i * A + j) * layout.position()), g[j]);
                    }
                }
            }
        }
    }
}

/// Transformed weights, `[position][panel][in][panel width]`.
struct Weights {
    values: Scratch,
    inputs: usize,
    panels: Panels,
}

impl Weights {
    /// `at(o, i)` is the index in `weight` of the first of nine values of the kernel from input channel `i` to output channel `o`; `flip` turns it around.
    fn new<const A: usize>(
        weight: &[f32],
        inputs: usize,
        outputs: usize,
        flip: bool,
        isa: Isa,
        at: impl Fn(usize, usize) -> usize + Sync,
    ) -> Self {
        /// A task is at most this many input channels of one vector of output channels.
        const INPUTS: usize = 64;
        let panels = Panels::new(outputs, isa);
        let mut values = Scratch::new(positions(A) * inputs * panels.padded());
        let out = Out(values.as_mut_ptr());
        let per_panel = panels.width / panels.lanes;
        let input_tasks = inputs.div_ceil(INPUTS);
        (0..panels.padded() / panels.lanes * input_tasks)
            .into_par_iter()
            .for_each(|task| {
                let (vector, part) = (task / input_tasks, task % input_tasks);
                let panel = vector / per_panel;
                isa.run(TransformKernels::<_, A> {
                    weight,
                    at: &|lane, i| {
                        let o = vector * panels.lanes + lane;
                        (o < outputs).then(|| at(o, i))
                    },
                    inputs: part * INPUTS..((part + 1) * INPUTS).min(inputs),
                    flip,
                    out: out.at(panel * panels.width * inputs + vector % per_panel * panels.lanes),
                    row: panels.vectors(panel) * panels.lanes,
                    position: inputs * panels.padded(),
                });
            });
        Self {
            values,
            inputs,
            panels,
        }
    }

    fn panel(&self, position: usize, panel: usize) -> *const f32 {
        self.values.as_ptr().wrapping_add(
            self.inputs * (position * self.panels.padded() + panel * self.panels.width),
        )
    }
}

/// Transforms the kernels from some input channels to one vector of output channels.
struct TransformKernels<'a, F, const A: usize> {
    weight: &'a [f32],
    /// The index of the kernel's first value; none for lanes that do not exist.
    at: &'a F,
    inputs: Range<usize>,
    flip: bool,
    out: *mut f32,
    /// Floats from one input channel to the next.
    row: usize,
    /// Floats from one position to the next.
    position: usize,
}

impl<F: Fn(usize, usize) -> Option<usize>, const A: usize> Kernel for TransformKernels<'_, F, A> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut taps = [[0f32; 16]; 9];
        for i in self.inputs {
            for lane in 0..S::LANES {
                if let Some(at) = (self.at)(lane, i) {
                    let kernel = &self.weight[at..at + 9];
                    for t in 0..9 {
                        taps[t][lane] = kernel[t];
                    }
                }
            }
            // SAFETY: `taps` holds `LANES <= 16` floats per tap; this vector of input channel `i` belongs to this task alone.
            unsafe {
                let mut half = [[S::splat(0.); 3]; A];
                for b in 0..3 {
                    let mut column = [S::splat(0.); 3];
                    for a in 0..3 {
                        let tap = a * 3 + b;
                        column[a] = S::load(taps[if self.flip { 8 - tap } else { tap }].as_ptr());
                    }
                    let column = kernel_transform::<S, A>(column);
                    for a in 0..A {
                        half[a][b] = column[a];
                    }
                }
                let out = self.out.add(i * self.row);
                for a in 0..A {
                    let row = kernel_transform::<S, A>(half[a]);
                    for b in 0..A {
                        S::store(out.add((a * A + b) * self.position), row[b]);
                    }
                }
            }
        }
    }
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

/// A convolution of stride 1.
struct Convolution<'a> {
    images: Images<'a>,
    tiles: Tiles,
    padding: isize,
    weights: Weights,
    out: Out,
    out_size: [usize; 2],
    epilogue: Epilogue<'a>,
}

/// Transformed tiles and their products, of the tiles from `first` on.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
    inputs: Layout,
    v: Out,
    outputs: Layout,
    m: Out,
}

/// The stages of a convolution.
#[derive(Clone)]
enum Stage {
    /// Transforms some of the block's tiles.
    Inputs(Range<usize>),
    /// Multiplies one position of all tiles with one panel of weights.
    Multiply { position: usize, panel: usize },
    /// Transforms some of the block's tiles back.
    Outputs(Range<usize>),
    /// All of that, for all tiles.
    All,
}

/// One stage for a block of tiles.
struct Task<'a, const A: usize> {
    convolution: &'a Convolution<'a>,
    block: Block,
    stage: Stage,
    /// The reduction over the input channels.
    steps: &'a [Step],
}

impl<const A: usize> Kernel for Task<'_, A> {
    type Output = ();

    /// # Safety
    /// Besides the instruction set: the buffers of the block have room for the layouts and nobody else works on the same part of them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (c, block) = (self.convolution, &self.block);
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.stage {
                Stage::Inputs(tiles) => transform_block::<S, A>(c, block, tiles),
                Stage::Multiply { position, panel } => {
                    multiply::<S>(c, block, self.steps, position, panel);
                }
                Stage::Outputs(tiles) => transform_outputs::<S, A>(c, block, tiles),
                Stage::All => {
                    transform_block::<S, A>(c, block, 0..block.count);
                    for position in 0..positions(A) {
                        for panel in 0..c.weights.panels.count() {
                            multiply::<S>(c, block, self.steps, position, panel);
                        }
                    }
                    transform_outputs::<S, A>(c, block, 0..block.count);
                }
            }
        }
    }
}

/// # Safety
/// As [`Task`].
#[inline(always)]
unsafe fn transform_block<S: Simd, const A: usize>(
    c: &Convolution,
    block: &Block,
    tiles: Range<usize>,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        transform_inputs::<S, A>(
            &c.images,
            &c.tiles,
            block.first,
            tiles,
            c.padding,
            block.v.0,
            block.inputs,
        );
    };
}

/// # Safety
/// As [`Task`].
#[inline(always)]
unsafe fn multiply<S: Simd>(
    c: &Convolution,
    block: &Block,
    steps: &[Step],
    position: usize,
    panel: usize,
) {
    let panels = c.weights.panels;
    let first_plane = panel * (panels.width / S::LANES);
    let product = Product {
        rows: block.count,
        a: block.v.at(position * block.inputs.position()),
        steps,
        weights: c.weights.panel(position, panel),
        vectors: panels.vectors(panel),
        out: block
            .m
            .at(position * block.outputs.position() + first_plane * block.outputs.block()),
        out_rows: Rows::Every(S::LANES),
        out_vector: block.outputs.block(),
        last_lanes: S::LANES,
        accumulate: false,
        finish: Finish::NONE,
    };
    // SAFETY: the layouts hold `count` tiles; the rest is the caller's promise.
    unsafe { (&product).run::<S>() };
}

/// Transforms the products of some tiles back, finishes and stores them.
///
/// # Safety
/// The processor has `S`; the block holds the tiles' products, and nobody else writes their outputs.
#[inline(always)]
unsafe fn transform_outputs<S: Simd, const A: usize>(
    c: &Convolution,
    block: &Block,
    slots: Range<usize>,
) {
    let channels = c.weights.panels.outputs;
    let (layout, products) = (block.outputs, block.m.0);
    for slot in slots {
        let (n, row, column) = c.tiles.place(block.first + slot);
        // Tiles at the edge may hang over.
        let (rows, columns) = (
            (c.out_size[0] - row).min(A - 2),
            (c.out_size[1] - column).min(A - 2),
        );
        for block in 0..layout.blocks {
            let channel = block * S::LANES;
            let lanes = channels - channel;
            // SAFETY: position, block and slot are inside the layout; pixel (row + i, column + j) with i < rows, j < columns is inside the output.
            unsafe {
                let m = products.add(block * layout.block() + slot * S::LANES);
                let mut t = [[S::splat(0.); A]; 4];
                for j in 0..A {
                    let mut d = [S::splat(0.); A];
                    for i in 0..A {
                        d[i] = S::load(m.add((i * A + j) * layout.position()));
                    }
                    let d = output_transform::<S, A>(d);
                    for i in 0..A - 2 {
                        t[i][j] = d[i];
                    }
                }
                let bias = match c.epilogue.bias {
                    Some(bias) => S::load_partial(bias.as_ptr().add(channel), lanes),
                    None => S::splat(0.),
                };
                for i in 0..A - 2 {
                    if i == rows {
                        break;
                    }
                    let y = output_transform::<S, A>(t[i]);
                    for j in 0..A - 2 {
                        if j == columns {
                            break;
                        }
                        let at = ((n * c.out_size[0] + row + i) * c.out_size[1] + column + j)
                            * channels
                            + channel;
                        let mut y = S::add(y[j], bias);
                        if let Some(residual) = c.epilogue.residual {
                            y = S::add(y, S::load_partial(residual.as_ptr().add(at), lanes));
                        }
                        if c.epilogue.relu {
                            y = S::relu(y);
                        }
                        S::store_partial(c.out.at(at), y, lanes);
                    }
                }
            }
        }
    }
}

impl Convolution<'_> {
    fn run<const A: usize>(&self, isa: Isa) {
        let lanes = isa.lanes();
        let panels = self.weights.panels;
        let blocks = [
            self.images.channels.div_ceil(lanes),
            panels.padded() / lanes,
        ];
        let floats = positions(A) * (blocks[0] + blocks[1]) * lanes;
        let room = tiles_per_task(
            floats,
            positions(A) * self.images.channels * panels.padded(),
        );
        let count = self.tiles.count();
        let few = count.div_ceil(room) < FEW_TASKS;
        let room = if few { count.min(2 * MOST_TILES) } else { room };
        let with_buffers = |first: usize, work: &dyn Fn(Block)| {
            let [inputs, outputs] = blocks.map(|blocks| Layout {
                tiles: room,
                blocks,
                lanes,
            });
            let (mut v, mut m) = (Scratch::new(inputs.len(A)), Scratch::new(outputs.len(A)));
            let count = room.min(count - first);
            work(Block {
                first,
                count,
                inputs,
                v: Out(v.as_mut_ptr()),
                outputs,
                m: Out(m.as_mut_ptr()),
            });
        };
        let steps = steps(self.images.channels, room, lanes);
        let run = |block: Block, stage: Stage| {
            isa.run(Task::<A> {
                convolution: self,
                block,
                stage,
                steps: &steps,
            });
        };
        if !few {
            (0..count.div_ceil(room))
                .into_par_iter()
                .for_each(|task| with_buffers(task * room, &|block| run(block, Stage::All)));
            return;
        }
        for first in (0..count).step_by(room) {
            with_buffers(first, &|block| {
                let parts = block.count.div_ceil(TRANSFORMED_AT_ONCE);
                let part = |i: usize| {
                    i * TRANSFORMED_AT_ONCE..((i + 1) * TRANSFORMED_AT_ONCE).min(block.count)
                };
                (0..parts)
                    .into_par_iter()
                    .for_each(|i| run(block, Stage::Inputs(part(i))));
                (0..positions(A) * panels.count())
                    .into_par_iter()
                    .for_each(|i| {
                        run(
                            block,
                            Stage::Multiply {
                                position: i / panels.count(),
                                panel: i % panels.count(),
                            },
                        );
                    });
                (0..parts)
                    .into_par_iter()
                    .for_each(|i| run(block, Stage::Outputs(part(i))));
            });
        }
    }
}

/// The reduction over the input channels.
fn steps(channels: usize, room: usize, lanes: usize) -> Vec<Step> {
    (0..channels.div_ceil(lanes))
        .map(|b| Step {
            offset: b * room * lanes,
            count: (channels - b * lanes).min(lanes),
        })
        .collect()
}

/// `y` from `x`, with tiles of edge `A`.
pub(super) fn forward<const A: usize>(
    x: &[f32],
    weight: &[f32],
    s: &ConvShape,
    epilogue: &Epilogue,
    isa: Isa,
) -> Vec<f32> {
    let (inputs, outputs) = (s.in_channels, s.out_channels);
    let weights = Weights::new::<A>(weight, inputs, outputs, false, isa, |o, i| {
        (o * inputs + i) * 9
    });
    let zeros = vec![0.; s.width * inputs];
    let out_size = [s.out_height(), s.out_width()];
    // SAFETY: the tiles cover the output.
    unsafe {
        filled(s.out_len(), |out| {
            Convolution {
                images: Images {
                    data: x,
                    height: s.height,
                    width: s.width,
                    channels: inputs,
                    zeros: &zeros,
                },
                tiles: Tiles::new(s.batch, out_size[0], out_size[1], A - 2),
                padding: s.padding.cast_signed(),
                weights,
                out,
                out_size,
                epilogue: *epilogue,
            }
            .run::<A>(isa);
        })
    }
}

/// `dx` from `dy`: a convolution with the kernels turned around and the channels exchanged.
pub(super) fn input_gradient<const A: usize>(
    dy: &[f32],
    weight: &[f32],
    s: &ConvShape,
    isa: Isa,
) -> Vec<f32> {
    let (inputs, outputs) = (s.out_channels, s.in_channels);
    let weights = Weights::new::<A>(weight, inputs, outputs, true, isa, |o, i| {
        (i * outputs + o) * 9
    });
    let zeros = vec![0.; s.out_width() * inputs];
    // SAFETY: the tiles cover the input.
    unsafe {
        filled(s.in_len(), |out| {
            Convolution {
                images: Images {
                    data: dy,
                    height: s.out_height(),
                    width: s.out_width(),
                    channels: inputs,
                    zeros: &zeros,
                },
                tiles: Tiles::new(s.batch, s.height, s.width, A - 2),
                padding: 2 - s.padding.cast_signed(),
                weights,
                out,
                out_size: [s.height, s.width],
                epilogue: Epilogue::default(),
            }
            .run::<A>(isa);
        })
    }
}

/// `dw` with tiles of edge `A`.
///
/// While the sums (one per position and pair of channels) fit the second-level cache, the tiles are cut into chunks with sums of their own, which are
/// added in the chunks' order. Larger sums exist once: block after block of tiles is transformed, and then every position adds its products.
pub(super) fn weight_gradient<const A: usize>(
    x: &[f32],
    dy: &[f32],
    s: &ConvShape,
    isa: Isa,
) -> Vec<f32> {
    let lanes = isa.lanes();
    let blocks = [s.in_channels, s.out_channels].map(|c| c.div_ceil(lanes));
    let [inputs, outputs] = blocks.map(|b| b * lanes);
    let tiles = Tiles::new(s.batch, s.out_height(), s.out_width(), A - 2);
    let count = tiles.count();
    let sum_len = positions(A) * inputs * outputs;
    let floats = positions(A) * (inputs + outputs);
    let large = sum_len > CACHED;
    let room = if large {
        (SHARED_TILES / floats).clamp(MOST_TILES, count.max(MOST_TILES))
    } else {
        tiles_per_task(floats, sum_len)
    };
    // Every chunk costs the zeroing and adding of its sums: let it have some blocks of tiles.
    let chunks = if large {
        1
    } else {
        count
            .div_ceil(8 * room)
            .clamp(count.div_ceil(room).min(4), 16)
    };
    let chunk = count.div_ceil(chunks).next_multiple_of(room);
    let zeros = vec![0.; (s.width * s.in_channels).max(s.out_width() * s.out_channels)];
    let mut sums = Scratch::new(chunks * sum_len);
    let gradient = Gradient {
        x: Images {
            data: x,
            height: s.height,
            width: s.width,
            channels: s.in_channels,
            zeros: &zeros,
        },
        dy: Images {
            data: dy,
            height: s.out_height(),
            width: s.out_width(),
            channels: s.out_channels,
            zeros: &zeros,
        },
        tiles,
        padding: s.padding.cast_signed(),
    };
    let chunk_sums = Out(sums.as_mut_ptr());
    (0..chunks).into_par_iter().for_each(|c| {
        let [inputs, outputs] = blocks.map(|blocks| Layout {
            tiles: room,
            blocks,
            lanes,
        });
        let (mut v, mut m) = (Scratch::new(inputs.len(A)), Scratch::new(outputs.len(A)));
        let (v, m) = (Out(v.as_mut_ptr()), Out(m.as_mut_ptr()));
        let run = |first: usize, last: usize, stage: GradientStage| {
            let block = Block {
                first,
                count: last - first,
                inputs,
                v,
                outputs,
                m,
            };
            let sums = Out(chunk_sums.at(c * sum_len));
            isa.run(GradientTask::<A> {
                gradient: &gradient,
                block,
                stage,
                sums,
                fresh: first == c * chunk,
            });
        };
        for first in (c * chunk..((c + 1) * chunk).min(count)).step_by(room) {
            let last = (first + room).min((c + 1) * chunk).min(count);
            if large {
                let parts = (last - first).div_ceil(TRANSFORMED_AT_ONCE);
                let part = |i: usize| {
                    i * TRANSFORMED_AT_ONCE..((i + 1) * TRANSFORMED_AT_ONCE).min(last - first)
                };
                (0..parts)
                    .into_par_iter()
                    .for_each(|i| run(first, last, GradientStage::Transform(part(i))));
                (0..positions(A))
                    .into_par_iter()
                    .for_each(|i| run(first, last, GradientStage::Multiply(i..i + 1)));
            } else {
                run(first, last, GradientStage::Transform(0..last - first));
                run(first, last, GradientStage::Multiply(0..positions(A)));
            }
        }
    });
    let sums = &sums;
    // SAFETY: the tasks cover all pairs of channels, and write nine values for each.
    unsafe {
        filled(s.weight_len(), |out| {
            (0..s.in_channels.div_ceil(8))
                .into_par_iter()
                .for_each(|task| {
                    isa.run(GradientBack::<A> {
                        sums: sums.as_ptr(),
                        chunks: count.div_ceil(chunk),
                        inputs: task * 8..(task * 8 + 8).min(s.in_channels),
                        padded: [inputs, outputs],
                        channels: [s.in_channels, s.out_channels],
                        out,
                    });
                });
        })
    }
}

/// Floats of transformed tiles of both kinds that all cores work on together (4 MiB).
const SHARED_TILES: usize = 1024 * 1024;

/// What a weight gradient is made of.
struct Gradient<'a> {
    x: Images<'a>,
    dy: Images<'a>,
    tiles: Tiles,
    padding: isize,
}

/// The stages of a weight gradient.
enum GradientStage {
    /// Transforms some of the block's tiles, of the input and of the gradient.
    Transform(Range<usize>),
    /// Adds the products of all tiles to the sums of some positions.
    Multiply(Range<usize>),
}

/// One stage for a block of tiles, whose `m` holds the transformed gradients.
struct GradientTask<'a, const A: usize> {
    gradient: &'a Gradient<'a>,
    block: Block,
    stage: GradientStage,
    /// `[position][in][out]`.
    sums: Out,
    /// Whether the sums begin with this block.
    fresh: bool,
}

impl<const A: usize> Kernel for GradientTask<'_, A> {
    type Output = ();

    /// # Safety
    /// Besides the instruction set: the buffers of the block have room for the layouts, and nobody else works on the same part of them or on the same sums.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (g, block) = (self.gradient, &self.block);
        let (inputs, outputs) = (block.inputs, block.outputs);
        let (rows, row) = (inputs.blocks * S::LANES, outputs.blocks * S::LANES);
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.stage {
                GradientStage::Transform(slots) => {
                    transform_inputs::<S, A>(
                        &g.x,
                        &g.tiles,
                        block.first,
                        slots.clone(),
                        g.padding,
                        block.v.0,
                        inputs,
                    );
                    transform_gradients::<S, A>(
                        &g.dy,
                        &g.tiles,
                        block.first,
                        slots,
                        block.m.0,
                        outputs,
                    );
                }
                GradientStage::Multiply(positions) => {
                    for position in positions {
                        let sums = self.sums.at(position * rows * row);
                        for plane in 0..inputs.blocks {
                            let outer = Outer {
                                rows: block.count,
                                a: block
                                    .v
                                    .at(position * inputs.position() + plane * inputs.block()),
                                channels: S::LANES,
                                b: block.m.at(position * outputs.position()),
                                b_planes: outputs.blocks,
                                b_plane: outputs.block(),
                                out: sums.add(plane * S::LANES * row),
                                out_stride: row,
                                accumulate: !self.fresh,
                            };
                            S::enter(&outer);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the chunks' sums and transforms them back to kernels.
struct GradientBack<const A: usize> {
    sums: *const f32,
    chunks: usize,
    inputs: Range<usize>,
    padded: [usize; 2],
    channels: [usize; 2],
    out: Out,
}

impl<const A: usize> Kernel for GradientBack<A> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [rows, row] = self.padded;
        let sum_len = positions(A) * rows * row;
        for input in self.inputs {
            for first in (0..self.channels[1]).step_by(S::LANES) {
                let mut kernels = [[0f32; 16]; 9];
                // SAFETY: the sums hold `chunks` times `[position][rows][row]`, and `row` is whole vectors.
                unsafe {
                    let mut half = [[S::splat(0.); A]; 3];
                    for b in 0..A {
                        let mut column = [S::splat(0.); A];
                        for a in 0..A {
                            let at = ((a * A + b) * rows + input) * row + first;
                            for chunk in 0..self.chunks {
                                column[a] =
                                    S::add(column[a], S::load(self.sums.add(chunk * sum_len + at)));
                            }
                        }
                        let column = gradient_sum_transform::<S, A>(column);
                        for a in 0..3 {
                            half[a][b] = column[a];
                        }
                    }
                    for a in 0..3 {
                        let values = gradient_sum_transform::<S, A>(half[a]);
                        for b in 0..3 {
                            S::store(kernels[a * 3 + b].as_mut_ptr(), values[b]);
                        }
                    }
                }
                for lane in 0..(self.channels[1] - first).min(S::LANES) {
                    for (t, kernel) in kernels.iter().enumerate() {
                        let at = ((first + lane) * self.channels[0] + input) * 9 + t;
                        // SAFETY: the kernel of an existing pair of channels, which belongs to this task alone.
                        unsafe { *self.out.at(at) = kernel[lane] };
                    }
                }
            }
        }
    }
}
