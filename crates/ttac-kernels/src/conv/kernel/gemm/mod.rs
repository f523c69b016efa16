//! The two micro-kernels under every convolution.
//!
//! Both work on *planes*: `[rows][LANES]`, one vector of channels per row. A row is an output pixel (direct convolution) or a tile
//! (Winograd), so a value and its neighbour in the next row are always `LANES` floats apart. The distance is a compile-time constant,
//! hence one address register serves all rows of a register tile.

mod outer;
mod product;

pub(super) use outer::Outer;
pub(super) use product::{Finish, Product, Rows, Step, in_quads, to_quads};
