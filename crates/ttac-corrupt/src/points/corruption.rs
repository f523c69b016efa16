use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::corruption::by_name;

/// One of the fifteen corruptions of clouds.
///
/// Names are spelt as the files of ModelNet40-C are:
///
/// ```
/// use ttac_corrupt::points::PointCorruption;
///
/// assert_eq!(PointCorruption::DensityIncrease.name(), "density_inc");
/// assert_eq!("density-inc".parse::<PointCorruption>()?, PointCorruption::DensityIncrease);
/// # Ok::<(), ttac_corrupt::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PointCorruption {
    /// Uniform noise on every coordinate.
    Uniform,
    /// Normal noise on every coordinate.
    Gaussian,
    /// More points anywhere in the box.
    Background,
    /// A few points displaced a long way.
    Impulse,
    /// Noisy copies of some of the points.
    Upsampling,
    /// A turn about each axis.
    Rotation,
    /// A linear map that leans the shape over.
    Shear,
    /// Holes.
    Cutout,
    /// Thin places.
    Density,
    /// Dense places, and fewer points everywhere else.
    DensityIncrease,
    /// Free-form deformation by a lattice of control points.
    Distortion,
    /// Deformation by radial basis functions, multiquadric.
    DistortionRbf,
    /// Deformation by radial basis functions, inverse multiquadric.
    DistortionRbfInverse,
    /// The side a depth camera sees. Needs meshes.
    Occlusion,
    /// The rings of a LiDAR scanner. Needs meshes.
    Lidar,
}

use PointCorruption::{
    Background, Cutout, Density, DensityIncrease, Distortion, DistortionRbf, DistortionRbfInverse,
    Gaussian, Impulse, Lidar, Occlusion, Rotation, Shear, Uniform, Upsampling,
};

impl PointCorruption {
    /// All fifteen, in the order of the table in the [module's documentation](super).
    pub const ALL: [Self; 15] = [
        Uniform,
        Gaussian,
        Background,
        Impulse,
        Upsampling,
        Rotation,
        Shear,
        Cutout,
        Density,
        DensityIncrease,
        Distortion,
        DistortionRbf,
        DistortionRbfInverse,
        Occlusion,
        Lidar,
    ];

    /// The name in the spelling of the ModelNet40-C files.
    pub const fn name(self) -> &'static str {
        match self {
            Uniform => "uniform",
            Gaussian => "gaussian",
            Background => "background",
            Impulse => "impulse",
            Upsampling => "upsampling",
            Rotation => "rotation",
            Shear => "shear",
            Cutout => "cutout",
            Density => "density",
            DensityIncrease => "density_inc",
            Distortion => "distortion",
            DistortionRbf => "distortion_rbf",
            DistortionRbfInverse => "distortion_rbf_inv",
            Occlusion => "occlusion",
            Lidar => "lidar",
        }
    }

    /// Whether it is made from a mesh, not from points.
    pub const fn needs_meshes(self) -> bool {
        matches!(self, Occlusion | Lidar)
    }
}

impl fmt::Display for PointCorruption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for PointCorruption {
    type Err = Error;

    /// Accepts `-` for `_` and any case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let nearest = match by_name(&Self::ALL, Self::name, text) {
            Ok(found) => return Ok(found),
            Err(nearest) => nearest,
        };
        Err(Error::UnknownPointCorruption {
            name: text.to_owned(),
            nearest,
        })
    }
}
