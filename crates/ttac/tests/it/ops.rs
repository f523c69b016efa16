//! Tolerances are 1e-6 of the largest value: single precision with sums of up to a few hundred terms.
//! PyTorch's own float32 differs from the same reference by 1e-7 to 5e-7 (noted in each fixture).

use burn::module::{Module, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use ttac::backbone::layers::Conv2d;
use ttac::backbone::{BatchNorm, GroupNorm, LayerNorm, NormMode};
use ttac::loss::cross_entropy;
use ttac::optim::OptimiserConfig;
use ttac_kernels as kernels;

use crate::fixture::{Fixture, filled, labels};

const TOLERANCE: f64 = 1e-6;

/// Gradients of `sum(y * dy)` with respect to leaves.
fn gradients<const D: usize>(y: &Tensor<D>, dy: Tensor<D>) -> Gradients {
    (y.clone() * dy).sum().backward()
}

/// The cases of a fixture by name, with their options.
fn cases(fixture: &Fixture) -> serde_json::Map<String, serde_json::Value> {
    fixture.about["cases"].as_object().unwrap().clone()
}

/// An input of a case, whose gradient is asked for.
fn leaf<const D: usize>(fixture: &Fixture, case: &str, name: &str) -> Tensor<D> {
    let device = Device::flex().autodiff();
    fixture
        .input(&format!("{case}.{name}"), &device)
        .require_grad()
}

/// Compares the result `y` of a case and the gradient of its input `x`. Returns the gradients of all leaves.
fn compare_pass<const D: usize, const E: usize>(
    fixture: &mut Fixture,
    case: &str,
    x: &Tensor<D>,
    y: &Tensor<E>,
) -> Gradients {
    let dy = fixture.input(&format!("{case}.dy"), &Device::flex().autodiff());
    let grads = gradients(y, dy);
    fixture.compare("y", &format!("{case}.y"), y);
    compare_gradient(fixture, case, "dx", x, &grads);
    grads
}

/// Compares the gradient of a leaf, which the fixture knows by `name`.
fn compare_gradient<const D: usize>(
    fixture: &mut Fixture,
    case: &str,
    name: &str,
    leaf: &Tensor<D>,
    grads: &Gradients,
) {
    let gradient = leaf.grad(grads).unwrap();
    fixture.compare(name, &format!("{case}.{name}"), &gradient);
}

fn expect_all(mut fixture: Fixture, groups: &[&str]) {
    for group in groups {
        fixture.expect(group, TOLERANCE);
    }
}

#[test]
fn convolution_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-conv");
    for (case, options) in cases(&fixture) {
        let number = |field: &str| options[field].as_u64().unwrap() as usize;
        let [x, weight]: [Tensor<4>; 2] = ["x", "w"].map(|name| leaf(&fixture, &case, name));
        let options = kernels::ConvOptions::square(number("stride"), number("padding"));
        let y = kernels::conv2d(x.clone(), weight.clone(), options);
        let grads = compare_pass(&mut fixture, &case, &x, &y);
        compare_gradient(&mut fixture, &case, "dw", &weight, &grads);
    }
    expect_all(fixture, &["y", "dx", "dw"]);
}

/// The norm's result is stored nowhere, yet value and all gradients have the bits of the two ops one after the other. Both uses of `x` matter: its two gradients meet.
#[test]
fn a_convolution_of_a_norm_is_the_norm_and_then_the_convolution() {
    fn bits<const D: usize>(tensor: Option<Tensor<D>>) -> Vec<u32> {
        let values: Vec<f32> = tensor.unwrap().to_data().try_to_vec().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    }
    let device = Device::flex().autodiff();
    // Of both signs, and no two neighbours alike.
    let scattered = |shape: [usize; 4]| -> Tensor<4> {
        let values = (0..shape.iter().product()).map(|i: usize| (i * 7919 % 1009) as f32);
        let values: Vec<f32> = values.map(|value| value / 504.5 - 1.0).collect();
        Tensor::from_data(TensorData::new(values, shape), &device)
    };
    for (channels, kernel, stride) in [(16, 3, 1), (72, 3, 1), (24, 1, 1), (16, 3, 2), (3, 3, 1)] {
        for mode in [NormMode::BatchUpdating, NormMode::Running] {
            let run = |fused: bool| {
                let layer = BatchNorm::new(channels, &device);
                let conv = Conv2d::new(channels, channels, kernel, stride, &device);
                let conv = Conv2d {
                    weight: Param::from_tensor(scattered([channels, channels, kernel, kernel])),
                    ..conv
                };
                let x = scattered([2, 6, 6, channels]).require_grad();
                let residual = scattered([2, 6 / stride, 6 / stride, channels]).require_grad();
                let y = if fused {
                    layer.relu_conv(x.clone(), &conv, Some(residual.clone()), mode)
                } else {
                    let normalised = layer.forward(x.clone(), None, true, mode);
                    conv.forward_add(normalised, residual.clone())
                };
                let dy = scattered(y.dims());
                let loss = (y.clone() * dy).sum() + (x.clone() * x.clone()).sum();
                let grads = loss.backward();
                [
                    bits(Some(y)),
                    bits(x.grad(&grads)),
                    bits(residual.grad(&grads)),
                    bits(conv.weight.val().grad(&grads)),
                    bits(layer.weight.val().grad(&grads)),
                    bits(layer.bias.val().grad(&grads)),
                    bits(Some(layer.running_mean.value())),
                    bits(Some(layer.running_var.value())),
                ]
            };
            assert_eq!(
                run(true),
                run(false),
                "{channels} channels, kernel {kernel}, stride {stride}, {mode:?}"
            );
        }
    }
}

#[test]
fn batch_norm_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-batch-norm");
    let device = Device::flex().autodiff();
    for case in ["plain", "residual", "relu", "residual-relu"] {
        for (mode, norm) in [
            ("train", NormMode::BatchUpdating),
            ("eval", NormMode::Running),
        ] {
            let layer = filled(BatchNorm::new(6, &device), |path| format!("{case}.{path}"));
            let input = |name: &str| fixture.input::<4>(&format!("{case}.{name}"), &device);
            let x = input("x").require_grad();
            let residual = case
                .contains("residual")
                .then(|| input("residual").require_grad());
            let dy = input("dy");
            let y = layer.forward(x.clone(), residual.clone(), case.contains("relu"), norm);
            let grads = gradients(&y, dy);
            let prefix = format!("{case}.{mode}");
            let mut compare = |name: &str, value: Tensor<1>| {
                fixture.compare(name, &format!("{prefix}.{name}"), &value);
            };
            compare("dweight", layer.weight.val().grad(&grads).unwrap());
            compare("dbias", layer.bias.val().grad(&grads).unwrap());
            if mode == "train" {
                compare("running_mean", layer.running_mean.value());
                compare("running_var", layer.running_var.value());
            }
            fixture.compare("y", &format!("{prefix}.y"), &y);
            compare_gradient(&mut fixture, &prefix, "dx", &x, &grads);
            if let Some(residual) = residual {
                compare_gradient(&mut fixture, &prefix, "dresidual", &residual, &grads);
            }
        }
    }
    expect_all(
        fixture,
        &[
            "y",
            "dx",
            "dweight",
            "dbias",
            "dresidual",
            "running_mean",
            "running_var",
        ],
    );
}

#[test]
fn batch_mode_leaves_running_statistics_alone_and_clones_are_snapshots() {
    let device = Device::flex();
    let layer = filled(BatchNorm::new(6, &device), |path| format!("plain.{path}"));
    let snapshot = layer.clone();
    let read = |layer: &BatchNorm| -> Vec<f32> {
        let values = Tensor::cat(
            vec![layer.running_mean.value(), layer.running_var.value()],
            0,
        );
        values.to_data().try_to_vec().unwrap()
    };
    let before = read(&layer);
    let x = || Fixture::open("op-batch-norm").input::<4>("plain.x", &device);
    layer.forward(x(), None, false, NormMode::Batch);
    layer.forward(x(), None, false, NormMode::Running);
    assert_eq!(read(&layer), before);
    layer.forward(x(), None, false, NormMode::BatchUpdating);
    assert_ne!(read(&layer), before);
    assert_eq!(read(&snapshot), before);
}

#[test]
fn a_single_value_per_channel_keeps_running_statistics_finite() {
    let device = Device::flex();
    let layer = BatchNorm::new(2, &device);
    let x = Tensor::<4>::ones([1, 1, 1, 2], &device) * 3.0;
    layer.forward(x, None, false, NormMode::BatchUpdating);
    let variance: Vec<f32> = layer.running_var.value().to_data().try_to_vec().unwrap();
    assert_eq!(variance, [0.9, 0.9]);
}

#[test]
fn group_norm_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-group-norm");
    let device = Device::flex().autodiff();
    for (case, options) in cases(&fixture) {
        let x: Tensor<4> = leaf(&fixture, &case, "x");
        let groups = options["groups"].as_u64().unwrap() as usize;
        let layer = GroupNorm::new(x.dims()[3], groups, &device);
        let layer = filled(layer, |path| format!("{case}.{path}"));
        let y = layer.forward(x.clone(), options["relu"].as_bool().unwrap());
        let grads = compare_pass(&mut fixture, &case, &x, &y);
        for (name, parameter) in [("dweight", &layer.weight), ("dbias", &layer.bias)] {
            compare_gradient(&mut fixture, &case, name, &parameter.val(), &grads);
        }
    }
    expect_all(fixture, &["y", "dx", "dweight", "dbias"]);
}

/// Steps of ours add what a tensor's gradient already is; Burn's steps do so by themselves.
#[test]
fn gradients_of_a_tensor_with_several_uses_are_added() {
    type Use = fn(Tensor<4>) -> Tensor<4>;
    let device = Device::flex().autodiff();
    let uses: [Use; 7] = [
        |x| kernels::conv2d(x.clone(), weight(&x), SAME),
        |x| x.clone() * x,
        |x| kernels::conv2d_add(x.clone(), weight(&x), None, Some(x * 0.5), SAME),
        |x| {
            let ones = Tensor::ones([4], &x.device());
            let options = kernels::BatchNormOptions {
                epsilon: 1e-5,
                activation: kernels::Activation::Relu,
            };
            let zeros = ones.clone() * 0.0;
            let residual = Some(x.clone());
            kernels::batch_norm(x, ones, zeros, residual, None, options).y
        },
        |x| {
            let ones = Tensor::ones([4], &x.device());
            let options = kernels::GroupNormOptions {
                groups: 2,
                epsilon: 1e-5,
                activation: kernels::Activation::Relu,
            };
            kernels::group_norm(x, ones.clone(), ones, options)
        },
        |x| kernels::shortcut_a(x, 4, 1),
        |x| kernels::max_pool(x, kernels::PoolOptions::square(3, 1, 1)),
    ];
    let values = |seed: i64| -> Tensor<4> {
        let range = Tensor::<1, burn::tensor::Int>::arange(0..2 * 5 * 5 * 4, &device).float();
        (range * (0.37 + 0.1 * seed as f64))
            .sin()
            .reshape([2, 5, 5, 4])
    };
    let gradient = |uses: &[Use], leaf: bool| -> Tensor<4> {
        let x = values(0).require_grad();
        let used = if leaf { x.clone() } else { x.clone() * 2.0 };
        let terms = uses
            .iter()
            .map(|each| (each(used.clone()) * values(1)).sum());
        let loss = terms.reduce(|sum, term| sum + term).unwrap();
        x.grad(&loss.backward()).unwrap()
    };
    for leaf in [true, false] {
        let expected = uses.map(|each| gradient(&[each], leaf));
        let expected = expected.into_iter().reduce(|sum, term| sum + term).unwrap();
        let apart = (gradient(&uses, leaf) - expected.clone()).abs().max();
        let apart = (apart / expected.abs().max()).into_scalar::<f32>();
        assert!(apart < 1e-6, "leaf {leaf}: {apart:e}");
    }
}

const SAME: kernels::ConvOptions = kernels::ConvOptions::square(1, 1);

fn weight(x: &Tensor<4>) -> Tensor<4> {
    let range = Tensor::<1, burn::tensor::Int>::arange(0..4 * 4 * 9, &x.device()).float();
    (range * 0.7).cos().reshape([4, 4, 3, 3])
}

#[test]
fn layer_norm_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-layer-norm");
    layer_norm_case::<2>(&mut fixture, "rows");
    layer_norm_case::<3>(&mut fixture, "tokens");
    layer_norm_case::<3>(&mut fixture, "tokens-1e-6");
    expect_all(fixture, &["y", "dx", "dweight", "dbias"]);
}

fn layer_norm_case<const D: usize>(fixture: &mut Fixture, case: &str) {
    let device = Device::flex().autodiff();
    let x: Tensor<D> = leaf(fixture, case, "x");
    let mut layer = LayerNorm::new(x.dims()[D - 1], &device);
    layer.epsilon = fixture.about["cases"][case]["eps"].as_f64().unwrap();
    let layer = filled(layer, |path| format!("{case}.{path}"));
    let y = layer.forward(x.clone());
    let grads = compare_pass(fixture, case, &x, &y);
    for (name, parameter) in [("dweight", &layer.weight), ("dbias", &layer.bias)] {
        compare_gradient(fixture, case, name, &parameter.val(), &grads);
    }
}

#[test]
fn linear_layers_agree_with_pytorch() {
    let mut fixture = Fixture::open("op-linear");
    for case in ["plain", "gelu", "residual", "gelu-residual"] {
        let [x, weight]: [Tensor<2>; 2] = ["x", "weight"].map(|name| leaf(&fixture, case, name));
        let residual: Option<Tensor<2>> = case
            .contains("residual")
            .then(|| leaf(&fixture, case, "residual"));
        let bias: Tensor<1> = leaf(&fixture, case, "bias");
        let before = if case.contains("gelu") {
            kernels::Before::Gelu
        } else {
            kernels::Before::Nothing
        };
        let y = kernels::linear(
            x.clone(),
            weight.clone(),
            Some(bias.clone()),
            before,
            residual.clone(),
        );
        let grads = compare_pass(&mut fixture, case, &x, &y);
        compare_gradient(&mut fixture, case, "dw", &weight, &grads);
        compare_gradient(&mut fixture, case, "dbias", &bias, &grads);
        if let Some(residual) = residual {
            compare_gradient(&mut fixture, case, "dresidual", &residual, &grads);
        }
    }
    expect_all(fixture, &["y", "dx", "dw", "dbias", "dresidual"]);
}

#[test]
fn attention_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-attention");
    for (case, options) in cases(&fixture) {
        let number = |field: &str| options[field].as_u64().unwrap() as usize;
        let x: Tensor<2> = leaf(&fixture, &case, "x");
        let options = kernels::AttentionOptions {
            batch: number("batch"),
            heads: number("heads"),
            queries: number("queries"),
        };
        let y = kernels::attention(x.clone(), options);
        compare_pass(&mut fixture, &case, &x, &y);
    }
    expect_all(fixture, &["y", "dx"]);
}

#[test]
fn token_ops_composed_of_burns_own_are_the_same_ops() {
    use kernels::composed;
    let device = Device::flex().autodiff();
    let input = |name: &str, rows: usize, columns: usize| -> Tensor<2> {
        let values = crate::fixture::values(name, rows * columns, 3.0, 0.0);
        Tensor::from_data(
            burn::tensor::TensorData::new(values, [rows, columns]),
            &device,
        )
    };
    let close = |what: &str, fast: Tensor<2>, composed: Tensor<2>, leaf: &Tensor<2>| {
        let weights = input("dy", fast.dims()[0], fast.dims()[1]);
        let gradient = |y: &Tensor<2>| leaf.grad(&gradients(y, weights.clone())).unwrap();
        let pairs = [
            (gradient(&fast), gradient(&composed)),
            (fast.without_autodiff(), composed.without_autodiff()),
        ];
        for (a, b) in pairs {
            let largest = b.clone().abs().max().into_scalar::<f32>();
            let difference = (a - b).abs().max().into_scalar::<f32>();
            assert!(
                difference <= 2e-6 * largest,
                "{what}: {difference} of {largest}"
            );
        }
    };
    // Two images of nine tokens, two heads of five values.
    let (x, weight) = (input("x", 18, 30).require_grad(), input("w", 7, 30));
    let bias: Tensor<1> = input("b", 1, 7).reshape([7]);
    let residual = input("r", 18, 7);
    for before in [
        kernels::Before::Nothing,
        kernels::Before::Gelu,
        kernels::Before::GeluTanh,
    ] {
        let arguments = || {
            let (bias, residual) = (Some(bias.clone()), Some(residual.clone()));
            (weight.clone(), bias, before, residual)
        };
        let (w, b, before, r) = arguments();
        let fast = kernels::linear(x.clone(), w, b, before, r);
        let (w, b, before, r) = arguments();
        close(
            "linear",
            fast,
            composed::linear(x.clone(), (w, b), before, r),
            &x,
        );
    }
    let (gamma, beta) = (
        input("g", 1, 30).reshape([30]),
        input("h", 1, 30).reshape([30]),
    );
    close(
        "layer norm",
        kernels::layer_norm(x.clone(), gamma.clone(), beta.clone(), 1e-5),
        composed::layer_norm(x.clone(), gamma, beta, 1e-5),
        &x,
    );
    for queries in [9, 1] {
        let options = kernels::AttentionOptions {
            batch: 2,
            heads: 2,
            queries,
        };
        close(
            "attention",
            kernels::attention(x.clone(), options),
            composed::attention(x.clone(), options),
            &x,
        );
    }
}

#[test]
fn pooling_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-pool");
    for size in ["8x8", "7x5"] {
        pool_case(
            &mut fixture,
            &format!("global-average_{size}"),
            kernels::global_average_pool,
        );
        pool_case(&mut fixture, &format!("average-2x2_{size}"), |x| {
            kernels::average_pool(x, kernels::PoolOptions::square(2, 2, 0))
        });
        pool_case(&mut fixture, &format!("max-3x3_{size}"), |x| {
            kernels::max_pool(x, kernels::PoolOptions::square(3, 2, 1))
        });
        pool_case(&mut fixture, &format!("option-a_{size}"), |x| {
            kernels::shortcut_a(x, 8, 2)
        });
    }
    expect_all(fixture, &["y", "dx"]);
}

fn pool_case<const D: usize>(
    fixture: &mut Fixture,
    case: &str,
    op: impl Fn(Tensor<4>) -> Tensor<D>,
) {
    let x: Tensor<4> = leaf(fixture, case, "x");
    let y = op(x.clone());
    compare_pass(fixture, case, &x, &y);
}

#[test]
fn cross_entropy_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-cross-entropy");
    for case in ["plain", "steep"] {
        let x: Tensor<2> = leaf(&fixture, case, "x");
        let loss = cross_entropy(x.clone(), &labels(6, 10));
        let grads = loss.backward();
        fixture.compare("y", &format!("{case}.y"), &loss);
        compare_gradient(&mut fixture, case, "dx", &x, &grads);
    }
    expect_all(fixture, &["y", "dx"]);
}

#[test]
fn a_given_gradient_is_the_gradient_and_scales_with_the_loss() {
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).require_grad();
    let gradient = Tensor::<2>::from_floats([[0.5, -1.0], [0.0, 2.0]], &device);
    let loss = kernels::loss_with_gradient(x.clone(), gradient, 7.0);
    assert_eq!(loss.clone().into_scalar::<f32>(), 7.0);
    let grads = (loss * 3.0 + x.clone().sum()).backward();
    let found: Vec<f32> = x.grad(&grads).unwrap().to_data().try_to_vec().unwrap();
    assert_eq!(found, [2.5, -2.0, 1.0, 7.0]);
}

/// Three parameters of different rank.
#[derive(Module, Debug)]
struct Toy {
    p0: Param<Tensor<1>>,
    p1: Param<Tensor<2>>,
    p2: Param<Tensor<4>>,
}

fn toy(fixture: &Fixture, device: &Device) -> Toy {
    Toy {
        p0: Param::from_tensor(fixture.input("p0", device)),
        p1: Param::from_tensor(fixture.input("p1", device)),
        p2: Param::from_tensor(fixture.input("p2", device)),
    }
}

/// A loss whose gradient at a step is the one the fixture prescribes.
fn toy_loss(fixture: &Fixture, toy: &Toy, step: usize, device: &Device) -> Tensor<1> {
    let name = |parameter: &str| format!("grad.{step}.{parameter}");
    (toy.p0.val() * fixture.input(&name("p0"), device)).sum()
        + (toy.p1.val() * fixture.input(&name("p1"), device)).sum()
        + (toy.p2.val() * fixture.input(&name("p2"), device)).sum()
}

fn sgd(momentum: f32, weight_decay: f32) -> OptimiserConfig {
    OptimiserConfig::Sgd {
        momentum,
        weight_decay,
    }
}

fn optimiser_case(fixture: &mut Fixture, case: &str, config: OptimiserConfig, rate: f64) {
    let device = Device::flex().autodiff();
    let mut toy = toy(fixture, &device);
    let mut optimiser = config.init();
    for step in 0..5 {
        let loss = toy_loss(fixture, &toy, step, &device);
        toy = optimiser.step(rate, toy, &loss);
        if step == 2 {
            // A saved state continues to the same numbers in a new optimiser.
            let state = optimiser.save().unwrap();
            optimiser = config.init();
            optimiser.restore(&state).unwrap();
        }
        let group = "parameters";
        fixture.compare(group, &format!("{case}.{step}.p0"), &toy.p0.val());
        fixture.compare(group, &format!("{case}.{step}.p1"), &toy.p1.val());
        fixture.compare(group, &format!("{case}.{step}.p2"), &toy.p2.val());
    }
}

#[test]
fn sgd_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-sgd");
    optimiser_case(&mut fixture, "plain", OptimiserConfig::SGD, 0.1);
    let decay = sgd(0.9, 5e-4);
    optimiser_case(&mut fixture, "decay", decay, 0.1);
    fixture.expect("parameters", TOLERANCE);
}

/// Runs that were saved before the update was one pass continue to the same numbers.
#[test]
fn sgd_has_the_bits_and_the_state_of_burns() {
    let fixture = Fixture::open("op-sgd");
    let device = Device::flex().autodiff();
    let config = sgd(0.9, 5e-4);
    let burns = burn::optim::SgdConfig::new()
        .with_momentum(Some(burn::optim::momentum::MomentumConfig {
            momentum: f64::from(0.9_f32),
            dampening: 0.0,
            nesterov: false,
        }))
        .with_weight_decay(Some(burn::optim::decay::WeightDecayConfig::new(5e-4)));
    let (mut ours, mut burns) = (config.init(), burns.init());
    let mut toys = [toy(&fixture, &device), toy(&fixture, &device)];
    toys[1] = toys[0].clone();
    let mut restored = None;
    for step in 0..5 {
        let [one, other] = toys;
        let loss = toy_loss(&fixture, &one, step, &device);
        let one = ours.step(0.1, one, &loss);
        let gradients = toy_loss(&fixture, &other, step, &device).backward();
        let gradients = burn::optim::GradientsParams::from_grads(gradients, &other);
        let other = burns.step(0.1, other, gradients);
        let bits = |toy: &Toy| -> Vec<u32> {
            let values: Vec<f32> = toy.p2.val().to_data().try_to_vec().unwrap();
            values.iter().map(|v| v.to_bits()).collect()
        };
        assert_eq!(bits(&one), bits(&other), "step {step}");
        if step == 2 {
            let mut optimiser = config.init();
            let state = burns.into_bytes().unwrap();
            optimiser.restore(&state).unwrap();
            restored = Some((optimiser, one.clone()));
        } else if let Some((optimiser, toy)) = restored.take() {
            let loss = toy_loss(&fixture, &toy, step, &device);
            assert_eq!(bits(&{ optimiser }.step(0.1, toy, &loss)), bits(&one));
        }
        toys = [one, other];
    }
}

#[test]
fn adam_agrees_with_pytorch() {
    let mut fixture = Fixture::open("op-adam");
    optimiser_case(&mut fixture, "plain", OptimiserConfig::ADAM, 1e-3);
    fixture.expect("parameters", TOLERANCE);
}

#[test]
fn a_reset_optimiser_starts_like_a_new_one() {
    let fixture = Fixture::open("op-sgd");
    let device = Device::flex().autodiff();
    let first_step = |optimiser: &mut ttac::optim::Optimiser| -> Vec<f32> {
        let toy = toy(&fixture, &device);
        let loss = toy_loss(&fixture, &toy, 0, &device);
        let toy = optimiser.step(0.1, toy, &loss);
        toy.p2.val().to_data().try_to_vec().unwrap()
    };
    let mut optimiser = OptimiserConfig::SGD.init();
    let fresh = first_step(&mut optimiser);
    optimiser.reset();
    assert_eq!(first_step(&mut optimiser), fresh);
}

/// A bound cuts the gradient to a share of the parameters' length, and leaves a shorter one alone.
#[test]
fn a_bounded_step_is_as_long_as_the_bound_allows() {
    let fixture = Fixture::open("op-sgd");
    let device = Device::flex().autodiff();
    let plain = sgd(0.0, 0.0);
    let values = |toy: &Toy| -> Vec<f32> {
        let all = [
            toy.p0.val().flatten::<1>(0, -1),
            toy.p1.val().flatten(0, -1),
            toy.p2.val().flatten(0, -1),
        ];
        let all = all.map(|values| values.to_data().try_to_vec::<f32>().unwrap());
        all.concat()
    };
    let length = |values: &[f32]| {
        let squares = values.iter().map(|&v| f64::from(v).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let start = toy(&fixture, &device);
    let before = values(&start);
    let after = |bound: Option<f64>| {
        let loss = toy_loss(&fixture, &start, 0, &device);
        let mut optimiser = plain.init();
        values(&match bound {
            None => optimiser.step(0.1, start.clone(), &loss),
            Some(bound) => optimiser.step_bounded(0.1, start.clone(), &loss, bound),
        })
    };
    let way = |bound| -> Vec<f32> {
        let pairs = after(bound).into_iter().zip(&before);
        pairs.map(|(after, before)| after - before).collect()
    };
    let free = way(None);
    let bound = 0.01;
    let cut = way(Some(bound));
    let asked = 0.1 * bound * length(&before);
    // Differences of parameters near 1 are rounded to 1e-7, a ten-thousandth of this way.
    assert!((length(&cut) / asked - 1.0).abs() < 1e-3, "{asked}");
    let along: f64 = free
        .iter()
        .zip(&cut)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum();
    assert!(along / length(&free) / length(&cut) > 1.0 - 1e-6);
    assert_eq!(after(Some(1e6)), after(None));
}

#[test]
fn a_damaged_optimiser_state_is_an_error() {
    let error = OptimiserConfig::SGD
        .init()
        .restore(b"nonsense")
        .unwrap_err();
    assert!(
        error.to_string().starts_with("invalid optimiser state:"),
        "{error}"
    );
}
