//! Pooling and the shortcut without parameters, forward and backward, on NHWC.
//!
//! | file | what |
//! |---|---|
//! | `average` | the mean over windows |
//! | `maximum` | the maximum over windows |
//! | `global` | the mean over whole images |
//! | `shortcut` | every so many pixels, with zeros for more channels |

mod average;
mod global;
mod maximum;
mod shortcut;

pub use average::{Divisor, average_pool_backward, average_pool_forward};
pub use global::{global_average_backward, global_average_forward};
pub use maximum::{NO_PIXEL, max_pool_backward, max_pool_forward};
pub use shortcut::{ShortcutShape, shortcut_a_backward, shortcut_a_forward};

use crate::core::shape::elements;
use crate::core::window::Window;

/// The sizes of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// The number of images.
    pub batch: usize,
    /// The height of the input, in pixels.
    pub height: usize,
    /// The width of the input, in pixels.
    pub width: usize,
    /// The number of channels.
    pub channels: usize,
    /// The window, whose padding on a side is smaller than itself: zeros for the average, nothing for the maximum.
    pub window: Window,
    /// Whether a remainder at the end of an edge has a window of its own, see [`Window::places_ceil`].
    pub ceil: bool,
}

impl PoolShape {
    /// Makes the shape of a pooling of `[batch, height, width, channels]` that leaves out remainders.
    pub fn new([batch, height, width, channels]: [usize; 4], window: Window) -> Self {
        Self {
            batch,
            height,
            width,
            channels,
            window,
            ceil: false,
        }
    }

    /// Returns the height of the output, in pixels.
    pub fn out_height(&self) -> usize {
        self.places()[0]
    }

    /// Returns the width of the output, in pixels.
    pub fn out_width(&self) -> usize {
        self.places()[1]
    }

    fn places(&self) -> [usize; 2] {
        let size = [self.height, self.width];
        if self.ceil {
            self.window.places_ceil(size)
        } else {
            self.window.places(size)
        }
    }

    pub(in crate::pool) fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.channels]
    }

    pub(in crate::pool) fn out_shape(&self) -> [usize; 4] {
        let [height, width] = self.places();
        [self.batch, height, width, self.channels]
    }

    /// Panics if a size of the window is absurd.
    pub(in crate::pool) fn check(&self) {
        self.window.check("a pooling", self);
        let fits = |axis: usize| {
            let [before, after] = self.window.padding[axis];
            before.max(after) < self.window.span(axis)
        };
        assert!(
            fits(0) && fits(1),
            "a pooling needs a padding that is smaller than the window, found {self:?}"
        );
    }

    /// Returns the lengths of input and output.
    ///
    /// # Panics
    /// If a slice could not hold one of them. So no product of some of the sizes wraps afterwards.
    fn lens(&self) -> [usize; 2] {
        [
            elements("input of a pooling", &self.in_shape()),
            elements("output of a pooling", &self.out_shape()),
        ]
    }

    /// Returns for each place along an axis the coordinates inside the image that the window sees there, in ascending order.
    ///
    /// There are about as many as the pooling reads along this axis, so that it is called only if there is something to read.
    fn seen(&self, axis: usize) -> Vec<Vec<usize>> {
        let (places, edge) = (self.places()[axis], [self.height, self.width][axis]);
        let Window {
            kernel,
            stride,
            dilation,
            padding,
        } = self.window;
        let (dilation, before) = (dilation[axis], padding[axis][0]);
        let seen = |place: usize| {
            let start = place * stride[axis];
            let first = before.saturating_sub(start).div_ceil(dilation);
            let end = (before + edge).saturating_sub(start).div_ceil(dilation);
            let taps = first..end.min(kernel[axis]);
            taps.map(|tap| start + tap * dilation - before).collect()
        };
        (0..places).map(seen).collect()
    }
}

/// Returns for each coordinate of an edge the places that see it, in ascending order, from [`PoolShape::seen`].
fn seen_by(seen: &[Vec<usize>], edge: usize) -> Vec<Vec<usize>> {
    let mut by = vec![Vec::new(); edge];
    for (place, coordinates) in seen.iter().enumerate() {
        for &at in coordinates {
            by[at].push(place);
        }
    }
    by
}
