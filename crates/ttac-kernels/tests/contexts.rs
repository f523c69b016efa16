//! Contexts: who computes, and with which memory, on tensors.

#![cfg(feature = "burn")]

mod comparison;

use burn::tensor::{Device, Tensor, TensorData};
use comparison::values;
use ttac_kernels::kernels::{Activation, Algorithm, Isa};
use ttac_kernels::{BatchNormOptions, Context, ConvOptions, Implementation, conv2d, norm_conv2d};

const OPTIONS: ConvOptions = ConvOptions::square(1, 1);

fn kernels(algorithm: Algorithm) -> Context {
    Context::new().with_implementation(Implementation::Kernels(algorithm))
}

fn leaf<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let values = values(shape.iter().product(), seed);
    let data = TensorData::new(values, shape);
    Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
}

fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u32> {
    let values: Vec<f32> = tensor.to_data().try_to_vec().unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of a small network's result, and of the gradients of its leaves. The forward pass runs in the first context, the backward pass in the second.
/// Two convolutions read the same tensor, so two gradients meet there.
fn pass(forward: &Context, backward: &Context) -> Vec<Vec<u32>> {
    let (x, w) = (leaf([2, 9, 7, 12], 1), leaf([20, 12, 3, 3], 2));
    let (v, gamma) = (leaf([8, 20, 3, 3], 3), leaf([20], 4));
    let (u, beta) = (leaf([8, 20, 3, 3], 5), leaf([20], 6));
    let norm = BatchNormOptions {
        epsilon: 1e-5,
        activation: Activation::Relu,
    };
    let y = forward.scope(|| {
        let h = conv2d(x.clone(), w.clone(), OPTIONS);
        let (gamma, beta) = (gamma.clone(), beta.clone());
        let left = norm_conv2d(h.clone(), gamma, beta, None, norm, v.clone(), None, OPTIONS);
        left.y + conv2d(h, u.clone(), OPTIONS)
    });
    let gradients = backward.scope(|| y.clone().square().sum().backward());
    let mut all = vec![bits(&y)];
    all.extend([w, v, u, x].map(|leaf| bits(&leaf.grad(&gradients).unwrap())));
    all.extend([gamma, beta].map(|leaf| bits(&leaf.grad(&gradients).unwrap())));
    all
}

#[test]
fn a_backward_pass_uses_the_context_of_its_forward_pass() {
    let (direct, winograd) = (kernels(Algorithm::Direct), kernels(Algorithm::Winograd4));
    let expected = pass(&direct, &direct);
    assert!(
        expected != pass(&winograd, &winograd),
        "they round differently"
    );
    assert!(expected == pass(&direct, &winograd));
    let portable = direct.with_isa(Isa::PORTABLE);
    assert!(pass(&portable, &portable) == pass(&portable, &direct));
}

#[test]
fn threads_with_different_contexts_do_not_influence_each_other() {
    let algorithms = [Algorithm::Direct, Algorithm::Winograd4];
    let run = |algorithm: Algorithm| {
        let context = kernels(algorithm);
        let passes: Vec<_> = (0..8).map(|_| pass(&context, &context)).collect();
        assert!(passes.iter().all(|pass| *pass == passes[0]));
        passes.into_iter().next().unwrap()
    };
    let alone = algorithms.map(run);
    let together = std::thread::scope(|threads| {
        algorithms
            .map(|algorithm| threads.spawn(move || run(algorithm)))
            .map(|thread| thread.join().unwrap())
    });
    assert!(together == alone);
    assert!(alone[0] != alone[1], "they round differently");
}

/// Large enough for the free list: the buffer of a dropped result is that of the next one, in the same context only.
#[test]
fn the_memory_of_a_dropped_tensor_goes_back_to_its_context() {
    let (one, other) = (kernels(Algorithm::Direct), kernels(Algorithm::Direct));
    let (x, w) = (
        leaf([4, 32, 32, 8], 1).inner(),
        leaf([8, 8, 1, 1], 2).inner(),
    );
    let options = ConvOptions::square(1, 0);
    let address = |context: &Context| {
        let y = context.scope(|| conv2d(x.clone(), w.clone(), options));
        let y = y.try_into_primitive::<burn::backend::Flex>().unwrap();
        y.storage::<f32>().as_ptr()
    };
    let first = address(&one);
    let held = other.scope(|| conv2d(x.clone(), w.clone(), options));
    assert_eq!(address(&one), first);
    drop(held);
    assert_eq!(address(&one), first);
}
