//! Sharpness-aware minimisation (Foret et al., 2021): the gradient is taken a little way up the slope.

use super::Learner;

/// Returns the parameters at a distance `radius` up a gradient. The length of the gradient is that of all its parts together.
pub(super) fn uphill(parameters: &[f32], gradient: &[f32], radius: f64) -> Vec<f32> {
    let squares = gradient.iter().map(|&slope| f64::from(slope).powi(2));
    let factor = radius / (squares.sum::<f64>().sqrt() + 1e-12);
    let pairs = parameters.iter().zip(gradient);
    let moved = pairs.map(|(&value, &slope)| (f64::from(value) + factor * f64::from(slope)) as f32);
    moved.collect()
}

/// Does something with the network a distance `radius` up a gradient, and puts the parameters back, bit for bit.
pub(super) fn with_network_uphill<T>(
    learner: &mut Learner,
    gradient: &[f32],
    radius: f64,
    work: impl FnOnce(&mut Learner) -> T,
) -> T {
    let parameters = learner.parameters();
    learner.set_parameters(&uphill(&parameters, gradient, radius));
    let result = work(learner);
    learner.set_parameters(&parameters);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_is_as_long_as_the_radius() {
        let parameters = [1.0, -1.0, 0.5];
        let moved = uphill(&parameters, &[3.0, 0.0, -4.0], 0.05);
        for (found, expected) in moved.iter().zip([1.03, -1.0, 0.46]) {
            // Single precision near one.
            assert!((found - expected).abs() < 1e-7);
        }
        assert_eq!(uphill(&parameters, &[0.0; 3], 0.05), parameters);
    }
}
