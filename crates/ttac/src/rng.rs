//! Random numbers: one stream for every purpose, the same bits on every machine.
//!
//! A stream is a `ChaCha8` generator. Its key says what the numbers are for and which seed they belong to, its stream
//! number which of many equal things they are for: a sample, an epoch, a visit. Streams of different purposes never
//! overlap, so that changing one choice leaves the others as they were.
//!
//! Results can be repeated only as long as the keys stay: none of them may change.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What random numbers are for: the first 24 of the 32 bytes of a key. The last eight are the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose([u8; 24]);

impl Purpose {
    /// Starts from a label; bytes that [`with`](Self::with) replaces are dots in it.
    pub(crate) const fn new(label: [u8; 24]) -> Self {
        Self(label)
    }

    /// Writes bytes over the label, e.g. a second number that the stream depends on.
    pub(crate) fn with<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Self {
        self.0[at..at + N].copy_from_slice(&bytes);
        self
    }

    /// Returns the generator of one stream.
    pub(crate) fn stream(self, seed: u64, index: u64) -> ChaCha8Rng {
        let mut key = [0; 32];
        key[..24].copy_from_slice(&self.0);
        key[24..].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(index);
        rng
    }
}

/// Returns the generator of one stream of a seed without a purpose. Purposes that share a seed have to have stream
/// numbers of their own.
pub(crate) fn seeded(seed: u64, index: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(index);
    rng
}

// Written out, because data and plans must not change with the version of a dependency.

/// Draws a number in `0..limit`.
pub(crate) fn below(limit: usize, rng: &mut impl Rng) -> usize {
    ((u128::from(rng.next_u64()) * limit as u128) >> 64) as usize
}

/// Puts items into a random order, by the algorithm of Fisher and Yates.
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(last + 1, rng));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys as they were when they were written out where they are used.
    #[test]
    fn keys_are_label_and_seed() {
        let mut by_hand = ChaCha8Rng::from_seed(*b"a label of 24 bytes, ok?\x07\0\0\0\0\0\0\0");
        by_hand.set_stream(9);
        let mut ours = Purpose::new(*b"a label of 24 bytes, .k?")
            .with(21, *b"o")
            .stream(7, 9);
        assert_eq!(ours.next_u64(), by_hand.next_u64());

        let mut by_hand = ChaCha8Rng::seed_from_u64(7);
        assert_eq!(seeded(7, 0).next_u64(), by_hand.next_u64());
        assert_ne!(seeded(7, 1).next_u64(), seeded(7, 0).next_u64());
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<usize> = (0..100).collect();
        shuffle(&mut items, &mut seeded(0, 0));
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
