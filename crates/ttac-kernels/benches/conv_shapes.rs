//! Time and speed of the convolution kernels on the shapes of the networks the project trains.
//!
//! `cargo bench -p ttac-kernels --no-default-features --bench conv_shapes [-- FILTER]`: prints milliseconds (the least of several runs) and
//! GFLOP/s per shape, pass and algorithm, counted as direct convolution, so that algorithms with fewer multiplications can exceed the machine's peak.
//! FILTER selects shapes whose name contains it.

#![allow(clippy::print_stdout)] // a benchmark talks

use std::hint::black_box;
use std::time::Instant;
use ttac_kernels::Context;
use ttac_kernels::kernels::{
    Algorithm, ConvShape, Epilogue, Window, conv_forward, conv_input_gradient, conv_weight_gradient,
};

/// `[batch, in channels, edge, out channels, kernel, stride]`, by network.
const SHAPES: [(&str, &[[usize; 6]]); 3] = [
    (
        "resnet20",
        &[
            [256, 3, 32, 16, 3, 1],
            [256, 16, 32, 16, 3, 1],
            [256, 16, 32, 32, 3, 2],
            [256, 32, 16, 32, 3, 1],
            [256, 32, 16, 64, 3, 2],
            [256, 64, 8, 64, 3, 1],
        ],
    ),
    (
        "resnet26",
        &[
            [256, 3, 32, 32, 3, 1],
            [256, 32, 32, 32, 3, 1],
            [256, 32, 32, 64, 3, 2],
            [256, 32, 32, 64, 1, 2],
            [256, 64, 16, 64, 3, 1],
            [256, 64, 16, 128, 3, 2],
            [256, 128, 8, 128, 3, 1],
        ],
    ),
    (
        "resnet50",
        &[
            [32, 64, 32, 64, 1, 1],
            [32, 64, 32, 64, 3, 1],
            [32, 64, 32, 256, 1, 1],
            [32, 256, 32, 64, 1, 1],
            [32, 128, 32, 128, 3, 2],
            [32, 128, 16, 128, 3, 1],
            [32, 128, 16, 512, 1, 1],
            [32, 512, 16, 128, 1, 1],
            [32, 256, 16, 256, 3, 2],
            [32, 256, 8, 256, 3, 1],
            [32, 256, 8, 1024, 1, 1],
            [32, 1024, 8, 256, 1, 1],
            [32, 512, 8, 512, 3, 2],
            [32, 512, 4, 512, 3, 1],
            [32, 512, 4, 2048, 1, 1],
            [32, 2048, 4, 512, 1, 1],
        ],
    ),
];

/// Least milliseconds of some runs; results go back to the context, as in training.
fn least(context: &Context, flops: f64, mut run: impl FnMut() -> Vec<f32>) -> f64 {
    let repeats = (6e10 / flops).clamp(4., 20.) as usize;
    (0..=repeats)
        .map(|_| {
            let start = Instant::now();
            let result = black_box(run());
            let time = start.elapsed().as_secs_f64() * 1e3;
            context.recycle(result);
            time
        })
        .skip(1)
        .fold(f64::MAX, f64::min)
}

fn main() {
    let context = &Context::default();
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    println!(
        "{:<34} {:<10} {:>18} {:>18} {:>18}",
        "shape", "algorithm", "forward", "input gradient", "weight gradient"
    );
    for (net, shapes) in SHAPES {
        for &[batch, in_channels, edge, out_channels, kernel, stride] in shapes {
            let name = format!(
                "{net} [{batch},{edge},{edge},{in_channels}]->{out_channels} k{kernel} s{stride}"
            );
            if !name.contains(&filter) {
                continue;
            }
            let shape = ConvShape::new(
                [batch, edge, edge, in_channels],
                out_channels,
                Window::square(kernel, stride, kernel / 2),
            );
            let flops = 2. * (shape.out_len() * in_channels * kernel * kernel) as f64;
            let values = |len: usize| {
                (0..len)
                    .map(|i| (i * 7919 % 1000) as f32 / 500. - 1.)
                    .collect::<Vec<f32>>()
            };
            let (x, w, dy) = (
                values(shape.in_len()),
                values(shape.weight_len()),
                values(shape.out_len()),
            );
            let winograd = kernel == 3 && stride == 1;
            let algorithms: &[Algorithm] = if winograd {
                &[
                    Algorithm::Direct,
                    Algorithm::Winograd2,
                    Algorithm::Winograd4,
                    Algorithm::Auto,
                ]
            } else {
                &[Algorithm::Direct]
            };
            for &algorithm in algorithms {
                let times = [
                    least(context, flops, || {
                        conv_forward(context, &x, &w, &shape, algorithm, &Epilogue::default())
                    }),
                    least(context, flops, || {
                        conv_input_gradient(context, &dy, &w, &shape, algorithm, None)
                    }),
                    least(context, flops, || {
                        conv_weight_gradient(context, &x, &dy, &shape, algorithm)
                    }),
                ];
                let [forward, dx, dw] =
                    times.map(|t| format!("{t:7.2} ms {:5.0} GF", flops / t / 1e6));
                println!(
                    "{name:<34} {:<10} {forward:>18} {dx:>18} {dw:>18}",
                    format!("{algorithm:?}")
                );
            }
        }
    }
}
