//! Sums, products and scales of whole tensors: all of them are bound by memory, and each reads and writes what it must once.
//!
//! | file | what |
//! |---|---|
//! | `product` | the product of two tensors |
//! | `scale` | a factor for each channel, or for each channel of each image |

mod product;
mod scale;

pub use product::{multiply, multiply_backward, multiply_in_place};
pub use scale::{
    ScaleBackward, ScaleGradients, ScaleShape, scale_backward, scale_forward,
    scale_forward_in_place,
};
