//! Work on many machines, with the engines that do it: each test starts its own and skips where the program is not here.

mod anchors;
mod bad_input;
mod cluster;
mod engines;
mod grids;
#[cfg(feature = "mpi")]
mod mpi;
mod world;
