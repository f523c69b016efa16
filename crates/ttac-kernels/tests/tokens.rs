//! The kernels of transformers against naive `f64` versions of themselves, on every instruction set this machine has.

#![allow(missing_docs)]

mod comparison;

use comparison::{error, values};
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// Sums of a few hundred products in `f32`, and functions within some 1e-7.
const TOLERANCE: f64 = 2e-6;

fn on_every_isa(check: impl Fn(&Context, Isa)) {
    for isa in Isa::available() {
        check(&Context::new().with_isa(isa), isa);
    }
}

/// Output, and the gradient of `sum(y * dy)`.
fn attention(qkv: &[f32], dy: &[f32], s: &AttentionShape) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut gradient) = (vec![0.; s.out_len()], vec![0.; s.in_len()]);
    let (d, scale) = (s.head_width, 1. / (s.head_width as f64).sqrt());
    for image in 0..s.batch {
        for head in 0..s.heads {
            let at = |part: usize, token: usize| {
                ((image * s.tokens + token) * 3 + part) * s.width() + head * d
            };
            let value = |index: usize| f64::from(qkv[index]);
            for query in 0..s.queries {
                let out = (image * s.queries + query) * s.width() + head * d;
                let scores: Vec<f64> = (0..s.tokens)
                    .map(|key| {
                        let pairs = (0..d).map(|i| value(at(0, query) + i) * value(at(1, key) + i));
                        pairs.sum::<f64>() * scale
                    })
                    .collect();
                let most = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
                let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                let p: Vec<f64> = scores.iter().map(|s| (s - most).exp() / sum).collect();
                let dp: Vec<f64> = (0..s.tokens)
                    .map(|key| {
                        (0..d)
                            .map(|i| f64::from(dy[out + i]) * value(at(2, key) + i))
                            .sum()
                    })
                    .collect();
                let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                for key in 0..s.tokens {
                    let ds = p[key] * (dp[key] - mean) * scale;
                    for i in 0..d {
                        y[out + i] += p[key] * value(at(2, key) + i);
                        gradient[at(0, query) + i] += ds * value(at(1, key) + i);
                        gradient[at(1, key) + i] += ds * value(at(0, query) + i);
                        gradient[at(2, key) + i] += p[key] * f64::from(dy[out + i]);
                    }
                }
            }
        }
    }
    (y, gradient)
}

#[test]
fn attentions_of_awkward_shapes() {
    // [batch, tokens, queries, heads, head_width]
    for [batch, tokens, queries, heads, head_width] in [
        [2, 65, 65, 3, 64],
        [1, 1, 1, 1, 1],
        [2, 17, 1, 2, 20],
        [1, 131, 100, 1, 7],
        [3, 16, 16, 2, 16],
        [1, 5, 0, 2, 4],
        [0, 5, 5, 2, 4],
    ] {
        let s = AttentionShape {
            batch,
            tokens,
            queries,
            heads,
            head_width,
        };
        let (qkv, dy) = (values(s.in_len(), 1), values(s.out_len(), 2));
        let qkv: Vec<f32> = qkv.iter().map(|v| 3. * v).collect();
        let (y, gradient) = attention(&qkv, &dy, &s);
        on_every_isa(|context, isa| {
            let (found, softmax) = attention_forward(context, &qkv, &s);
            let within = |what: &str, found: &[f32], expected: &[f64]| {
                let error = error(found, expected);
                assert!(error < TOLERANCE, "{what}, {isa:?}, {s:?}: {error:.1e}");
            };
            within("forward", &found, &y);
            let found = attention_backward(context, &dy, &qkv, &softmax, &s);
            within("backward", &found, &gradient);
        });
    }
}

#[test]
fn scores_of_any_size_make_a_softmax() {
    let context = &Context::default();
    let s = AttentionShape::new([1, 3], [1, 1]);
    // Scores from -1e6 to 1e6: each query takes the value of its best key, without overflow.
    let qkv = [1e3, -1e3, 1., -1e3, 0., 2., 1e3, 1e3, 3.];
    let (y, softmax) = attention_forward(context, &qkv, &s);
    assert_eq!(y, [3., 1., 3.]);
    let gradient = attention_backward(context, &[1.; 3], &qkv, &softmax, &s);
    assert!(gradient.iter().all(|g| g.is_finite()), "{gradient:?}");
    let mut broken = qkv;
    broken[4] = f32::NAN;
    assert!(
        attention_forward(context, &broken, &s).0[0].is_nan(),
        "NaN stays"
    );
}

#[test]
fn softmaxes_of_awkward_widths() {
    for [rows, columns] in [[3, 1], [130, 49], [7, 197], [5, 16], [2, 20_000], [0, 8]] {
        let (x, dy) = (values(rows * columns, 1), values(rows * columns, 2));
        let x: Vec<f32> = x.iter().map(|x| 20. * x).collect();
        let (mut y, mut dx) = (Vec::new(), Vec::new());
        for (x, dy) in x.chunks_exact(columns).zip(dy.chunks_exact(columns)) {
            let most = x.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x.into()));
            let e: Vec<f64> = x.iter().map(|&x| (f64::from(x) - most).exp()).collect();
            let sum: f64 = e.iter().sum();
            let p = e.iter().map(|e| e / sum);
            let mean: f64 = p.clone().zip(dy).map(|(p, &dy)| p * f64::from(dy)).sum();
            dx.extend(p.clone().zip(dy).map(|(p, &dy)| p * (f64::from(dy) - mean)));
            y.extend(p);
        }
        on_every_isa(|context, isa| {
            let found = softmax_forward(context, &x, columns);
            let size = [rows, columns];
            assert!(error(&found, &y) < TOLERANCE, "y, {isa:?}, {size:?}");
            let found = softmax_backward(context, &dy, &found, columns);
            assert!(error(&found, &dx) < TOLERANCE, "dx, {isa:?}, {size:?}");
        });
    }
}

/// A step along any direction changes the weighted sum of a softmax by the scalar product of direction and gradient.
#[test]
fn the_gradient_of_a_softmax_is_its_slope() {
    let context = &Context::default();
    let (x, dy, direction) = (values(33, 1), values(33, 2), values(33, 3));
    let weighted = |by: f32| -> f64 {
        let moved: Vec<f32> = x.iter().zip(&direction).map(|(x, d)| x + by * d).collect();
        let y = softmax_forward(context, &moved, 11);
        y.iter().zip(&dy).map(|(y, dy)| f64::from(y * dy)).sum()
    };
    let y = softmax_forward(context, &x, 11);
    let dx = softmax_backward(context, &dy, &y, 11);
    let expected: f64 = dx
        .iter()
        .zip(&direction)
        .map(|(g, d)| f64::from(g * d))
        .sum();
    let slope = (weighted(1e-2) - weighted(-1e-2)) / 2e-2;
    // Results of about 0.1 are rounded to 1e-8, over a step of 2e-2; the third derivatives, below 1, add 1e-4 / 6.
    assert!(
        (slope - expected).abs() < 3e-5,
        "{slope} against {expected}"
    );
}

#[test]
fn layer_norms_of_awkward_widths() {
    for [rows, width] in [[3, 1], [130, 24], [7, 192], [5, 37], [1, 8], [0, 8]] {
        let (x, dy) = (values(rows * width, 1), values(rows * width, 2));
        // Far from zero, where a careless variance cancels.
        let x: Vec<f32> = x.iter().map(|x| 100. + x).collect();
        let (gamma, beta) = (values(width, 3), values(width, 4));
        let epsilon = 1e-6;
        let (mut y, mut dx) = (Vec::new(), Vec::new());
        let (mut dgamma, mut dbeta) = (vec![0.; width], vec![0.; width]);
        for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
            let n = width as f64;
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let square = |&x: &f32| (f64::from(x) - mean).powi(2);
            let variance = x.iter().map(square).sum::<f64>() / n;
            let inverse = 1. / (variance + f64::from(epsilon)).sqrt();
            let normal: Vec<f64> = x.iter().map(|&x| (f64::from(x) - mean) * inverse).collect();
            let inner: Vec<f64> = (0..width)
                .map(|j| f64::from(dy[j]) * f64::from(gamma[j]))
                .collect();
            let plain = inner.iter().sum::<f64>() / n;
            let along = inner.iter().zip(&normal).map(|(a, b)| a * b).sum::<f64>() / n;
            for j in 0..width {
                y.push(normal[j] * f64::from(gamma[j]) + f64::from(beta[j]));
                dx.push((inner[j] - plain - normal[j] * along) * inverse);
                dgamma[j] += f64::from(dy[j]) * normal[j];
                dbeta[j] += f64::from(dy[j]);
            }
        }
        on_every_isa(|context, isa| {
            let within = |what: &str, found: &[f32], expected: &[f64], tolerance: f64| {
                let error = error(found, expected);
                assert!(
                    error < tolerance,
                    "{what}, {isa:?}, [{rows}, {width}]: {error:.1e}"
                );
            };
            // The mean of values near 100 is rounded by up to 4e-6, which is 7e-6 of their deviation.
            let (found, statistics) = layer_norm_forward(context, &x, &gamma, &beta, epsilon);
            within("y", &found, &y, 2e-5);
            let (sum, again) =
                layer_norm_add_forward(context, &x, &gamma, &beta, epsilon, Some(&dy));
            assert_eq!(again, statistics);
            let later: Vec<f32> = found.iter().zip(&dy).map(|(y, r)| y + r).collect();
            assert_eq!(
                sum, later,
                "the addition in the same pass has the same bits"
            );
            let saved = LayerNormBackward::new(&x, &statistics, &gamma);
            let found = layer_norm_backward(context, &dy, &saved);
            within("dx", found.dx.as_deref().unwrap(), &dx, 2e-5);
            within("dgamma", &found.gamma, &dgamma, 2e-5);
            within("dbeta", &found.beta, &dbeta, TOLERANCE);
            let saved = LayerNormBackward {
                want_dx: false,
                ..saved
            };
            let less = layer_norm_backward(context, &dy, &saved);
            assert!(less.dx.is_none());
            assert_eq!((less.gamma, less.beta), (found.gamma, found.beta));
        });
    }
}

#[test]
fn linear_layers_of_awkward_shapes() {
    for [rows, inputs, outputs] in [
        [1, 1, 1],
        [1, 131, 70],
        [2, 64, 3],
        [16, 100, 67],
        [17, 100, 67],
        [7, 12, 20],
        [70, 37, 5],
        [300, 100, 70],
        [513, 64, 192],
        [0, 4, 4],
    ] {
        let shape = LinearShape {
            rows,
            inputs,
            outputs,
        };
        let (x, w) = (values(rows * inputs, 1), values(outputs * inputs, 2));
        let (bias, residual) = (values(outputs, 3), values(rows * outputs, 4));
        let dy = values(rows * outputs, 5);
        let (mut y, mut dx) = (vec![0.; rows * outputs], vec![0.; rows * inputs]);
        let (mut dw, mut db) = (vec![0.; outputs * inputs], vec![0.; outputs]);
        for r in 0..rows {
            for o in 0..outputs {
                let (place, upstream) = (r * outputs + o, f64::from(dy[r * outputs + o]));
                y[place] = f64::from(bias[o]) + f64::from(residual[place]);
                db[o] += upstream;
                for i in 0..inputs {
                    let (x, w) = (f64::from(x[r * inputs + i]), f64::from(w[o * inputs + i]));
                    y[place] += x * w;
                    dx[r * inputs + i] += upstream * w;
                    dw[o * inputs + i] += upstream * x;
                }
            }
        }
        on_every_isa(|context, isa| {
            let within = |what: &str, found: &[f32], expected: &[f64]| {
                let error = error(found, expected);
                assert!(error < TOLERANCE, "{what}, {isa:?}, {shape:?}: {error:.1e}");
            };
            let found = linear_forward(context, &x, &w, Some(&bias), Some(&residual), &shape);
            within("forward", &found, &y);
            let alone = linear_forward(context, &x, &w, None, None, &shape);
            let added =
                |place: usize| f64::from(bias[place % outputs]) + f64::from(residual[place]);
            let product: Vec<f64> = (0..y.len()).map(|place| y[place] - added(place)).collect();
            within("product", &alone, &product);
            within("dx", &linear_input_gradient(context, &dy, &w, &shape), &dx);
            let (found, sums) = linear_weight_gradient(context, &x, &dy, &shape);
            within("dw", &found, &dw);
            within("dbias", &sums, &db);
            within("column sums", &column_sums(context, &dy, outputs), &db);
        });
    }
}

#[test]
fn gelu_and_its_slope() {
    let x: Vec<f32> = (-800..=800).map(|i| i as f32 / 100.).collect();
    // The slope as a difference quotient of the values in `f64` would need `erf`: instead the two symmetries, `gelu(x) - gelu(-x) = x` and
    // `slope(x) + slope(-x) = 1`, and known values.
    on_every_isa(|context, isa| {
        let y = gelu_forward(context, &x);
        let mut slope = vec![1.; x.len()];
        assert_eq!(gelu_backward(context, &x, &mut slope), y, "{isa:?}");
        for i in 0..x.len() {
            let mirror = x.len() - 1 - i;
            assert!((y[i] - y[mirror] - x[i]).abs() < 2e-6, "{isa:?} {}", x[i]);
            assert!(
                (slope[i] + slope[mirror] - 1.).abs() < 2e-6,
                "{isa:?} {}",
                x[i]
            );
        }
        let near = |x: f32, expected: [f32; 2]| {
            let at = (x * 100.) as usize + 800;
            assert!((y[at] - expected[0]).abs() < 1e-6, "{isa:?} gelu({x})");
            assert!((slope[at] - expected[1]).abs() < 1e-6, "{isa:?} slope({x})");
        };
        near(0., [0., 0.5]);
        near(1., [0.841_344_8, 1.083_315_5]);
        near(2., [1.954_499_7, 1.085_231_9]);
        near(5., [4.999_998_6, 1.000_007_2]);
    });
}

#[test]
fn gelu_by_a_hyperbolic_tangent_and_its_slope() {
    // Beyond 10 the factor is 1, or nothing, in single precision.
    let x: Vec<f32> = (-1400..=1400).map(|i| i as f32 / 100.).collect();
    let c = (2. / std::f64::consts::PI).sqrt();
    let exact = |x: f32| {
        let x = f64::from(x);
        let tanh = (c * (x + 0.044_715 * x.powi(3))).tanh();
        let inner = c * (1. + 3. * 0.044_715 * x * x);
        let slope = 0.5 * (1. + tanh) + 0.5 * x * (1. - tanh * tanh) * inner;
        (0.5 * x * (1. + tanh), slope)
    };
    on_every_isa(|context, isa| {
        let y = gelu_tanh_forward(context, &x);
        let mut slope = vec![1.; x.len()];
        assert_eq!(gelu_tanh_backward(context, &x, &mut slope), y, "{isa:?}");
        for ((&x, &y), &slope) in x.iter().zip(&y).zip(&slope) {
            let (value, expected) = exact(x);
            // The error of the factor, an ulp or two, times `x`.
            let allowed = 3e-7 * f64::from(x.abs().max(1.));
            assert!((f64::from(y) - value).abs() < allowed, "{isa:?} gelu({x})");
            assert!(
                (f64::from(slope) - expected).abs() < 1e-6,
                "{isa:?} slope({x})"
            );
        }
        let ends = gelu_tanh_forward(context, &[1e30, -1e30, f32::NAN]);
        assert!(
            ends[0] == 1e30 && ends[1].abs() < 1e-6 && ends[2].is_nan(),
            "{ends:?}"
        );
    });
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let context = &Context::default();
    let s = AttentionShape::new([3, 70], [2, 24]);
    let (qkv, dy) = (values(s.in_len(), 1), values(s.out_len(), 2));
    let (gamma, beta) = (values(48, 3), values(48, 4));
    let shape = LinearShape {
        rows: 210,
        inputs: 144,
        outputs: 48,
    };
    let weight = values(144 * 48, 5);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap().install(|| {
            let (y, softmax) = attention_forward(context, &qkv, &s);
            let dqkv = attention_backward(context, &dy, &qkv, &softmax, &s);
            let (normed, statistics) = layer_norm_forward(context, &y, &gamma, &beta, 1e-6);
            let saved = LayerNormBackward::new(&y, &statistics, &gamma);
            let back = layer_norm_backward(context, &dy, &saved);
            [
                dqkv,
                normed,
                back.dx.unwrap(),
                back.gamma,
                back.beta,
                linear_forward(context, &qkv, &weight, Some(&beta), None, &shape),
                linear_weight_gradient(context, &qkv, &dy, &shape).0,
                column_sums(context, &qkv, 144),
                gelu_forward(context, &qkv),
                gelu_tanh_forward(context, &qkv),
                softmax_backward(context, &dy, &softmax_forward(context, &y, 48), 48),
                y,
            ]
        })
    };
    let one = with(1);
    assert!(one == with(2));
    assert!(one == with(3));
    assert!(one == with(5));
}

#[test]
#[should_panic(expected = "queries, keys and values of an attention: expected 24 values, found 20")]
fn a_wrong_length_is_named() {
    let context = &Context::default();
    let s = AttentionShape::new([1, 2], [1, 4]);
    attention_forward(context, &[0.; 20], &s);
}
