//! The weights of a direct convolution in the order in which the micro-kernel reads them.

use std::ops::Range;

use rayon::prelude::*;

use super::gemm::in_quads;
use crate::Context;
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::Isa;

/// Packed weights: panels of some vectors of output channels (the last may have fewer), each `[tap][in][panel width]` (with one vector perhaps in the order of
/// [`in_quads`]), zeros in missing lanes.
pub(super) struct Packed<'a> {
    values: Scratch<'a>,
    pub(super) inputs: usize,
    reduction: usize,
    pub(super) panels: Panels,
}

/// How output channels are cut into panels.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub(super) outputs: usize,
    pub(super) lanes: usize,
    /// Lanes of a full panel.
    pub(super) width: usize,
}

impl Panels {
    pub(super) fn new(outputs: usize, isa: Isa) -> Self {
        let lanes = isa.lanes();
        Self {
            outputs,
            lanes,
            width: lanes * isa.panel(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.outputs.div_ceil(self.width)
    }

    /// Vectors of panel `p`.
    pub(super) fn vectors(&self, p: usize) -> usize {
        (self.outputs - p * self.width)
            .div_ceil(self.lanes)
            .min(self.width / self.lanes)
    }

    /// Lanes of panel `p`'s last vector that exist.
    pub(super) fn last_lanes(&self, p: usize) -> usize {
        (self.outputs - p * self.width - (self.vectors(p) - 1) * self.lanes).min(self.lanes)
    }

    /// Whether the weights of panel `p` are in the order of [`in_quads`].
    pub(super) fn in_quads(&self, p: usize, inputs: usize) -> bool {
        self.vectors(p) == 1 && inputs.is_multiple_of(4)
    }

    /// Output channels rounded up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.outputs.next_multiple_of(self.lanes)
    }
}

/// Where a weight is. Output channels come in groups of `group`; the one for output channel `o` of group `g`, input channel `i` and tap `t` is at
/// `o * output + i * input + taps[g][t]`, or is 0 if the group has no such tap.
pub(super) struct WeightOrder {
    pub(super) output: usize,
    pub(super) input: usize,
    pub(super) group: usize,
    pub(super) taps: Vec<Vec<Option<usize>>>,
}

impl WeightOrder {
    /// The weights of tap `t` from some input channels (at most [`PACKED_AT_ONCE`]), a row for each, to some output channels; zeros behind.
    fn rows(
        &self,
        weight: &[f32],
        outputs: Range<usize>,
        inputs: &Range<usize>,
        t: usize,
    ) -> [[f32; MOST_LANES]; PACKED_AT_ONCE] {
        let mut rows = [[0.; MOST_LANES]; PACKED_AT_ONCE];
        let mut group = outputs.start / self.group.max(1);
        let mut start = outputs.start;
        while start < outputs.end {
            let end = ((group + 1) * self.group).min(outputs.end);
            if let Some(tap) = self.taps[group][t] {
                let base = start % self.group * self.output + inputs.start * self.input + tap;
                let lanes = start - outputs.start..end - outputs.start;
                // The shorter distance goes inside, so that a cache line is used up before the next.
                if self.output < self.input {
                    for (i, row) in rows.iter_mut().enumerate().take(inputs.len()) {
                        let values = &weight[base + i * self.input..];
                        let row = &mut row[lanes.clone()];
                        if self.output == 1 {
                            row.copy_from_slice(&values[..row.len()]);
                        } else {
                            for (o, place) in row.iter_mut().enumerate() {
                                *place = values[o * self.output];
                            }
                        }
                    }
                } else {
                    for (o, lane) in lanes.enumerate() {
                        let values = &weight[base + o * self.output..];
                        if let (1, Some(line)) = (self.input, values.first_chunk()) {
                            // In one go; what is more than the inputs is not looked at.
                            let line: &[f32; PACKED_AT_ONCE] = line;
                            for i in 0..PACKED_AT_ONCE {
                                rows[i][lane] = line[i];
                            }
                        } else {
                            for (i, row) in rows.iter_mut().enumerate().take(inputs.len()) {
                                row[lane] = values[i * self.input];
                            }
                        }
                    }
                }
            }
            (start, group) = (end, group + 1);
        }
        rows
    }
}

/// Input channels that are packed together: a cache line of them.
const PACKED_AT_ONCE: usize = 16;
/// Most lanes of a panel.
const MOST_LANES: usize = 64;

impl<'a> Packed<'a> {
    /// Packs the weights from `inputs` to `outputs` channels.
    pub(super) fn new(
        context: &'a Context,
        weight: &[f32],
        [outputs, inputs]: [usize; 2],
        order: &WeightOrder,
    ) -> Self {
        let taps = order.taps.first().map_or(0, Vec::len);
        let panels = Panels::new(outputs, context.isa());
        let mut values = Scratch::new(context, &[panels.padded(), taps, inputs]);
        let reduction = taps * inputs;
        let out = Out(values.as_mut_ptr());
        let parts = inputs.div_ceil(PACKED_AT_ONCE);
        (0..panels.count() * parts)
            .into_par_iter()
            .for_each(|task| {
                let (p, part) = (task / parts, task % parts);
                let first = p * panels.width;
                let width = panels.vectors(p) * panels.lanes;
                let quads = panels.in_quads(p, inputs);
                let some = part * PACKED_AT_ONCE..((part + 1) * PACKED_AT_ONCE).min(inputs);
                for t in 0..taps {
                    let rows = order.rows(weight, first..(first + width).min(outputs), &some, t);
                    for (i, row) in some.clone().zip(&rows) {
                        let tap = first * reduction + t * inputs * width;
                        // SAFETY: inside panel `p` and among these input channels (in whole quads), which only this task writes.
                        unsafe {
                            if quads {
                                for lane in 0..width {
                                    *out.at(tap + in_quads(i, lane, panels.lanes)) = row[lane];
                                }
                            } else {
                                out.at(tap + i * width)
                                    .copy_from_nonoverlapping(row.as_ptr(), width);
                            }
                        }
                    }
                }
            });
        Self {
            values,
            inputs,
            reduction,
            panels,
        }
    }

    /// Panel `p` from row `row` of the reduction on.
    pub(super) fn panel(&self, p: usize, row: usize) -> *const f32 {
        let width = self.panels.vectors(p) * self.panels.lanes;
        self.values
            .as_ptr()
            .wrapping_add(p * self.panels.width * self.reduction + row * width)
    }
}
