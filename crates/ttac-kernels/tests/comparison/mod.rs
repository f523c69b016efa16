//! Numbers to compute with, and how far results are from what was expected.

#![allow(dead_code)] // not every test needs all of it

/// Reproducible values, roughly uniform in `-1 .. 1`.
pub fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.
        })
        .collect()
}

/// Largest difference over the largest value (over 1, should all be smaller).
pub fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1f64, |m, e| m.max(e.abs()));
    found.iter().zip(expected).fold(0f64, |m, (&f, e)| {
        let difference = (f64::from(f) - e).abs();
        assert!(!difference.is_nan(), "NaN in the result");
        m.max(difference)
    }) / largest
}
