//! `ttac speed`: how long a forward pass, a training step and a step of adaptation take on this machine.

use std::time::Instant;

use serde_json::json;
use ttac::backbone::layers::Linear;
use ttac::backbone::{Adaptable, Backbone, Network, NormMode};
use ttac::burn;
use ttac::burn::module::{Module, Param};
use ttac::burn::tensor::{Device, Tensor, TensorData};
use ttac::checkpoint::InputContract;
use ttac::data::{Batch, Dataset, Images, SampleId, Samples};
use ttac::kernels;
use ttac::loss::cross_entropy;
use ttac::method::{MethodConfig, Minibatch, Preset, Setting, Stage};
use ttac::optim::OptimiserConfig;
use ttac::stats::{AnchorConfig, SourceLabels, collect};

use super::{architecture, print, resident_megabytes};
use crate::args::{Options, Speed, Work};
use crate::device;

pub fn run(args: &Speed, options: &Options) -> anyhow::Result<()> {
    kernels::force(args.implementation.into());
    let architecture = architecture(&args.arch, args.classes.get(), &args.set)?;
    let device = device::parse(&options.device)?;
    let start_megabytes = resident_megabytes("VmRSS:");
    let network = architecture.init(0, &device)?;
    let batch = args.batch_size.get();
    let repeats = args.repeats.get();
    let mut parts_seconds = None;
    let size = match architecture.fewest_points() {
        Some(_) => [architecture.image_size(), 1],
        None => [architecture.image_size(); 2],
    };
    let seconds = match args.work {
        Work::Eval => forward(&network, batch, size, &device, repeats),
        Work::Train => step(network.trainable(Adaptable::All), batch, size, repeats),
        Work::Norm => step(network.trainable(Adaptable::Affine), batch, size, repeats),
        Work::Adapt => {
            let seconds = adapt(args, &network, size, &device)?;
            let forward = forward(&network, batch, size, &device, repeats)[0];
            let train = step(network.trainable(Adaptable::Features), batch, size, repeats)[0];
            parts_seconds = Some(json!({ "train": train, "eval": forward }));
            seconds
        }
        Work::Statistics => {
            let given = Given::new(network.num_features(), args.classes.get(), &device);
            drop(network);
            adapt(args, &given, [given.num_features(), 1], &device)?
        }
    };
    let (minimum, median) = (seconds[0], seconds[seconds.len() / 2]);
    let peak_megabytes = resident_megabytes("VmHWM:");
    let result = json!({
        "architecture": args.arch,
        "work": format!("{:?}", args.work).to_lowercase(),
        "batch": batch,
        "minimum_seconds": minimum,
        "median_seconds": median,
        "images_per_second": batch as f64 / minimum,
        "start_megabytes": start_megabytes,
        "peak_megabytes": peak_megabytes,
        "method": matches!(args.work, Work::Adapt | Work::Statistics).then_some(&args.method),
        "parts_minimum_seconds": parts_seconds,
    });
    let memory = peak_megabytes.map_or(String::new(), |mb| format!(", peak memory {mb:.0} MB"));
    let parts = parts_seconds.map_or(String::new(), |parts| {
        let part = |name: &str| 1e3 * parts[name].as_f64().unwrap_or_default();
        format!(
            "; a training step alone takes {:.1} ms, a forward pass {:.1} ms",
            part("train"),
            part("eval")
        )
    });
    let text = format!(
        "{} batch {batch}: {:.1} ms at best, {:.1} ms in the middle of {} runs, {:.0} images/s{memory}{parts}",
        args.arch,
        1e3 * minimum,
        1e3 * median,
        seconds.len(),
        batch as f64 / minimum,
    );
    print(options.json, &result, &text)
}

/// Sorted seconds of repeated calls; the first one, which warms up, does not count.
fn timed(repeats: usize, mut call: impl FnMut()) -> Vec<f64> {
    call();
    let mut seconds: Vec<f64> = (0..repeats)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

/// Made-up images of about unit variance.
fn images(batch: usize, [height, width]: [usize; 2], device: &Device) -> Tensor<4> {
    let mut state = 1_u32;
    let mut value = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..batch * height * width * 3).map(|_| value()).collect();
    Tensor::from_data(TensorData::new(values, [batch, height, width, 3]), device)
}

fn forward(
    network: &Network,
    batch: usize,
    size: [usize; 2],
    device: &Device,
    repeats: usize,
) -> Vec<f64> {
    let x = images(batch, size, device);
    timed(repeats, || {
        let logits = network.forward(x.clone(), NormMode::Running);
        // Reading the result waits for it.
        let _ = logits.into_data();
    })
}

fn step(network: Network, batch: usize, size: [usize; 2], repeats: usize) -> Vec<f64> {
    let device = network.devices()[0].clone().autodiff();
    let x = images(batch, size, &device);
    let classes = network.num_classes();
    let labels: Vec<usize> = (0..batch).map(|i| i * 7 % classes).collect();
    let mut optimiser = OptimiserConfig::SGD.init();
    let mut network = Some(network);
    timed(repeats, || {
        let current = network.take().expect("it is put back below");
        let loss = cross_entropy(current.forward(x.clone(), NormMode::BatchUpdating), &labels);
        let _ = loss.clone().into_data();
        network = Some(optimiser.step(0.01, current, &loss));
    })
}

/// An arriving batch, as the protocols without a queue treat it: TENT predicts first, as in its
/// original, the others after they have learned. All samples are accepted, so that every class has
/// its part.
fn adapt<B: Backbone + 'static>(
    args: &Speed,
    network: &B,
    size: [usize; 2],
    device: &Device,
) -> anyhow::Result<Vec<f64>> {
    let (name, batch) = (args.method.as_str(), args.batch_size.get());
    let mut config = MethodConfig::by_name(name, Preset::Recommended, Setting::NoQueue)?;
    if matches!(config, MethodConfig::Ttac(_)) {
        let covariance = serde_json::to_string(&args.covariance)?;
        config = config
            .with_field("filter.mode", "none")?
            .with_field("class_covariance", covariance.trim_matches('"'))?;
    }
    let source = MadeUp {
        classes: args.classes.get(),
        count: (4 * args.classes.get()).max(400),
        size,
    };
    let input = InputContract::measured(&source, 100)?;
    let anchors = AnchorConfig {
        labels: SourceLabels::True,
        class_covariance: args.covariance,
        ..AnchorConfig::default()
    };
    let anchors = collect(
        network,
        "made up",
        &input,
        &source,
        &anchors,
        device,
        |_| {},
    )?;
    let mut method = config.init(network.clone(), Some(&anchors))?;
    let minibatch = Minibatch {
        ids: (0..batch as SampleId).collect(),
        images: images(batch, size, device),
        views: None,
    };
    let mut failed = None;
    let seconds = timed(args.repeats.get(), || {
        let result = match name {
            "tent" => method.predict_then_learn(&minibatch, &Stage::SINGLE),
            _ => method.learn_then_predict(&minibatch, &Stage::SINGLE),
        };
        match result {
            Ok((logits, _)) => drop(logits.into_data()),
            Err(error) => failed = Some(error),
        }
    });
    failed.map_or(Ok(seconds), |error| Err(error.into()))
}

/// A network whose features are its input, so that a method's own work is all there is: clouds of as
/// many points, of which the first coordinates count.
#[derive(Module, Debug)]
struct Given {
    scale: Param<Tensor<1>>,
    fc: Linear,
}

impl Given {
    fn new(features: usize, classes: usize, device: &Device) -> Self {
        Self {
            scale: Param::from_tensor(Tensor::ones([features], device)),
            fc: Linear::new(features, classes, device),
        }
    }
}

impl Backbone for Given {
    fn features(&self, images: Tensor<4>, _: NormMode) -> Tensor<2> {
        let [batch, features, ..] = images.dims();
        let first = images.slice_dim(3, 0..1).reshape([batch, features]);
        first * self.scale.val().unsqueeze()
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        self.fc.forward(features)
    }

    fn head_weights(&self) -> Tensor<2> {
        self.fc.weight.val()
    }

    fn num_features(&self) -> usize {
        self.scale.dims()[0]
    }

    fn num_classes(&self) -> usize {
        self.fc.weight.dims()[0]
    }

    fn classifier_key(&self) -> &'static str {
        "fc"
    }
}

/// Noise with labels, for anchors that mean nothing: images, or clouds where the width is one.
struct MadeUp {
    classes: usize,
    count: usize,
    size: [usize; 2],
}

impl Dataset for MadeUp {
    fn name(&self) -> &'static str {
        "made-up"
    }

    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> Vec<String> {
        (0..self.classes)
            .map(|class| format!("class {class}"))
            .collect()
    }

    fn batch(&self, ids: &[SampleId]) -> ttac::Result<Batch> {
        let [height, width] = self.size;
        let bytes = ids.iter().flat_map(|&id| {
            let mut state = id as u32;
            (0..height * width * 3).map(move |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
        });
        let images = if width == 1 {
            let values: Vec<f32> = bytes.map(|byte| f32::from(byte) / 128.0 - 1.0).collect();
            Images::from_clouds(height, &values)
        } else {
            Images {
                height,
                width,
                pixels: bytes.collect(),
            }
        };
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images,
            },
            labels: ids.iter().map(|&id| id as usize % self.classes).collect(),
        })
    }
}
