//! Hue, saturation, value, in the double precision and order of operations of the recipe's library.

/// Each in [0, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hsv {
    pub(crate) hue: f64,
    pub(crate) saturation: f64,
    pub(crate) value: f64,
}

impl Hsv {
    #[inline]
    #[expect(
        clippy::float_cmp,
        reason = "the maximum equals one of the three exactly"
    )]
    pub(crate) fn from_rgb([red, green, blue]: [f64; 3]) -> Self {
        let value = red.max(green).max(blue);
        let spread = value - red.min(green).min(blue);
        if spread == 0.0 {
            return Self {
                hue: 0.0,
                saturation: 0.0,
                value,
            };
        }
        // Where two channels share the maximum, the later one wins.
        let sixths = if blue == value {
            4.0 + (red - green) / spread
        } else if green == value {
            2.0 + (blue - red) / spread
        } else {
            (green - blue) / spread
        };
        let hue = sixths / 6.0;
        Self {
            hue: if hue < 0.0 { hue + 1.0 } else { hue },
            saturation: spread / value,
            value,
        }
    }

    #[inline]
    pub(crate) fn to_rgb(self) -> [f64; 3] {
        let Self {
            hue,
            saturation,
            value,
        } = self;
        let sixths = hue * 6.0;
        let sector = sixths.floor();
        let within = sixths - sector;
        let low = value * (1.0 - saturation);
        let falling = value * (1.0 - within * saturation);
        let rising = value * (1.0 - (1.0 - within) * saturation);
        match sector as u8 % 6 {
            0 => [value, rising, low],
            1 => [falling, value, low],
            2 => [low, value, rising],
            3 => [low, falling, value],
            4 => [rising, low, value],
            _ => [value, low, falling],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_there_and_back_is_the_identity() {
        for red in (0..=255).step_by(15) {
            for green in (0..=255).step_by(15) {
                for blue in (0..=255).step_by(15) {
                    let rgb = [red, green, blue].map(|byte| f64::from(byte) / 255.0);
                    let back = Hsv::from_rgb(rgb).to_rgb();
                    for channel in 0..3 {
                        assert!(
                            (rgb[channel] - back[channel]).abs() < 1e-14,
                            "{rgb:?} {back:?}"
                        );
                    }
                }
            }
        }
    }
}
