//! The engine while writes fail at every place.

use std::path::Path;
use std::time::{Duration, Instant};

use ttac::data::{OpenOptions, Samples, Split, open};

use super::Engine;
use super::stream::lock;
use crate::api::{Fate, Lane, Request, Service};
use crate::config::Config;
use crate::state::fault;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/shapes10");

fn config(folder: Option<&Path>) -> Config {
    let text = "[model.shapes]\nfile = 'model.safetensors'\nanchors = 'anchors.safetensors'\npreset = 'recommended-0.1'\nbatch = 16\n\
        [guards]\nwindow = 64\nmarginal = 0.0\nmarginal_of_source = 0.0\nagreement = 0.0\nanchors = 1e9\n\
        [state]\nsnapshot_batches = 1\n[threads]\npredict = 1\nupdate = 1\nidle = false\n";
    let mut config = Config::parse(text, Path::new(SHIPPED)).unwrap();
    config.state.folder = folder.map(Path::to_owned);
    config
}

fn images() -> Samples {
    let options = OpenOptions::new(32).with_corruption("contrast", 5);
    let set = open("shapes10", Path::new(SHIPPED), Split::Test, &options).unwrap();
    set.batch(&(0..40).collect::<Vec<u64>>()).unwrap().samples
}

fn request(samples: Samples, learn: bool) -> Request {
    Request {
        model: "shapes".to_owned(),
        lane: Some(Lane::Adapted),
        at: None,
        stream: "s".to_owned(),
        id: None,
        client: None,
        samples,
        source_too: false,
        learn,
        deadline: None,
    }
}

/// Waits until the learner has applied everything.
fn settle(engine: &Engine) {
    let begun = Instant::now();
    loop {
        let Some(stream) = engine.shared.models["shapes"].stream("s") else {
            return;
        };
        let last = lock(&stream.intake).next - 1;
        if stream.applied.load(std::sync::atomic::Ordering::SeqCst) >= last {
            return;
        }
        assert!(begun.elapsed() < Duration::from_mins(2));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends requests of eight images and returns how many of them were accepted.
fn feed(engine: &Engine, all: &Samples) -> usize {
    let mut accepted = 0;
    for first in (0..40).step_by(8) {
        let places: Vec<usize> = (first..first + 8).collect();
        // Where a stream cannot be opened, the request is refused.
        if let Ok(reply) = engine.infer(request(all.pick(&places), true))
            && reply.fate == Fate::Accepted
        {
            assert_eq!(
                accepted,
                first / 8,
                "nothing is written after a write that failed"
            );
            accepted += 1;
        }
        settle(engine);
    }
    accepted
}

fn weights(engine: &Engine, all: &Samples) -> (u64, String) {
    let reply = engine.infer(request(all.pick(&[0]), false)).unwrap();
    (reply.weights_version, reply.weights)
}

#[test]
fn whichever_write_fails_what_was_accepted_is_learned_once() {
    let all = images();
    let reference = Engine::start(config(None)).unwrap();
    let mut expected = vec![weights(&reference, &all)];
    for first in (0..40).step_by(8) {
        let places: Vec<usize> = (first..first + 8).collect();
        reference.infer(request(all.pick(&places), true)).unwrap();
        settle(&reference);
        expected.push(weights(&reference, &all));
    }
    assert_ne!(expected[2], expected[4]);
    let mut failures = 0;
    for writes in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fault::after(folder, writes);
        let accepted = match Engine::start(config(Some(folder))) {
            Ok(engine) => feed(&engine, &all),
            Err(_) => 0,
        };
        // The engine is gone, and whoever comes next finds what was written until then.
        let failed = fault::clear(folder);
        let engine = Engine::start(config(Some(folder))).unwrap();
        settle(&engine);
        assert_eq!(
            weights(&engine, &all),
            expected[accepted],
            "write {writes} failed after {accepted} requests"
        );
        let rest = &engine.streams("shapes").unwrap();
        let kept = rest.first().map_or(0, |stream| stream.accepted);
        assert_eq!(kept, 8 * accepted as u64, "write {writes}");
        if !failed {
            break;
        }
        failures += 1;
    }
    assert!(failures > 15, "only {failures} writes were reached");
}
