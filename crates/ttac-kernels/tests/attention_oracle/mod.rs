//! A naive attention in `f64`, straight from the definition, and cases to compare it on.

#![allow(dead_code)] // not every test needs all of it

use super::comparison::values;
use ttac_kernels::kernels::{AddedMask, AttentionInput, HeadRows, ScaledDotProductShape};

/// An attention to be checked.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub shape: ScaledDotProductShape,
    /// Images and heads of the mask.
    pub mask: Option<[usize; 2]>,
    pub scale: f32,
    /// Whether the operands are `[batch, tokens, heads, width]`, else `[batch, heads, tokens, width]`.
    pub tokens_first: bool,
}

impl Case {
    /// Queries, keys, values and mask.
    pub fn buffers(&self, seed: u64) -> [Vec<f32>; 4] {
        let s = &self.shape;
        let pairs = s.batch * s.heads;
        let large = |len: usize, seed: u64| values(len, seed).iter().map(|v| 2. * v).collect();
        let [images, heads] = self.mask.unwrap_or([0, 0]);
        [
            large(pairs * s.queries * s.width, seed),
            large(pairs * s.tokens * s.width, seed + 1),
            values(pairs * s.tokens * s.value_width, seed + 2),
            large(images * heads * s.queries * s.tokens, seed + 3),
        ]
    }

    pub fn input<'a>(&self, buffers: &'a [Vec<f32>; 4]) -> AttentionInput<'a> {
        let s = &self.shape;
        let rows = |values: &'a [f32], tokens: usize, width: usize| {
            let image = s.heads * tokens * width;
            let strides = if self.tokens_first {
                [image, width, s.heads * width]
            } else {
                [image, tokens * width, width]
            };
            HeadRows { values, strides }
        };
        let [q, k, v, mask] = buffers;
        AttentionInput {
            query: rows(q, s.queries, s.width),
            key: rows(k, s.tokens, s.width),
            value: rows(v, s.tokens, s.value_width),
            mask: self.mask.map(|[images, heads]| AddedMask {
                values: mask,
                images,
                heads,
            }),
            scale: self.scale,
        }
    }
}

/// The result, and the gradients of `sum(y * dy)`, those of queries, keys and values as `[batch, heads, tokens, width]`.
pub struct Exact {
    pub y: Vec<f64>,
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub mask: Vec<f64>,
}

impl Exact {
    pub fn new(input: &AttentionInput, dy: &[f32], s: &ScaledDotProductShape) -> Self {
        let pairs = s.batch * s.heads;
        let zeros = |len: usize| vec![0f64; len];
        let mut exact = Self {
            y: zeros(s.out_len()),
            query: zeros(pairs * s.queries * s.width),
            key: zeros(pairs * s.tokens * s.width),
            value: zeros(pairs * s.tokens * s.value_width),
            mask: zeros(input.mask.map_or(0, |mask| mask.values.len())),
        };
        for pair in 0..pairs {
            for query in 0..s.queries {
                exact.add(input, dy, s, pair, query);
            }
        }
        exact
    }

    fn add(
        &mut self,
        input: &AttentionInput,
        dy: &[f32],
        s: &ScaledDotProductShape,
        pair: usize,
        query: usize,
    ) {
        let (image, head) = (pair / s.heads, pair % s.heads);
        let read = |rows: &HeadRows, token: usize, i: usize| {
            let [a, b, c] = rows.strides;
            f64::from(rows.values[image * a + head * b + token * c + i])
        };
        let mask_at = |key: usize| {
            let mask = input.mask.as_ref()?;
            let which = image % mask.images * mask.heads + if mask.heads == 1 { 0 } else { head };
            Some((which * s.queries + query) * s.tokens + key)
        };
        let scale = f64::from(input.scale);
        let scores: Vec<f64> = (0..s.tokens)
            .map(|key| {
                let pairs =
                    (0..s.width).map(|i| read(&input.query, query, i) * read(&input.key, key, i));
                let added = mask_at(key).map_or(0., |at| f64::from(input.mask.unwrap().values[at]));
                pairs.sum::<f64>() * scale + added
            })
            .collect();
        let most = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
        let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
        let p: Vec<f64> = scores.iter().map(|s| (s - most).exp() / sum).collect();
        let out = ((image * s.queries + query) * s.heads + head) * s.value_width;
        let upstream = |i: usize| f64::from(dy[out + i]);
        let dp: Vec<f64> = (0..s.tokens)
            .map(|key| {
                (0..s.value_width)
                    .map(|i| upstream(i) * read(&input.value, key, i))
                    .sum()
            })
            .collect();
        let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
        for key in 0..s.tokens {
            let ds = p[key] * (dp[key] - mean);
            if let Some(at) = mask_at(key) {
                self.mask[at] += ds;
            }
            for i in 0..s.width {
                let (q, k) = (
                    (pair * s.queries + query) * s.width + i,
                    (pair * s.tokens + key) * s.width + i,
                );
                self.query[q] += scale * ds * read(&input.key, key, i);
                self.key[k] += scale * ds * read(&input.query, query, i);
            }
            for i in 0..s.value_width {
                self.y[out + i] += p[key] * read(&input.value, key, i);
                self.value[(pair * s.tokens + key) * s.value_width + i] += p[key] * upstream(i);
            }
        }
    }
}
