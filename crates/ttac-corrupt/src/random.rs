use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

use crate::{Corruption, Severity};

/// The random numbers a kernel may draw. The order of the draws is part of every kernel.
pub(crate) trait Random {
    /// 32 random bits.
    fn word(&mut self) -> u32;

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64;

    /// Standard normal.
    fn normal(&mut self) -> f64;

    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in 0..limit.
    fn below(&mut self, limit: usize) -> usize {
        (self.unit() * limit as f64) as usize
    }

    /// Two integers (dx, dy) uniform in -delta..delta, the upper end excluded.
    fn shift(&mut self, delta: u32) -> (isize, isize) {
        let word = self.word();
        let scale = |bits: u32| ((bits * 2 * delta) >> 16) as isize - delta as isize;
        (scale(word & 0xffff), scale(word >> 16))
    }
}

/// The stream of one image: seed, corruption and severity are the key, the image's index is the nonce.
pub(crate) struct Stream(ChaCha8Rng);

impl Stream {
    pub(crate) fn new(seed: u64, corruption: Corruption, severity: Severity, image: u64) -> Self {
        Self::keyed(seed, corruption as u8, severity, image)
    }

    /// The same for anything else: images have the kinds below 128.
    pub(crate) fn keyed(seed: u64, kind: u8, severity: Severity, image: u64) -> Self {
        let mut key = *b"........--ttac-corrupt-stream-1.";
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = kind;
        key[9] = severity.get();
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(image);
        Self(generator)
    }
}

impl Random for Stream {
    fn word(&mut self) -> u32 {
        self.0.next_u32()
    }

    fn unit(&mut self) -> f64 {
        self.0.random()
    }

    fn normal(&mut self) -> f64 {
        self.0.sample(StandardNormal)
    }
}
