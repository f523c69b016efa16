//! Loss terms as they come together in a step.

use burn::tensor::Tensor;

use super::learner::value;
use super::{Learned, Learner, Views};
use crate::loss::contrastive;

/// The sum of a step's loss terms, for the gradient, and each term's value, for the log.
#[derive(Default)]
pub(super) struct Terms {
    sum: Option<Tensor<1>>,
    pub losses: Vec<(&'static str, f64)>,
}

impl Terms {
    /// Adds a term and logs its value.
    pub fn add(&mut self, name: &'static str, loss: Tensor<1>) {
        self.losses.push((name, value(&loss)));
        self.join(loss);
    }

    /// Adds a term whose value is logged elsewhere, or not at all.
    pub fn join(&mut self, loss: Tensor<1>) {
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
    }

    /// Adds the contrastive loss of two views of each image.
    pub fn add_contrastive(&mut self, learner: &mut Learner, views: &Views) {
        let mode = learner.updating();
        let network = learner.network();
        let features = network.features(Tensor::from_inner(views.images.clone()), mode);
        let projections = network.projection(features).expect("needs were checked");
        self.add("contrastive", contrastive(projections));
    }

    /// Keeps the logged values and drops the sum, so that no step follows.
    pub fn without_step(self) -> Self {
        if let Some(sum) = self.sum {
            // Burn frees what a forward pass recorded in a backward pass only.
            drop(sum.backward());
        }
        Self {
            sum: None,
            losses: self.losses,
        }
    }

    /// Steps down the sum, if there is any term, and says what was learned.
    pub fn step(self, learner: &mut Learner) -> Learned {
        let updates = match &self.sum {
            Some(loss) => {
                learner.step(loss);
                1
            }
            None => 0,
        };
        Learned {
            updates,
            losses: self.losses,
            ..Learned::default()
        }
    }
}
