//! Preparation of batches on a thread of their own, so that a step never waits for its input.

use std::sync::mpsc::SyncSender;

use burn::tensor::{Device, Tensor};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{Rotations, TrainConfig};
use crate::checkpoint::{InputContract, Objective};
use crate::data::{Dataset, DatasetExt, Draw, Images, SampleId, Samples, augment, rotate};
use crate::rng::seeded;
use crate::{Error, Result};

/// The input of one step.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The images, `[batch, height, width, 3]`; for `simclr` all first views and then all second views.
    pub images: Tensor<4>,
    /// The classes of the images; for `simclr` those of one view.
    pub labels: Vec<usize>,
    /// The turned images and by how many quarters each is turned, for `rotation`.
    pub turned: Option<(Tensor<4>, Vec<usize>)>,
    /// The seed of dropout, for networks that have it.
    pub draw: u64,
}

/// The division of a data set into images to learn from and images that are held out.
pub(super) struct Division {
    pub train: Vec<SampleId>,
    pub held_out: Vec<SampleId>,
}

impl Division {
    pub fn new(images: usize, config: &TrainConfig) -> Result<Self> {
        if config.held_out + config.batch_size > images {
            return Err(Error::Invalid {
                what: "training configuration",
                problem: format!(
                    "{images} images are not enough for a batch of {} and {} held out",
                    config.batch_size, config.held_out
                ),
            });
        }
        let mut ids: Vec<SampleId> = (0..images as SampleId).collect();
        ids.shuffle(&mut stream(config.seed, 0, HELD_OUT));
        let mut held_out = ids.split_off(images - config.held_out);
        held_out.sort_unstable();
        ids.sort_unstable();
        Ok(Self {
            train: ids,
            held_out,
        })
    }

    pub fn steps(&self, config: &TrainConfig) -> usize {
        self.train.len() / config.batch_size
    }

    /// Returns the order of the training images in an epoch.
    fn order(&self, config: &TrainConfig, epoch: usize) -> Vec<SampleId> {
        let mut ids = self.train.clone();
        ids.shuffle(&mut stream(config.seed, epoch, ORDER));
        ids
    }
}

const HELD_OUT: u64 = 1;
const ORDER: u64 = 2;
const TURNS: u64 = 3;
const DROPOUT: u64 = 4;

/// Returns the stream of random numbers for a purpose and an epoch.
fn stream(seed: u64, epoch: usize, purpose: u64) -> ChaCha8Rng {
    seeded(seed, purpose << 32 | epoch as u64)
}

/// Everything the preparing thread reads.
pub(super) struct Loader<'a> {
    pub config: &'a TrainConfig,
    pub data: &'a dyn Dataset,
    pub division: &'a Division,
    pub input: &'a InputContract,
    pub device: &'a Device,
    /// Which shards of every batch are wanted.
    pub shards: Vec<usize>,
}

impl Loader<'_> {
    /// Prepares the shards of all batches from a step on, in order, until the last or until nobody listens.
    pub fn run(&self, first_step: usize, sender: &SyncSender<Result<Vec<Prepared>>>) {
        let steps = self.division.steps(self.config);
        for epoch in first_step / steps..self.config.epochs {
            let order = self.division.order(self.config, epoch);
            let first = if epoch == first_step / steps {
                first_step % steps
            } else {
                0
            };
            for step in first..steps {
                let ids = &order[step * self.config.batch_size..][..self.config.batch_size];
                let size = ids.len() / self.config.shards;
                let shards = self.shards.iter().map(|shard| &ids[shard * size..][..size]);
                let prepared = shards.map(|ids| self.prepare(ids, epoch)).collect();
                if sender.send(prepared).is_err() {
                    return;
                }
            }
        }
    }

    fn prepare(&self, ids: &[SampleId], epoch: usize) -> Result<Prepared> {
        let batch = self.data.batch(ids)?;
        let view = |view: u64| {
            let draw = Draw {
                seed: self.config.seed,
                epoch: epoch as u64,
                view,
            };
            augment(ids, &batch.samples, self.config.augmentation, draw)
        };
        let normalise = |samples: &Samples| self.input.normalise(samples, self.device);
        let mut images = view(0)?;
        let turned = match self.config.objective {
            Objective::Plain => None,
            Objective::Simclr => {
                images.append(view(1)?)?;
                None
            }
            Objective::Rotation => {
                let (turned, turns) = self.turn(images.as_images()?, ids, epoch);
                Some((normalise(&turned.into())?, turns))
            }
        };
        Ok(Prepared {
            images: normalise(&images)?,
            labels: batch.known_labels(self.data.name())?.to_vec(),
            turned,
            draw: stream(self.config.seed ^ ids[0].rotate_left(32), epoch, DROPOUT).next_u64(),
        })
    }

    /// Turns the images of a batch: all upright ones, then all by one quarter, and so on; or one of
    /// each. Returns them with the number of quarters of each.
    fn turn(&self, images: &Images, ids: &[SampleId], epoch: usize) -> (Images, Vec<usize>) {
        use rand::RngExt;
        match self.config.rotations {
            Rotations::All => {
                let mut all = Images {
                    pixels: Vec::with_capacity(4 * images.pixels.len()),
                    ..*images
                };
                for quarter in 0..4 {
                    let turned = rotate(images, &vec![quarter; ids.len()]);
                    all.pixels.extend(turned.pixels);
                }
                (all, (0..4 * ids.len()).map(|i| i / ids.len()).collect())
            }
            Rotations::Random => {
                // Keyed by the batch, so that a resumed run draws the same.
                let seed = self.config.seed ^ ids[0].rotate_left(32);
                let mut rng = stream(seed, epoch, TURNS);
                let turns: Vec<u8> = ids.iter().map(|_| rng.random_range(0..4)).collect();
                let labels = turns.iter().map(|&turn| usize::from(turn)).collect();
                (rotate(images, &turns), labels)
            }
        }
    }
}
