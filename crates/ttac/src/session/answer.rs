//! What a session answers.

use burn::tensor::{Tensor, activation::softmax};

use crate::best;
use crate::gate::Verdict;
use crate::method::Learned;
use crate::protocol::Alarm;

/// The predictions of a batch, and what became of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The predicted class of each sample.
    pub classes: Vec<usize>,
    /// The probability of each class for each sample, `[samples, num_classes]`, row-major.
    pub probabilities: Vec<f32>,
    /// The scores that the probabilities are the softmax of, `[samples, num_classes]`, row-major.
    pub scores: Vec<f32>,
    /// How many classes the network has: the length of a row of `probabilities`.
    pub num_classes: usize,
    /// The classes before answers were corrected by recent shares, if they are: in a run of a class the corrected ones fall into few
    /// classes, which to a guard would look like a collapse.
    pub(crate) uncorrected: Option<Vec<usize>>,
    /// What was learned from the batch, summed over all steps; losses are means over the steps.
    pub learned: Learned,
    /// What somebody should know.
    pub warnings: Vec<String>,
    /// What the guard found and did, if anything. After [`GuardAction::Stop`](crate::protocol::GuardAction::Stop)
    /// the session refuses further batches until it is reset.
    pub alarm: Option<Alarm>,
    /// What the gate decided, if there is one.
    pub gate: Option<Verdict>,
    /// Whether the batch arrived while the method was busy, so that it was answered by the weights of before and
    /// not learned from. Only with an arrival rate.
    pub late: bool,
    /// Time for learning, in seconds.
    pub learning_seconds: f64,
    /// Time for predicting, in seconds; part of the learning where one pass does both.
    pub predicting_seconds: f64,
}

impl Answer {
    /// Makes an answer of scores, `[samples, classes]`, from which nothing was learned.
    pub(crate) fn of_scores(scores: Tensor<2>) -> Self {
        let [_, num_classes] = scores.dims();
        let values = |tensor: Tensor<2>| tensor.to_data().try_to_vec().expect("scores are f32");
        let probabilities: Vec<f32> = values(softmax(scores.clone(), 1));
        let rows = probabilities.chunks_exact(num_classes);
        Self {
            classes: rows.map(|row| best(row).0).collect(),
            probabilities,
            scores: values(scores),
            num_classes,
            uncorrected: None,
            learned: Learned::nothing(),
            warnings: Vec::new(),
            alarm: None,
            gate: None,
            late: false,
            learning_seconds: 0.0,
            predicting_seconds: 0.0,
        }
    }

    /// Adds what was learned; its notes become warnings.
    pub(crate) fn with_learned(self, learned: Learned) -> Self {
        Self {
            warnings: learned.notes.clone(),
            learned,
            ..self
        }
    }

    /// Returns the probability of each predicted class.
    pub fn confidence(&self) -> Vec<f32> {
        let rows = self.probabilities.chunks_exact(self.num_classes);
        let pairs = rows.zip(&self.classes);
        pairs.map(|(row, &class)| row[class]).collect()
    }

    /// Whether every probability is a number.
    pub(crate) fn is_finite(&self) -> bool {
        self.probabilities.iter().all(|value| value.is_finite())
    }
}
