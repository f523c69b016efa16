//! What batch norms see: reference moments of the source, re-basing on them, and statistics that follow the target.
//!
//! The running statistics of a checkpoint are those of *varied* training images, cropped and padded as in training. Images as they are
//! have other statistics, clean ones too, and every method that moves the statistics to the target first moves them by that offset,
//! although the scales and shifts of the norms were fitted with it in place. [`NormReference`] holds the moments of source images as
//! they are, and [re-bases](NormReference::rebase) a network on them: its function with stored statistics stays the same, and "the
//! statistics of the target" start from the right point.
//!
//! [`Following`] moves the stored statistics by *images*, pooled or class by class, or between the two as the recent classes ask. With
//! classes it starts at the source's class statistics, and a run of one class moves that class alone.

mod follow;
mod kept;
mod reference;

pub(crate) use kept::{KeptNorms, KeptRule, PassLabels, SourceNorms};

pub use follow::{Following, NormFollow};
pub use reference::{
    LayerMoments, LayerOffset, Measuring, NormKeys, NormReference, ReferenceCollector,
};
