//! Statistics of features: those of the source, those of the target, and how far apart they are.
//!
//! The source is summarised once by Gaussians ([`Moments`], [`Gaussian`]). The target is followed
//! minibatch by minibatch ([`RunningGaussian`]); with `b` features `f_i`, count `n` and clip `N`
//!
//! ```text
//! n  <- n + b        a = 1/min(n, N)
//! mu  = m + delta    delta = a sum_i (f_i - m)
//! S   = V + a (sum_i (f_i - m)(f_i - m)' - b V) - delta delta'
//! ```
//!
//! and is drawn to the source through a [`Divergence`], by default
//!
//! ```text
//! J(s, t)  = KL(s || t) + KL(t || s)                        d = mu_t - mu_s
//!          = 1/2 [tr(B S_s) + tr(A S_t) - 2D + d'(A + B)d]  A = S_s^-1, B = S_t^-1
//! dJ/df_i  = a [g + 2 G (f_i - mu_t)]
//! g        = (A + B) d                G = 1/2 [A - B S_s B - (B d)(B d)']
//! ```
//!
//! so the rows of the gradient enter the backward pass of a network directly, and no tape runs
//! through a factorisation. Which features belong to which class is decided by a
//! [`PseudoLabelFilter`], or softly by [`responsibilities`].
//!
//! Features come in as `f32`, everything here is kept and computed in `f64`. The released code
//! keeps `f32`; every such state is exactly a state here, and the covariance, a small difference of
//! large sums, keeps its digits. Results do not depend on the number of threads.
//!
//! `docs/methods.md` derives the formulas under "Running Gaussians", "Divergence and its gradient" and
//! "Alignment moments".

mod aligning;
mod assignment;
mod chunks;
mod collect;
#[cfg(test)]
mod cut;
mod divergence;
mod factor;
mod filter;
mod gaussian;
mod importance;
mod linear;
mod low_rank;
mod mixture;
mod moments;
mod running;
mod source;

pub use assignment::responsibilities;
pub use chunks::AnchorChunks;
pub use collect::{AnchorConfig, calibrate, collect, collect_with};
pub use divergence::{Anchor, Divergence, KlDirection, Measure};
pub use filter::{
    Eviction, FilterConfig, FilterCounts, FilterMode, LabelSource, Observation, PseudoLabelFilter,
};
pub use gaussian::{Covariance, CovarianceKind, Gaussian, TEMPLATE_DIVISOR};
pub use importance::Importance;
pub use mixture::mixture;
pub use moments::Moments;
pub use running::{RunningGaussian, SoftMoment, Update};
pub use source::{Alignment, Origin, SourceLabels, SourceStatistics};
