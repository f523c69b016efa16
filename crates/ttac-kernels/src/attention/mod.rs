//! Scaled dot-product attention of queries, keys and values wherever they lie, and its softmax alone, for networks that write attention out.
//!
//! The kernels are beside those of [`tokens`](crate::tokens), with which they share the passes over one head.

mod burn;
pub(crate) mod composed;
pub(crate) mod ops;
