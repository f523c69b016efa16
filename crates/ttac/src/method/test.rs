//! No adaptation at all.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};

use super::{Learned, Method, Minibatch, Stage};
use crate::Result;
use crate::archive::Arrays;
use crate::backbone::{Backbone, NormMode, tensors};

/// The source network as it is, with its running norm statistics.
///
/// # What it does
/// Predicts. It is the row that every other method is compared with.
///
/// # When to use
/// To know what the shift costs.
///
/// # References
/// METHODS 9.1.
#[derive(Clone, Debug)]
pub struct Test<B: Backbone>(B);

impl<B: Backbone> Test<B> {
    /// Of a trained network.
    pub fn new(network: B) -> Self {
        Self(network)
    }
}

impl<B: Backbone + 'static> Method for Test<B> {
    fn name(&self) -> &'static str {
        "test"
    }

    fn learn(&mut self, _: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(Learned::nothing())
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.0.forward(images, NormMode::Running)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.0.features(images, NormMode::Running)
    }

    fn reset(&mut self) {}

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.0)
    }

    fn save(&self, _: &mut Arrays) -> Result<()> {
        Ok(())
    }

    fn load(&mut self, _: &mut Arrays) -> Result<()> {
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
