//! One corruption with its constants.

use super::density::{HOLE, PLACE, THINNED};
use super::radial::{Basis, Radial};
use super::{Cloud, Mesh, MeshProblem, PointCorruption, density, lattice, noise, pose, view};
use crate::Severity;
use crate::random::Random;

/// What is done to a cloud.
pub(super) enum Kernel {
    Uniform(f64),
    Gaussian(f64),
    Background(usize),
    Impulse(usize),
    Upsampling(usize),
    Rotation(f64),
    Shear(f64),
    Cutout(usize),
    Density(usize),
    DensityIncrease(usize),
    FreeForm(f64),
    Radial(Box<Radial>, f64),
}

impl Kernel {
    /// None for what is made from meshes.
    pub(super) fn new(corruption: PointCorruption, severity: Severity) -> Option<Self> {
        let level = severity.index();
        let radial = |basis| {
            let reach = [0.025, 0.05, 0.075, 0.1, 0.125][level];
            Self::Radial(Box::new(Radial::new(basis)), reach)
        };
        Some(match corruption {
            PointCorruption::Uniform => Self::Uniform([0.01, 0.02, 0.03, 0.04, 0.05][level]),
            PointCorruption::Gaussian => Self::Gaussian([0.01, 0.015, 0.02, 0.025, 0.03][level]),
            PointCorruption::Background => Self::Background([45, 40, 35, 30, 20][level]),
            PointCorruption::Impulse => Self::Impulse([30, 25, 20, 15, 10][level]),
            PointCorruption::Upsampling => Self::Upsampling([5, 4, 3, 2, 1][level]),
            PointCorruption::Rotation => Self::Rotation([2.5, 5.0, 7.5, 10.0, 15.0][level]),
            PointCorruption::Shear => Self::Shear([0.05, 0.1, 0.15, 0.2, 0.25][level]),
            PointCorruption::Cutout => Self::Cutout([2, 3, 5, 7, 10][level]),
            PointCorruption::Density => Self::Density(level + 1),
            PointCorruption::DensityIncrease => Self::DensityIncrease(level + 1),
            PointCorruption::Distortion => Self::FreeForm([0.1, 0.2, 0.3, 0.4, 0.5][level]),
            PointCorruption::DistortionRbf => radial(Basis::Multiquadric),
            PointCorruption::DistortionRbfInverse => radial(Basis::Inverse),
            PointCorruption::Occlusion | PointCorruption::Lidar => return None,
        })
    }

    /// Whether it takes all points there are and not a choice of `total`.
    pub(super) fn takes_all(&self) -> bool {
        matches!(self, Self::DensityIncrease(_))
    }

    /// The fewest points it can start from.
    pub(super) fn fewest(&self) -> usize {
        match self {
            Self::Cutout(holes) => holes * HOLE + 1,
            Self::Density(places) => (places - 1) * THINNED + PLACE,
            Self::DensityIncrease(places) => places * PLACE + 1,
            _ => 2,
        }
    }

    /// Corrupts a cloud; `total` is the size the result has if nothing is added or taken.
    pub(super) fn apply(&self, cloud: Cloud, total: usize, random: &mut impl Random) -> Cloud {
        match *self {
            Self::Uniform(c) => noise::uniform(cloud, c, random),
            Self::Gaussian(c) => noise::gaussian(cloud, c, random),
            Self::Background(share) => noise::background(cloud, share, random),
            Self::Impulse(share) => noise::impulse(cloud, share, random),
            Self::Upsampling(share) => noise::upsampling(cloud, share, random),
            Self::Rotation(c) => pose::rotation(cloud, c, random),
            Self::Shear(c) => pose::shear(cloud, c, random),
            Self::Cutout(holes) => density::cutout(cloud, holes, random),
            Self::Density(places) => density::decrease(cloud, places, random),
            Self::DensityIncrease(places) => density::increase(cloud, places, total, random),
            Self::FreeForm(c) => lattice::free_form(cloud, c, random),
            Self::Radial(ref radial, c) => radial.distort(cloud, c, random),
        }
    }
}

/// What occlusion or LiDAR leave of a mesh.
pub(super) fn view(
    corruption: PointCorruption,
    side: Severity,
    mesh: &Mesh,
    total: usize,
    random: &mut impl Random,
) -> Result<Cloud, MeshProblem> {
    match corruption {
        PointCorruption::Lidar => view::lidar(mesh, side, total, random),
        _ => view::occlusion(mesh, side, total, random),
    }
}
