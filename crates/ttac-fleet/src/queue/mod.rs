//! Work for whoever is free.

#[cfg(feature = "nats")]
mod jetstream;

#[cfg(feature = "nats")]
pub use jetstream::{Delivery, Lease, Queue};

#[cfg(not(feature = "nats"))]
mod absent;

#[cfg(not(feature = "nats"))]
pub use absent::{Delivery, Lease, Queue};

use std::time::Duration;

/// What a queue is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// After how long without a word from its worker a piece of work is given to another. Workers say three times as often that they
    /// are alive.
    pub patience: Duration,
    /// How many brokers keep a copy.
    pub replicas: usize,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            patience: Duration::from_mins(1),
            replicas: 1,
        }
    }
}

/// How much work there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pieces that nobody has.
    pub waiting: u64,
    /// Pieces that a worker has and has not answered for.
    pub taken: u64,
}
