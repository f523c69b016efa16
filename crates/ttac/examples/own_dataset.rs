//! Your own data: anything that can hand out RGB bytes by number.
//!
//!     cargo run --release --example own_dataset

#![expect(clippy::print_stdout, reason = "an example shows something")]

use std::path::Path;

use burn::tensor::Device;
use ttac::Result;
use ttac::checkpoint::Checkpoint;
use ttac::data::{Batch, Dataset, Images, SampleId, Samples, Shapes10, Split};
use ttac::method::{MethodConfig, Preset, Setting};
use ttac::protocol::{Protocol, Recorder, Stream, run};
use ttac::stats::SourceStatistics;
use ttac::stream::{Domain, Domains, StreamConfig};

/// A camera that got old: greenish, dim, and all upside down would be too much.
struct OldCamera(Shapes10);

impl Dataset for OldCamera {
    fn name(&self) -> &'static str {
        "old-camera"
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn classes(&self) -> Vec<String> {
        self.0.classes()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut batch = self.0.batch(ids)?;
        let Samples { images, .. } = &mut batch.samples;
        let Images { pixels, .. } = images;
        for pixel in pixels.chunks_exact_mut(3) {
            pixel[0] /= 3;
            pixel[1] = pixel[1] / 2 + 40;
            pixel[2] /= 3;
        }
        Ok(batch)
    }
}

fn main() -> Result<()> {
    let device = Device::flex();
    let shipped = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../assets/shapes10"
    ));
    let source = Checkpoint::load(&shipped.join("model.safetensors"), &device)?;
    let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors"))?;

    let camera = OldCamera(Shapes10::new(Split::Test, 2000, 0));
    let domain = Domain::clean(camera.name());
    let plan = StreamConfig::new(Domains::One { domain })
        .with_batch_size(100)
        .plan(&[&camera.labels()?], camera.classes().len())?;
    let domains: [Box<dyn Dataset>; 1] = [Box::new(camera)];
    let stream = Stream {
        plan: &plan,
        domains: &domains,
        input: &source.header.input,
        device: &device,
    };
    for name in ["test", "bn", "ttac"] {
        let config = MethodConfig::by_name(name, Preset::Recommended, Setting::NoQueue)?;
        let mut method = config.init(source.network.clone(), Some(&anchors))?;
        let mut recorder = Recorder::new(&source.header.classes);
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
