//! Softmax attention: `y_i = sum over j of softmax_j(scale q_i k_j + mask_ij) v_j`, for each image and head.
//!
//! A task is one head of one image. It walks the queries in blocks: the scores of a block against all keys, their softmax, the weighted values. So the memory beyond
//! the result is a block of scores per core, however many tokens there are. Of the forward pass only the largest score and the sum of each softmax are
//! kept; the backward pass makes the same scores again, and then, with `P` the probabilities,
//!
//! `dV = P^T dY`, `dP = dY V^T`, `dM = P (dP - rowsum(P dP))`, `dQ = scale dM K`, `dK = scale dM^T Q`, and `dM` is the gradient of the mask.
//!
//! Sums over queries are made block after block inside a task, so their order is the same for any number of threads. A mask that several heads or images share has one
//! sum for each of a few groups of them, whose number depends on the shape alone; the groups are added in their order.
//!
//! | file | what |
//! |---|---|
//! | `shape` | sizes, and where rows lie: queries, keys and values are read where they are, by strides |
//! | `separate` | queries, keys and values of their own, with a mask |
//! | `packed` | queries, keys and values as one tensor, as one linear layer makes them |
//! | `mask` | which heads share a mask, and the sums of its gradient |
//! | `head` | the rows of one head, packed for the product |
//! | `forward`, `backward` | the two passes over one head |

mod backward;
mod forward;
mod head;
mod mask;
mod packed;
mod separate;
mod shape;

pub use mask::AddedMask;
pub use packed::{
    AttentionShape, attention_backward, attention_forward, packed_attention_backward,
};
pub use separate::{
    AttentionGradients, AxisOrder, scaled_dot_product_backward, scaled_dot_product_forward,
};
pub use shape::{AttentionInput, HeadRows, ScaledDotProductShape};
