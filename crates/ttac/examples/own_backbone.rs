//! Your own network: three convolutions, trained for a moment, given anchors, and adapted. So small a network has little to
//! gain: this shows what has to be written, not what it is worth.
//!
//!     cargo run -p ttac --example own_backbone

#![expect(clippy::print_stdout, reason = "an example shows something")]

use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor};
use ttac::backbone::layers::{Conv2d, Linear, Then, conv_norm};
use ttac::backbone::{Adaptable, Backbone, BatchNorm, NormMode};
use ttac::checkpoint::InputContract;
use ttac::data::{Dataset, DatasetExt, OpenOptions, SampleId, Shapes10, Split, open};
use ttac::loss::cross_entropy;
use ttac::optim::OptimiserConfig;
use ttac::protocol::{Recorder, Stream, run};
use ttac::stats::{AnchorConfig, collect};
use ttac::stream::{Choose, Domain, Domains, StreamConfig};
use ttac::{Model, Result, Session};

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

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.fc)
    }
}

fn train(input: &InputContract, data: &dyn Dataset, device: &Device) -> Result<ThreeLayers> {
    let autodiff = device.clone().autodiff();
    let mut network = ThreeLayers::new(&autodiff).trainable(Adaptable::All);
    let mut optimiser = OptimiserConfig::ADAM.init();
    let ids: Vec<SampleId> = (0..data.len() as SampleId).collect();
    for ids in ids.chunks(100).cycle().take(1600) {
        let batch = data.batch(ids)?;
        let images = Tensor::from_inner(input.normalise(&batch.samples, device)?);
        let logits = network.forward(images, NormMode::BatchUpdating);
        let loss = cross_entropy(logits, batch.known_labels(data.name())?);
        network = optimiser.step(3e-3, network, &loss);
    }
    Ok(network.valid())
}

fn main() -> Result<()> {
    let device = Device::flex();
    let source = Shapes10::new(Split::Train, 8000, 0);
    let input = InputContract::measured(&source, 1000)?;
    let network = train(&input, &source, &device)?;
    let model = Model::new("three-layers", network, input, source.classes().to_vec());
    let config = AnchorConfig::default();
    let anchors = collect(
        &model.network,
        &model.fingerprint,
        &model.input,
        &source,
        &config,
        &device,
        |_| {},
    )?;

    let options = OpenOptions::new(32).with_corruption("brightness", 5);
    let domains = [open("shapes10", "".as_ref(), Split::Test, &options)?];
    let domain = Domain::corrupted("shapes10", "brightness", 5);
    let plan = StreamConfig::new(Domains::One { domain })
        .with_batch_size(100)
        .with_subset(2000, Choose::First)
        .plan_for(&domains)?;
    for name in ["test", "bn", "ttac"] {
        let mut session = Session::builder(&model)
            .anchors(&anchors)
            .method(name)
            .build()?;
        let mut recorder = Recorder::new(&model.classes);
        run(&mut session, &Stream::new(&plan, &domains)?, &mut recorder)?;
        let error = recorder.error_percent().expect("the images have labels");
        println!("{name}: error {error:.2} %");
    }
    Ok(())
}
