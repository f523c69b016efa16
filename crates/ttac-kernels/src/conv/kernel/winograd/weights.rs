//! Transforming the weights, in parallel.

use std::ops::Range;

use rayon::prelude::*;

use super::positions;
use super::transform::kernel_transform;
use crate::Context;
use crate::conv::kernel::gemm::to_quads;
use crate::conv::kernel::packing::Panels;
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// Transformed weights, `[position][panel][in][panel width]`, a panel of one vector perhaps in quads.
pub(super) struct Weights<'a> {
    values: Scratch<'a>,
    inputs: usize,
    pub(super) panels: Panels,
}

impl<'a> Weights<'a> {
    /// Transforms the kernels from `inputs` to `outputs` channels. `at(o, i)` is the index in `weight` of the first of nine values of the kernel from input channel `i` to output channel `o`; `flip` turns it around.
    pub(super) fn new<const A: usize>(
        context: &'a Context,
        weight: &[f32],
        [inputs, outputs]: [usize; 2],
        flip: bool,
        at: impl Fn(usize, usize) -> usize + Sync,
    ) -> Self {
        /// A task is at most this many input channels of one vector of output channels.
        const INPUTS: usize = 64;
        let isa = context.isa();
        let panels = Panels::new(outputs, isa);
        let mut values = Scratch::new(context, &[positions(A), inputs, panels.padded()]);
        let out = Out(values.as_mut_ptr());
        let per_panel = panels.width / panels.lanes;
        let input_tasks = inputs.div_ceil(INPUTS);
        (0..panels.padded() / panels.lanes * input_tasks)
            .into_par_iter()
            .for_each(|task| {
                let (vector, part) = (task / input_tasks, task % input_tasks);
                let panel = vector / per_panel;
                let task = TransformKernels::<_, A> {
                    weight,
                    at: &|lane, i| {
                        let o = vector * panels.lanes + lane;
                        (o < outputs).then(|| at(o, i))
                    },
                    inputs: part * INPUTS..((part + 1) * INPUTS).min(inputs),
                    flip,
                    out: out.at(panel * panels.width * inputs + vector % per_panel * panels.lanes),
                    row: panels.vectors(panel) * panels.lanes,
                    quads: panels.in_quads(panel, inputs),
                    position: inputs * panels.padded(),
                };
                // SAFETY: a vector of output channels inside its panel, for input channels that exist; no two tasks have both in common. Tasks begin at
                // a multiple of four input channels, so a quad belongs to one task.
                unsafe { isa.run(task) };
            });
        Self {
            values,
            inputs,
            panels,
        }
    }

    pub(super) fn panel(&self, position: usize, panel: usize) -> *const f32 {
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
    /// Whether the weights are to be brought into quads.
    quads: bool,
    /// Floats from one position to the next.
    position: usize,
}

impl<F: Fn(usize, usize) -> Option<usize>, const A: usize> Kernel for TransformKernels<'_, F, A> {
    /// # Safety
    /// `out` has room for a vector at every position of every input channel, and nobody else uses those of this task. With quads the input channels come
    /// in fours.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut taps = [[0f32; 16]; 9];
        for i in self.inputs.clone() {
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
        if self.quads {
            for i in self.inputs.step_by(4) {
                for position in 0..positions(A) {
                    // SAFETY: the four vectors of these input channels, which were written above.
                    unsafe {
                        let at = self.out.add(position * self.position + i * self.row);
                        let mut weights = [S::splat(0.); 4];
                        for c in 0..4 {
                            weights[c] = S::load(at.add(c * self.row));
                        }
                        let weights = to_quads::<S>(weights);
                        for c in 0..4 {
                            S::store(at.add(c * self.row), weights[c]);
                        }
                    }
                }
            }
        }
    }
}
