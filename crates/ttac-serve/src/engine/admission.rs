//! Which images are learned from: decided before the log, so that the log says it.

use std::collections::{BTreeMap, HashSet, VecDeque};

use ttac::data::Samples;

use crate::api::Fate;

/// Decides for one stream.
pub struct Admission {
    batch: usize,
    client_share: f64,
    window: usize,
    /// Digests of the newest images that were accepted.
    seen: HashSet<u64>,
    order: VecDeque<u64>,
    /// How many images of the current learn batch each client gave.
    given: BTreeMap<String, usize>,
    /// The clients of the newest images that came, whether they were accepted or not, with how often each came.
    recent: VecDeque<String>,
    clients: BTreeMap<String, usize>,
}

impl Admission {
    /// Starts a stream: learn batches of a size, and a window in which an image is learned from once.
    pub fn new(batch: usize, client_share: f64, window: usize) -> Self {
        Self {
            batch,
            client_share,
            window,
            seen: HashSet::new(),
            order: VecDeque::new(),
            given: BTreeMap::new(),
            recent: VecDeque::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Chooses the images of a request that are learned from. If there are none, the fate says why. A learn batch that is cut within the
    /// request begins anew for its client.
    pub fn choose(&mut self, client: &str, samples: &Samples, backlog: bool) -> (Vec<usize>, Fate) {
        let count = samples.count();
        self.meet(client, count);
        if backlog {
            return (Vec::new(), Fate::SkippedBacklog);
        }
        let most = self.most();
        let (mut chosen, mut fate) = (Vec::new(), Fate::SkippedDuplicate);
        for place in 0..count {
            let digest = digest(samples, place);
            if self.seen.contains(&digest) {
                continue;
            }
            let given = self.given.get(client).copied().unwrap_or(0);
            if given >= most {
                fate = Fate::SkippedShare;
                break;
            }
            self.given.insert(client.to_owned(), given + 1);
            self.see(digest);
            chosen.push(place);
            if self.given.values().sum::<usize>() >= self.batch {
                self.cut();
            }
        }
        if !chosen.is_empty() {
            fate = Fate::Accepted;
        }
        (chosen, fate)
    }

    /// Hears that a learn batch ended.
    pub fn cut(&mut self) {
        self.given.clear();
    }

    /// How many images of a learn batch one client may give. Where there are fewer clients than shares, the batch is divided among them, so
    /// that it can be filled.
    fn most(&self) -> usize {
        let share = self
            .client_share
            .max(1.0 / self.clients.len().max(1) as f64);
        (share * self.batch as f64).ceil() as usize
    }

    fn meet(&mut self, client: &str, images: usize) {
        for _ in 0..images.min(self.window) {
            self.recent.push_back(client.to_owned());
            *self.clients.entry(client.to_owned()).or_default() += 1;
        }
        while self.recent.len() > self.window {
            let Some(old) = self.recent.pop_front() else {
                break;
            };
            if let Some(count) = self.clients.get_mut(&old) {
                *count -= 1;
                if *count == 0 {
                    self.clients.remove(&old);
                }
            }
        }
    }

    fn see(&mut self, digest: u64) {
        self.seen.insert(digest);
        self.order.push_back(digest);
        if self.order.len() > self.window
            && let Some(old) = self.order.pop_front()
        {
            self.seen.remove(&old);
        }
    }
}

/// A digest of one of some samples.
fn digest(samples: &Samples, place: usize) -> u64 {
    let hash = match samples {
        Samples::Images(images) => {
            let each = images.pixels.len() / images.count().max(1);
            blake3::hash(&images.pixels[place * each..][..each])
        }
        Samples::Clouds(clouds) => {
            let each = 3 * clouds.points;
            let mut hasher = blake3::Hasher::new();
            for value in &clouds.values[place * each..][..each] {
                hasher.update(&value.to_le_bytes());
            }
            hasher.finalize()
        }
    };
    let first = hash
        .as_bytes()
        .first_chunk()
        .expect("a digest has 32 bytes");
    u64::from_le_bytes(*first)
}

#[cfg(test)]
mod tests {
    use ttac::data::Images;

    use super::*;

    fn images(values: std::ops::Range<u8>) -> Samples {
        Samples::from(Images {
            height: 1,
            width: 1,
            pixels: values.flat_map(|value| [value; 3]).collect(),
        })
    }

    #[test]
    fn an_image_is_learned_from_once_in_a_window() {
        let mut admission = Admission::new(8, 1.0, 10);
        let first = admission.choose("a", &images(0..4), false);
        assert_eq!(first, (vec![0, 1, 2, 3], Fate::Accepted));
        let again = admission.choose("a", &images(0..4), false);
        assert_eq!(again, (vec![], Fate::SkippedDuplicate));
        let half = admission.choose("a", &images(2..6), false);
        assert_eq!(half, (vec![2, 3], Fate::Accepted));
        admission.choose("a", &images(10..20), false);
        let later = admission.choose("a", &images(0..4), false);
        assert_eq!(later.1, Fate::Accepted, "the window has passed");
    }

    #[test]
    fn of_many_clients_none_gives_more_than_its_share() {
        let mut admission = Admission::new(8, 0.25, 100);
        let alone = admission.choose("a", &images(0..6), false);
        assert_eq!(alone.0.len(), 6, "there is nobody else");
        admission.cut();
        for (client, first) in [("b", 20), ("c", 30), ("d", 40), ("e", 50)] {
            admission.choose(client, &images(first..first + 1), false);
        }
        let (chosen, fate) = admission.choose("a", &images(60..66), false);
        assert_eq!((chosen.len(), fate), (2, Fate::Accepted));
        let more = admission.choose("a", &images(70..72), false);
        assert_eq!(more, (vec![], Fate::SkippedShare));
        admission.cut();
        assert_eq!(admission.choose("a", &images(80..82), false).0.len(), 2);
    }

    #[test]
    fn a_backlog_is_said() {
        let mut admission = Admission::new(8, 1.0, 10);
        let found = admission.choose("a", &images(0..4), true);
        assert_eq!(found, (vec![], Fate::SkippedBacklog));
        assert_eq!(
            admission.choose("a", &images(0..4), false).1,
            Fate::Accepted
        );
    }
}
