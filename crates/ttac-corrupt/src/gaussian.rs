use crate::pixel::Border;
use crate::size::Size;
use crate::wide::wide;

/// A separable Gaussian filter with the arithmetic of the recipe's library: double precision, rows before columns, the
/// centre first and then pairs from the outside in. Truncation to bytes makes the last bit visible in flat areas, hence
/// the care for the order.
#[derive(Clone)]
pub(crate) struct Gaussian {
    /// Weight of the centre, of its neighbours at distance 1, 2, ...
    weights: Vec<f64>,
    border: Border,
    size: Size,
    channels: usize,
    /// Folded weights [side, side] of both axes for a kernel wider than the image.
    folded: Option<[Vec<f64>; 2]>,
    /// One padded line, and the image between the passes.
    line: Vec<f64>,
    between: Vec<f64>,
}

impl Gaussian {
    /// A kernel that ends at `truncate` sigmas. A sigma of zero is the identity.
    pub(crate) fn new(
        sigma: f64,
        truncate: f64,
        border: Border,
        size: Size,
        channels: usize,
    ) -> Self {
        let radius = (truncate * sigma + 0.5) as usize;
        let shape = |distance: usize| {
            if distance == 0 {
                1.0
            } else {
                (-0.5 / (sigma * sigma) * (distance * distance) as f64).exp()
            }
        };
        let side: Vec<f64> = (0..=radius).map(shape).collect();
        let all: Vec<f64> = side.iter().rev().chain(&side[1..]).copied().collect();
        let total = eight_lane_sum(&all);
        let weights: Vec<f64> = side.iter().map(|weight| weight / total).collect();
        // A reflected border makes the folded weights symmetric, which `columns` relies on.
        let wide = border == Border::Reflect && radius > size.height.max(size.width);
        let folded = wide.then(|| [fold(&weights, size.height), fold(&weights, size.width)]);
        Self {
            weights,
            border,
            size,
            channels,
            folded,
            line: Vec::new(),
            between: Vec::new(),
        }
    }

    fn radius(&self) -> usize {
        self.weights.len() - 1
    }

    /// Filters an image [height, width, channels] in place.
    pub(crate) fn apply(&mut self, image: &mut [f64]) {
        self.apply_between(image, |_| {});
    }

    /// As [`apply`](Self::apply), with `rounding` applied to the image after each pass.
    pub(crate) fn apply_between(&mut self, image: &mut [f64], rounding: impl Fn(&mut [f64])) {
        if self.radius() == 0 {
            return;
        }
        let mut between = std::mem::take(&mut self.between);
        between.resize(image.len(), 0.0);
        wide(
            #[inline(always)]
            || self.rows(image, &mut between),
        );
        rounding(&mut between);
        wide(
            #[inline(always)]
            || self.columns(&between, image),
        );
        rounding(image);
        self.between = between;
    }

    /// Mixes each pixel with those above and below it.
    #[inline(always)]
    fn rows(&self, image: &[f64], out: &mut [f64]) {
        let stride = self.size.width * self.channels;
        for (y, out) in out.chunks_exact_mut(stride).enumerate() {
            let row = |index: usize| &image[index * stride..][..stride];
            if let Some([weights, _]) = &self.folded {
                out.fill(0.0);
                for (index, &weight) in weights[y * self.size.height..][..self.size.height]
                    .iter()
                    .enumerate()
                {
                    accumulate(out, row(index), weight);
                }
                continue;
            }
            for (out, value) in out.iter_mut().zip(row(y)) {
                *out = value * self.weights[0];
            }
            let pair = |distance: usize| {
                let neighbour =
                    |offset: isize| row(self.border.index(y as isize + offset, self.size.height));
                (
                    neighbour(-(distance as isize)),
                    neighbour(distance as isize),
                )
            };
            self.accumulate_pairs(out, pair);
        }
    }

    /// Mixes each pixel with those left and right of it.
    #[inline(always)]
    fn columns(&mut self, image: &[f64], out: &mut [f64]) {
        let (channels, width) = (self.channels, self.size.width);
        let (stride, pad) = (width * channels, self.radius() * channels);
        self.line.resize(stride + 2 * pad, 0.0);
        for (row, out) in image.chunks_exact(stride).zip(out.chunks_exact_mut(stride)) {
            if let Some([_, weights]) = &self.folded {
                out.fill(0.0);
                for (x, pixel) in row.iter().enumerate() {
                    accumulate(out, &weights[x * width..][..width], *pixel);
                }
                continue;
            }
            self.line[pad..pad + stride].copy_from_slice(row);
            for step in 1..=self.radius() {
                let left = self.border.index(-(step as isize), width);
                let right = self.border.index((width + step - 1) as isize, width);
                for channel in 0..channels {
                    self.line[pad - step * channels + channel] = row[left * channels + channel];
                    self.line[pad + stride + (step - 1) * channels + channel] =
                        row[right * channels + channel];
                }
            }
            for (out, value) in out.iter_mut().zip(row) {
                *out = value * self.weights[0];
            }
            let from = |start: usize| &self.line[start..start + stride];
            let pair = |distance: usize| {
                (
                    from(pad - distance * channels),
                    from(pad + distance * channels),
                )
            };
            self.accumulate_pairs(out, pair);
        }
    }

    /// Adds the weighted pairs at distance radius, ..., 2, 1 to `out`, two distances at a time.
    #[inline(always)]
    fn accumulate_pairs<'a>(
        &self,
        out: &mut [f64],
        pair: impl Fn(usize) -> (&'a [f64], &'a [f64]),
    ) {
        let mut distance = self.radius();
        while distance >= 2 {
            let (farther, nearer) = (self.weights[distance], self.weights[distance - 1]);
            let ((a, b), (c, d)) = (pair(distance), pair(distance - 1));
            for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                let sum = *out + (a + b) * farther;
                *out = sum + (c + d) * nearer;
            }
            distance -= 2;
        }
        if distance == 1 {
            let (a, b) = pair(1);
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out += (a + b) * self.weights[1];
            }
        }
    }
}

#[inline(always)]
fn accumulate(out: &mut [f64], values: &[f64], weight: f64) {
    for (out, value) in out.iter_mut().zip(values) {
        *out += value * weight;
    }
}

/// The matrix [length, length] that a kernel with half-sample reflection amounts to.
fn fold(weights: &[f64], length: usize) -> Vec<f64> {
    let radius = weights.len() as isize - 1;
    let mut folded = vec![0.0; length * length];
    for (row, folded) in folded.chunks_exact_mut(length).enumerate() {
        for offset in -radius..=radius {
            folded[Border::Reflect.index(row as isize + offset, length)] +=
                weights[offset.unsigned_abs()];
        }
    }
    folded
}

/// Sums as the recipe's array library does: eight interleaved partial sums for eight values or more.
fn eight_lane_sum(values: &[f64]) -> f64 {
    if values.len() < 8 || values.len() > 128 {
        return values.iter().sum();
    }
    let mut lanes = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    rest.iter()
        .fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| {
            sum + value
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_sigma_is_the_identity() {
        let size = Size::new(8, 9).unwrap();
        let mut image: Vec<f64> = (0..72).map(f64::from).collect();
        let before = image.clone();
        Gaussian::new(0.05, 4.0, Border::Nearest, size, 1).apply(&mut image);
        assert_eq!(image, before);
        Gaussian::new(0.0, 3.0, Border::Reflect, size, 1).apply(&mut image);
        assert_eq!(image, before);
    }

    #[test]
    fn folding_changes_nothing_but_the_speed() {
        let size = Size::new(8, 10).unwrap();
        let image: Vec<f64> = (0..80).map(|index| f64::from(index * 37 % 80)).collect();
        let mut folding = Gaussian::new(5.0, 3.0, Border::Reflect, size, 1);
        let mut plain = Gaussian {
            folded: None,
            ..folding.clone()
        };
        assert!(folding.folded.is_some());
        let (mut one, mut other) = (image.clone(), image);
        folding.apply(&mut one);
        plain.apply(&mut other);
        for (one, other) in one.iter().zip(&other) {
            assert!((one - other).abs() < 1e-12);
        }
    }
}
