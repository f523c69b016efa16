//! Recent samples.

use std::collections::VecDeque;

use crate::archive::{Array, Arrays};
use crate::data::{Clouds, Images, SampleId, Samples};
use crate::{Error, Result};

/// The newest samples of a stream, first in, first out. Pictures stay bytes: 4096 of 32 x 32 are 12.6 MB.
#[derive(Clone, Debug)]
pub struct Queue {
    capacity: usize,
    /// One sample each.
    items: VecDeque<(SampleId, Samples)>,
}

impl Queue {
    /// Makes an empty queue.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            items: VecDeque::new(),
        }
    }

    /// Returns how many samples wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether no sample waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the next sample drives one out.
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.capacity
    }

    /// Refuses a batch that the queue cannot hold, or whose samples are of another kind or size than those that
    /// wait, which clouds under two corruptions are.
    pub fn check(&self, samples: &Samples) -> Result<()> {
        if samples.count() > self.capacity {
            return Err(Error::Mismatch {
                what: "samples of one batch".to_owned(),
                expected: format!("at most {}, the capacity of the queue", self.capacity),
                found: samples.count().to_string(),
            });
        }
        match self.items.front() {
            Some((_, waiting)) if !waiting.same_form(samples) => Err(Error::Mismatch {
                what: "sizes of samples in one queue".to_owned(),
                expected: waiting.describe(),
                found: samples.describe(),
            }),
            _ => Ok(()),
        }
    }

    /// Adds samples, and returns the ids of those that left.
    pub fn push(&mut self, ids: &[SampleId], samples: &Samples) -> Vec<SampleId> {
        let items = ids.iter().enumerate();
        self.items
            .extend(items.map(|(place, &id)| (id, samples.pick(&[place]))));
        let surplus = self.items.len().saturating_sub(self.capacity);
        let left: Vec<SampleId> = self.items.drain(..surplus).map(|(id, _)| id).collect();
        // A sample that came twice may have left once and still be there.
        let stays = |id: &SampleId| self.items.iter().any(|(other, _)| other == id);
        left.into_iter().filter(|id| !stays(id)).collect()
    }

    /// Returns the samples at some places, with their ids.
    ///
    /// # Panics
    /// If no place is given, or one is beyond the queue.
    pub fn pick(&self, places: &[usize]) -> (Vec<SampleId>, Samples) {
        let ids = places.iter().map(|&place| self.items[place].0).collect();
        let mut samples = self.items[places[0]].1.clone();
        for &place in &places[1..] {
            let more = self.items[place].1.clone();
            samples
                .append(more)
                .expect("all samples of a queue have one form");
        }
        (ids, samples)
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// Adds the samples to arrays.
    pub(crate) fn save(&self, arrays: &mut Arrays) {
        if self.is_empty() {
            return;
        }
        let everywhere: Vec<usize> = (0..self.len()).collect();
        let (ids, samples) = self.pick(&everywhere);
        arrays.insert("queue.ids", Array::U64(ids));
        let (form, values) = match samples {
            Samples::Images(images) => (
                vec![images.height as u64, images.width as u64],
                Array::U8(images.pixels),
            ),
            Samples::Clouds(clouds) => (
                vec![clouds.points as u64],
                Array::F32(vec![clouds.values.len()], clouds.values),
            ),
        };
        arrays.insert("queue.form", Array::U64(form));
        arrays.insert("queue.samples", values);
    }

    /// Reads a queue of a capacity from arrays that [`save`](Self::save) filled.
    pub(crate) fn load(capacity: usize, arrays: &mut Arrays) -> Result<Self> {
        let mut queue = Self::new(capacity);
        let mut take = |name: &str| arrays.0.remove(name);
        let found = [take("queue.ids"), take("queue.form"), take("queue.samples")];
        if found.iter().all(Option::is_none) {
            return Ok(queue);
        }
        let damaged = || Error::Invalid {
            what: "saved queue",
            problem: "its samples do not fit their number and form".to_owned(),
        };
        let [Some(Array::U64(ids)), Some(Array::U64(form)), Some(values)] = found else {
            return Err(damaged());
        };
        let samples = match (form.as_slice(), values) {
            (&[height, width], Array::U8(pixels)) => Samples::Images(Images {
                height: height as usize,
                width: width as usize,
                pixels,
            }),
            (&[points], Array::F32(_, values)) => Samples::Clouds(Clouds {
                points: points as usize,
                values,
            }),
            _ => return Err(damaged()),
        };
        if form.contains(&0) || samples.count() != ids.len() || ids.len() > capacity {
            return Err(damaged());
        }
        queue.push(&ids, &samples);
        Ok(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ids: std::ops::Range<u64>) -> (Vec<SampleId>, Samples) {
        let pixels = ids.clone().flat_map(|id| [id as u8; 3]).collect();
        let images = Images {
            height: 1,
            width: 1,
            pixels,
        };
        (ids.collect(), Samples::Images(images))
    }

    fn push(queue: &mut Queue, ids: std::ops::Range<u64>) -> Vec<SampleId> {
        let (ids, samples) = samples(ids);
        queue.push(&ids, &samples)
    }

    #[test]
    fn the_newest_stay_and_the_oldest_leave_in_order() {
        let mut queue = Queue::new(5);
        assert_eq!(push(&mut queue, 0..3), [] as [SampleId; 0]);
        assert!(!queue.is_full());
        assert_eq!(push(&mut queue, 3..7), [0, 1]);
        assert!(queue.is_full());
        assert_eq!(queue.len(), 5);
        let (ids, picked) = queue.pick(&[4, 0]);
        assert_eq!(ids, [6, 2]);
        let Samples::Images(images) = picked else {
            panic!("pictures went in");
        };
        assert_eq!(images.pixels, [6, 6, 6, 2, 2, 2]);
    }

    #[test]
    fn a_sample_that_came_again_has_not_left() {
        let mut queue = Queue::new(3);
        push(&mut queue, 0..3);
        assert_eq!(push(&mut queue, 0..2), [] as [SampleId; 0]);
        assert_eq!(push(&mut queue, 7..8), [2]);
    }

    #[test]
    fn a_saved_queue_comes_back() {
        let mut queue = Queue::new(4);
        push(&mut queue, 0..6);
        let mut arrays = Arrays::default();
        queue.save(&mut arrays);
        let back = Queue::load(4, &mut arrays.clone()).unwrap();
        assert_eq!(back.pick(&[0, 1, 2, 3]), queue.pick(&[0, 1, 2, 3]));
        assert!(Queue::load(3, &mut arrays.clone()).is_err(), "too many");
        arrays.0.remove("queue.form");
        assert!(Queue::load(4, &mut arrays).is_err());
        assert!(Queue::load(4, &mut Arrays::default()).unwrap().is_empty());
    }
}
