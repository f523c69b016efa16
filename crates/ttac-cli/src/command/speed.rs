//! `ttac speed`: how long a forward pass, a training step and a step of adaptation take on this machine.

use std::time::Instant;

use anyhow::bail;
use serde_json::json;
use ttac::backbone::layers::Linear;
use ttac::backbone::{Adaptable, Backbone, Network, NormMode};
use ttac::burn;
use ttac::burn::module::{Module, Param};
use ttac::burn::tensor::{Device, Tensor, TensorData};
use ttac::checkpoint::{Checkpoint, InputContract};
use ttac::data::{Batch, Clouds, Dataset, Images, SampleId, SetInfo};
use ttac::kernels::Context;
use ttac::loss::cross_entropy;
use ttac::method::{MethodSpec, Minibatch, Prediction, Preset, Setting};
use ttac::optim::OptimiserConfig;
use ttac::stats::{AnchorConfig, SourceLabels, collect};

use super::{architecture, print, resident_megabytes};
use crate::args::{Options, Speed, Work};
use crate::device;

pub fn run(args: &Speed, options: &Options) -> anyhow::Result<()> {
    let context = Context::default().with_implementation(args.implementation.into());
    context.scope(|| measure(args, options))
}

fn measure(args: &Speed, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let start_megabytes = resident_megabytes("VmRSS:");
    let (architecture, network, name) = match (&args.arch, &args.model) {
        (Some(name), _) => {
            let architecture = architecture(name, args.classes.get(), &args.set)?;
            let network = architecture.init(0, &device)?;
            (architecture, network, name.clone())
        }
        (None, Some(path)) => {
            let Checkpoint { header, network } = Checkpoint::load(path, &device)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            (header.architecture, network, name.into_owned())
        }
        (None, None) => bail!("expected `--arch NAME` or `--model FILE`"),
    };
    let classes = architecture.num_classes();
    let batch = args.batch_size.get();
    let repeats = args.repeats.get();
    let mut parts_seconds = None;
    let size = architecture.input().size();
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
            let given = Given::new(network.num_features(), classes, &device);
            drop(network);
            adapt(args, &given, [given.num_features(), 1], &device)?
        }
    };
    let (minimum, median) = (seconds[0], seconds[seconds.len() / 2]);
    let peak_megabytes = resident_megabytes("VmHWM:");
    let result = json!({
        "architecture": name,
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
        name,
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
fn adapt<B: Backbone + Sync + 'static>(
    args: &Speed,
    network: &B,
    size: [usize; 2],
    device: &Device,
) -> anyhow::Result<Vec<f64>> {
    let (name, batch) = (args.method.as_str(), args.batch_size.get());
    let mut config = MethodSpec::preset(name, Preset::Earlier, Setting::NoQueue)?;
    if name.starts_with("ttac") {
        let covariance = serde_json::to_string(&args.covariance)?;
        config = config
            .with_field("filter.mode", "none")?
            .with_field("class_covariance", covariance.trim_matches('"'))?;
    }
    let source = MadeUp::new(network.num_classes(), size);
    let input = InputContract::measured(&source, 100)?;
    let anchors = AnchorConfig {
        labels: SourceLabels::True,
        class_covariance: args.covariance,
        importance_images: 0,
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
    let mut method = config.build(network.clone(), Some(&anchors))?;
    let order = match name {
        "tent" => Prediction::PredictFirst,
        _ => Prediction::AdaptFirst,
    };
    let minibatch = Minibatch {
        ids: (0..batch as SampleId).collect(),
        images: images(batch, size, device),
        views: None,
    };
    let mut failed = None;
    let seconds = timed(args.repeats.get(), || {
        match method.observe(&minibatch, order) {
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

    fn classifier(&self) -> Option<&Linear> {
        Some(&self.fc)
    }
}

/// Noise with labels, for anchors that mean nothing: images, or clouds where the width is one.
struct MadeUp {
    info: SetInfo,
    size: [usize; 2],
}

impl MadeUp {
    fn new(classes: usize, size: [usize; 2]) -> Self {
        let names = (0..classes).map(|class| format!("class {class}"));
        Self {
            info: SetInfo::new("made-up", (4 * classes).max(400), names),
            size,
        }
    }

    fn label(&self, id: SampleId) -> usize {
        id as usize % self.info.classes.len()
    }
}

impl Dataset for MadeUp {
    fn info(&self) -> &SetInfo {
        &self.info
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
        let samples = if width == 1 {
            let values = bytes.map(|byte| f32::from(byte) / 128.0 - 1.0).collect();
            let points = height;
            Clouds { points, values }.into()
        } else {
            let pixels = bytes.collect();
            Images {
                height,
                width,
                pixels,
            }
            .into()
        };
        Ok(Batch {
            ids: ids.to_vec(),
            samples,
            labels: Some(ids.iter().map(|&id| self.label(id)).collect()),
        })
    }

    fn labels(&self) -> ttac::Result<Option<Vec<usize>>> {
        let ids = 0..self.info.len as SampleId;
        Ok(Some(ids.map(|id| self.label(id)).collect()))
    }
}
