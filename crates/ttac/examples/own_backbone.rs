//! Your own network: three convolutions, trained for a moment, given anchors, and adapted. So small a network has little to
//! gain: this shows what has to be written, not what it is worth.
//!
//!     cargo run --release --example own_backbone

#![expect(clippy::print_stdout, reason = "an example shows something")]

use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor};
use ttac::Result;
use ttac::backbone::layers::{Conv2d, Linear, Then, conv_norm};
use ttac::backbone::{Adaptable, Backbone, BatchNorm, NormMode};
use ttac::checkpoint::InputContract;
use ttac::data::{Dataset, OpenOptions, SampleId, Shapes10, Split, open};
use ttac::loss::cross_entropy;
use ttac::method::{MethodConfig, Preset, Setting};
use ttac::optim::OptimiserConfig;
use ttac::protocol::{Protocol, Recorder, Stream, run};
use ttac::stats::{AnchorConfig, collect};
use ttac::stream::{Choose, Domain, Domains, StreamConfig};

const CLASSES: usize = 10;
const WIDTHS: [usize; 4] = [3, 16, 32, 64];

#[derive(Module, Debug)]
struct ThreeLayers {
    convolutions: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
    fc: Linear,
}

impl ThreeLayers {
    fn new(device: &Device) -> Self {
        let convolution = |pair: &[usize]| {
            let mut layer = Conv2d::new(pair[0], pair[1], 3, 2, device);
            let deviation = (2.0 / (9 * pair[0]) as f64).sqrt();
            let normal = Distribution::Normal(0.0, deviation);
            layer.weight =
                Param::from_tensor(Tensor::random([pair[1], pair[0], 3, 3], normal, device));
            layer
        };
        Self {
            convolutions: WIDTHS.windows(2).map(convolution).collect(),
            norms: WIDTHS[1..]
                .iter()
                .map(|&w| BatchNorm::new(w, device))
                .collect(),
            fc: Linear::new(WIDTHS[3], CLASSES, device),
        }
    }
}

impl Backbone for ThreeLayers {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        let layers = self.convolutions.iter().zip(&self.norms);
        let x = layers.fold(images, |x, (convolution, layer)| {
            conv_norm(convolution, layer, x, Then::Relu, norm)
        });
        let [batch, _, _, channels] = x.dims();
        x.mean_dim(1).mean_dim(2).reshape([batch, channels])
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.fc.forward(features)
    }

    fn head_weights(&self) -> Tensor<2> {
        self.fc.weight.val()
    }

    fn num_features(&self) -> usize {
        WIDTHS[3]
    }

    fn num_classes(&self) -> usize {
        CLASSES
    }

    fn classifier_key(&self) -> &'static str {
        "fc"
    }
}

fn train(input: &InputContract, data: &dyn Dataset, device: &Device) -> Result<ThreeLayers> {
    let autodiff = device.clone().autodiff();
    let mut network = ThreeLayers::new(&autodiff).trainable(Adaptable::All);
    let mut optimiser = OptimiserConfig::ADAM.init();
    let ids: Vec<SampleId> = (0..data.len() as SampleId).collect();
    for ids in ids.chunks(100).cycle().take(1600) {
        let batch = data.batch(ids)?;
        let images = Tensor::from_inner(input.normalise(&batch.samples.images, device)?);
        let logits = network.forward(images, NormMode::BatchUpdating);
        network = optimiser.step(3e-3, network, &cross_entropy(logits, &batch.labels));
    }
    Ok(network.valid())
}

fn main() -> Result<()> {
    let device = Device::flex();
    let source = Shapes10::new(Split::Train, 8000, 0);
    let input = InputContract::measured(&source, 1000)?;
    let network = train(&input, &source, &device)?;
    let config = AnchorConfig::default();
    let anchors = collect(&network, "mine", &input, &source, &config, &device, |_| {})?;

    let options = OpenOptions::new(32).with_corruption("brightness", 5);
    let domains = [open("shapes10", "".as_ref(), Split::Test, &options)?];
    let domain = Domain::corrupted("shapes10", "brightness", 5);
    let plan = StreamConfig::new(Domains::One { domain })
        .with_batch_size(100)
        .with_subset(2000, Choose::First)
        .plan(&[&domains[0].labels()?], CLASSES)?;
    let stream = Stream {
        plan: &plan,
        domains: &domains,
        input: &input,
        device: &device,
    };
    for name in ["test", "bn", "ttac"] {
        let config = MethodConfig::by_name(name, Preset::Recommended, Setting::NoQueue)?;
        let mut method = config.init(network.clone(), Some(&anchors))?;
        let mut recorder = Recorder::new(&source.classes());
        run(
            &Protocol::default(),
            method.as_mut(),
            &stream,
            &mut recorder,
        )?;
        println!("{name}: error {:.2} %", recorder.error_percent());
    }
    Ok(())
}
