//! Random numbers of one sample of a set that is made by code.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of its own for every purpose and index. Only `+ - * /` and `sqrt` follow, which are exact everywhere.
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    pub(super) fn new(purpose: &[u8; 24], seed: u64, index: u64) -> Self {
        let mut key = [0; 32];
        key[..24].copy_from_slice(purpose);
        key[24..].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(index);
        Self(generator)
    }

    /// Uniform in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.0.next_u64()) * limit as u128) >> 64) as usize
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
