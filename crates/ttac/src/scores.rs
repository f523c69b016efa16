//! Scores of classes.

/// Returns the class with the largest score, and that score.
///
/// Of equal scores the first counts, as in PyTorch's and Burn's `argmax`. A score that is not a number
/// counts as the largest, as in PyTorch's.
///
/// ```
/// assert_eq!(ttac::best(&[0.2, 0.4, 0.4]), (1, 0.4));
/// ```
///
/// # Panics
/// If there is no class.
pub fn best(scores: &[f32]) -> (usize, f32) {
    let mut best = 0;
    let mut largest = *scores.first().expect("a network has classes");
    for (class, &score) in scores.iter().enumerate() {
        if score > largest || (score.is_nan() && !largest.is_nan()) {
            (best, largest) = (class, score);
        }
    }
    (best, largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_scores_counts() {
        assert_eq!(best(&[1.0, 3.0, 2.0]), (1, 3.0));
        assert_eq!(best(&[0.5, 0.5, 0.5]), (0, 0.5));
        assert_eq!(best(&[0.1, 0.7, 0.2, 0.7]), (1, 0.7));
        assert_eq!(
            best(&[-0.0, 0.0]).0,
            0,
            "zeros are equal whatever their sign"
        );
        assert_eq!(best(&[f32::NEG_INFINITY; 2]).0, 0);
        let (class, score) = best(&[1.0, f32::NAN, f32::INFINITY, f32::NAN]);
        assert!(class == 1 && score.is_nan());
    }
}
