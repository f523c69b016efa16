//! The queue of a program that was built without any.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Counts, QueueSettings};
use crate::{Error, Result};

/// What there is none of.
enum Never {}

/// A queue of pieces of work. There is none without the feature `nats`.
pub struct Queue(Never);

impl Queue {
    /// Says which feature is missing.
    pub fn connect(address: &str, _: &str) -> Result<Self> {
        let host = address.rsplit_once('@').map_or(address, |(_, host)| host);
        Err(Error::NotBuilt {
            address: host.to_owned(),
            feature: "nats",
        })
    }

    /// There is no queue.
    pub fn create(&self, _: &QueueSettings) -> Result<()> {
        match self.0 {}
    }

    /// There is no queue.
    pub fn submit(&self, _: &str, _: &[u8]) -> Result<bool> {
        match self.0 {}
    }

    /// There is no queue.
    pub fn take(&self, _: Duration) -> Result<Option<Delivery>> {
        match self.0 {}
    }

    /// There is no queue.
    pub fn counts(&self) -> Result<Counts> {
        match self.0 {}
    }

    /// There is no queue.
    pub fn announce(&self, _: &str, _: Arc<Mutex<String>>) -> Result<Lease> {
        match self.0 {}
    }

    /// There is no queue.
    pub fn voiced(&self) -> Result<Vec<(String, String)>> {
        match self.0 {}
    }

    /// There is no queue.
    pub fn leave(&self, _: &str) {
        match self.0 {}
    }
}

/// A piece of work. There is none without a queue.
pub struct Delivery(Never);

impl Delivery {
    /// There is no work.
    pub fn payload(&self) -> &[u8] {
        match self.0 {}
    }

    /// There is no work.
    pub fn taken(&self) -> u64 {
        match self.0 {}
    }

    /// There is no work.
    pub fn keep(&self) -> Lease {
        match self.0 {}
    }

    /// There is no work.
    pub fn done(&self) -> Result<()> {
        match self.0 {}
    }

    /// There is no work.
    pub fn give_back(&self, _: Duration) -> Result<()> {
        match self.0 {}
    }

    /// There is no work.
    pub fn give_up(&self) -> Result<()> {
        match self.0 {}
    }
}

/// Something that is said again and again. There is none without a queue.
pub struct Lease(Never);

impl Lease {
    /// There is nothing to end.
    pub fn end(self) {
        match self.0 {}
    }
}
