//! The moments that feature alignment compares.

use super::source::Alignment;
use super::{Covariance, CovarianceKind, Moments};

/// Collects the moments of feature alignment and their natural scales. The first batch is the
/// reference; the others are compared with it, and together they make the moments.
pub(super) struct Aligning {
    batch: usize,
    waiting: Vec<f32>,
    reference: Option<(Vec<f64>, Vec<f64>)>,
    rest: Option<Moments>,
    covariance_distance: f64,
    mean_distance: f64,
    compared: usize,
}

impl Aligning {
    pub fn new(batch: usize) -> Self {
        Self {
            batch,
            waiting: Vec::new(),
            reference: None,
            rest: None,
            covariance_distance: 0.0,
            mean_distance: 0.0,
            compared: 0,
        }
    }

    pub fn add(&mut self, rows: &[f32], size: usize) {
        self.waiting.extend_from_slice(rows);
        let whole = self.batch * size;
        while self.waiting.len() >= whole {
            let rest = self.waiting.split_off(whole);
            let batch = std::mem::replace(&mut self.waiting, rest);
            self.compare(&batch, size);
        }
    }

    fn compare(&mut self, batch: &[f32], size: usize) {
        let mut moments = Moments::new(size, CovarianceKind::Full);
        moments.update(batch);
        let (mean, covariance) = (moments.mean(), unbiased(&moments));
        let Some((reference_mean, reference_covariance)) = &self.reference else {
            self.reference = Some((mean, covariance));
            return;
        };
        let d = size as f64;
        self.mean_distance += distance(&mean, reference_mean) / d;
        self.covariance_distance += distance(&covariance, reference_covariance) / (4.0 * d * d);
        self.compared += 1;
        match &mut self.rest {
            Some(rest) => rest.merge(&moments),
            None => self.rest = Some(moments),
        }
    }

    pub fn finish(self) -> Option<Alignment> {
        let rest = self.rest?;
        Some(Alignment {
            mean: rest.mean(),
            covariance: unbiased(&rest),
            covariance_scale: self.covariance_distance / self.compared as f64,
            mean_scale: self.mean_distance / self.compared as f64,
            batch: self.batch,
        })
    }
}

fn unbiased(moments: &Moments) -> Vec<f64> {
    let Covariance::Full(mut matrix) = moments.covariance() else {
        unreachable!("alignment keeps full covariances")
    };
    let n = moments.count() as f64;
    for value in &mut matrix {
        *value *= n / (n - 1.0);
    }
    matrix
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}
