use crate::size::Size;
use crate::wide::wide;

/// The central zoom of zoom blur and snow, one axis: for each output index, where to look in the input.
#[derive(Clone, Debug)]
struct ZoomAxis {
    /// Two neighbouring input indices and the weight of the second. At the end both are the last.
    samples: Vec<(usize, usize, f64)>,
}

impl ZoomAxis {
    /// The middle ceil(length / factor) samples, spread over round(crop * factor) with both ends fixed, of which the
    /// middle `length` are kept.
    fn new(length: usize, factor: f64) -> Self {
        let crop = (length as f64 / factor).ceil() as usize;
        let top = (length - crop) / 2;
        let grown = (crop as f64 * factor).round_ties_even() as usize;
        let trim = (grown - length) / 2;
        let step = if grown > 1 {
            (crop - 1) as f64 / (grown - 1) as f64
        } else {
            1.0
        };
        let samples = (trim..trim + length)
            .map(|index| {
                let position = (index as f64 * step).min((crop - 1) as f64);
                let first = position as usize;
                (
                    top + first,
                    top + (first + 1).min(crop - 1),
                    position - first as f64,
                )
            })
            .collect();
        Self { samples }
    }
}

/// Central zoom by one factor.
#[derive(Clone, Debug)]
pub(crate) struct CentralZoom {
    rows: ZoomAxis,
    columns: ZoomAxis,
    line: Vec<f32>,
}

impl CentralZoom {
    pub(crate) fn new(size: Size, factor: f64) -> Self {
        let (rows, columns) = (
            ZoomAxis::new(size.height, factor),
            ZoomAxis::new(size.width, factor),
        );
        Self {
            rows,
            columns,
            line: Vec::new(),
        }
    }

    /// Adds the zoomed image [height, width, 3] to `sum`.
    pub(crate) fn add_to(&mut self, image: &[f32], sum: &mut [f32]) {
        wide(
            #[inline(always)]
            || self.add_rows_to(image, sum),
        );
    }

    #[inline(always)]
    fn add_rows_to(&mut self, image: &[f32], sum: &mut [f32]) {
        let stride = 3 * self.columns.samples.len();
        self.line.resize(stride, 0.0);
        for (&(upper, lower, weight), sum) in
            self.rows.samples.iter().zip(sum.chunks_exact_mut(stride))
        {
            let (upper, lower) = (
                &image[upper * stride..][..stride],
                &image[lower * stride..][..stride],
            );
            let weight = weight as f32;
            for ((line, &upper), &lower) in self.line.iter_mut().zip(upper).zip(lower) {
                *line = upper + (lower - upper) * weight;
            }
            for (&(left, right, weight), sum) in
                self.columns.samples.iter().zip(sum.chunks_exact_mut(3))
            {
                let (left, right) = (&self.line[3 * left..][..3], &self.line[3 * right..][..3]);
                let weight = weight as f32;
                for ((sum, &left), &right) in sum.iter_mut().zip(left).zip(right) {
                    *sum += left + (right - left) * weight;
                }
            }
        }
    }

    /// The zoomed `layer` [height, width] in double precision.
    pub(crate) fn layer(&self, layer: &[f64], mut put: impl FnMut(usize, f64)) {
        let width = self.columns.samples.len();
        let mut index = 0;
        for &(upper, lower, down) in &self.rows.samples {
            for &(left, right, across) in &self.columns.samples {
                let between = |row: usize| {
                    layer[row * width + left] * (1.0 - across) + layer[row * width + right] * across
                };
                put(index, between(upper) * (1.0 - down) + between(lower) * down);
                index += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_one_is_the_identity() {
        let size = Size::new(8, 12).unwrap();
        let image: Vec<f32> = (0..8 * 12 * 3)
            .map(|index| (index * 31 % 97) as f32)
            .collect();
        let mut sum = vec![0.0; image.len()];
        CentralZoom::new(size, 1.0).add_to(&image, &mut sum);
        assert_eq!(image, sum);
    }
}
