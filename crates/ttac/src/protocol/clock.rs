//! Arrivals at a given rate against work that takes its time.

use serde::{Deserialize, Serialize};

/// Decides which batches arrive while a method is still busy. Time stands still between arrivals: what counts is
/// the rate at which samples come and the seconds that were measured for the work on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Samples per second.
    rate: f64,
    arrived: usize,
    /// When the work on the last batch that was learned from is done, in seconds from the first arrival.
    busy_until: f64,
}

impl Clock {
    /// Starts a stream that brings `rate` samples per second.
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            arrived: 0,
            busy_until: 0.0,
        }
    }

    fn now(&self) -> f64 {
        self.arrived as f64 / self.rate
    }

    /// Notes that the next samples are there; returns whether the method is still busy.
    pub fn arrive(&mut self, samples: usize) -> bool {
        self.arrived += samples;
        self.now() < self.busy_until
    }

    /// Notes that work on the samples that just arrived takes this long.
    pub fn work(&mut self, seconds: f64) {
        self.busy_until = self.now() + seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_come_while_the_method_works_are_late() {
        let mut clock = Clock::new(10.0);
        assert!(!clock.arrive(10), "the first is there after a second");
        clock.work(2.5);
        let late: Vec<bool> = (0..4).map(|_| clock.arrive(10)).collect();
        assert_eq!(late, [true, true, false, false]);
    }
}
