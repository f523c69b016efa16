//! Trained vectors that are held at the direction which they have in the source.

use super::Learner;

/// Adds the gradient of `-weight mean_j cos(theta_j, theta0_j)` over the trained vectors to another one, and returns its value. A vector
/// of zeros has no direction: its cosine is 0, and so is its gradient.
pub(super) fn hold(learner: &Learner, weight: f64, gradient: &mut [f32]) -> f64 {
    let (now, source) = (learner.parameters(), learner.source_parameters());
    let lengths = learner.parameter_lengths();
    let share = weight / lengths.len().max(1) as f64;
    let (mut start, mut sum) = (0, 0.0);
    for length in lengths {
        let own = start..start + length;
        start += length;
        sum += away(
            (&now[own.clone()], &source[own.clone()]),
            share,
            &mut gradient[own],
        );
    }
    sum
}

/// Adds the gradient of `-weight cos(a, b)` over `a` to another one, and returns its value.
fn away((a, b): (&[f32], &[f32]), weight: f64, gradient: &mut [f32]) -> f64 {
    let pairs = || a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let product: f64 = pairs().map(|(a, b)| a * b).sum();
    let squares = pairs().fold((0.0, 0.0), |(x, y), (a, b)| (x + a * a, y + b * b));
    let (long_a, long_b) = (f64::sqrt(squares.0), f64::sqrt(squares.1));
    if long_a * long_b == 0.0 {
        return 0.0;
    }
    let cosine = product / (long_a * long_b);
    for (slope, (a, b)) in gradient.iter_mut().zip(pairs()) {
        *slope -= (weight * (b / long_b - cosine * a / long_a) / long_a) as f32;
    }
    -weight * cosine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_of_a_cosine_is_that_of_differences() {
        let (a, b) = ([0.7_f32, -0.2, 0.4], [1.0_f32, 0.1, 0.3]);
        let mut gradient = [0.0; 3];
        let value = away((&a, &b), 2.0, &mut gradient);
        let step = 1e-3;
        for place in 0..3 {
            let mut moved = a;
            moved[place] += step;
            let above = away((&moved, &b), 2.0, &mut [0.0; 3]);
            let difference = (above - value) / f64::from(step);
            // A one-sided difference is wrong by the step times half of the second derivative.
            let slope = f64::from(gradient[place]);
            assert!((slope - difference).abs() < 5e-3, "{slope} {difference}");
        }
        let along: f32 = gradient.iter().zip(a).map(|(g, a)| g * a).sum();
        assert!(along.abs() < 1e-6, "length does not matter");
    }

    #[test]
    fn the_source_itself_has_a_value_of_minus_the_weight_and_no_gradient() {
        let mut gradient = [0.0; 2];
        let value = away((&[3.0, 4.0], &[3.0, 4.0]), 1.0, &mut gradient);
        assert!((value + 1.0).abs() < 1e-12);
        assert!(gradient.iter().all(|slope| slope.abs() < 1e-7));
        assert_eq!(away((&[0.0; 2], &[1.0; 2]), 1.0, &mut gradient), 0.0);
    }
}
