//! Whole networks under every implementation of the ops.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use ttac::backbone::{Adaptable, Architecture, Backbone, Network, NormMode, tensors};
use ttac::data::{Images, Samples};
use ttac::input::InputContract;
use ttac::kernels::{Algorithm, Context, Implementation};
use ttac::loss::cross_entropy;
use ttac::optim::OptimiserConfig;
use ttac::{Model, Session};

const KERNELS: [Algorithm; 4] = [
    Algorithm::Direct,
    Algorithm::Winograd2,
    Algorithm::Winograd4,
    Algorithm::Auto,
];

fn images(batch: usize, device: &Device) -> Tensor<4> {
    let mut state = 1_u32;
    let mut value = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..batch * 32 * 32 * 3).map(|_| value()).collect();
    Tensor::from_data(TensorData::new(values, [batch, 32, 32, 3]), device)
}

fn resnet20() -> Network {
    let architecture = Architecture::by_name("resnet20-cifar", 10).unwrap();
    architecture.init(3, &Device::flex()).unwrap()
}

/// Largest difference over largest value.
fn difference(actual: &[f32], expected: &[f32]) -> f32 {
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, f32::max);
    let apart = largest(&mut actual.iter().zip(expected).map(|(a, e)| (a - e).abs()));
    apart / largest(&mut expected.iter().map(|e| e.abs()))
}

fn logits(network: &Network) -> Vec<f32> {
    let logits = network.forward(images(16, &Device::flex()), NormMode::Running);
    logits.to_data().try_to_vec().unwrap()
}

/// Losses of ten steps, and everything the network is afterwards.
fn ten_steps(batch: usize) -> (Vec<f32>, Vec<(String, TensorData)>) {
    let device = Device::flex().autodiff();
    let labels: Vec<usize> = (0..batch).map(|i| i * 7 % 10).collect();
    let mut network = resnet20().trainable(Adaptable::All);
    let mut optimiser = OptimiserConfig::SGD.init();
    let mut losses = Vec::new();
    for _ in 0..10 {
        let logits = network.forward(images(batch, &device), NormMode::BatchUpdating);
        let loss = cross_entropy(logits, &labels);
        losses.push(loss.clone().into_scalar::<f32>());
        network = optimiser.step(0.01, network, &loss);
    }
    (losses, tensors(&network.valid()).into_iter().collect())
}

fn context(implementation: Implementation) -> Context {
    Context::new().with_implementation(implementation)
}

fn kernels(algorithm: Algorithm) -> Context {
    context(Implementation::Kernels(algorithm))
}

#[test]
fn implementations_agree_and_do_not_depend_on_threads() {
    let network = resnet20();
    let composed = context(Implementation::Composed);
    let (composed, (composed_losses, _)) = composed.scope(|| (logits(&network), ten_steps(8)));
    let direct = kernels(Algorithm::Direct).scope(|| logits(&network));
    // Burn's own convolution is another order of the same sums, and the norm is not folded.
    assert!(difference(&direct, &composed) < 1e-5);
    for algorithm in KERNELS {
        let context = kernels(algorithm);
        // The bound a whole ResNet-20 has to keep, whatever the algorithm.
        let apart = difference(&context.scope(|| logits(&network)), &direct);
        assert!(apart < 1e-4, "{algorithm:?}: logits differ by {apart:e}");
        // Ten steps amplify rounding, and a ReLU may change sides: a loose check on the losses here, the
        // tight one is the parity ladder, which runs with the default algorithm.
        let (losses, _) = context.scope(|| ten_steps(8));
        let apart = difference(&losses, &composed_losses);
        assert!(apart < 1e-3, "{algorithm:?}: losses differ by {apart:e}");
    }

    let in_pool = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let work = || kernels(Algorithm::Auto).scope(|| ten_steps(5));
        pool.build().unwrap().install(work)
    };
    let alone = in_pool(1);
    for threads in [2, 3] {
        assert!(
            in_pool(threads) == alone,
            "{threads} threads give other bits than one"
        );
    }
}

/// Two sessions side by side give the bits that each gives alone.
#[test]
fn contexts_on_two_threads_do_not_influence_each_other() {
    let algorithms = [Algorithm::Direct, Algorithm::Winograd4];
    let run = |algorithm| kernels(algorithm).scope(|| ten_steps(4));
    let alone = algorithms.map(run);
    assert!(alone[0] != alone[1], "the algorithms round differently");
    let together = std::thread::scope(|threads| {
        algorithms
            .map(|algorithm| threads.spawn(move || run(algorithm)))
            .map(|thread| thread.join().unwrap())
    });
    assert!(together == alone);
}

/// A service answers each image as if it had come alone.
#[test]
fn with_a_nominal_batch_an_image_has_the_same_bits_in_every_batch() {
    let device = Device::flex();
    let mut state = 7_u32;
    let mut pixel = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let some = Samples::from(Images {
        height: 32,
        width: 32,
        pixels: (0..70 * 32 * 32 * 3).map(|_| pixel()).collect(),
    });
    for (name, count) in [("resnet20-cifar", 70), ("resnet26", 20), ("vit-tiny-4", 20)] {
        let architecture = Architecture::by_name(name, 10).unwrap();
        let network = architecture.init(3, &device).unwrap();
        let input = InputContract::Images {
            height: 32,
            width: 32,
            mean: [0.5; 3],
            std: [0.25; 3],
        };
        let classes = (0..10).map(|class| class.to_string()).collect();
        let model = Model::new(name, network, input, classes);
        let session = Session::builder(&model).method("test").build().unwrap();
        assert!(session.predicts_alone());
        let predictor = session.predictor().alone();
        let scores = |from: usize, to: usize| {
            let places: Vec<usize> = (from..to).collect();
            predictor.predict(&some.pick(&places)).unwrap().scores
        };
        kernels(Algorithm::AutoForBatch(64)).scope(|| {
            let together = scores(0, count);
            for (from, to) in [(0, 1), (1, 3), (3, count)] {
                let part = &together[10 * from..10 * to];
                assert!(scores(from, to) == part, "{name}: images {from} to {to}");
            }
        });
    }
}
