//! A window that moves over images, of convolutions and pools.

use std::fmt::Debug;

use super::shape::{check_window, padded, places};

/// The window of a convolution or a pool. Everything is given for rows first, then for columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The height and width of the window, in taps.
    pub kernel: [usize; 2],
    /// The distance between neighbouring places of the window, in pixels.
    pub stride: [usize; 2],
    /// The distance between neighbouring taps of the window, in pixels.
    pub dilation: [usize; 2],
    /// The number of pixels that are added before and after each axis: above and below, left and right.
    pub padding: [[usize; 2]; 2],
}

impl Window {
    /// Makes a square window without dilation, padded equally on every side.
    pub const fn square(kernel: usize, stride: usize, padding: usize) -> Self {
        Self {
            kernel: [kernel; 2],
            stride: [stride; 2],
            dilation: [1; 2],
            padding: [[padding; 2]; 2],
        }
    }

    /// Returns kernel, stride and padding if the window is square, without dilation and padded equally on every side.
    pub fn as_square(&self) -> Option<[usize; 3]> {
        let [kernel, stride, padding] = [self.kernel[0], self.stride[0], self.padding[0][0]];
        (*self == Self::square(kernel, stride, padding)).then_some([kernel, stride, padding])
    }

    /// Returns the number of pixels from the first to the last tap along an axis, both included.
    pub fn span(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilation[axis] + 1
    }

    /// Returns how often the window fits along each edge of an image, where the remainder is left out.
    ///
    /// # Panics
    /// If a padded edge is longer than any slice.
    pub fn places(&self, size: [usize; 2]) -> [usize; 2] {
        std::array::from_fn(|axis| {
            places(
                size[axis],
                self.span(axis),
                self.stride[axis],
                self.padding[axis],
            )
        })
    }

    /// Returns how often the window fits along each edge of an image, where a remainder has a place of its own, at which the window hangs over the end.
    ///
    /// The last place is left out if it begins behind the image, in the padding after it: there is nothing to see. (This is the rule of PyTorch's `ceil_mode`.)
    ///
    /// # Panics
    /// If a padded edge is longer than any slice.
    pub fn places_ceil(&self, size: [usize; 2]) -> [usize; 2] {
        std::array::from_fn(|axis| {
            let (stride, [before, after]) = (self.stride[axis], self.padding[axis]);
            let reach = padded(size[axis], [before, after]) + stride - 1;
            let places = reach
                .checked_sub(self.span(axis))
                .map_or(0, |rest| rest / stride + 1);
            let is_behind = places > 0 && (places - 1) * stride >= size[axis] + before;
            places - usize::from(is_behind)
        })
    }

    /// Panics if a size of the window is 0 or absurdly large; `whole` is the shape of the operation, for the message.
    pub(crate) fn check(&self, what: &str, whole: &dyn Debug) {
        for axis in 0..2 {
            check_window(
                what,
                [self.kernel[axis], self.stride[axis], self.dilation[axis]],
                self.padding[axis],
                whole,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of PyTorch's pools.
    #[test]
    fn a_remainder_has_a_place_of_its_own_if_it_sees_the_image() {
        let along = |edge: usize, kernel: usize, stride: usize, padding: usize| {
            let window = Window::square(kernel, stride, padding);
            [
                window.places([edge; 2])[0],
                window.places_ceil([edge; 2])[0],
            ]
        };
        assert_eq!(along(6, 3, 2, 0), [2, 3]);
        assert_eq!(along(7, 3, 2, 0), [3, 3]);
        assert_eq!(along(5, 2, 2, 1), [3, 3]); // the fourth would begin in the padding at the end
        assert_eq!(along(6, 2, 3, 1), [3, 3]);
        assert_eq!(along(2, 3, 2, 0), [0, 1]); // the window is larger than the image
        assert_eq!(along(1, 3, 1, 0), [0, 0]);
        assert_eq!(along(112, 3, 2, 0), [55, 56]);
        assert_eq!(along(4, 1, 3, 0), [2, 2]);
        assert_eq!(along(5, 1, 3, 0), [2, 2]); // the third would begin behind the image
    }

    #[test]
    fn a_span_has_the_gaps_of_the_dilation() {
        let window = Window {
            dilation: [2, 3],
            ..Window::square(3, 1, 0)
        };
        assert_eq!([window.span(0), window.span(1)], [5, 7]);
        assert_eq!(window.places([5, 9]), [1, 3]);
        assert_eq!(window.as_square(), None);
        assert_eq!(Window::square(3, 2, 1).as_square(), Some([3, 2, 1]));
    }
}
