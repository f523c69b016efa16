//! Joins requests for the same weights into passes.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ttac::data::Samples;

use super::pools::{NOMINAL_BATCH, Pool};
use super::weights::Weights;
use crate::api::Refusal;
use crate::error::with_causes;

/// What a pass gives for the images of one request.
#[derive(Clone, Debug)]
pub struct Scored {
    /// `[images, classes]`, row-major.
    pub scores: Vec<f32>,
    /// The same as probabilities.
    pub probabilities: Vec<f32>,
    /// The predicted classes.
    pub classes: Vec<usize>,
    /// How long the images waited.
    pub queued: Duration,
    /// How long their passes took.
    pub computed: Duration,
    /// How many images each of the passes had, and how long it took, if this request came first in it.
    pub passes: Vec<(usize, Duration)>,
}

/// A request that waits for a pass.
struct Job {
    weights: Arc<Weights>,
    samples: Samples,
    since: Instant,
    deadline: Option<Instant>,
    reply: SyncSender<Result<Scored, Refusal>>,
}

/// Requests that wait, in the order in which they came.
#[derive(Default)]
pub struct Batcher {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Batcher {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers some images by some weights. Waits for the pass, but not beyond the deadline.
    pub fn predict(
        &self,
        weights: &Arc<Weights>,
        samples: Samples,
        deadline: Option<Instant>,
    ) -> Result<Scored, Refusal> {
        let (reply, answer) = sync_channel(1);
        {
            let mut queue = self.lock();
            if queue.closed {
                return Err(ending());
            }
            queue.jobs.push_back(Job {
                weights: Arc::clone(weights),
                samples,
                since: Instant::now(),
                deadline,
                reply,
            });
        }
        self.more.notify_one();
        let Some(deadline) = deadline else {
            return answer.recv().unwrap_or_else(|_| Err(ending()));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match answer.recv_timeout(left) {
            Ok(answer) => answer,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Err(Refusal::Deadline),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Err(ending()),
        }
    }

    /// Makes passes until the batcher is closed and nobody waits.
    ///
    /// Nobody waits for company: a request that comes alone goes at once, and those that come during a pass go together in the next one, up to
    /// 64 images of those that want the same weights.
    pub fn work(&self, pool: &Pool) {
        while let Some(jobs) = self.next() {
            pass(pool, jobs);
        }
    }

    /// Lets nobody wait any more, and [`work`](Self::work) end.
    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }

    /// Takes the requests of the next pass, or none at the end.
    fn next(&self) -> Option<Vec<Job>> {
        let mut queue = self.lock();
        while queue.jobs.is_empty() {
            if queue.closed {
                return None;
            }
            let waited = self.more.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let first = queue.jobs.pop_front()?;
        let mut images = first.samples.count();
        let mut taken = vec![first];
        let mut left = VecDeque::new();
        for job in queue.jobs.drain(..) {
            let count = job.samples.count();
            let same = Arc::ptr_eq(&job.weights, &taken[0].weights)
                && job.samples.same_form(&taken[0].samples);
            if same && images + count <= NOMINAL_BATCH {
                images += count;
                taken.push(job);
            } else {
                left.push_back(job);
            }
        }
        queue.jobs = left;
        Some(taken)
    }
}

fn ending() -> Refusal {
    Refusal::Unavailable("the service is ending".to_owned())
}

/// Makes a pass for some requests, or several if the only one is large, and answers each.
fn pass(pool: &Pool, jobs: Vec<Job>) {
    let now = Instant::now();
    let late = |job: &Job| job.deadline.is_some_and(|deadline| deadline <= now);
    let (late, jobs): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(late);
    for job in late {
        let _ = job.reply.send(Err(Refusal::Deadline));
    }
    let Some(first) = jobs.first() else {
        return;
    };
    let weights = Arc::clone(&first.weights);
    let mut all = first.samples.clone();
    for job in &jobs[1..] {
        all.append(job.samples.clone())
            .expect("requests of a pass have one form");
    }
    let count = all.count();
    let mut passes = Vec::new();
    let (mut scores, mut probabilities, mut classes) = (Vec::new(), Vec::new(), Vec::new());
    for start in (0..count).step_by(NOMINAL_BATCH) {
        let places: Vec<usize> = (start..(start + NOMINAL_BATCH).min(count)).collect();
        let begun = Instant::now();
        let work = || {
            let samples = if places.len() == count {
                weights.predict(&all)
            } else {
                weights.predict(&all.pick(&places))
            };
            samples.map_err(|error| Refusal::Invalid(with_causes(&error)))
        };
        let answer = catch_unwind(AssertUnwindSafe(|| pool.run(work)));
        match answer {
            Ok(Ok(answer)) => {
                scores.extend(answer.scores);
                probabilities.extend(answer.probabilities);
                classes.extend(answer.classes);
            }
            Ok(Err(refusal)) => return refuse(&jobs, &refusal),
            Err(_) => {
                let text = "the prediction failed; this is a fault of the service".to_owned();
                return refuse(&jobs, &Refusal::Internal(text));
            }
        }
        passes.push((places.len(), begun.elapsed()));
    }
    let computed = passes.iter().map(|(_, time)| *time).sum();
    let num_classes = scores.len() / count.max(1);
    let mut from = 0;
    for (place, job) in jobs.into_iter().enumerate() {
        let to = from + job.samples.count();
        let rows = from * num_classes..to * num_classes;
        let scored = Scored {
            scores: scores[rows.clone()].to_vec(),
            probabilities: probabilities[rows].to_vec(),
            classes: classes[from..to].to_vec(),
            queued: now - job.since,
            computed,
            passes: if place == 0 {
                passes.clone()
            } else {
                Vec::new()
            },
        };
        // Nobody may wait any more.
        let _ = job.reply.send(Ok(scored));
        from = to;
    }
}

fn refuse(jobs: &[Job], refusal: &Refusal) {
    for job in jobs {
        let _ = job.reply.send(Err(refusal.clone()));
    }
}

/// Adds passes to statistics.
pub fn count_passes(passes: &[(usize, Duration)], into: &mut BTreeMap<usize, (u64, Duration)>) {
    for (images, time) in passes {
        let entry = into.entry(*images).or_default();
        entry.0 += 1;
        entry.1 += *time;
    }
}
