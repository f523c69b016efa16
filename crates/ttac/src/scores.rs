//! Scores of classes.

/// The class with the largest score, and that score; of equal ones the last.
///
/// # Panics
/// If there is no class.
pub fn best(scores: &[f32]) -> (usize, f32) {
    let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let (class, score) = best.expect("a network has classes");
    (class, *score)
}
