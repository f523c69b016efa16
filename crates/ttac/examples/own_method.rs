//! Your own method: batch statistics that a few rounds of pseudo-labels correct.
//!
//!     cargo run --release --example own_method

#![expect(clippy::print_stdout, reason = "an example shows something")]

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use ttac::archive::Arrays;
use ttac::backbone::{Adaptable, Backbone, NormMode, tensors};
use ttac::checkpoint::Checkpoint;
use ttac::data::{OpenOptions, Split, open};
use ttac::loss::cross_entropy;
use ttac::method::{Learned, Learner, Method, Minibatch, NormUpdates, Stage};
use ttac::optim::OptimiserConfig;
use ttac::protocol::{Protocol, Recorder, Stream, run};
use ttac::stream::{Choose, Domain, Domains, StreamConfig};
use ttac::{Result, best};

/// Cross-entropy against the network's own predictions, over scale and shift of the norms.
#[derive(Clone)]
struct PseudoLabel<B: Backbone>(Learner<B>);

impl<B: Backbone + 'static> Method for PseudoLabel<B> {
    fn name(&self) -> &'static str {
        "pseudo-label"
    }

    fn learn(&mut self, minibatch: &Minibatch, _: &Stage) -> Result<Learned> {
        let images = Tensor::from_inner(minibatch.images.clone());
        let logits = self.0.network().forward(images, NormMode::Batch);
        let [_, classes] = logits.dims();
        let scores = logits.clone().into_data().convert::<f32>();
        let scores = scores.try_to_vec::<f32>().expect("logits are f32");
        let labels: Vec<usize> = scores.chunks(classes).map(|row| best(row).0).collect();
        self.0.step(&cross_entropy(logits, &labels));
        Ok(Learned {
            updates: 1,
            ..Learned::nothing()
        })
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.0.frozen().forward(images, NormMode::Batch)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.0.frozen().features(images, NormMode::Batch)
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.0.frozen())
    }

    fn save(&self, arrays: &mut Arrays) -> Result<()> {
        self.0.save(arrays)
    }

    fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        self.0.load(arrays)
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

fn main() -> Result<()> {
    let device = Device::flex();
    let shipped = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../assets/shapes10"
    ));
    let source = Checkpoint::load(&shipped.join("model.safetensors"), &device)?;
    let options = OpenOptions::new(32).with_corruption("contrast", 5);
    let domains = [open("shapes10", shipped, Split::Test, &options)?];
    let domain = Domain::corrupted("shapes10", "contrast", 5);
    let plan = StreamConfig::new(Domains::One { domain })
        .with_batch_size(100)
        .with_subset(2000, Choose::First)
        .plan(&[&domains[0].labels()?], 10)?;
    let stream = Stream {
        plan: &plan,
        domains: &domains,
        input: &source.header.input,
        device: &device,
    };
    let learner = Learner::new(
        source.network,
        Adaptable::Affine,
        OptimiserConfig::SGD,
        1e-3,
        NormUpdates::default(),
    );
    let mut recorder = Recorder::new(&source.header.classes);
    run(
        &Protocol::default(),
        &mut PseudoLabel(learner),
        &stream,
        &mut recorder,
    )?;
    println!("pseudo-label: error {:.2} %", recorder.error_percent());
    Ok(())
}
