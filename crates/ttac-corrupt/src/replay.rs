//! A generator for tests that the Python programs under `reference/corruptions` contain too.

use crate::corruptor::Kernel;
use crate::random::Random;
use crate::size::Size;

/// A picture whose bytes count up in steps, and start again at `modulus`.
pub(crate) fn picture(size: Size, step: usize, modulus: usize) -> Vec<u8> {
    let bytes = 0..size.bytes();
    bytes.map(|index| (index * step % modulus) as u8).collect()
}

/// What a kernel makes of a picture.
pub(crate) fn applied(mut kernel: impl Kernel, picture: &[u8], seed: u64) -> Vec<u8> {
    let mut image = picture.to_vec();
    kernel.apply(&mut image, &mut Replay::new(seed));
    image
}

/// The generator `SplitMix64`. A normal is the sum of twelve uniforms less six.
pub(crate) struct Replay(u64);

impl Replay {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn word64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Random for Replay {
    fn word(&mut self) -> u32 {
        (self.word64() >> 32) as u32
    }

    fn unit(&mut self) -> f64 {
        (self.word64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..12 {
            sum += self.unit();
        }
        sum - 6.0
    }
}
