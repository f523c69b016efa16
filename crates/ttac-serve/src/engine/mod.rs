//! Everything behind [`Service`](crate::api::Service): models, streams, predictions, learning and state.
//!
//! A request's way: its images go into the stream's log (`stream`), then the `batcher` joins it with others for a pass by published
//! weights, and it is answered. Beside that the `learner` takes learn batches of a stream in the order of its log, lets the stream's
//! `course` learn from them and judge what was learned, and swaps what is published as a whole. What depends on time is decided before the
//! log or stands in it, so that a stream that starts again comes to the same weights.

mod admission;
mod batcher;
mod course;
mod events;
mod evidence;
mod guards;
mod learner;
mod memory;
mod pools;
mod replay;
mod served;
mod service;
mod standing;
mod stream;
mod weights;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use evidence::evidence;
pub use replay::{Replayed, check_stored, replay};

use batcher::Batcher;
use learner::{Learner, Work};
use pools::Pool;
use served::{Served, unknown_model};
use stream::lock;

use crate::config::Config;
use crate::state::StateFolder;
use crate::{Error, Result};

/// How often the clock looks at the streams.
const TICK: Duration = Duration::from_millis(100);

/// Models and streams at work. Dropping it stops it as [`stop`](Self::stop) does.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the threads share.
struct Shared {
    config: Config,
    models: BTreeMap<String, Arc<Served>>,
    folder: Option<StateFolder>,
    predict: Pool,
    update: Pool,
    batcher: Batcher,
    work: Work,
    ready: AtomicBool,
    ending: AtomicBool,
    ended: Mutex<bool>,
    tick: Condvar,
}

impl Engine {
    /// Loads models and stored streams, and starts to learn from what the logs have beyond the snapshots. It is ready when that has begun.
    pub fn start(config: Config) -> Result<Self> {
        let loaded = config.read_models()?;
        let folder = match &config.state.folder {
            Some(path) => Some(StateFolder::open(path)?),
            None => None,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (predict, update) = config.threads.on(cores);
        let (predict, update) = (
            Pool::predicting(predict)?,
            Pool::updating(update, config.threads.idle)?,
        );
        let mut models = BTreeMap::new();
        for one in loaded {
            let name = one.name.clone();
            let served = predict.run(|| Served::new(one, &config))?;
            let stream_bytes = served.stream_bytes;
            tracing::info!(model = %name, method = served.rules.loaded.config.method, stream_bytes, "a model is loaded");
            models.insert(name, Arc::new(served));
        }
        let shared = Arc::new(Shared {
            config,
            models,
            folder,
            predict,
            update,
            batcher: Batcher::default(),
            work: Work::default(),
            ready: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ended: Mutex::new(false),
            tick: Condvar::new(),
        });
        shared.open_streams()?;
        let engine = Self {
            shared: Arc::clone(&shared),
            threads: Mutex::default(),
        };
        engine.spawn("batcher", |shared| shared.batcher.work(&shared.predict))?;
        engine.spawn("learner", |shared| shared.learner().work())?;
        engine.spawn("clock", Shared::keep_time)?;
        shared.ready.store(true, Ordering::SeqCst);
        Ok(engine)
    }

    /// Ends: requests that wait are answered, the learn batch of now is learned from, streams that changed are saved.
    pub fn stop(&self) {
        if self.end() {
            let learner = self.shared.learner();
            for served in self.shared.models.values() {
                for stream in served.all() {
                    let mut learning = lock(&stream.learning);
                    let changed = learning.course.memory().sequence != learning.saved;
                    if changed && !stream.deleted.load(Ordering::SeqCst) {
                        // Where it fails, that was told, and the log has everything.
                        if learner.save(&stream, &mut learning).is_ok() {
                            let sequence = learning.saved;
                            tracing::info!(
                                model = stream.model,
                                stream = stream.name,
                                sequence,
                                "saved up to this record of its log"
                            );
                        }
                    }
                }
            }
        }
    }

    /// Stops all threads; tells whether they ran.
    fn end(&self) -> bool {
        let shared = &self.shared;
        shared.ready.store(false, Ordering::SeqCst);
        shared.ending.store(true, Ordering::SeqCst);
        shared.batcher.close();
        shared.work.close();
        *lock(&shared.ended) = true;
        shared.tick.notify_all();
        for served in shared.models.values() {
            for stream in served.all() {
                stream.events.close();
            }
        }
        let threads = std::mem::take(&mut *lock(&self.threads));
        let ran = !threads.is_empty();
        for thread in threads {
            // A thread that panicked has said so, and the others are still to be waited for.
            let _ = thread.join();
        }
        ran
    }

    fn spawn(&self, name: &'static str, work: impl FnOnce(&Shared) + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(format!("ttac-{name}"))
            .spawn(move || work(&shared))
            .map_err(|source| Error::Threads {
                what: name,
                source: Box::new(source),
            })?;
        lock(&self.threads).push(thread);
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn learner(&self) -> Learner<'_> {
        Learner {
            work: &self.work,
            pool: &self.update,
            state: &self.config.state,
            duty: self.config.learn.duty,
        }
    }

    /// Opens all stored streams.
    fn open_streams(&self) -> Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let known: Vec<String> = self.models.keys().cloned().collect();
        for (stored, card) in folder.streams()? {
            let served = self.models.get(&card.model);
            let served = served.ok_or_else(|| unknown_model(&card, &stored, &known))?;
            let open = || served.open(&card.stream, &self.config, stored);
            let stream = self.predict.run(open)?;
            let records = stream.replay_left.load(Ordering::Relaxed);
            tracing::info!(
                model = card.model,
                stream = card.stream,
                records,
                "a stored stream goes on, and learns again from what its log has beyond the snapshot"
            );
            served.insert(&stream);
            self.work.wake(&stream);
        }
        Ok(())
    }

    /// Whether there is memory for another stream of a model.
    fn has_room(&self, for_bytes: u64) -> bool {
        let used = self
            .models
            .values()
            .map(|served| served.stream_bytes * served.all().len() as u64);
        used.sum::<u64>() + for_bytes <= self.config.state.memory
    }

    /// Ends learn batches of slow streams, and lets streams be saved that nobody asks anything of.
    fn keep_time(&self) {
        let learn = &self.config.learn;
        let mut ended = lock(&self.ended);
        while !*ended {
            let waited = self.tick.wait_timeout(ended, TICK);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *ended {
                return;
            }
            for served in self.models.values() {
                let fewest = served.rules.loaded.config.fewest();
                for stream in served.all() {
                    if stream.flush(fewest, learn.flush_after) {
                        self.work.wake(&stream);
                    }
                    // A stream that is learned from is saved by the learner itself.
                    let Ok(learning) = stream.learning.try_lock() else {
                        continue;
                    };
                    let changed = learning.course.memory().sequence != learning.saved;
                    let due = learning.saved_at.elapsed() >= self.config.state.snapshot_every;
                    if changed && due && learning.folder.is_some() {
                        self.work.wake(&stream);
                    }
                }
            }
        }
    }
}
