//! What `ttac` needs of other machines: a queue of work and a store of results.
//!
//! A [`Store`] keeps files by name: in a folder, or in a bucket that speaks S3 (feature `s3`). A [`Queue`] gives pieces of work to
//! whoever asks, each to one at a time, and again if nobody says that it is done (feature `nats`: NATS JetStream). Calls wait until
//! they are answered; what has to happen meanwhile happens on a thread of the crate's own.
//!
//! Nothing here knows what a piece of work is, and nothing compares the clocks of two machines.

#![forbid(unsafe_code)]

mod error;
mod queue;
mod store;

#[cfg(any(feature = "nats", feature = "s3"))]
mod runtime;

pub use error::{Error, Result};
pub use queue::{Counts, Delivery, Lease, Queue, QueueSettings};
pub use store::{Created, Store};
