//! Your own data: anything that can hand out RGB bytes by number.
//!
//!     cargo run -p ttac --example own_dataset

#![expect(clippy::print_stdout, reason = "an example shows something")]

use std::path::Path;

use burn::tensor::Device;
use ttac::data::{Batch, Dataset, DatasetExt, SampleId, SetInfo, Shapes10, Split};
use ttac::protocol::{Recorder, Stream, run};
use ttac::stream::{Domain, Domains, StreamConfig};
use ttac::{Model, Result, Session, SourceStatistics};

/// A camera that got old: greenish, dim, and all upside down would be too much.
struct OldCamera {
    info: SetInfo,
    scene: Shapes10,
}

impl OldCamera {
    fn new(scene: Shapes10) -> Self {
        let info = SetInfo {
            name: "old-camera".to_owned(),
            ..scene.info().clone()
        };
        Self { info, scene }
    }
}

impl Dataset for OldCamera {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut batch = self.scene.batch(ids)?;
        let mut images = batch.samples.into_images()?;
        for pixel in images.pixels.chunks_exact_mut(3) {
            pixel[0] /= 3;
            pixel[1] = pixel[1] / 2 + 40;
            pixel[2] /= 3;
        }
        batch.samples = images.into();
        Ok(batch)
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        self.scene.labels()
    }
}

fn main() -> Result<()> {
    let device = Device::flex();
    let shipped = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../assets/shapes10"
    ));
    let model = Model::load(&shipped.join("model.safetensors"), &device)?;
    let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors"))?;

    let camera = OldCamera::new(Shapes10::new(Split::Test, 2000, 0));
    let domain = Domain::clean(camera.name());
    let domains: [Box<dyn Dataset>; 1] = [Box::new(camera)];
    let plan = StreamConfig::new(Domains::One { domain })
        .with_batch_size(100)
        .plan_for(&domains)?;
    for name in ["test", "bn", "ttac"] {
        let builder = Session::builder(&model).anchors(&anchors);
        let mut session = builder.method(name).build()?;
        let mut recorder = Recorder::new(&model.classes);
        run(&mut session, &Stream::new(&plan, &domains)?, &mut recorder)?;
        let error = recorder.error_percent().expect("the images have labels");
        println!("{name}: error {error:.2} %");
    }
    Ok(())
}
