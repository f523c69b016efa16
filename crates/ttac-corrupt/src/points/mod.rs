//! The fifteen corruptions of ModelNet40-C on clouds of points.
//!
//! A cloud is an unordered set of points in three dimensions, `[points, 3]`; clouds of one size stand in one array of
//! `f32`, `[clouds, points, 3]`. Thirteen corruptions change points; occlusion and LiDAR look at the surface between
//! them and need a [`Mesh`].
//!
//! ```
//! use ttac_corrupt::Severity;
//! use ttac_corrupt::points::{PointCorruption, PointCorruptor};
//!
//! // Two clouds of 2,048 points on a helix.
//! let helix = |i: usize| {
//!     let angle = i as f32 * 0.01;
//!     [angle.cos(), angle.sin(), angle * 0.05 - 0.5]
//! };
//! let clouds: Vec<f32> = (0..2 * 2048).flat_map(|i| helix(i % 2048)).collect();
//!
//! let corruptor = PointCorruptor::new(42);
//! let cut = corruptor.apply(PointCorruption::Cutout, Severity::STRONGEST, &clouds, 2048, &[0, 1])?;
//! assert_eq!(cut.points, 724); // 1,024 of the points, less ten times thirty
//! assert_eq!(cut.count(), 2);
//! # Ok::<(), ttac_corrupt::Error>(())
//! ```
//!
//! `norm` below moves the middle of the bounding box to the origin and makes its longest side 2. N is the number of
//! points that a corruption starts from, 1,024 unless told otherwise.
//!
//! | corruption | constants at severities 1 to 5 | what happens |
//! |---|---|---|
//! | `uniform` | c = .01 .02 .03 .04 .05 | every coordinate + U(-c, c); norm |
//! | `gaussian` | c = .01 .015 .02 .025 .03 | every coordinate + N(0, c^2), cut to [-1, 1] |
//! | `background` | m = N/45 N/40 N/35 N/30 N/20 | m more points, uniform in [-1, 1]^3; norm |
//! | `impulse` | m = N/30 N/25 N/20 N/15 N/10 | m points move by .1 or -.1 along every axis; norm |
//! | `upsampling` | m = N/5 N/4 N/3 N/2 N | m points again, + U(-.05, .05); norm |
//! | `rotation` | c = 2.5 5 7.5 10 15 | about every axis by U(c - 2.5, c + 2.5) degrees, either way; norm |
//! | `shear` | c = .05 .1 .15 .2 .25 | four shears of U(c - .05, c + .05), either way; norm |
//! | `cutout` | 2 3 5 7 10 times | the 30 points nearest to a random one go |
//! | `density` | 1 to 5 times | of the 100 points nearest to a random one 75 go |
//! | `density_inc` | 1 to 5 times | the 100 points nearest to a random one of all stay, the rest is thinned to N |
//! | `distortion` | c = .1 .2 .3 .4 .5 | free-form deformation by a 5 x 5 x 5 lattice; norm |
//! | `distortion_rbf` | c = .025 .05 .075 .1 .125 | 125 control points move by c; multiquadric interpolation; norm |
//! | `distortion_rbf_inv` | the same | with the inverse multiquadric; norm |
//! | `occlusion` | five viewpoints | what a depth camera sees of the mesh; norm |
//! | `lidar` | five viewpoints | what a scanner with rings of one degree sees of the mesh; 3/4 N points |

mod corruption;
mod corruptor;
mod density;
mod kernel;
mod lattice;
mod mesh;
mod noise;
#[cfg(test)]
mod parity;
mod pose;
mod radial;
mod view;

pub use corruption::PointCorruption;
pub use corruptor::{Clouds, PointCorruptor};
pub use mesh::{Mesh, MeshProblem};

/// A point while it is worked on.
pub(crate) type Point = [f64; 3];

/// The points of one cloud while they are worked on.
pub(crate) type Cloud = Vec<Point>;
