//! Which places of the source the places of an output see, along one axis.

use crate::core::window::Window;

/// Places of an output that are equally far apart, and what they see. Place `first + every * j`, for `j < count`, sees the source at `step * j + offset`
/// for each tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) first: usize,
    pub(super) every: usize,
    pub(super) count: usize,
    pub(super) step: usize,
    /// Their offsets ascend.
    pub(super) taps: Vec<Tap>,
}

/// A tap of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    pub(super) offset: isize,
    /// Which weight of the axis it is.
    pub(super) weight: usize,
}

impl Line {
    /// The places of a convolution's output, all of one kind.
    pub(super) fn forward(window: &Window, axis: usize, count: usize) -> Vec<Self> {
        let padding = window.padding[axis][0].cast_signed();
        let tap = |weight: usize| Tap {
            offset: (weight * window.dilation[axis]).cast_signed() - padding,
            weight,
        };
        vec![Self {
            first: 0,
            every: 1,
            count,
            step: window.stride[axis],
            taps: (0..window.kernel[axis]).map(tap).collect(),
        }]
    }

    /// The places of a convolution's input, `size` of them, as they see the gradient of the output: those with the same remainder modulo the stride are of
    /// one kind.
    pub(super) fn backward(window: &Window, axis: usize, size: usize) -> Vec<Self> {
        let every = window.stride[axis];
        let line = |first: usize| {
            let tap = |weight: usize| {
                let place = (first + window.padding[axis][0]).cast_signed()
                    - (weight * window.dilation[axis]).cast_signed();
                let every = every.cast_signed();
                (place.rem_euclid(every) == 0).then(|| Tap {
                    offset: place.div_euclid(every),
                    weight,
                })
            };
            Self {
                first,
                every,
                count: (size - first).div_ceil(every),
                step: 1,
                taps: (0..window.kernel[axis]).rev().filter_map(tap).collect(),
            }
        };
        (0..every.min(size)).map(line).collect()
    }

    /// Places that see themselves.
    pub(super) fn identity(count: usize) -> Self {
        let tap = Tap {
            offset: 0,
            weight: 0,
        };
        Self {
            first: 0,
            every: 1,
            count,
            step: 1,
            taps: vec![tap],
        }
    }

    /// Returns the distance of each tap from the first.
    pub(super) fn offsets(&self) -> Vec<usize> {
        let first = self.taps.first().map_or(0, |tap| tap.offset);
        let distance = |tap: &Tap| (tap.offset - first).cast_unsigned();
        self.taps.iter().map(distance).collect()
    }

    /// Returns how many places of the source lie between the outermost taps, both included.
    pub(super) fn span(&self) -> usize {
        match (self.taps.first(), self.taps.last()) {
            (Some(first), Some(last)) => (last.offset - first.offset).cast_unsigned() + 1,
            _ => 0,
        }
    }

    /// Whether the taps see neighbouring places.
    pub(super) fn is_dense(&self) -> bool {
        self.span() == self.taps.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs (input place, tap) are the same seen from the output and from the input.
    #[test]
    fn both_directions_meet_the_same_taps() {
        for (kernel, stride, dilation, padding) in [
            (3, 1, 1, 1),
            (3, 2, 1, 1),
            (5, 2, 1, 2),
            (3, 3, 2, 0),
            (1, 2, 1, 0),
            (2, 1, 5, 7),
        ] {
            let window = Window {
                kernel: [kernel; 2],
                stride: [stride; 2],
                dilation: [dilation; 2],
                padding: [[padding, padding + 1]; 2],
            };
            let size = 9;
            let [places, _] = window.places([size; 2]);
            let pairs = |lines: &[Line], sources: usize, swap: bool| {
                let mut pairs = Vec::new();
                for line in lines {
                    for (j, tap) in
                        (0..line.count).flat_map(|j| line.taps.iter().map(move |t| (j, t)))
                    {
                        let from = (line.step * j).cast_signed() + tap.offset;
                        if (0..sources.cast_signed()).contains(&from) {
                            let (from, to) = (from.cast_unsigned(), line.first + line.every * j);
                            let (input, output) = if swap { (to, from) } else { (from, to) };
                            pairs.push((input, output, tap.weight));
                        }
                    }
                }
                pairs.sort_unstable();
                pairs
            };
            assert_eq!(
                pairs(&Line::forward(&window, 0, places), size, false),
                pairs(&Line::backward(&window, 0, size), places, true),
                "{window:?}"
            );
        }
    }
}
