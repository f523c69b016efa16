//! Gaussian, shot, impulse and speckle noise.
//!
//! Each of the four changes every byte by itself, so each *is* a table: for every value a byte may have, the
//! distribution of the byte that takes its place. Drawing from it costs 32 random bits and one look into an alias table,
//! and the distribution is the recipe's to within 2^-32 for every outcome.

use crate::corruptor::Kernel;
use crate::pixel::to_byte;
use crate::random::Random;

/// Which noise, with its constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Noise {
    /// x + N(0, sigma^2)
    Gaussian { sigma: f64 },
    /// Poisson(x rate) / rate
    Shot { rate: f64 },
    /// x replaced with probability `amount`, half by 1, half by 0
    Impulse { amount: f64 },
    /// x + x N(0, sigma^2)
    Speckle { sigma: f64 },
}

impl Noise {
    /// Probabilities of the bytes that may replace `byte`.
    fn outcomes(self, byte: u8) -> [f64; 256] {
        let x = f64::from(byte) / 255.0;
        match self {
            Self::Gaussian { sigma } => truncated_normal(x, sigma),
            Self::Speckle { sigma } => truncated_normal(x, x * sigma),
            Self::Shot { rate } => poisson(x * rate, rate),
            Self::Impulse { amount } => {
                let mut probabilities = [0.0; 256];
                probabilities[usize::from(to_byte(x))] += 1.0 - amount;
                probabilities[0] += amount / 2.0;
                probabilities[255] += amount / 2.0;
                probabilities
            }
        }
    }
}

/// Byte k is reached from [k/255, (k+1)/255); the first and the last also take what is clipped.
fn truncated_normal(mean: f64, sigma: f64) -> [f64; 256] {
    let mut probabilities = [0.0; 256];
    if sigma == 0.0 {
        probabilities[usize::from(to_byte(mean))] = 1.0;
        return probabilities;
    }
    let below = |edge: f64| 0.5 * libm::erfc((mean - edge) / (sigma * std::f64::consts::SQRT_2));
    let mut left = 0.0;
    for (byte, probability) in probabilities.iter_mut().enumerate() {
        let right = if byte == 255 {
            1.0
        } else {
            below((byte + 1) as f64 / 255.0)
        };
        *probability = right - left;
        left = right;
    }
    probabilities
}

fn poisson(mean: f64, rate: f64) -> [f64; 256] {
    let mut probabilities = [0.0; 256];
    let mut probability = (-mean).exp();
    let mut rest = 1.0;
    let mut count = 0.0;
    while count < rate {
        probabilities[usize::from(to_byte(count / rate))] += probability;
        rest -= probability;
        count += 1.0;
        probability *= mean / count;
    }
    probabilities[255] += f64::max(rest, 0.0);
    probabilities
}

/// 256 alias tables of 256 columns, one for each value of the input.
///
/// A column is packed into 32 bits: the share of the column that keeps its own outcome (24 bits), then the outcome of
/// the rest.
pub(crate) struct Channel {
    columns: Vec<u32>,
}

impl Channel {
    pub(crate) fn new(noise: Noise) -> Self {
        let columns = (0..=255)
            .flat_map(|byte| alias_columns(&noise.outcomes(byte)))
            .collect();
        Self { columns }
    }

    #[inline]
    fn draw(&self, byte: u8, word: u32) -> u8 {
        let own = word as u8;
        let column = self.columns[usize::from(byte) << 8 | usize::from(own)];
        if word >> 8 < column >> 8 {
            own
        } else {
            column as u8
        }
    }
}

/// Vose's construction: columns short of 1/256 are filled up from columns that have more.
fn alias_columns(probabilities: &[f64; 256]) -> [u32; 256] {
    let mut shares = probabilities.map(|probability| probability * 256.0);
    let (mut short, mut long): (Vec<usize>, Vec<usize>) =
        (0..256).partition(|&outcome| shares[outcome] < 1.0);
    // A column that is not touched below keeps its own outcome, and so does its alias.
    let mut columns = std::array::from_fn(|outcome| outcome as u32);
    while let (Some(&poor), Some(&rich)) = (short.last(), long.last()) {
        short.pop();
        columns[poor] = ((shares[poor] * f64::from(1 << 24)).round() as u32).min((1 << 24) - 1)
            << 8
            | rich as u32;
        shares[rich] -= 1.0 - shares[poor];
        if shares[rich] < 1.0 {
            long.pop();
            short.push(rich);
        }
    }
    columns
}

impl Kernel for &Channel {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        for byte in image {
            *byte = self.draw(*byte, random.word());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Noise; 4] = [
        Noise::Gaussian { sigma: 0.1 },
        Noise::Shot { rate: 50.0 },
        Noise::Impulse { amount: 0.07 },
        Noise::Speckle { sigma: 0.2 },
    ];

    #[test]
    fn alias_tables_reproduce_the_probabilities() {
        for noise in ALL {
            let channel = Channel::new(noise);
            for byte in [0, 1, 100, 254, 255] {
                let expected = noise.outcomes(byte);
                assert!(
                    (expected.iter().sum::<f64>() - 1.0).abs() < 1e-12,
                    "{noise:?} {byte}"
                );
                let mut found = [0.0; 256];
                for own in 0..256 {
                    let column = channel.columns[usize::from(byte) << 8 | own];
                    let kept = f64::from(column >> 8) / f64::from(1 << 24);
                    found[own] += kept / 256.0;
                    found[(column & 0xff) as usize] += (1.0 - kept) / 256.0;
                }
                for outcome in 0..256 {
                    // Half a unit of the 24-bit share in up to 256 columns.
                    let difference = (expected[outcome] - found[outcome]).abs();
                    assert!(
                        difference < 1e-7,
                        "{noise:?} {byte} -> {outcome}: {difference}"
                    );
                }
            }
        }
    }

    #[test]
    fn moments_are_those_of_the_formulas() {
        let moments = |noise: Noise, byte: u8| {
            let outcomes = noise.outcomes(byte);
            let mean: f64 = outcomes
                .iter()
                .enumerate()
                .map(|(value, p)| value as f64 * p)
                .sum();
            let square: f64 = outcomes
                .iter()
                .enumerate()
                .map(|(value, p)| (value as f64).powi(2) * p)
                .sum();
            (mean, (square - mean * mean).sqrt())
        };
        // Far from the ends nothing is clipped; truncation costs half a level and adds a variance of 1/12.
        let (mean, deviation) = moments(Noise::Gaussian { sigma: 0.04 }, 128);
        assert!(
            (mean - 127.5).abs() < 1e-3
                && (deviation - (10.2f64.powi(2) + 1.0 / 12.0).sqrt()).abs() < 1e-3
        );
        let (mean, deviation) = moments(Noise::Speckle { sigma: 0.06 }, 100);
        assert!(
            (mean - 99.5).abs() < 1e-3 && (deviation - (36.0 + 1.0 / 12.0f64).sqrt()).abs() < 1e-3
        );
        let (mean, deviation) = moments(Noise::Shot { rate: 500.0 }, 51);
        // Multiples of 0.51 levels are truncated, hence the wider bounds.
        assert!(
            (mean - 50.5).abs() < 0.05 && (deviation - 5.1).abs() < 0.15,
            "{mean} {deviation}"
        );
        let (mean, _) = moments(Noise::Impulse { amount: 0.2 }, 100);
        assert!((mean - (80.0 + 25.5)).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn black_stays_black_under_noise_that_scales_with_light() {
        for noise in [Noise::Shot { rate: 3.0 }, Noise::Speckle { sigma: 0.6 }] {
            assert!((noise.outcomes(0)[0] - 1.0).abs() < f64::EPSILON);
        }
    }
}
