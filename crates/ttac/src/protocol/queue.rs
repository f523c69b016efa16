//! Recent samples.

use std::collections::VecDeque;

use crate::data::{Images, SampleId, Samples};
use crate::{Error, Result};

/// The newest samples of a stream, first in, first out, as bytes: 4096 images of 32 x 32 are 12.6 MB.
#[derive(Clone, Debug)]
pub struct Queue {
    capacity: usize,
    items: VecDeque<(SampleId, Box<[u8]>)>,
    size: (usize, usize),
}

impl Queue {
    /// An empty queue.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            items: VecDeque::new(),
            size: (0, 0),
        }
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the next sample drives one out.
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.capacity
    }

    /// Whether samples are of the size of those that wait, which clouds under two corruptions are not.
    pub fn check(&self, images: &Images) -> Result<()> {
        let size = (images.height, images.width);
        if self.is_empty() || self.size == size {
            return Ok(());
        }
        let (height, width) = self.size;
        let waiting = Images {
            height,
            width,
            pixels: Vec::new(),
        };
        Err(Error::Mismatch {
            what: "sizes of samples in one queue".to_owned(),
            expected: waiting.describe(),
            found: images.describe(),
        })
    }

    /// Adds samples, and tells which ones left.
    pub fn push(&mut self, samples: &Samples) -> Vec<SampleId> {
        let images = &samples.images;
        self.size = (images.height, images.width);
        let bytes = images.height * images.width * 3;
        for (id, image) in samples.ids.iter().zip(images.pixels.chunks_exact(bytes)) {
            self.items.push_back((*id, image.into()));
        }
        let surplus = self.items.len().saturating_sub(self.capacity);
        let left: Vec<SampleId> = self.items.drain(..surplus).map(|(id, _)| id).collect();
        // A sample that came twice may have left once and still be there.
        let stays = |id: &SampleId| self.items.iter().any(|(other, _)| other == id);
        left.into_iter().filter(|id| !stays(id)).collect()
    }

    /// The samples at some places.
    pub fn pick(&self, places: &[usize]) -> Samples {
        let (height, width) = self.size;
        let chosen = places.iter().map(|&place| &self.items[place]);
        Samples {
            ids: chosen.clone().map(|(id, _)| *id).collect(),
            images: Images {
                height,
                width,
                pixels: chosen
                    .flat_map(|(_, image)| image.iter().copied())
                    .collect(),
            },
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.items.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ids: std::ops::Range<u64>) -> Samples {
        let pixels = ids.clone().flat_map(|id| [id as u8; 3]).collect();
        Samples {
            ids: ids.collect(),
            images: Images {
                height: 1,
                width: 1,
                pixels,
            },
        }
    }

    #[test]
    fn the_newest_stay_and_the_oldest_leave_in_order() {
        let mut queue = Queue::new(5);
        assert_eq!(queue.push(&samples(0..3)), [] as [SampleId; 0]);
        assert!(!queue.is_full());
        assert_eq!(queue.push(&samples(3..7)), [0, 1]);
        assert!(queue.is_full());
        assert_eq!(queue.len(), 5);
        let picked = queue.pick(&[4, 0]);
        assert_eq!(picked.ids, [6, 2]);
        assert_eq!(picked.images.pixels, [6, 6, 6, 2, 2, 2]);
    }

    #[test]
    fn a_sample_that_came_again_has_not_left() {
        let mut queue = Queue::new(3);
        queue.push(&samples(0..3));
        assert_eq!(queue.push(&samples(0..2)), [] as [SampleId; 0]);
        assert_eq!(queue.push(&samples(7..8)), [2]);
    }
}
