//! How much each scale and shift of the norms matters to the predictions on source images: what EATA holds on to.

use burn::tensor::Device;

use crate::Result;
use crate::backbone::{Adaptable, Backbone, NormMode};
use crate::data::{Dataset, SampleId};
use crate::input::InputContract;
use crate::loss::cross_entropy;
use crate::method::parameters;

/// The diagonal of the Fisher information of the norms' scales and shifts on source images.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// The number of source images.
    pub images: u64,
    /// One value for each scale and shift, in the order of the network's modules.
    pub values: Vec<f32>,
}

/// The number of images in a batch of which a gradient is taken.
const BATCH: usize = 64;

impl Importance {
    /// Measures the importance on some source images, as they are: the squared gradient of the mean cross-entropy of each batch of 64
    /// against the network's own predictions, averaged over the batches. Batch norms use the statistics of the batch. A network without
    /// norms has none.
    pub fn measure<B: Backbone>(
        network: &B,
        input: &InputContract,
        data: &dyn Dataset,
        ids: &[SampleId],
        device: &Device,
    ) -> Result<Option<Self>> {
        let group = network.params(Adaptable::Affine);
        let network = network.clone().trainable(Adaptable::Affine);
        let count = parameters::values(&network, &group).len();
        if count == 0 || ids.is_empty() {
            return Ok(None);
        }
        let mut sums = vec![0.0; count];
        let batches = ids.len().div_ceil(BATCH);
        for ids in ids.chunks(BATCH) {
            let images = input.normalise(&data.batch(ids)?.samples, device)?;
            let images = burn::tensor::Tensor::from_inner(images);
            let logits = network.forward(images, NormMode::Batch);
            let own = super::collect::classes_of(&logits);
            let slopes = parameters::gradient(&network, &group, &cross_entropy(logits, &own));
            for (sum, slope) in sums.iter_mut().zip(slopes) {
                *sum += f64::from(slope).powi(2);
            }
        }
        let values = sums.iter().map(|sum| (sum / batches as f64) as f32);
        Ok(Some(Self {
            images: ids.len() as u64,
            values: values.collect(),
        }))
    }
}
