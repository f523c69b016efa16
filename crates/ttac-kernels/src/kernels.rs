//! The kernels: slices in, vectors out. They know nothing of Burn.
//!
//! Four rules hold in all of them.
//!
//! - The first argument is a [`Context`](crate::Context): the instruction set and the memory of results and scratch buffers.
//! - Activations are dense NHWC, `[batch][height][width][channels]`; convolution weights are `[out][in][kh][kw]`, as PyTorch keeps them.
//! - The same input gives the same bits whatever the number of threads: work is cut by the shape alone and partial sums are added in order.
//!   (Another instruction set rounds differently.)
//! - Shapes that do not fit are a bug of the caller: a panic with both shapes, before any memory is touched.

pub use crate::activation::kernel::{
    Activation, activate_backward, activate_forward, activate_forward_in_place,
};
pub use crate::conv::kernel::{
    Algorithm, ConvShape, Epilogue, Input, conv_forward, conv_input_gradient, conv_weight_gradient,
};
pub use crate::core::elementwise::add_in_place;
pub use crate::core::recycle::keep_freed_memory;
pub use crate::core::simd::{Isa, multiply_adds};
pub use crate::core::window::Window;
pub use crate::elementwise::kernel::{
    ScaleBackward, ScaleGradients, ScaleShape, multiply, multiply_backward, multiply_in_place,
    scale_backward, scale_forward, scale_forward_in_place,
};
pub use crate::norm::kernel::{
    GroupBackward, GroupParams, GroupShape, GroupStatistics, NormBackward, NormGradients,
    NormParams, Normalise, batch_statistics, group_norm_backward, group_norm_forward,
    group_norm_forward_in_place, image_moments, norm_backward, norm_forward, norm_forward_in_place,
};
pub use crate::optimiser::kernel::{Direction, SgdConstants, sgd_step};
pub use crate::points::kernel::{
    CloudBackward, CloudGradients, CloudPooled, EdgeBackward, EdgeGradients, EdgePooled, EdgeShape,
    LeakyNorm, cloud_pool, cloud_pool_backward, edge_pool, edge_pool_backward, nearest,
};
pub use crate::pool::kernel::{
    Divisor, NO_PIXEL, PoolShape, ShortcutShape, average_pool_backward, average_pool_forward,
    global_average_backward, global_average_forward, max_pool_backward, max_pool_forward,
    shortcut_a_backward, shortcut_a_forward,
};
pub use crate::reorder::kernel::copy_strided;
pub use crate::tokens::kernel::{
    AddedMask, AttentionGradients, AttentionInput, AttentionShape, AxisOrder, HeadRows,
    LayerNormBackward, LayerNormGradients, LinearShape, ScaledDotProductShape, attention_backward,
    attention_forward, column_sums, gelu_backward, gelu_forward, gelu_tanh_backward,
    gelu_tanh_forward, layer_norm_add_forward, layer_norm_backward, layer_norm_forward,
    linear_forward, linear_input_gradient, linear_weight_gradient, packed_attention_backward,
    scaled_dot_product_backward, scaled_dot_product_forward, softmax_backward, softmax_forward,
};
