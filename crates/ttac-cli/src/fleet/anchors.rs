//! Anchors of features that workers compute, chunk by chunk.

use std::time::Duration;

use anyhow::{Context, bail};
use ttac::burn::tensor::Device;
use ttac::checkpoint::Checkpoint;
use ttac::data::{Dataset, DatasetExt, OpenOptions, Part, default_root};
use ttac::stats::{AnchorChunks, AnchorConfig};
use ttac_fleet::{Queue, QueueSettings, Store};

use super::About;
use super::task::{Chunk, Inputs, Task, upload};
use super::tries::{failure_of, forgive};
use super::worker::patiently;
use crate::interrupt;

/// Bytes of the digest in front of a chunk's numbers.
const DIGEST: usize = 32;

impl Chunk {
    /// Opens the source images.
    fn images(&self, checkpoint: &Checkpoint) -> anyhow::Result<Box<dyn Dataset>> {
        let header = &checkpoint.header;
        let root = self.root.clone();
        let root = root.unwrap_or_else(|| default_root().join(&self.data));
        let options = OpenOptions::for_model(&header.input, &header.classes);
        let data = ttac::data::open(&self.data, &root, self.split, &options)?;
        Ok(match self.subset {
            Some(count) => Box::new(Part::first(data, count.get())),
            None => data,
        })
    }

    /// Computes the features, as they are stored.
    pub fn features(&self, device: &Device) -> anyhow::Result<Vec<u8>> {
        let checkpoint = Checkpoint::load(&self.model, device)?;
        let data = self.images(&checkpoint)?;
        let config = AnchorConfig {
            transform: self.transform,
            batch_size: self.batch_size,
            seed: self.seed,
            ..AnchorConfig::default()
        };
        let chunks = AnchorChunks::new(data.as_ref(), &config);
        if self.index >= chunks.count() {
            bail!(
                "`{}` has {} images on this machine, and so no chunk {}: the submitter has other data",
                self.data,
                data.len(),
                self.index
            );
        }
        let (network, input) = (&checkpoint.network, &checkpoint.header.input);
        let rows = chunks.features(network, input, data.as_ref(), &config, self.index, device)?;
        let numbers: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        let digest = blake3::hash(&numbers);
        Ok([digest.as_bytes(), &numbers[..]].concat())
    }
}

/// Features that workers compute.
pub struct Elsewhere {
    store: Store,
    /// The digest and the name of every chunk from the first that was submitted on.
    chunks: Vec<(String, String)>,
    first: usize,
}

impl Elsewhere {
    /// Submits the chunks from one on that are not in the store.
    pub fn submit(
        (queue, store): (&str, &str),
        settings: &QueueSettings,
        like: &Chunk,
        chunks: std::ops::Range<usize>,
    ) -> anyhow::Result<Self> {
        let store = Store::open(store)?;
        let about = About::load_or_create(&store)?;
        let queue = Queue::connect(queue, &about.queue)?;
        queue.create(settings)?;
        let mut inputs = Inputs::default();
        let mut submitted = Vec::new();
        let first = chunks.start;
        for chunk in chunks {
            let task = Task::of_chunk(
                &Chunk {
                    index: chunk,
                    ..like.clone()
                },
                &mut inputs,
            )?;
            if !store.has(&task.name)? {
                upload(&store, &task)?;
                forgive(&store, &task.digest)?;
                queue.submit(&task.digest, &serde_json::to_vec(&task)?)?;
            }
            submitted.push((task.digest, task.name));
        }
        Ok(Self {
            store,
            chunks: submitted,
            first,
        })
    }

    /// Waits for the features of a chunk.
    pub fn wait(&self, chunk: usize) -> anyhow::Result<Vec<f32>> {
        let (digest, name) = &self.chunks[chunk - self.first];
        loop {
            if let Some(bytes) = patiently(|| self.store.get(name))? {
                return numbers(&bytes)
                    .with_context(|| format!("`{name}` in the store `{}`", self.store));
            }
            if let Some(failed) = patiently(|| failure_of(&self.store, digest))? {
                bail!(
                    "{} failed {} times: {}",
                    failed.title,
                    failed.tries,
                    failed.problem
                );
            }
            if interrupt::asked() {
                bail!("stopped; the same command goes on with the chunks that are there");
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Removes the chunks, which nobody needs once the anchors are written.
    pub fn remove(&self) -> anyhow::Result<()> {
        for (_, name) in &self.chunks {
            self.store.remove(name)?;
        }
        Ok(())
    }
}

/// Reads the numbers of a chunk, and checks their digest.
fn numbers(bytes: &[u8]) -> anyhow::Result<Vec<f32>> {
    let (digest, numbers) = bytes.split_at_checked(DIGEST).context("it is too short")?;
    if blake3::hash(numbers).as_bytes() != digest || numbers.len() % 4 != 0 {
        bail!("it is damaged: its digest is another");
    }
    let each = numbers.chunks_exact(4);
    Ok(each
        .map(|four| f32::from_le_bytes(four.try_into().expect("there are four")))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_damaged_is_refused() {
        let values = [1.0_f32.to_le_bytes(), (-0.5_f32).to_le_bytes()].concat();
        let whole = [blake3::hash(&values).as_bytes(), &values[..]].concat();
        assert_eq!(numbers(&whole).unwrap(), [1.0, -0.5]);
        let mut flipped = whole.clone();
        flipped[DIGEST] ^= 1;
        assert!(numbers(&flipped).is_err());
        assert!(numbers(&whole[..20]).is_err());
    }
}
