//! The constants of the recipe, severities 1 to 5.

use crate::random::Random;

/// Which of the recipe's two tables applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// The constants of CIFAR-10-C, made for 32 x 32.
    Small,
    /// The constants of ImageNet-C, made for 224 x 224.
    Large,
}

impl Table {
    /// The table whose size is nearer by ratio: 84 x 224 and 85 x 224 lie on either side of the geometric mean.
    pub(crate) fn for_side(shorter: usize) -> Self {
        if shorter * shorter < 32 * 224 {
            Self::Small
        } else {
            Self::Large
        }
    }

    /// The side for which the table was made.
    pub(crate) fn side(self) -> usize {
        match self {
            Self::Small => 32,
            Self::Large => 224,
        }
    }
}

/// Both tables of one corruption.
pub(crate) struct Parameters<T: 'static> {
    pub(crate) small: [T; 5],
    pub(crate) large: [T; 5],
}

impl<T> Parameters<T> {
    pub(crate) fn get(&self, table: Table, severity: crate::Severity) -> &T {
        match table {
            Table::Small => &self.small[severity.index()],
            Table::Large => &self.large[severity.index()],
        }
    }
}

pub(crate) const GAUSSIAN_NOISE_SIGMA: Parameters<f64> = Parameters {
    small: [0.04, 0.06, 0.08, 0.09, 0.10],
    large: [0.08, 0.12, 0.18, 0.26, 0.38],
};

pub(crate) const SHOT_NOISE_RATE: Parameters<f64> = Parameters {
    small: [500.0, 250.0, 100.0, 75.0, 50.0],
    large: [60.0, 25.0, 12.0, 5.0, 3.0],
};

pub(crate) const IMPULSE_NOISE_AMOUNT: Parameters<f64> = Parameters {
    small: [0.01, 0.02, 0.03, 0.05, 0.07],
    large: [0.03, 0.06, 0.09, 0.17, 0.27],
};

pub(crate) const SPECKLE_NOISE_SIGMA: Parameters<f64> = Parameters {
    small: [0.06, 0.1, 0.12, 0.16, 0.2],
    large: [0.15, 0.2, 0.35, 0.45, 0.6],
};

/// Radius of the disk and sigma of the blur that softens its rim, in pixels.
pub(crate) const DEFOCUS_BLUR: Parameters<(f64, f64)> = Parameters {
    small: [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)],
    large: [(3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)],
};

/// Sigma of the blur, largest displacement, iterations.
pub(crate) const GLASS_BLUR: Parameters<(f64, u32, u32)> = Parameters {
    small: [
        (0.05, 1, 1),
        (0.25, 1, 1),
        (0.4, 1, 1),
        (0.25, 1, 2),
        (0.4, 1, 2),
    ],
    large: [
        (0.7, 1, 2),
        (0.9, 2, 1),
        (1.0, 2, 3),
        (1.1, 3, 2),
        (1.5, 4, 2),
    ],
};

/// Radius and sigma.
pub(crate) const MOTION_BLUR: Parameters<(f64, f64)> = Parameters {
    small: [(6.0, 1.0), (6.0, 1.5), (6.0, 2.0), (8.0, 2.0), (9.0, 2.5)],
    large: [
        (10.0, 3.0),
        (15.0, 5.0),
        (15.0, 8.0),
        (15.0, 12.0),
        (20.0, 15.0),
    ],
};

/// End and step of the zoom factors, which start at 1.
pub(crate) const ZOOM_BLUR: Parameters<(f64, f64)> = Parameters {
    small: [
        (1.06, 0.01),
        (1.11, 0.01),
        (1.16, 0.01),
        (1.21, 0.01),
        (1.26, 0.01),
    ],
    large: [
        (1.11, 0.01),
        (1.16, 0.01),
        (1.21, 0.02),
        (1.26, 0.02),
        (1.31, 0.03),
    ],
};

pub(crate) const GAUSSIAN_BLUR_SIGMA: Parameters<f64> = Parameters {
    small: [0.4, 0.6, 0.7, 0.8, 1.0],
    large: [1.0, 2.0, 3.0, 4.0, 6.0],
};

/// Independent normal numbers, which a layer of snow or of spatter starts from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Normals {
    mean: f64,
    deviation: f64,
}

impl Normals {
    pub(crate) fn fill(self, layer: &mut [f64], random: &mut impl Random) {
        layer.fill_with(|| self.mean + self.deviation * random.normal());
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SnowParameters {
    pub(crate) normals: Normals,
    pub(crate) zoom: f64,
    pub(crate) threshold: f64,
    /// Radius and sigma of the blur that draws flakes out to streaks.
    pub(crate) motion: (f64, f64),
    /// Weight of the image against its whitened self.
    pub(crate) blend: f32,
}

const fn snow(
    (mean, deviation, zoom, threshold): (f64, f64, f64, f64),
    motion: (f64, f64),
    blend: f32,
) -> SnowParameters {
    SnowParameters {
        normals: Normals { mean, deviation },
        zoom,
        threshold,
        motion,
        blend,
    }
}

pub(crate) const SNOW: Parameters<SnowParameters> = Parameters {
    small: [
        snow((0.1, 0.2, 1.0, 0.6), (8.0, 3.0), 0.95),
        snow((0.1, 0.2, 1.0, 0.5), (10.0, 4.0), 0.9),
        snow((0.15, 0.3, 1.75, 0.55), (10.0, 4.0), 0.9),
        snow((0.25, 0.3, 2.25, 0.6), (12.0, 6.0), 0.85),
        snow((0.3, 0.3, 1.25, 0.65), (14.0, 12.0), 0.8),
    ],
    large: [
        snow((0.1, 0.3, 3.0, 0.5), (10.0, 4.0), 0.8),
        snow((0.2, 0.3, 2.0, 0.5), (12.0, 4.0), 0.7),
        snow((0.55, 0.3, 4.0, 0.9), (12.0, 8.0), 0.7),
        snow((0.55, 0.3, 4.5, 0.85), (12.0, 8.0), 0.65),
        snow((0.55, 0.3, 2.5, 0.85), (12.0, 12.0), 0.55),
    ],
};

/// Weights of the image and of the ice.
pub(crate) const FROST: Parameters<(f64, f64)> = Parameters {
    small: [
        (1.0, 0.2),
        (1.0, 0.3),
        (0.9, 0.4),
        (0.85, 0.4),
        (0.75, 0.45),
    ],
    large: [(1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
};

/// Amount of fog and decay of the roughness of its cloud.
pub(crate) const FOG: Parameters<(f64, f64)> = Parameters {
    small: [(0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)],
    large: [(1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)],
};

pub(crate) const BRIGHTNESS: Parameters<f64> = Parameters {
    small: [0.05, 0.1, 0.15, 0.2, 0.3],
    large: [0.1, 0.2, 0.3, 0.4, 0.5],
};

pub(crate) const CONTRAST: Parameters<f64> = Parameters {
    small: [0.75, 0.5, 0.4, 0.3, 0.15],
    large: [0.4, 0.3, 0.2, 0.1, 0.05],
};

/// Gain and offset of the saturation.
pub(crate) const SATURATE: Parameters<(f64, f64)> = Parameters {
    small: [(0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)],
    large: [(0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)],
};

/// Amplitude and sigma of the displacement, reach of the affine map; all as parts of [`elastic_unit`].
pub(crate) const ELASTIC_TRANSFORM: Parameters<(f64, f64, f64)> = Parameters {
    small: [
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ],
    large: [
        (2.0, 0.7, 0.1),
        (2.0, 0.08, 0.2),
        (0.05, 0.01, 0.02),
        (0.07, 0.01, 0.02),
        (0.12, 0.01, 0.02),
    ],
};

/// The length that the elastic transform's constants are parts of: the shorter side, except that the recipe for
/// 224 x 224 has a slip of the pen and takes 244.
pub(crate) fn elastic_unit(table: Table, shorter: usize) -> f64 {
    match table {
        Table::Small => shorter as f64,
        Table::Large => 244.0 * (shorter as f64 / 224.0),
    }
}

pub(crate) const PIXELATE: Parameters<f64> = Parameters {
    small: [0.95, 0.9, 0.85, 0.75, 0.65],
    large: [0.6, 0.5, 0.4, 0.3, 0.25],
};

pub(crate) const JPEG_QUALITY: Parameters<u32> = Parameters {
    small: [80, 65, 58, 50, 40],
    large: [25, 18, 15, 10, 7],
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SpatterParameters {
    pub(crate) normals: Normals,
    pub(crate) sigma: f64,
    pub(crate) threshold: f64,
    pub(crate) liquid: Liquid,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Liquid {
    Water { strength: f32 },
    Mud { sigma: f64 },
}

const fn spatter(
    (mean, deviation, sigma, threshold): (f64, f64, f64, f64),
    liquid: Liquid,
) -> SpatterParameters {
    SpatterParameters {
        normals: Normals { mean, deviation },
        sigma,
        threshold,
        liquid,
    }
}

pub(crate) const SPATTER: Parameters<SpatterParameters> = Parameters {
    small: [
        spatter((0.62, 0.1, 0.7, 0.7), Liquid::Water { strength: 0.5 }),
        spatter((0.65, 0.1, 0.8, 0.7), Liquid::Water { strength: 0.5 }),
        spatter((0.65, 0.3, 1.0, 0.69), Liquid::Water { strength: 0.5 }),
        spatter((0.65, 0.1, 0.7, 0.69), Liquid::Mud { sigma: 0.6 }),
        spatter((0.65, 0.1, 0.5, 0.68), Liquid::Mud { sigma: 0.6 }),
    ],
    large: [
        spatter((0.65, 0.3, 4.0, 0.69), Liquid::Water { strength: 0.6 }),
        spatter((0.65, 0.3, 3.0, 0.68), Liquid::Water { strength: 0.6 }),
        spatter((0.65, 0.3, 2.0, 0.68), Liquid::Water { strength: 0.5 }),
        spatter((0.65, 0.3, 1.0, 0.65), Liquid::Mud { sigma: 1.5 }),
        spatter((0.67, 0.4, 1.0, 0.65), Liquid::Mud { sigma: 1.5 }),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    #[test]
    fn the_nearer_table_applies() {
        let sides = |table| (8..300).filter(move |&side| Table::for_side(side) == table);
        assert_eq!(sides(Table::Small).next_back(), Some(84));
        assert_eq!(sides(Table::Large).next(), Some(85));
        assert_eq!(
            [Table::Small.side(), Table::Large.side()].map(Table::for_side),
            [Table::Small, Table::Large]
        );
    }

    /// Scalars as they stand in the published tables, severities 1 to 5, small then large. The fixture of `parity`
    /// covers the others, and most of these again.
    #[test]
    fn scalars_are_those_of_the_tables() {
        let tables = [
            (
                "gaussian noise",
                GAUSSIAN_NOISE_SIGMA,
                ".04 .06 .08 .09 .1 | .08 .12 .18 .26 .38",
            ),
            (
                "shot noise",
                SHOT_NOISE_RATE,
                "500 250 100 75 50 | 60 25 12 5 3",
            ),
            (
                "impulse noise",
                IMPULSE_NOISE_AMOUNT,
                ".01 .02 .03 .05 .07 | .03 .06 .09 .17 .27",
            ),
            (
                "speckle noise",
                SPECKLE_NOISE_SIGMA,
                ".06 .1 .12 .16 .2 | .15 .2 .35 .45 .6",
            ),
            (
                "gaussian blur",
                GAUSSIAN_BLUR_SIGMA,
                ".4 .6 .7 .8 1 | 1 2 3 4 6",
            ),
            (
                "brightness",
                BRIGHTNESS,
                ".05 .1 .15 .2 .3 | .1 .2 .3 .4 .5",
            ),
            ("contrast", CONTRAST, ".75 .5 .4 .3 .15 | .4 .3 .2 .1 .05"),
            ("pixelate", PIXELATE, ".95 .9 .85 .75 .65 | .6 .5 .4 .3 .25"),
        ];
        for (name, parameters, expected) in tables {
            let row = |values: [f64; 5]| {
                values
                    .map(|value| value.to_string().replace("0.", "."))
                    .join(" ")
            };
            assert_eq!(
                format!("{} | {}", row(parameters.small), row(parameters.large)),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn tuples_are_those_of_the_tables() {
        let last = Severity::STRONGEST;
        let [small, large] = [Table::Small, Table::Large];
        assert_eq!(
            FROST.small,
            [
                (1.0, 0.2),
                (1.0, 0.3),
                (0.9, 0.4),
                (0.85, 0.4),
                (0.75, 0.45)
            ]
        );
        assert_eq!(
            FROST.large,
            [(1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)]
        );
        assert_eq!(JPEG_QUALITY.small, [80, 65, 58, 50, 40]);
        assert_eq!(JPEG_QUALITY.large, [25, 18, 15, 10, 7]);
        assert_eq!(*GLASS_BLUR.get(small, last), (0.4, 1, 2));
        assert_eq!(*GLASS_BLUR.get(large, last), (1.5, 4, 2));
        assert_eq!(*FOG.get(small, last), (1.5, 1.75));
        assert_eq!(*FOG.get(large, last), (3.0, 1.4));
        assert_eq!(*MOTION_BLUR.get(small, last), (9.0, 2.5));
        assert_eq!(*MOTION_BLUR.get(large, last), (20.0, 15.0));
        let (amplitude, sigma, affine) = *ELASTIC_TRANSFORM.get(small, last);
        let unit = elastic_unit(small, 32);
        assert_eq!(
            [amplitude * unit, sigma * unit, affine * unit],
            [3.2, 0.96, 0.96]
        );
        assert_eq!(elastic_unit(large, 224), 244.0);
    }
}
