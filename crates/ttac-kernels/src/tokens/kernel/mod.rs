//! The ops of transformers on rows of tokens: linear layers, layer norm, softmax attention, forward and backward.
//!
//! | file | what |
//! |---|---|
//! | `linear` | `x w^T + b`, with the residual addition after it |
//! | `few_rows` | the same for few rows, without bringing the weights into another order |
//! | `gelu` | the GELU before it, exact and by a hyperbolic tangent |
//! | `layer_norm` | mean and variance of each row |
//! | `attention` | softmax attention, one block of queries at a time; no matrix of all pairs of tokens is ever held |
//! | `softmax` | the softmax of rows alone |
//! | `product` | the small matrix product under attention |
//! | `functions` | `exp` and the normal distribution, in a form that compilers turn into vectors |

mod attention;
mod few_rows;
mod functions;
mod gelu;
mod layer_norm;
mod linear;
mod product;
mod softmax;

pub use attention::{
    AddedMask, AttentionGradients, AttentionInput, AttentionShape, AxisOrder, HeadRows,
    ScaledDotProductShape, attention_backward, attention_forward, packed_attention_backward,
    scaled_dot_product_backward, scaled_dot_product_forward,
};
pub use gelu::{gelu_backward, gelu_forward, gelu_tanh_backward, gelu_tanh_forward};
pub use layer_norm::{
    LayerNormBackward, LayerNormGradients, layer_norm_add_forward, layer_norm_backward,
    layer_norm_forward,
};
pub use linear::{
    LinearShape, column_sums, linear_forward, linear_input_gradient, linear_weight_gradient,
};
pub use softmax::{softmax_backward, softmax_forward};
