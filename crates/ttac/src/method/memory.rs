//! Memories of some samples of a stream in which classes are balanced by predicted label.
//!
//! One of two policies says who stays: RoTTA's removes old and uncertain samples first, NOTE's keeps a uniform draw of each class.

use burn::tensor::{Device, Tensor, TensorData};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::rng::{Purpose, below};
use crate::{Error, Result, best};

/// Who stays in a [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Policy {
    /// Category-balanced sampling with timeliness and uncertainty (CSTU; Yuan et al., 2023). A class may fill its share of the room;
    /// beyond it, and where there is no room, a sample takes the place of the one with the largest score, if that is larger than its
    /// own:
    ///
    /// ```text
    /// score = weight_t / (1 + exp(-age / capacity)) + weight_u uncertainty / ln K
    /// ```
    Timely { timeliness: f64, uncertainty: f64 },
    /// Prediction-balanced reservoir sampling (PBRS; Gong et al., 2022). Where there is no room, a sample takes the place of a random
    /// one of a largest class; a sample of such a class itself does so with probability `m / n`, `m` the samples of its class in the
    /// memory and `n` those ever offered.
    Reservoir { seed: u64 },
}

/// A sample as it is offered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// The predicted class.
    pub class: usize,
    /// The entropy of the prediction.
    pub uncertainty: f64,
    /// The normalised pixels, `[height, width, 3]`.
    pub image: Vec<f32>,
    /// Those of a varied copy; none for methods without copies.
    pub copy: Vec<f32>,
}

/// A sample in the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    uncertainty: f64,
    /// The number of samples offered since it came, itself included.
    age: u64,
    image: Vec<f32>,
    copy: Vec<f32>,
}

/// Some samples of a stream, class by class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    capacity: usize,
    classes: Vec<Vec<Item>>,
    /// How many samples of each class were ever offered.
    offered: Vec<u64>,
    /// Height, width and channels of an image; zeros before the first.
    shape: [usize; 3],
}

/// The sum of `-p ln(p + 1e-6)`, by which the published memories measure uncertainty.
pub(super) fn uncertainty(probabilities: &[f32]) -> f64 {
    let parts = probabilities.iter().map(|&p| f64::from(p));
    -parts.map(|p| p * (p + 1e-6).ln()).sum::<f64>()
}

impl Memory {
    /// Makes room for so many samples of so many classes.
    pub fn new(capacity: usize, classes: usize) -> Self {
        Self {
            capacity,
            classes: vec![Vec::new(); classes],
            offered: vec![0; classes],
            shape: [0; 3],
        }
    }

    /// Makes a batch, `[batch, height, width, 3]`, with its probabilities, `[batch, K]`, and a varied copy of each image where there are
    /// some, samples that can be [offered](Self::offer) one by one.
    pub fn samples(
        &mut self,
        images: &Tensor<4>,
        copies: Option<&Tensor<4>>,
        probabilities: &[f32],
    ) -> Vec<Sample> {
        let [count, shape @ ..] = images.dims();
        self.shape = shape;
        let size: usize = shape.iter().product();
        let read = |images: &Tensor<4>| -> Vec<f32> {
            images.to_data().try_to_vec().expect("images are f32")
        };
        let copies = copies.map(read).unwrap_or_default();
        let images = read(images);
        let rows = probabilities.chunks_exact(self.classes.len());
        let samples = (0..count).zip(rows).map(|(place, row)| {
            let own = place * size..(place + 1) * size;
            Sample {
                class: best(row).0,
                uncertainty: uncertainty(row),
                image: images[own.clone()].to_vec(),
                copy: copies.get(own).unwrap_or_default().to_vec(),
            }
        });
        samples.collect()
    }

    /// Offers a sample, which is taken or not; all others grow older by one.
    pub fn offer(&mut self, policy: Policy, sample: Sample) {
        self.offered[sample.class] += 1;
        let is_taken = match policy {
            Policy::Timely {
                timeliness,
                uncertainty,
            } => self.make_timely_room(&sample, (timeliness, uncertainty)),
            Policy::Reservoir { seed } => {
                let offers = self.offered.iter().sum();
                let mut rng = Purpose::new(*b"reservoir of predictions").stream(seed, offers);
                self.make_random_room(sample.class, &mut rng)
            }
        };
        if is_taken {
            let Sample {
                class,
                uncertainty,
                image,
                copy,
            } = sample;
            self.classes[class].push(Item {
                uncertainty,
                age: 0,
                image,
                copy,
            });
        }
        for item in self.classes.iter_mut().flatten() {
            item.age += 1;
        }
    }

    /// Makes room by [`Policy::Timely`]; says whether there is some.
    fn make_timely_room(&mut self, sample: &Sample, weights: (f64, f64)) -> bool {
        let share = self.capacity as f64 / self.classes.len() as f64;
        let rivals = if self.classes[sample.class].len() as f64 >= share {
            vec![sample.class]
        } else if self.len() < self.capacity {
            return true;
        } else {
            self.largest()
        };
        let mut worst: Option<(f64, usize, usize)> = None;
        for class in rivals {
            for (place, item) in self.classes[class].iter().enumerate() {
                let score = self.score(item.age, item.uncertainty, weights);
                // Of equal scores the last one.
                if worst.is_none_or(|(most, ..)| score >= most) {
                    worst = Some((score, class, place));
                }
            }
        }
        let own = self.score(0, sample.uncertainty, weights);
        let leaves = worst.filter(|&(score, ..)| score > own);
        if let Some((_, class, place)) = leaves {
            self.classes[class].remove(place);
        }
        leaves.is_some()
    }

    /// Returns how much a sample deserves to leave.
    fn score(&self, age: u64, uncertainty: f64, (timely, certain): (f64, f64)) -> f64 {
        let age = age as f64 / self.capacity as f64;
        // With a single class nothing is uncertain.
        let most = (self.classes.len().max(2) as f64).ln();
        timely / (1.0 + (-age).exp()) + certain * uncertainty / most
    }

    /// Makes room by [`Policy::Reservoir`]; says whether there is some.
    fn make_random_room(&mut self, class: usize, rng: &mut ChaCha8Rng) -> bool {
        if self.len() < self.capacity {
            return true;
        }
        let largest = self.largest();
        let own = self.classes[class].len();
        let leaves = if largest.contains(&class) {
            let chance = own as f64 / self.offered[class] as f64;
            if f64::from(rng.next_u32()) >= chance * 2.0_f64.powi(32) {
                return false;
            }
            class
        } else {
            largest[below(largest.len(), rng)]
        };
        let place = below(self.classes[leaves].len(), rng);
        self.classes[leaves].remove(place);
        true
    }

    /// Returns the classes with the most samples.
    fn largest(&self) -> Vec<usize> {
        let most = self.classes.iter().map(Vec::len).max().unwrap_or(0);
        let classes = self.classes.iter().enumerate();
        let largest = classes.filter(|(_, items)| items.len() == most);
        largest.map(|(class, _)| class).collect()
    }

    /// Returns how many samples there are.
    pub fn len(&self) -> usize {
        self.classes.iter().map(Vec::len).sum()
    }

    /// Returns the images, class by class, `[samples, height, width, 3]`.
    pub fn images(&self, device: &Device) -> Tensor<4> {
        self.gather(device, |item| &item.image)
    }

    /// Returns their varied copies, in the same order.
    pub fn copies(&self, device: &Device) -> Tensor<4> {
        self.gather(device, |item| &item.copy)
    }

    fn gather(&self, device: &Device, values: impl Fn(&Item) -> &Vec<f32>) -> Tensor<4> {
        let items = self.classes.iter().flatten();
        let all: Vec<f32> = items
            .flat_map(|item| values(item).iter().copied())
            .collect();
        let [height, width, channels] = self.shape;
        Tensor::from_data(
            TensorData::new(all, [self.len(), height, width, channels]),
            device,
        )
    }

    /// Returns the ages of the samples in the same order, as parts of the capacity.
    pub fn ages(&self) -> Vec<f64> {
        let items = self.classes.iter().flatten();
        items
            .map(|item| item.age as f64 / self.capacity as f64)
            .collect()
    }

    /// Returns how many samples were ever offered.
    pub fn offers(&self) -> u64 {
        self.offered.iter().sum()
    }

    /// Refuses a saved memory of another size or of other classes.
    pub fn check(&self, saved: &Self) -> Result<()> {
        let describe = |memory: &Self| {
            format!(
                "room for {} samples of {} classes",
                memory.capacity,
                memory.classes.len()
            )
        };
        let pixels: usize = saved.shape.iter().product();
        let items = saved.classes.iter().flatten();
        let fits = saved.offered.len() == saved.classes.len()
            && items.clone().all(|item| item.image.len() == pixels)
            && items
                .clone()
                .all(|item| [0, pixels].contains(&item.copy.len()));
        if fits && describe(saved) == describe(self) {
            return Ok(());
        }
        Err(Error::Mismatch {
            what: "saved memory of the method".to_owned(),
            expected: describe(self),
            found: describe(saved),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMELY: Policy = Policy::Timely {
        timeliness: 1.0,
        uncertainty: 1.0,
    };

    fn sample(class: usize, uncertainty: f64) -> Sample {
        Sample {
            class,
            uncertainty,
            image: vec![uncertainty as f32],
            copy: Vec::new(),
        }
    }

    fn counts(memory: &Memory) -> Vec<usize> {
        memory.classes.iter().map(Vec::len).collect()
    }

    #[test]
    fn scores_are_those_of_the_description() {
        let memory = Memory::new(64, 10);
        // The expected values have six decimals.
        for (age, expected) in [(0, 0.717_147), (64, 0.948_206)] {
            assert!((memory.score(age, 0.5, (1.0, 1.0)) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn a_class_stops_at_the_first_number_that_is_not_below_its_share() {
        let mut memory = Memory::new(64, 10);
        for _ in 0..40 {
            memory.offer(TIMELY, sample(3, 0.5));
        }
        assert_eq!(counts(&memory)[3], 7, "its share is 6.4");
        let certain =
            |memory: &Memory| memory.classes[3].iter().map(|i| i.uncertainty).sum::<f64>();
        let before = certain(&memory);
        memory.offer(TIMELY, sample(3, 2.3));
        assert_eq!(certain(&memory), before, "a less certain one is refused");
    }

    #[test]
    fn the_last_of_equal_scores_leaves() {
        let mut memory = Memory::new(2, 1);
        memory.offer(TIMELY, sample(0, 0.3));
        memory.offer(TIMELY, sample(0, 0.4));
        let without_age = Policy::Timely {
            timeliness: 0.0,
            uncertainty: 1.0,
        };
        memory.classes[0][0].uncertainty = 0.4;
        memory.classes[0][1].image = vec![7.0];
        memory.offer(without_age, sample(0, 0.1));
        let images: Vec<f32> = memory.classes[0].iter().map(|i| i.image[0]).collect();
        assert_eq!(images, [0.3, 0.1]);
    }

    #[test]
    fn a_full_memory_makes_room_in_its_largest_classes() {
        let mut memory = Memory::new(4, 3);
        for class in [0, 0, 1, 1] {
            memory.offer(TIMELY, sample(class, 0.9));
        }
        memory.offer(TIMELY, sample(2, 0.1));
        assert_eq!(memory.len(), 4);
        assert_eq!(counts(&memory)[2], 1);
        assert!(
            memory.ages().iter().all(|&age| age > 0.0),
            "a new one has an age of one at once"
        );
    }

    #[test]
    fn a_reservoir_never_overflows_and_balances_a_run() {
        let policy = Policy::Reservoir { seed: 3 };
        let mut memory = Memory::new(64, 4);
        for class in 0..4 {
            for _ in 0..400 {
                memory.offer(policy, sample(class, 0.0));
                assert!(memory.len() <= 64);
            }
        }
        let counts = counts(&memory);
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(most.unwrap() - least.unwrap() <= 1, "{counts:?}");
    }

    /// Of one class each sample stays with the same probability, whenever it came.
    #[test]
    fn a_reservoir_of_one_class_is_a_uniform_draw() {
        let mut stayed = 0;
        let runs = 2000;
        for seed in 0..runs {
            let mut memory = Memory::new(8, 1);
            for place in 0..32 {
                memory.offer(Policy::Reservoir { seed }, sample(0, f64::from(place)));
            }
            stayed += memory.classes[0]
                .iter()
                .filter(|i| i.uncertainty < 16.0)
                .count();
        }
        let share = stayed as f64 / (8.0 * runs as f64);
        // Half of 16,000 draws without replacement has a deviation below 0.004.
        assert!((share - 0.5).abs() < 0.016, "{share}");
    }

    #[test]
    fn a_saved_memory_of_another_size_is_refused() {
        let memory = Memory::new(64, 10);
        assert!(memory.check(&memory.clone()).is_ok());
        let error = memory.check(&Memory::new(32, 10)).unwrap_err().to_string();
        assert!(
            error.contains("room for 64 samples of 10 classes"),
            "{error}"
        );
        let mut broken = memory.clone();
        broken.classes[0].push(Item {
            uncertainty: 0.0,
            age: 1,
            image: vec![0.0],
            copy: Vec::new(),
        });
        assert!(memory.check(&broken).is_err(), "an image without a size");
    }
}
