//! A service that answers by a formula, so that transports are tested without a network.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ttac::input::InputContract;
use ttac_serve::api::{
    Event, Fate, Feedback, GuardValue, Health, Lane, Mode, ModelInfo, Refusal, Reply, Request,
    Rollback, Service, Statistics, StreamStatus,
};

/// A model of 4 x 4 images and two classes.
pub fn model() -> ModelInfo {
    ModelInfo {
        name: "m".to_owned(),
        input: InputContract::Images {
            height: 4,
            width: 4,
            mean: [0.5; 3],
            std: [0.5; 3],
        },
        classes: vec!["a".to_owned(), "b".to_owned()],
        architecture: "formula".to_owned(),
        largest_batch: 64,
        ready: true,
    }
}

/// A reply to two images.
pub fn reply() -> (ModelInfo, Reply) {
    let reply = Reply {
        source_classes: Some(vec![0, 0]),
        ..reply_of(&[1, 0], Lane::Adapted)
    };
    (model(), reply)
}

/// The reply that names these classes.
fn reply_of(classes: &[usize], lane: Lane) -> Reply {
    let each = |class: &usize| {
        if *class == 0 {
            [0.75, 0.25]
        } else {
            [0.25, 0.75]
        }
    };
    let probabilities: Vec<f32> = classes.iter().flat_map(each).collect();
    Reply {
        scores: probabilities.iter().map(|p| p.ln()).collect(),
        probabilities,
        classes: classes.to_vec(),
        source_classes: None,
        lane,
        weights_version: 17,
        weights: "b3:5f0c9a1e2d3b4c5d".to_owned(),
        mode: Mode::Active,
        health: Health::Healthy,
        fate: Fate::Accepted,
        sequence: Some(10_432),
        queued: Duration::ZERO,
        computed: Duration::ZERO,
    }
}

/// Says class 1 of images whose first byte is odd. What it was asked is kept for the tests to look at.
#[derive(Default)]
pub struct Formula {
    pub streams: Mutex<BTreeMap<String, StreamStatus>>,
    pub calls: Mutex<Vec<String>>,
    pub requests: Mutex<Vec<Request>>,
    pub events: Mutex<Vec<Arc<Event>>>,
    pub loading: AtomicBool,
    /// A request for the stream `slow` waits until this is set.
    pub released: AtomicBool,
}

impl Formula {
    pub fn new() -> Arc<Self> {
        let formula = Self::default();
        for stream in ["cam-1", "cam-2", "hall \"7\""] {
            formula
                .streams
                .lock()
                .unwrap()
                .insert(stream.to_owned(), status(stream));
        }
        for id in 1..=3 {
            let data = format!("{{\"batch\":{id}}}");
            formula.events.lock().unwrap().push(Arc::new(Event {
                id,
                kind: "step",
                data,
            }));
        }
        Arc::new(formula)
    }

    fn call(&self, stream: &str, what: String) -> Result<(), Refusal> {
        if !self.streams.lock().unwrap().contains_key(stream) {
            return Err(Refusal::NotFound(format!("no stream is called `{stream}`")));
        }
        self.calls.lock().unwrap().push(what);
        Ok(())
    }
}

fn status(stream: &str) -> StreamStatus {
    let guard = |name: &str, value, alarmed| GuardValue {
        name: name.to_owned(),
        value,
        bound: 0.3,
        alarmed,
    };
    StreamStatus {
        stream: stream.to_owned(),
        mode: Mode::Canary(0.05),
        health: Health::Healthy,
        accepted: 2048,
        learned: 1920,
        pending: 128,
        version: 17,
        kept: vec![(16, 1792, true), (17, 1920, false)],
        guards: vec![
            guard("marginal", Some(0.9), false),
            guard("drift", None, false),
        ],
        labels: (3, 1, 1.5),
        log_bytes: 4096,
        memory_bytes: 1 << 20,
        alarms: vec![("agreement".to_owned(), 2)],
        rollbacks: 3,
    }
}

impl Service for Formula {
    fn models(&self) -> Vec<ModelInfo> {
        vec![ModelInfo {
            ready: self.ready(),
            ..model()
        }]
    }

    fn infer(&self, request: Request) -> Result<Reply, Refusal> {
        while request.stream == "slow" && !self.released.load(Ordering::Relaxed) {
            if request
                .deadline
                .is_some_and(|deadline| deadline <= Instant::now())
            {
                return Err(Refusal::Deadline);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        match request.stream.as_str() {
            "full" => {
                let why = "the share of the client".to_owned();
                return Err(Refusal::Quota {
                    why,
                    after: Duration::from_millis(1500),
                });
            }
            "panic" => panic!("a fault of the test"),
            _ => {}
        }
        let images = request
            .samples
            .as_images()
            .map_err(|error| Refusal::Invalid(error.to_string()))?;
        let classes: Vec<usize> = images
            .each()
            .map(|image| usize::from(image[0] % 2))
            .collect();
        let mut reply = reply_of(&classes, request.lane.unwrap_or(Lane::Adapted));
        reply.source_classes = request.source_too.then(|| vec![0; classes.len()]);
        reply.fate = if request.learn {
            Fate::Accepted
        } else {
            Fate::Off
        };
        self.requests.lock().unwrap().push(request);
        Ok(reply)
    }

    fn statistics(&self, _: &str, lane: Lane) -> Result<Statistics, Refusal> {
        let mut statistics = Statistics::default();
        if lane == Lane::Adapted {
            statistics.passes.insert(2, (3, Duration::from_millis(6)));
            statistics.success = (3, Duration::from_millis(9));
            statistics.images = 6;
        }
        Ok(statistics)
    }

    fn streams(&self, _: &str) -> Result<Vec<StreamStatus>, Refusal> {
        Ok(self.streams.lock().unwrap().values().cloned().collect())
    }

    fn set_mode(&self, _: &str, stream: &str, mode: Mode, by: &str) -> Result<(), Refusal> {
        self.call(stream, format!("mode {mode:?} by {by}"))
    }

    fn roll_back(
        &self,
        _: &str,
        stream: &str,
        to: Rollback,
        by: &str,
        reason: &str,
    ) -> Result<(), Refusal> {
        self.call(stream, format!("roll back to {to:?} by {by}: {reason}"))
    }

    fn snapshot(&self, _: &str, stream: &str) -> Result<(), Refusal> {
        self.call(stream, format!("snapshot {stream}"))
    }

    fn delete(&self, _: &str, stream: &str, by: &str) -> Result<(), Refusal> {
        self.call(stream, format!("delete {stream} by {by}"))
    }

    fn feedback(&self, _: &str, stream: &str, labels: &[Feedback]) -> Result<(u64, u64), Refusal> {
        let classes: Vec<usize> = labels.iter().map(|label| label.class).collect();
        self.call(stream, format!("labels {classes:?}"))?;
        Ok((labels.len() as u64, 0))
    }

    fn checkpoint(&self, _: &str, stream: &str, version: u64) -> Result<Vec<u8>, Refusal> {
        self.call(stream, format!("checkpoint {version}"))?;
        Ok(b"weights".to_vec())
    }

    fn events(
        &self,
        _: &str,
        stream: &str,
        after: Option<u64>,
        wait: Duration,
    ) -> Result<Vec<Arc<Event>>, Refusal> {
        self.call(stream, "events".to_owned())?;
        let new = |event: &&Arc<Event>| after.is_none_or(|after| event.id > after);
        let events: Vec<_> = self
            .events
            .lock()
            .unwrap()
            .iter()
            .filter(new)
            .cloned()
            .collect();
        if events.is_empty() {
            std::thread::sleep(wait.min(Duration::from_millis(20)));
        }
        Ok(events)
    }

    fn ready(&self) -> bool {
        !self.loading.load(Ordering::Relaxed)
    }
}
