use crate::corruption::corruptions;

corruptions! {
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
    pub enum PointCorruption {
        /// Uniform noise on every coordinate.
        Uniform = "uniform",
        /// Normal noise on every coordinate.
        Gaussian = "gaussian",
        /// More points anywhere in the box.
        Background = "background",
        /// A few points displaced a long way.
        Impulse = "impulse",
        /// Noisy copies of some of the points.
        Upsampling = "upsampling",
        /// A turn about each axis.
        Rotation = "rotation",
        /// A linear map that leans the shape over.
        Shear = "shear",
        /// Holes.
        Cutout = "cutout",
        /// Thin places.
        Density = "density",
        /// Dense places, and fewer points everywhere else.
        DensityIncrease = "density_inc",
        /// Free-form deformation by a lattice of control points.
        Distortion = "distortion",
        /// Deformation by radial basis functions, multiquadric.
        DistortionRbf = "distortion_rbf",
        /// Deformation by radial basis functions, inverse multiquadric.
        DistortionRbfInverse = "distortion_rbf_inv",
        /// The side a depth camera sees. Needs meshes.
        Occlusion = "occlusion",
        /// The rings of a LiDAR scanner. Needs meshes.
        Lidar = "lidar",
    }
    /// All fifteen, in the order of the table in the [module's documentation](super).
    const ALL: 15;
    /// Returns the name in the spelling of the ModelNet40-C files.
    fn name;
    error UnknownPointCorruption;
}

impl PointCorruption {
    /// Tells whether it is made from a mesh, not from points.
    pub const fn needs_meshes(self) -> bool {
        matches!(self, Self::Occlusion | Self::Lidar)
    }
}
