//! Streams as data: which sample of which domain arrives in which batch.
//!
//! A [`StreamConfig`] says what kind of stream is wanted, [`StreamConfig::plan`] makes a [`StreamPlan`]
//! of it: a list of batches that can be printed, saved, compared by [digest](StreamPlan::digest) and
//! run again. A plan names samples and never holds them; labels are read to order a stream and are
//! not kept.
//!
//! A *visit* is one walk over a domain, or over a mixture of domains. It brings every chosen sample
//! once, in batches of one size; its last batch may be smaller, and no batch reaches over its end. Only the order `online-shift` draws
//! samples with replacement.
//!
//! ```
//! use ttac::stream::{Domain, Domains, Population, StreamConfig};
//!
//! let snow = Domain::corrupted("shapes10", "snow", 5);
//! let config = StreamConfig::new(Domains::One { domain: snow }).with_batch_size(4);
//! let snowy = Population::Labelled(&[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
//! let plan = config.plan(&[snowy], 2)?;
//! let sizes: Vec<usize> = plan.batches.iter().map(Vec::len).collect();
//! assert_eq!(sizes, [4, 4, 2]);
//! assert_eq!(plan, config.plan(&[snowy], 2)?);
//! # Ok::<(), ttac::Error>(())
//! ```

mod config;
mod domain;
mod orders;
mod plan;
mod planning;

pub use config::{Choose, Order, Proportions, StreamConfig, Subset, Within};
pub use domain::{Domain, Domains};
pub use plan::{Arrival, StreamPlan};
pub use planning::Population;

use crate::{Error, Result};

fn invalid_if_any(problems: &[String]) -> Result<()> {
    Error::invalid_if_any("stream", problems)
}
