//! From bytes to numbers and back, and what lies beyond the border.

/// Unit scale to a byte as the recipe does it: clipped, then truncated, not rounded.
#[inline]
pub(crate) fn to_byte(value: f64) -> u8 {
    (value.clamp(0.0, 1.0) * 255.0) as u8
}

/// [`to_byte`] where the recipe computes in single precision.
#[inline]
pub(crate) fn to_byte_f32(value: f32) -> u8 {
    (value.clamp(0.0, 1.0) * 255.0) as u8
}

/// What an index outside the image stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Border {
    /// `aaaa|abcd|dddd`
    Nearest,
    /// `dcba|abcd|dcba`
    Reflect,
    /// `dcb|abcd|cba`
    Reflect101,
}

impl Border {
    /// The index inside `0..length` that `index` stands for.
    #[inline]
    pub(crate) fn index(self, index: isize, length: usize) -> usize {
        let length = length as isize;
        if (0..length).contains(&index) {
            return index as usize;
        }
        let inside = match self {
            Self::Nearest => index.clamp(0, length - 1),
            Self::Reflect => {
                let folded = index.rem_euclid(2 * length);
                folded.min(2 * length - 1 - folded)
            }
            Self::Reflect101 => {
                let folded = index.rem_euclid(2 * length - 2);
                folded.min(2 * length - 2 - folded)
            }
        };
        inside as usize
    }

    /// The indices that the one before `at`, `at` and the one after stand for.
    #[inline]
    pub(crate) fn three(self, at: usize, length: usize) -> [usize; 3] {
        [-1, 0, 1].map(|step| self.index(at as isize + step, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_continue_the_line_as_drawn() {
        let line = |border: Border| -> String {
            (-5..9)
                .map(|index| char::from(b"abcd"[border.index(index, 4)]))
                .collect()
        };
        assert_eq!(line(Border::Nearest), "aaaaaabcdddddd");
        assert_eq!(line(Border::Reflect), "ddcbaabcddcbaa");
        assert_eq!(line(Border::Reflect101), "bcdcbabcdcbabc");
    }

    #[test]
    fn bytes_are_truncated_and_clipped() {
        assert_eq!(
            [-0.1, 0.0, 0.999, 1.0, 7.0].map(to_byte),
            [0, 0, 254, 255, 255]
        );
        assert_eq!(to_byte_f32(0.5), 127);
    }
}
