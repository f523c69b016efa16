//! Exact t-SNE of a few hundred points, the same bits every time.
//!
//! It minimises `KL(P, Q)`, with `P` the symmetric neighbour probabilities of the points, whose bandwidths
//! give every point the same perplexity, and `Q` those of a Student distribution with one degree of
//! freedom between places in the plane (van der Maaten and Hinton, 2008). Constants and schedule are
//! the usual ones. The first places are two principal components, so no random number is needed.

/// How many neighbours count, roughly.
const PERPLEXITY: f64 = 30.0;
/// The number of steps down the gradient.
const STEPS: usize = 750;
/// The number of first steps in which neighbours attract each other [`EXAGGERATION`] times as much.
const EXAGGERATED_STEPS: usize = 250;
const EXAGGERATION: f64 = 12.0;

/// Places the rows of `features`, `[points, dimension]`, in the plane. Given the places of an earlier
/// picture as `start`, two pictures are alike where the points are.
pub(super) fn embed(
    features: &[f32],
    dimension: usize,
    start: Option<&[[f64; 2]]>,
) -> Vec<[f64; 2]> {
    let count = features.len() / dimension.max(1);
    if count < 4 {
        return vec![[0.0; 2]; count];
    }
    let attraction = neighbour_probabilities(features, dimension, count);
    let mut places = match start {
        Some(start) => start.to_vec(),
        None => principal_components(features, dimension, count),
    };
    scale(&mut places, 1e-4);
    let rate = (count as f64 / EXAGGERATION / 4.0).max(50.0);
    let mut speed = vec![[0.0_f64; 2]; count];
    let mut gains = vec![[1.0_f64; 2]; count];
    for step in 0..STEPS {
        let (exaggeration, momentum) = if step < EXAGGERATED_STEPS {
            (EXAGGERATION, 0.5)
        } else {
            (1.0, 0.8)
        };
        let gradient = gradient(&attraction, &places, exaggeration);
        for i in 0..count {
            for axis in 0..2 {
                let same_way = (gradient[i][axis] > 0.0) == (speed[i][axis] > 0.0);
                let gain = &mut gains[i][axis];
                *gain = if same_way { *gain * 0.8 } else { *gain + 0.2 }.max(0.01);
                speed[i][axis] = momentum * speed[i][axis] - rate * *gain * gradient[i][axis];
                places[i][axis] += speed[i][axis];
            }
        }
    }
    centre(&mut places);
    places
}

/// Returns the symmetric probabilities of being neighbours, `[points, points]`.
fn neighbour_probabilities(features: &[f32], dimension: usize, count: usize) -> Vec<f64> {
    let rows: Vec<&[f32]> = features.chunks_exact(dimension).collect();
    let mut squares = vec![0.0; count * count];
    for i in 0..count {
        for j in 0..i {
            let pairs = rows[i].iter().zip(rows[j]);
            let square: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
            squares[i * count + j] = square;
            squares[j * count + i] = square;
        }
    }
    let entropy = PERPLEXITY.min((count - 1) as f64 / 3.0).ln();
    let mut conditional = vec![0.0; count * count];
    for i in 0..count {
        let row = &squares[i * count..][..count];
        let row = conditional_probabilities(row, i, entropy);
        conditional[i * count..][..count].copy_from_slice(&row);
    }
    let mut joint = vec![0.0; count * count];
    for i in 0..count {
        for j in 0..count {
            let sum = conditional[i * count + j] + conditional[j * count + i];
            joint[i * count + j] = sum / (2 * count) as f64;
        }
    }
    joint
}

/// Returns `p(j | i)` by squared distances from point `i`, with the precision that gives them `entropy`.
fn conditional_probabilities(squares: &[f64], i: usize, entropy: f64) -> Vec<f64> {
    let others = || squares.iter().enumerate().filter(|(j, _)| *j != i);
    let nearest = others().map(|(_, square)| *square).fold(f64::MAX, f64::min);
    let mut probabilities = vec![0.0; squares.len()];
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let mut precision = 1.0
        / (others().map(|(_, s)| s - nearest).sum::<f64>() / (squares.len() - 1) as f64).max(1e-12);
    for _ in 0..64 {
        let (mut sum, mut weighted) = (0.0, 0.0);
        for (j, square) in others() {
            let distance = square - nearest;
            let weight = (-precision * distance).exp();
            probabilities[j] = weight;
            sum += weight;
            weighted += weight * distance;
        }
        for probability in &mut probabilities {
            *probability /= sum;
        }
        let difference = precision * weighted / sum + sum.ln() - entropy;
        if difference.abs() < 1e-5 {
            break;
        }
        if difference > 0.0 {
            low = precision;
            precision = if high.is_finite() {
                f64::midpoint(low, high)
            } else {
                2.0 * precision
            };
        } else {
            high = precision;
            precision = f64::midpoint(low, high);
        }
    }
    probabilities
}

/// Returns `dKL / dy_i = 4 sum_j (p_ij - q_ij) w_ij (y_i - y_j)`, `w_ij = 1 / (1 + |y_i - y_j|^2)`.
fn gradient(attraction: &[f64], places: &[[f64; 2]], exaggeration: f64) -> Vec<[f64; 2]> {
    let count = places.len();
    let (mut pull, mut push) = (vec![[0.0; 2]; count], vec![[0.0; 2]; count]);
    let mut sum = 0.0;
    for i in 0..count {
        for j in 0..i {
            let (dx, dy) = (places[i][0] - places[j][0], places[i][1] - places[j][1]);
            let weight = 1.0 / (1.0 + dx * dx + dy * dy);
            sum += 2.0 * weight;
            let attracted = exaggeration * attraction[i * count + j] * weight;
            let repelled = weight * weight;
            for (axis, difference) in [dx, dy].into_iter().enumerate() {
                pull[i][axis] += attracted * difference;
                pull[j][axis] -= attracted * difference;
                push[i][axis] += repelled * difference;
                push[j][axis] -= repelled * difference;
            }
        }
    }
    let pairs = pull.iter().zip(&push);
    pairs
        .map(|(pull, push)| [0, 1].map(|axis| 4.0 * (pull[axis] - push[axis] / sum)))
        .collect()
}

/// Projects the rows on the two directions of largest variance, which orthogonal iteration finds from a
/// fixed start.
fn principal_components(features: &[f32], dimension: usize, count: usize) -> Vec<[f64; 2]> {
    let mut mean = vec![0.0; dimension];
    for row in features.chunks_exact(dimension) {
        for (mean, value) in mean.iter_mut().zip(row) {
            *mean += f64::from(*value) / count as f64;
        }
    }
    let centred = |row: &[f32]| -> Vec<f64> {
        let pairs = row.iter().zip(&mean);
        pairs
            .map(|(value, mean)| f64::from(*value) - mean)
            .collect()
    };
    let rows: Vec<Vec<f64>> = features.chunks_exact(dimension).map(centred).collect();
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let mut directions: [Vec<f64>; 2] = [1.0, 2.0].map(|turn| {
        (0..dimension)
            .map(|i| (turn * (i + 1) as f64).sin())
            .collect()
    });
    let mut places = vec![[0.0; 2]; count];
    for _ in 0..50 {
        let overlap = dot(&directions[0], &directions[1])
            / dot(&directions[0], &directions[0]).max(f64::MIN_POSITIVE);
        for i in 0..dimension {
            directions[1][i] -= overlap * directions[0][i];
        }
        for direction in &mut directions {
            let length = dot(direction, direction).sqrt().max(f64::MIN_POSITIVE);
            for value in direction.iter_mut() {
                *value /= length;
            }
        }
        for (place, row) in places.iter_mut().zip(&rows) {
            *place = [0, 1].map(|axis| dot(row, &directions[axis]));
        }
        for axis in 0..2 {
            directions[axis].fill(0.0);
            for (place, row) in places.iter().zip(&rows) {
                for (value, feature) in directions[axis].iter_mut().zip(row) {
                    *value += place[axis] * feature;
                }
            }
        }
    }
    places
}

fn centre(places: &mut [[f64; 2]]) {
    for axis in 0..2 {
        let mean = places.iter().map(|place| place[axis]).sum::<f64>() / places.len() as f64;
        for place in places.iter_mut() {
            place[axis] -= mean;
        }
    }
}

/// Centres the places and scales them to a standard deviation along the first axis.
fn scale(places: &mut [[f64; 2]], deviation: f64) {
    centre(places);
    let square: f64 = places.iter().map(|place| place[0].powi(2)).sum();
    let factor = deviation / (square / places.len() as f64).sqrt().max(f64::MIN_POSITIVE);
    for place in places {
        *place = place.map(|value| value * factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three groups of twenty points in six dimensions.
    fn groups() -> Vec<f32> {
        let point = |group: usize, i: usize| {
            (0..6).map(move |d| {
                let centre = if d == group { 10.0 } else { 0.0 };
                centre + ((7 * i + 3 * d + group) as f32).sin()
            })
        };
        (0..60).flat_map(|i| point(i / 20, i)).collect()
    }

    #[test]
    fn groups_stay_together_and_apart() {
        let places = embed(&groups(), 6, None);
        let centre = |group: usize| {
            let members = &places[20 * group..][..20];
            [0, 1].map(|axis| members.iter().map(|p| p[axis]).sum::<f64>() / 20.0)
        };
        let distance = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
        for (i, place) in places.iter().enumerate() {
            let own = distance(*place, centre(i / 20));
            for other in (0..3).filter(|group| *group != i / 20) {
                assert!(own < distance(*place, centre(other)), "point {i}");
            }
        }
    }

    #[test]
    fn the_same_points_have_the_same_places() {
        assert_eq!(embed(&groups(), 6, None), embed(&groups(), 6, None));
        assert_eq!(embed(&[0.0; 18], 6, None), [[0.0; 2]; 3], "too few to tell");
        let same = embed(&[1.0; 60], 6, None);
        assert!(same.iter().flatten().all(|value| value.is_finite()));
    }

    #[test]
    fn conditional_probabilities_have_the_perplexity_asked_for() {
        let squares: Vec<f64> = (0..40).map(|j| f64::from(j * j) / 10.0).collect();
        let row = conditional_probabilities(&squares, 3, 8_f64.ln());
        assert_eq!(row[3], 0.0);
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let entropy: f64 = row.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        assert!((entropy - 8_f64.ln()).abs() < 1e-4);
    }
}
