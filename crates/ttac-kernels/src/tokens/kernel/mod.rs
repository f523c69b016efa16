//! The ops of transformers on rows of tokens: linear layers, layer norm, softmax attention, forward and backward.
//!
//! | file | what |
//! |---|---|
//! | `linear` | `x w^T + b`, with the GELU before and the residual addition after it |
//! | `layer_norm` | mean and variance of each row |
//! | `attention` | softmax attention, one block of queries at a time; no matrix of all pairs of tokens is ever held |
//! | `product` | the small matrix product under attention |
//! | `functions` | `exp` and the normal distribution, in a form that compilers turn into vectors |

mod attention;
mod functions;
mod layer_norm;
mod linear;
mod product;

pub use attention::{AttentionShape, attention_backward, attention_forward};
pub use layer_norm::{
    LayerNormBackward, LayerNormGradients, layer_norm_backward, layer_norm_forward,
};
pub use linear::{
    LinearShape, column_sums, gelu_backward, gelu_forward, linear_forward, linear_input_gradient,
    linear_weight_gradient,
};
