use std::path::Path;
use std::time::{Duration, Instant};

use ttac::data::{OpenOptions, Samples, Split, open};
use ttac_serve::api::{Mode, Reply, Request, Service, StreamStatus};
use ttac_serve::config::Config;
use ttac_serve::engine::Engine;

/// The shipped network of drawn shapes.
pub const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/shapes10");

/// Guards that let everything through.
pub const NO_GUARDS: &str = "[guards]\nwindow = 64\nwarming = 64\ncooling = 32\nmarginal = 0.0\nmarginal_of_source = 0.0\n\
    entropy = 0.0\ndrift = 1000.0\nanchors = 1e9\nagreement = 0.0\n";

/// A model that learns from the first batch on, in batches of 16.
pub const EAGER: &str = "method = 'ttac'\npreset = 'recommended-0.1'\nbatch = 16\n";

/// Makes a configuration of the shipped network; `keys` belong to the model, `sections` come behind it.
pub fn config(keys: &str, sections: &str) -> Config {
    let text = format!(
        "[model.shapes]\nfile = 'model.safetensors'\nanchors = 'anchors.safetensors'\n{keys}\n{sections}\n[threads]\npredict = 1\nupdate = 1\nidle = false\n"
    );
    Config::parse(&text, Path::new(SHIPPED)).unwrap()
}

/// The same with a state folder.
pub fn stored(keys: &str, sections: &str, folder: &Path) -> Config {
    let mut config = config(keys, sections);
    config.state.folder = Some(folder.to_owned());
    config
}

/// Some test images, as they are or corrupted.
pub fn images(corruption: Option<&str>, ids: std::ops::Range<u64>) -> Samples {
    labelled(corruption, ids).0
}

/// The same with their classes.
pub fn labelled(corruption: Option<&str>, ids: std::ops::Range<u64>) -> (Samples, Vec<usize>) {
    let options = OpenOptions::new(32);
    let options = match corruption {
        Some(name) => options.with_corruption(name, 5),
        None => options,
    };
    let set = open("shapes10", Path::new(SHIPPED), Split::Test, &options).unwrap();
    let batch = set.batch(&ids.collect::<Vec<u64>>()).unwrap();
    (batch.samples, batch.labels.unwrap())
}

/// A request of nobody in particular.
pub fn request(stream: &str, samples: Samples) -> Request {
    Request {
        model: "shapes".to_owned(),
        lane: None,
        at: None,
        stream: stream.to_owned(),
        id: None,
        client: None,
        samples,
        source_too: false,
        learn: true,
        deadline: None,
    }
}

/// Sends images.
pub fn send(engine: &Engine, stream: &str, samples: Samples) -> Reply {
    engine.infer(request(stream, samples)).unwrap()
}

/// Returns how a stream is.
pub fn status(engine: &Engine, stream: &str) -> StreamStatus {
    let all = engine.streams("shapes").unwrap();
    let one = all.into_iter().find(|one| one.stream == stream);
    one.unwrap_or_else(|| panic!("there is no stream `{stream}`"))
}

/// Waits until something is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_mins(2),
            "{what} does not come"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the learner is done with whole learn batches of a stream.
pub fn settle(engine: &Engine, stream: &str, batch: u64) {
    until("the end of learning", || {
        status(engine, stream).pending < batch
    });
}

/// Sets the mode of a stream.
pub fn mode(engine: &Engine, stream: &str, mode: Mode) {
    engine.set_mode("shapes", stream, mode, "test").unwrap();
}
