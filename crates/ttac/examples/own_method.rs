//! Your own method: a step of cross-entropy against the network's own predictions, over scale and shift of the norms.
//!
//!     cargo run -p ttac --example own_method

#![expect(clippy::print_stdout, reason = "an example shows something")]

use std::path::Path;

use burn::tensor::{Device, Tensor};
use serde_json::json;
use ttac::backbone::{Adaptable, NormMode};
use ttac::data::{OpenOptions, Split, open};
use ttac::loss::cross_entropy;
use ttac::method::{
    Adapter, Learned, Learner, LearnerConfig, Method, MethodSpec, Minibatch, Needs, Stage,
};
use ttac::optim::OptimiserConfig;
use ttac::protocol::{Recorder, Stream, run};
use ttac::stream::{Choose, Domain, Domains, StreamConfig};
use ttac::{Model, Result, Session, best};

#[derive(Clone)]
struct PseudoLabel;

impl Method for PseudoLabel {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let images = Tensor::from_inner(batch.images.clone());
        let logits = learner.network().forward(images, NormMode::Batch);
        let [_, classes] = logits.dims();
        let scores = logits.clone().into_data().convert::<f32>();
        let scores = scores.try_to_vec::<f32>().expect("logits are f32");
        let labels: Vec<usize> = scores.chunks(classes).map(|row| best(row).0).collect();
        learner.step(&cross_entropy(logits, &labels));
        Ok(Learned {
            updates: 1,
            ..Learned::nothing()
        })
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

fn main() -> Result<()> {
    let shipped = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../assets/shapes10"
    ));
    let model = Model::load(&shipped.join("model.safetensors"), &Device::flex())?;
    let learner = LearnerConfig {
        adapts: Adaptable::Affine,
        optimiser: OptimiserConfig::SGD,
        learning_rate: 1e-3,
        predicts: NormMode::Batch,
        ..LearnerConfig::default()
    };
    let method = Box::new(PseudoLabel);
    let adapter = Adapter::new(model.network.clone(), learner, method, Needs::NETWORK);
    // How it is called, with its constants, in protocol cards.
    let record = MethodSpec::of("pseudo-label", &json!({ "learning_rate": 1e-3 }));
    let mut session = Session::builder(&model)
        .own_method(record, adapter)
        .build()?;

    let options = OpenOptions::new(32).with_corruption("contrast", 5);
    let domains = [open("shapes10", shipped, Split::Test, &options)?];
    let domain = Domain::corrupted("shapes10", "contrast", 5);
    let plan = StreamConfig::new(Domains::One { domain })
        .with_batch_size(100)
        .with_subset(2000, Choose::First)
        .plan_for(&domains)?;
    let mut recorder = Recorder::new(&model.classes);
    run(&mut session, &Stream::new(&plan, &domains)?, &mut recorder)?;
    let error = recorder.error_percent().expect("the images have labels");
    println!("pseudo-label: error {error:.2} %");
    Ok(())
}
