//! Sizes whose product wraps around: a huge batch with an empty input looks like an empty batch. Every kernel refuses them before it touches memory, in release
//! builds too.

#![allow(missing_docs)]
#![cfg(target_pointer_width = "64")] // the messages below have the numbers

use std::panic::{AssertUnwindSafe, catch_unwind};

use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// Four of them are 2^64, which is 0 for a computer.
const HUGE: usize = 1 << 62;
/// Four times this is 4 modulo 2^64: as if there were one.
const ONE: usize = HUGE + 1;

fn conv(batch: usize, in_channels: usize, out_channels: usize) -> ConvShape {
    ConvShape::new(
        [batch, 2, 2, in_channels],
        out_channels,
        Window::square(1, 1, 0),
    )
}

fn forward(context: &Context, x: &[f32], weight: &[f32], shape: &ConvShape) {
    let epilogue = Epilogue::default();
    conv_forward(context, x, weight, shape, Algorithm::Auto, &epilogue);
}

fn pool(batch: usize) -> PoolShape {
    PoolShape::new([batch, 2, 2, 1], Window::square(1, 1, 0))
}

fn shortcut(batch: usize) -> ShortcutShape {
    ShortcutShape::new([batch, 2, 2, 1], 1, 1)
}

fn group(batch: usize) -> GroupParams<'static> {
    GroupParams {
        shape: GroupShape {
            batch,
            pixels: 4,
            channels: 1,
            groups: 1,
        },
        gamma: &[1.],
        beta: &[0.],
        epsilon: 1e-5,
        activation: Activation::None,
    }
}

fn edges(batch: usize) -> EdgeShape {
    EdgeShape {
        batch,
        points: 2,
        k: 1,
        channels: 1,
    }
}

const NORM: LeakyNorm = LeakyNorm {
    gamma: &[1.],
    beta: &[0.],
    epsilon: 1e-5,
    slope: 0.2,
};

/// Four channels.
const WIDE: LeakyNorm = LeakyNorm {
    gamma: &[1.; 4],
    beta: &[0.; 4],
    ..NORM
};

fn attention(batch: usize) -> AttentionShape {
    AttentionShape::new([batch, 4], [1, 1])
}

fn linear(rows: usize) -> LinearShape {
    LinearShape {
        rows,
        inputs: 4,
        outputs: 4,
    }
}

/// Calls a kernel that has to panic with a message that contains `expected`.
fn refuses(expected: &str, call: impl FnOnce(&Context)) {
    let context = Context::default();
    let panicked = catch_unwind(AssertUnwindSafe(|| call(&context)));
    let payload = panicked.expect_err(expected);
    let message = payload.downcast_ref::<String>().expect("a message");
    assert!(message.contains(expected), "{expected}: found `{message}`");
}

#[test]
fn convolutions() {
    refuses(
        "input of a convolution: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            forward(context, &[], &[1.], &conv(HUGE, 1, 1));
        },
    );
    refuses(
        "output of a convolution: no slice can hold the shape [1099511627776, 2, 2, 1099511627776]",
        |context| {
            forward(context, &[], &[], &conv(1 << 40, 0, 1 << 40));
        },
    );
    refuses(
        "weights of a convolution: expected the shape [4294967296, 4294967296, 1, 1] (more than a slice can hold), found 0 values",
        |context| {
            forward(context, &[], &[], &conv(0, 1 << 32, 1 << 32));
        },
    );
    refuses(
        "output gradient of a convolution: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            let shape = conv(HUGE, 1, 1);
            conv_input_gradient(context, &[], &[1.], &shape, Algorithm::Auto, None);
        },
    );
    refuses(
        "input of a convolution: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            let shape = conv(HUGE, 1, 1);
            let x: &[f32] = &[];
            conv_weight_gradient(context, x, &[], &shape, Algorithm::Auto);
        },
    );
    refuses(
        "input of a convolution: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            let shape = ConvShape {
                window: Window::square(3, 1, 1),
                ..conv(HUGE, 1, 1)
            };
            forward(context, &[], &[1.; 9], &shape);
        },
    );
    refuses(
        "a convolution needs a window, a stride, a dilation and a padding of at most",
        |context| {
            // 2 + 2 padding is 0.
            let shape = ConvShape {
                window: Window::square(1, 1, usize::MAX / 2),
                ..conv(1, 1, 1)
            };
            forward(context, &[1.; 4], &[1.], &shape);
        },
    );
}

#[test]
fn pools_and_shortcuts() {
    refuses(
        "input of an average pool: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            average_pool_forward(context, &[], &pool(HUGE), Divisor::Padded);
        },
    );
    refuses(
        "output gradient of an average pool: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            average_pool_backward(context, &[], &pool(HUGE), Divisor::Padded);
        },
    );
    refuses(
        "input of a max pool: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            max_pool_forward(context, &[], &pool(HUGE));
        },
    );
    refuses(
        "output gradient of a max pool: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            max_pool_backward(context, &[], &[], &pool(HUGE));
        },
    );
    refuses(
        "input of a global average pool: expected the shape [4611686018427387904, 4, 1] (more than a slice can hold), found 0 values",
        |context| {
            global_average_forward(context, &[], [HUGE, 4, 1]);
        },
    );
    refuses(
        "gradient of a global average pool: no slice can hold the shape [1, 4611686018427387904, 4]",
        |context| {
            global_average_backward(context, &[0.; 4], [1, HUGE, 4]);
        },
    );
    refuses(
        "input of a shortcut: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            shortcut_a_forward(context, &[], &shortcut(HUGE));
        },
    );
    refuses(
        "output gradient of a shortcut: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            shortcut_a_backward(context, &[], &shortcut(HUGE));
        },
    );
}

#[test]
fn norms() {
    refuses(
        "input of a group norm: expected the shape [4611686018427387904, 4, 1] (more than a slice can hold), found 0 values",
        |context| {
            group_norm_forward(context, &[], &group(HUGE));
        },
    );
    refuses(
        "input of a group norm: expected the shape [4611686018427387904, 4, 1] (more than a slice can hold), found 0 values",
        |context| {
            group_norm_forward_in_place(context, &mut [], &group(HUGE));
        },
    );
    refuses(
        "input of a group norm: expected the shape [4611686018427387904, 4, 1] (more than a slice can hold), found 0 values",
        |context| {
            let saved = GroupBackward {
                x: &[],
                statistics: &[],
                params: group(HUGE),
                want_dx: true,
                other: None,
            };
            group_norm_backward(context, &mut [], &saved);
        },
    );
    refuses(
        "input of image moments: expected the shape [4611686018427387904, 4, 1] (more than a slice can hold), found 0 values",
        |context| {
            image_moments(context, &[], [HUGE, 4, 1]);
        },
    );
}

#[test]
fn clouds_of_points() {
    refuses(
        "cloud of points: no slice can hold the shape [4611686018427387905, 4]",
        |context| {
            nearest(context, &[0.; 4], ONE, 4, 1);
        },
    );
    refuses(
        "product of an edge convolution: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            edge_pool(context, &[], &[], edges(HUGE), None, NORM);
        },
    );
    refuses(
        "product of an edge convolution: expected the shape [4611686018427387904, 2, 2, 1] (more than a slice can hold), found 0 values",
        |context| {
            let saved = EdgeBackward {
                ab: &[],
                neighbours: &[],
                y: &[],
                winners: &[],
                sums: &[],
                mean: &[0.],
                variance: &[1.],
            };
            edge_pool_backward(context, &[], &saved, edges(HUGE), NORM);
        },
    );
    refuses(
        "input of a cloud pool: no slice can hold the shape [4611686018427387905, 4]",
        |context| {
            cloud_pool(context, &[0.; 4], ONE, &[0.; 4], &[1.; 4], WIDE);
        },
    );
    refuses(
        "input of a cloud pool: no slice can hold the shape [4611686018427387905, 4]",
        |context| {
            let saved = CloudBackward {
                x: &[0.; 4],
                points: ONE,
                winners: &[0; 4],
                mean: &[0.; 4],
                variance: &[1.; 4],
                batch_statistics: true,
            };
            cloud_pool_backward(context, &[0.; 8], &saved, WIDE);
        },
    );
    refuses(
        "scale, shift, mean and variance of an edge convolution: expected 4 values each, found [1, 1, 1, 1]",
        |context| {
            let shape = EdgeShape {
                batch: 1,
                points: 1,
                k: 1,
                channels: 4,
            };
            edge_pool(context, &[0.; 8], &[0], shape, None, NORM);
        },
    );
}

#[test]
fn tokens() {
    refuses(
        "input of an attention: no slice can hold the shape [4611686018427387904, 4, 3, 1, 1]",
        |context| {
            attention_forward(context, &[], &attention(HUGE));
        },
    );
    refuses(
        "input of an attention: no slice can hold the shape [4611686018427387904, 4, 3, 1, 1]",
        |context| {
            attention_backward(context, &[], &[], &[], &attention(HUGE));
        },
    );
    refuses(
        "input of a convolution: expected the shape [4611686018427387904, 1, 1, 4] (more than a slice can hold), found 0 values",
        |context| {
            linear_forward(context, &[], &[1.; 16], Some(&[0.; 4]), None, &linear(HUGE));
        },
    );
    refuses(
        "output gradient of a convolution: expected the shape [4611686018427387904, 1, 1, 4] (more than a slice can hold), found 0 values",
        |context| {
            linear_input_gradient(context, &[], &[1.; 16], &linear(HUGE));
        },
    );
    refuses(
        "input of a linear layer: expected the shape [4611686018427387904, 4] (more than a slice can hold), found 0 values",
        |context| {
            linear_weight_gradient(context, &[], &[], &linear(HUGE));
        },
    );
}
