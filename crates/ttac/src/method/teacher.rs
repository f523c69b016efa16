//! A mean teacher (Tarvainen and Valpola, 2017): a network whose trained parameters follow those of the student slowly.

use serde::{Deserialize, Serialize};

use super::ensemble::towards;
use super::{Classifier, Learner};
use crate::norms::KeptNorms;

/// The parameters of a teacher.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Teacher {
    /// None before the first step, when they are the source's.
    parameters: Option<Vec<f32>>,
}

impl Teacher {
    /// Returns the teacher as a network without gradients; its norm statistics are the student's.
    pub fn network(&self, learner: &Learner) -> Box<dyn Classifier + Send + Sync> {
        match &self.parameters {
            Some(parameters) => learner.frozen_with(parameters),
            None => learner.frozen_with(&learner.source_parameters()),
        }
    }

    /// Returns the teacher with norm statistics of its own, where it has some; before the first pass they are the source's, and so are
    /// the student's.
    pub fn network_with(
        &self,
        norms: &KeptNorms,
        learner: &Learner,
    ) -> Box<dyn Classifier + Send + Sync> {
        let buffers = norms.buffers();
        match &self.parameters {
            Some(parameters) => learner.frozen_as(parameters, &buffers),
            None => learner.frozen_as(&learner.source_parameters(), &buffers),
        }
    }

    /// Moves the teacher by a share of the way to the student.
    pub fn follow(&mut self, learner: &Learner, share: f64) {
        let student = learner.parameters();
        let start = || learner.source_parameters();
        let own = self.parameters.get_or_insert_with(start);
        // Parameters of another network, which a session refuses before.
        own.resize(student.len(), 0.0);
        towards(own, &student, share);
    }
}
