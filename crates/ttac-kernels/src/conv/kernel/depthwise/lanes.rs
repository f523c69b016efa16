//! Which channels meet in a lane, and the weights in that order.

use rayon::prelude::*;

use super::lines::Line;
use crate::Context;
use crate::conv::kernel::ConvShape;
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::Isa;

/// Most planes: with more of them the rows in the cache would be too many, and a matrix product per group is faster.
const MOST_PLANES: usize = 8;

/// Which channel of the source a lane holds. The lanes are those of the result's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conv::kernel) enum Lanes {
    /// In plane `p`, the lane of channel `c` holds channel `c ^ p`. There is one plane for each channel of a group, a power of two.
    Exchanged {
        /// The number of planes.
        planes: usize,
    },
    /// The lane of channel `c` holds channel `c / times`.
    Repeated {
        /// The number of output channels for an input channel.
        times: usize,
    },
    /// The lane of channel `c` holds channel `c * every + first`.
    Every {
        /// The distance of the channels.
        every: usize,
        /// The first of them.
        first: usize,
    },
    /// Lanes hold their channels, but a block has channels of one group alone, whose last block may have fewer.
    Whole {
        /// The number of channels of a group.
        channels: usize,
    },
}

impl Lanes {
    /// The order for the forward pass of a shape, if it is depthwise or its groups are so small that several of them fit a vector.
    pub(in crate::conv::kernel) fn of(s: &ConvShape, isa: Isa) -> Option<Self> {
        let (inputs, outputs) = (s.in_channels / s.groups, s.out_channels / s.groups);
        if inputs == 1 && outputs > 1 {
            return Some(Self::Repeated { times: outputs });
        }
        let fits = inputs.is_power_of_two() && inputs <= isa.lanes().min(MOST_PLANES);
        (inputs == outputs && fits).then_some(Self::Exchanged { planes: inputs })
    }

    /// Returns the number of planes.
    pub(super) fn planes(self) -> usize {
        match self {
            Self::Exchanged { planes } => planes,
            Self::Repeated { .. } | Self::Every { .. } | Self::Whole { .. } => 1,
        }
    }

    /// Returns the channel of the source in the lane of a channel.
    pub(super) fn source(self, channel: usize, plane: usize) -> usize {
        match self {
            Self::Exchanged { .. } => channel ^ plane,
            Self::Repeated { times } => channel / times,
            Self::Every { every, first } => channel * every + first,
            Self::Whole { .. } => channel,
        }
    }

    /// Returns the first channel of a block, and how many there are from it on (perhaps more than a block has lanes), of `all` channels.
    #[inline(always)]
    pub(super) fn block(self, block: usize, all: usize, lanes: usize) -> (usize, usize) {
        match self {
            Self::Whole { channels } => {
                let parts = channels.div_ceil(lanes);
                let (group, first) = (block / parts, block % parts * lanes);
                (group * channels + first, channels - first)
            }
            _ => (block * lanes, all - block * lanes),
        }
    }

    /// Returns how many blocks, of `all` channels, hold as many channels as lanes and follow each other without a gap.
    pub(super) fn whole_blocks(self, all: usize, lanes: usize) -> usize {
        match self {
            Self::Whole { channels } if !channels.is_multiple_of(lanes) => 0,
            _ => all / lanes,
        }
    }

    /// Returns where the weights between the lane of a channel and what it holds begin: those of output channel `o` and channel `i` of its group are at
    /// `(o * inputs + i) * taps`. `backward`: the lanes are the input's channels and hold gradients of the output.
    pub(super) fn weights(
        self,
        s: &ConvShape,
        backward: bool,
        channel: usize,
        plane: usize,
    ) -> usize {
        let inputs = s.in_channels / s.groups;
        let (output, input) = if backward {
            (self.source(channel, plane), channel)
        } else {
            (channel, self.source(channel, plane))
        };
        (output * inputs + input % inputs) * s.taps()
    }
}

/// The weights for the lines of columns, each `[block][row of the kernel][plane][tap][LANES]`, zeros in missing lanes.
pub(super) struct Packed<'a> {
    values: Scratch<'a>,
    lanes: usize,
    kernel_height: usize,
    planes: usize,
    /// For each line where its weights begin, and how many taps it has.
    lines: Vec<(usize, usize)>,
}

impl<'a> Packed<'a> {
    /// Packs weights for `channels` lanes. `backward` as for [`Lanes::weights`].
    pub(super) fn new(
        context: &'a Context,
        weight: &[f32],
        s: &ConvShape,
        order: Lanes,
        columns: &[Line],
        backward: bool,
    ) -> Self {
        let lanes = context.isa().lanes();
        let channels = if backward {
            s.in_channels
        } else {
            s.out_channels
        };
        let (blocks, planes) = (channels.div_ceil(lanes), order.planes());
        let [kernel_height, kernel_width] = s.window.kernel;
        let mut starts = Vec::with_capacity(columns.len());
        let mut taps = 0;
        for line in columns {
            starts.push((
                blocks * kernel_height * planes * taps * lanes,
                line.taps.len(),
            ));
            taps += line.taps.len();
        }
        let mut values = Scratch::new(context, &[blocks, kernel_height, planes, taps, lanes]);
        let out = Out(values.as_mut_ptr());
        (0..blocks).into_par_iter().for_each(|block| {
            for (plane, lane) in (0..planes).flat_map(|p| (0..lanes).map(move |lane| (p, lane))) {
                let channel = block * lanes + lane;
                let kernel = if channel < channels {
                    &weight[order.weights(s, backward, channel, plane)..][..s.taps()]
                } else {
                    &[]
                };
                for (line, &(start, count)) in columns.iter().zip(&starts) {
                    for row in 0..kernel_height {
                        let vector = (block * kernel_height + row) * planes + plane;
                        for (t, tap) in line.taps.iter().enumerate() {
                            let value = kernel.get(row * kernel_width + tap.weight);
                            let at = start + (vector * count + t) * lanes + lane;
                            // SAFETY: the place of this lane, in the block of this task.
                            unsafe { *out.at(at) = value.copied().unwrap_or(0.) };
                        }
                    }
                }
            }
        });
        Self {
            values,
            lanes,
            kernel_height,
            planes,
            lines: starts,
        }
    }

    /// Floats from the weights of a block to the next, for a line.
    #[inline(always)]
    pub(super) fn block(&self, line: usize) -> usize {
        self.kernel_height * self.planes * self.lines[line].1 * self.lanes
    }

    /// The weights of a block's row of the kernel in a plane, for a line.
    #[inline(always)]
    pub(super) fn at(&self, line: usize, block: usize, row: usize, plane: usize) -> *const f32 {
        let (start, taps) = self.lines[line];
        let vector = (block * self.kernel_height + row) * self.planes + plane;
        self.values
            .as_ptr()
            .wrapping_add(start + vector * taps * self.lanes)
    }
}
