//! How near each kernel comes to what the machine can do.
//!
//! `cargo bench -p ttac-kernels --no-default-features --bench roofline [-- FILTER]`: measures the two roofs, multiply-adds in registers and
//! bytes through memory, and prints a Markdown table. For each kernel: the multiplications and additions it cannot do without (Winograd has fewer than
//! the direct algorithm), the bytes it cannot but move (each input and output once per pass over it), the time the higher of both takes at the roofs,
//! and the time measured. FILTER selects kernels whose name contains it.

#![allow(clippy::print_stdout)] // a benchmark talks

use std::hint::black_box;
use std::time::Instant;
use ttac_kernels::Context;
use ttac_kernels::kernels::{
    Activation, Algorithm, AttentionShape, ConvShape, Direction, EdgeBackward, EdgeShape, Epilogue,
    GroupBackward, GroupParams, GroupShape, LayerNormBackward, LeakyNorm, LinearShape,
    NormBackward, NormParams, SgdConstants, Window, add_in_place, attention_backward,
    attention_forward, batch_statistics, conv_forward, conv_input_gradient, conv_weight_gradient,
    edge_pool, edge_pool_backward, gelu_forward, group_norm_backward, group_norm_forward,
    image_moments, layer_norm_backward, layer_norm_forward, linear_forward, linear_input_gradient,
    linear_weight_gradient, multiply_adds, nearest, norm_backward, norm_forward, sgd_step,
};

/// `[batch, in channels, edge, out channels, kernel, stride]`.
const CONVOLUTIONS: [[usize; 6]; 12] = [
    [256, 3, 32, 16, 3, 1],
    [256, 16, 32, 16, 3, 1],
    [256, 16, 32, 32, 3, 2],
    [256, 32, 16, 32, 3, 1],
    [256, 64, 8, 64, 3, 1],
    [256, 64, 16, 64, 3, 1],
    [256, 128, 8, 128, 3, 1],
    [32, 64, 32, 256, 1, 1],
    [32, 256, 32, 64, 1, 1],
    [32, 256, 16, 256, 3, 2],
    [32, 1024, 8, 256, 1, 1],
    [32, 512, 4, 512, 3, 1],
];

/// `[batch, channels, edge, groups, kernel, stride]`, of `MobileNet`, `EfficientNet`, `ConvNeXt`; `ResNeXt`, `RegNet`.
const GROUPED: [[usize; 6]; 16] = [
    [16, 96, 112, 96, 3, 2],
    [16, 144, 56, 144, 3, 1],
    [16, 192, 28, 192, 3, 1],
    [16, 576, 14, 576, 3, 1],
    [16, 960, 7, 960, 3, 1],
    [256, 72, 16, 72, 3, 1],
    [16, 144, 56, 144, 5, 2],
    [16, 240, 28, 240, 5, 1],
    [16, 672, 14, 672, 5, 2],
    [16, 96, 56, 96, 7, 1],
    [16, 768, 7, 768, 7, 1],
    [16, 128, 56, 32, 3, 1],
    [16, 256, 28, 32, 3, 1],
    [16, 512, 14, 32, 3, 2],
    [16, 1024, 7, 32, 3, 1],
    [16, 240, 28, 10, 3, 1],
];

/// Multiplications and additions, and bytes.
#[derive(Clone, Copy)]
struct Work {
    flops: f64,
    floats: usize,
}

impl Work {
    const fn moving(floats: usize) -> Self {
        Self { flops: 0., floats }
    }

    fn bytes(self) -> f64 {
        4. * self.floats as f64
    }
}

/// What the machine does at best, per second.
struct Roofs {
    flops: f64,
    bytes: f64,
}

struct Table {
    roofs: Roofs,
    filter: String,
}

/// Least seconds of nine runs after one that warms up.
fn least<R>(mut run: impl FnMut() -> R, mut after: impl FnMut(R)) -> f64 {
    (0..10)
        .map(|_| {
            let start = Instant::now();
            let result = black_box(run());
            let time = start.elapsed().as_secs_f64();
            after(result);
            time
        })
        .skip(1)
        .fold(f64::MAX, f64::min)
}

impl Table {
    /// A line, if the filter wants it. `after` takes the result away, outside the time.
    fn line<R>(&self, name: &str, work: Work, run: impl FnMut() -> R, after: impl FnMut(R)) {
        if !name.contains(&self.filter) {
            return;
        }
        let seconds = least(run, after);
        let (compute, memory) = (
            work.flops / self.roofs.flops,
            work.bytes() / self.roofs.bytes,
        );
        let (roof, which) = if compute > memory {
            (compute, "compute")
        } else {
            (memory, "memory")
        };
        println!(
            "| {name} | {:.2} | {:.1} | {:.0} | {:.0} | {which} {:.2} | {:.2} | {:.0} % |",
            work.flops / 1e9,
            work.bytes() / 1e6,
            work.flops / seconds / 1e9,
            work.bytes() / seconds / 1e9,
            roof * 1e3,
            seconds * 1e3,
            100. * roof / seconds,
        );
    }
}

/// Some values between -1 and 1.
fn values(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i * 7919 % 1000) as f32 / 500. - 1.)
        .collect()
}

fn measure_roofs(context: &Context) -> Roofs {
    let mut operations = 0.;
    let seconds = least(
        || rayon::broadcast(|_| multiply_adds(context, 10_000_000)),
        |done| operations = done.iter().sum(),
    );
    let flops = operations / seconds;

    let len = 64 << 20;
    let (mut x, y) = (values(len), values(len));
    let seconds = least(|| add_in_place(context, &mut x, &y), drop);
    Roofs {
        flops,
        bytes: 12. * len as f64 / seconds,
    }
}

fn convolutions(table: &Table, context: &Context) {
    for [batch, in_channels, edge, out_channels, kernel, stride] in CONVOLUTIONS {
        let shape = ConvShape::new(
            [batch, edge, edge, in_channels],
            out_channels,
            Window::square(kernel, stride, kernel / 2),
        );
        let algorithm = Algorithm::Auto.resolve(&shape);
        let name = format!(
            "{batch}x{edge}x{edge}x{in_channels} to {out_channels}, {kernel}x{kernel} stride {stride}, {algorithm:?}"
        );
        convolution(table, context, &shape, algorithm, &name);
    }
    for [batch, channels, edge, groups, kernel, stride] in GROUPED {
        let window = Window::square(kernel, stride, kernel / 2);
        let shape = ConvShape {
            groups,
            ..ConvShape::new([batch, edge, edge, channels], channels, window)
        };
        let name = format!(
            "{batch}x{edge}x{edge}x{channels} in {groups} groups, {kernel}x{kernel} stride {stride}"
        );
        convolution(table, context, &shape, Algorithm::Auto, &name);
    }
}

/// The three passes of a convolution. In several groups, multiplications are counted as in the direct algorithm.
fn convolution(
    table: &Table,
    context: &Context,
    shape: &ConvShape,
    algorithm: Algorithm,
    name: &str,
) {
    let give = |buffer| context.recycle(buffer);
    let fewer = match algorithm {
        Algorithm::Winograd2 => 2.25,
        Algorithm::Winograd4 => 4.,
        _ => 1.,
    };
    let products = shape.out_len() * shape.weight_len() / shape.out_channels;
    let flops = 2. * products as f64 / fewer;
    let floats = shape.in_len() + shape.weight_len() + shape.out_len();
    let work = Work { flops, floats };
    let (x, w, dy) = (
        values(shape.in_len()),
        values(shape.weight_len()),
        values(shape.out_len()),
    );
    table.line(
        &format!("convolution {name}"),
        work,
        || conv_forward(context, &x, &w, shape, algorithm, &Epilogue::default()),
        give,
    );
    table.line(
        &format!("its input gradient {name}"),
        work,
        || conv_input_gradient(context, &dy, &w, shape, algorithm, None),
        give,
    );
    table.line(
        &format!("its weight gradient {name}"),
        work,
        || conv_weight_gradient(context, &x, &dy, shape, algorithm),
        give,
    );
}

fn norms(table: &Table, context: &Context) {
    let give = |buffer| context.recycle(buffer);
    let (batch, pixels, channels) = (256, 32 * 32, 16);
    let len = batch * pixels * channels;
    let (x, mut dy) = (values(len), values(len));
    let [mean, beta] = [0.; 2].map(|v| vec![v; channels]);
    let [variance, gamma] = [1.; 2].map(|v| vec![v; channels]);
    let params = NormParams {
        activation: Activation::Relu,
        ..NormParams::new([&mean, &variance], [&gamma, &beta])
    };
    let name = "256x32x32x16";
    table.line(
        &format!("statistics of a batch {name}"),
        Work::moving(len),
        || batch_statistics(context, &x, channels),
        drop,
    );
    for [edge, channels] in [[32, 16], [8, 64]] {
        let len = batch * edge * edge * channels;
        table.line(
            &format!("moments of every image {batch}x{edge}x{edge}x{channels}"),
            Work::moving(len),
            || image_moments(context, &x[..len], [batch, edge * edge, channels]),
            drop,
        );
    }
    table.line(
        &format!("batch norm and ReLU {name}"),
        Work::moving(2 * len),
        || norm_forward(context, &x, None, &params),
        give,
    );
    table.line(
        &format!("its gradients {name}"),
        Work::moving(5 * len),
        || norm_backward(context, &mut dy, &NormBackward::new(&x, params)),
        drop,
    );
    let group = GroupParams {
        shape: GroupShape {
            batch,
            pixels,
            channels,
            groups: 8,
        },
        gamma: &gamma,
        beta: &beta,
        epsilon: 1e-5,
        activation: Activation::Relu,
    };
    // An image stays in the second-level cache between its two passes.
    table.line(
        &format!("group norm and ReLU {name}"),
        Work::moving(2 * len),
        || group_norm_forward(context, &x, &group),
        |(y, _)| context.recycle(y),
    );
    let (_, statistics) = group_norm_forward(context, &x, &group);
    table.line(
        &format!("its gradients {name}, 8 groups"),
        Work::moving(3 * len),
        || {
            group_norm_backward(
                context,
                &mut dy,
                &GroupBackward::new(&x, &statistics, group),
            )
        },
        drop,
    );
    let len = 24 << 20;
    let (mut parameter, gradient, mut velocity) = (values(len), values(len), values(len));
    let constants = SgdConstants {
        learning_rate: 1e-6,
        momentum: 0.9,
        weight_decay: 5e-4,
    };
    table.line(
        "step of SGD with momentum, 25 M parameters",
        Work::moving(5 * len),
        || {
            sgd_step(
                context,
                &mut parameter,
                Direction::Velocity(&gradient, &mut velocity),
                constants,
            );
        },
        drop,
    );
}

fn tokens(table: &Table, context: &Context) {
    let give = |buffer| context.recycle(buffer);
    let (batch, tokens, heads, head_width) = (128, 65, 3, 64);
    let (rows, width) = (batch * tokens, heads * head_width);
    let shape = LinearShape {
        rows,
        inputs: width,
        outputs: 4 * width,
    };
    let (x, w, b, dy) = (
        values(rows * width),
        values(shape.inputs * shape.outputs),
        values(shape.outputs),
        values(rows * shape.outputs),
    );
    let work = Work {
        flops: 2. * (rows * shape.inputs * shape.outputs) as f64,
        floats: x.len() + w.len() + dy.len(),
    };
    let name = format!("{rows}x{width} to {}", shape.outputs);
    table.line(
        &format!("linear layer {name}"),
        work,
        || linear_forward(context, &x, &w, Some(&b), None, &shape),
        give,
    );
    table.line(
        &format!("its input gradient {name}"),
        work,
        || linear_input_gradient(context, &dy, &w, &shape),
        give,
    );
    table.line(
        &format!("its weight gradient {name}"),
        work,
        || linear_weight_gradient(context, &x, &dy, &shape),
        |(dw, _)| context.recycle(dw),
    );
    table.line(
        &format!("GELU {rows}x{}", shape.outputs),
        Work::moving(2 * dy.len()),
        || gelu_forward(context, &dy),
        give,
    );

    let attention = AttentionShape::new([batch, tokens], [heads, head_width]);
    let qkv = values(attention.in_len());
    let product = 2. * (batch * tokens * tokens * width) as f64;
    let name = format!("{batch} images, {tokens} tokens, {heads} heads of {head_width}");
    table.line(
        &format!("attention {name}"),
        Work {
            flops: 2. * product,
            floats: attention.in_len() + attention.out_len(),
        },
        || attention_forward(context, &qkv, &attention),
        |(y, _)| context.recycle(y),
    );
    let (_, softmax) = attention_forward(context, &qkv, &attention);
    table.line(
        &format!("its gradient {name}"),
        Work {
            flops: 5. * product,
            floats: 2 * attention.in_len() + attention.out_len(),
        },
        || {
            attention_backward(
                context,
                &dy[..attention.out_len()],
                &qkv,
                &softmax,
                &attention,
            )
        },
        give,
    );

    let (gamma, beta) = (vec![1.; width], vec![0.; width]);
    let name = format!("{rows}x{width}");
    table.line(
        &format!("layer norm {name}"),
        Work::moving(2 * rows * width),
        || layer_norm_forward(context, &x, &gamma, &beta, 1e-6),
        |(y, _)| context.recycle(y),
    );
    let (_, statistics) = layer_norm_forward(context, &x, &gamma, &beta, 1e-6);
    let saved = LayerNormBackward::new(&x, &statistics, &gamma);
    table.line(
        &format!("its gradients {name}"),
        Work::moving(3 * rows * width),
        || layer_norm_backward(context, &dy[..rows * width], &saved),
        |gradients| gradients.dx.into_iter().for_each(give),
    );
}

fn clouds(table: &Table, context: &Context) {
    let (batch, points, k, channels) = (32, 1024, 20, 64);
    let shape = EdgeShape {
        batch,
        points,
        k,
        channels,
    };
    let x = values(batch * points * channels);
    let name = format!("{batch} clouds of {points} points, {channels} channels, k = {k}");
    table.line(
        &format!("nearest neighbours {name}"),
        Work {
            flops: 2. * (batch * points * points * channels) as f64,
            floats: x.len() + batch * points * k,
        },
        || nearest(context, &x, points, channels, k),
        drop,
    );
    let neighbours = nearest(context, &x, points, channels, k);
    let ab = values(2 * x.len());
    let (gamma, beta) = (vec![1.; channels], vec![0.; channels]);
    let norm = LeakyNorm {
        gamma: &gamma,
        beta: &beta,
        epsilon: 1e-5,
        slope: 0.2,
    };
    // A cloud's rows stay in the second-level cache while its edges are walked.
    table.line(
        &format!("edge convolution and maximum {name}"),
        Work {
            flops: 4. * (batch * points * k * channels) as f64,
            floats: 2 * ab.len() + x.len(),
        },
        || edge_pool(context, &ab, &neighbours, shape, None, norm),
        |pooled| context.recycle(pooled.y),
    );
    let pooled = edge_pool(context, &ab, &neighbours, shape, None, norm);
    let saved = EdgeBackward::new(&ab, &neighbours, &pooled);
    table.line(
        &format!("its gradients {name}"),
        Work::moving(2 * ab.len() + 2 * x.len()),
        || edge_pool_backward(context, &x, &saved, shape, norm),
        |gradients| context.recycle(gradients.ab),
    );
}

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    let context = &Context::default();
    let roofs = measure_roofs(context);
    println!(
        "{} threads, {:.0} GFLOP/s, {:.1} GB/s\n",
        rayon::current_num_threads(),
        roofs.flops / 1e9,
        roofs.bytes / 1e9
    );
    println!("| kernel | GFLOP | MB | GFLOP/s | GB/s | roof, ms | measured, ms | of the roof |");
    println!("|---|---|---|---|---|---|---|---|");
    let table = Table { roofs, filter };
    convolutions(&table, context);
    norms(&table, context);
    tokens(&table, context);
    clouds(&table, context);
}
