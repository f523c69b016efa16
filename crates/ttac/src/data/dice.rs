//! Random numbers of one sample of a set that is made by code.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::rng::{Purpose, below, shuffle};

/// A stream of its own for every purpose and index. Only `+ - * /` and `sqrt` follow, which are exact everywhere.
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    pub(super) fn new(purpose: Purpose, seed: u64, index: u64) -> Self {
        Self(purpose.stream(seed, index))
    }

    /// Uniform in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        below(limit, &mut self.0)
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        shuffle(items, &mut self.0);
    }

    /// Cosine and sine of a random angle.
    pub(super) fn direction(&mut self) -> [f64; 2] {
        loop {
            let [x, y] = std::array::from_fn(|_| self.uniform(-1.0, 1.0));
            let square = x * x + y * y;
            if (1e-4..1.0).contains(&square) {
                return [x / square.sqrt(), y / square.sqrt()];
            }
        }
    }
}
