//! `ttac serve --demo`: the shipped network, and a camera in the same program that takes pictures of drawn shapes. They are clean at first,
//! then the light goes, and comes again. The camera is a client like any other: it knows the address of the service and the protocol.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;
use ttac::data::{Dataset, OpenOptions, Samples, Split, open};
use ttac::write_atomically;
use ttac_serve::Server;
use ttac_serve::config::Config;

use crate::command::demo::SHIPPED;
use crate::progress::say;

const CONFIG: &str = include_str!("demo.toml");

/// Pictures of a request.
const PICTURES: u64 = 16;

/// After so many requests somebody says what was in the pictures.
const LATE: usize = 24;

/// A service that was asked to end answers what is under way first, for no longer than this.
const PATIENCE: Duration = Duration::from_secs(35);

/// Pictures between two lines on the terminal.
const LINE: u64 = 512;

/// What the camera sees one after another, with the number of pictures; then it begins again. They are the corruptions of the other demo.
const WALK: [(&str, Option<&str>, u64); 6] = [
    ("clean", None, 1536),
    ("low contrast", Some("contrast"), 4096),
    ("clean", None, 2048),
    ("noise", Some("shot_noise"), 4096),
    ("clean", None, 2048),
    ("fog", Some("fog"), 4096),
];

/// The files of the demo, as long as it runs.
pub struct Demo(TempDir);

impl Demo {
    /// Writes the shipped network to a temporary folder.
    pub fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        for (key, bytes) in SHIPPED {
            write_atomically(&folder.path().join(format!("{key}.safetensors")), bytes)?;
        }
        Ok(Self(folder))
    }

    /// Returns what is served, with the state in the temporary folder.
    pub fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::parse(CONFIG, self.0.path())?;
        config.state.folder = Some(self.0.path().join("state"));
        Ok(config)
    }

    /// Says what is going to happen, and lets it begin.
    pub fn begin(&self, server: &Server, rate: NonZeroU32) -> Running {
        let page = server.address("admin");
        say(&format!(
            "\
A camera takes {rate} pictures of ten shapes in a second. Its network has learnt them from clean pictures alone.

  open {page} in a browser

The stream `camera` is in the table; its curves begin after a few seconds. Pictures are clean at first, and the gate stays closed: the source
answers, and nothing is learned. Then the light goes. The gate opens, versions are published, and the error of what answers leaves that of the
source; when the light is back the gate closes. Noise and fog come later.
Things to click: the mode `shadow` lets the source answer while learning goes on, `active` brings the learned weights back, and a roll back to
`source` forgets what was learned. Ctrl-C ends it.
"
        ));
        let ending = Arc::new(AtomicBool::new(false));
        let camera = Camera {
            address: server.address("rest"),
            page,
            folder: self.0.path().to_owned(),
            ending: Arc::clone(&ending),
            pause: Duration::from_secs_f64(PICTURES as f64 / f64::from(rate.get())),
            agent: agent(),
        };
        let thread = std::thread::spawn(move || {
            // A service that ends answers no more before it tells the camera so, and that is no failure.
            if let Err(error) = camera.walk()
                && !camera.ends_within(PATIENCE)
            {
                say(&format!("the camera stops: {error:#}"));
            }
        });
        Running { ending, thread }
    }
}

/// A camera at work.
pub struct Running {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Ends it.
    pub fn end(self) {
        self.ending.store(true, Ordering::SeqCst);
        // A camera that panicked has said so.
        let _ = self.thread.join();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(30)))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into()
}

/// A client that sends pictures.
struct Camera {
    address: String,
    page: String,
    folder: PathBuf,
    ending: Arc<AtomicBool>,
    pause: Duration,
    agent: ureq::Agent,
}

/// What answers were worth.
#[derive(Default)]
struct Tally {
    pictures: u64,
    wrong: u64,
    wrong_by_source: u64,
}

impl Camera {
    fn ends(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Waits for the end; tells whether it came.
    fn ends_within(&self, time: Duration) -> bool {
        let begun = Instant::now();
        while !self.ends() && begun.elapsed() < time {
            std::thread::sleep(Duration::from_millis(5).min(time));
        }
        self.ends()
    }

    /// Takes pictures until the end.
    fn walk(&self) -> anyhow::Result<()> {
        let mut taken = 0;
        let mut unlabelled = VecDeque::new();
        for (name, corruption, count) in WALK.iter().cycle() {
            say(&format!("{name} pictures come"));
            let set = pictures(*corruption, &self.folder)?;
            let mut tally = Tally::default();
            for _ in 0..count / PICTURES {
                let begun = Instant::now();
                // The same picture twice would not be learned from, so that the clean ones of each round are others.
                let first = taken % (set.info().len as u64 - PICTURES);
                let batch = set.batch(&(first..first + PICTURES).collect::<Vec<_>>())?;
                taken += PICTURES;
                let labels = batch.labels.context("drawn shapes have classes")?;
                let id = format!("picture-{taken}");
                let reply = self.send(&id, &batch.samples)?;
                tally.add(&reply, &labels)?;
                unlabelled.push_back((id, labels));
                if unlabelled.len() > LATE
                    && let Some((id, labels)) = unlabelled.pop_front()
                {
                    self.label(&id, &set.info().classes, &labels)?;
                }
                if tally.pictures >= LINE {
                    tally.tell(name, &reply);
                    tally = Tally::default();
                }
                let busy = reply["parameters"]["learned"] == "skipped-backlog";
                let pause = if busy { 10 * self.pause } else { self.pause };
                if self.ends_within(pause.saturating_sub(begun.elapsed())) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Asks for predictions, by JSON with the pixels behind it.
    fn send(&self, id: &str, samples: &Samples) -> anyhow::Result<Value> {
        let Samples::Images(images) = samples else {
            bail!("drawn shapes are images");
        };
        let size = images.pixels.len();
        let json = json!({
            "id": id,
            "parameters": { "stream": "camera" },
            "inputs": [{
                "name": "images", "datatype": "UINT8", "shape": [images.count(), images.height, images.width, 3],
                "parameters": { "binary_data_size": size },
            }],
            "outputs": [{ "name": "class" }, { "name": "source_class" }],
        });
        let mut body = json.to_string().into_bytes();
        let length = body.len().to_string();
        body.extend(&images.pixels);
        let url = format!("{}/v2/models/shapes/infer", self.address);
        let request = self.agent.post(&url);
        let request = request.header("Inference-Header-Content-Length", length);
        read(request.send(&body[..]))
    }

    /// Says what was really in the pictures, as somebody who looks at them later would.
    fn label(&self, id: &str, classes: &[String], labels: &[usize]) -> anyhow::Result<()> {
        let items = labels.iter().enumerate();
        let items = items
            .map(|(index, &label)| json!({ "id": id, "index": index, "label": classes[label] }));
        let body = json!({ "items": items.collect::<Vec<_>>() }).to_string();
        let url = format!("{}/v2/models/shapes/streams/camera/feedback", self.page);
        read(self.agent.post(&url).send(body)).map(|_| ())
    }
}

/// Reads an answer, which has to be a success.
fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Value> {
    let mut answer = answer?;
    let status = answer.status();
    let text = answer.body_mut().read_to_string()?;
    if !status.is_success() {
        bail!("expected an answer, found status {status}: {text}");
    }
    Ok(serde_json::from_str(&text)?)
}

/// Opens the drawn shapes, clean or corrupted.
fn pictures(corruption: Option<&str>, folder: &Path) -> anyhow::Result<Box<dyn Dataset>> {
    let options = OpenOptions::new(32);
    let options = match corruption {
        Some(name) => options.with_corruption(name, 5),
        None => options,
    };
    Ok(open("shapes10", folder, Split::Test, &options)?)
}

impl Tally {
    fn add(&mut self, reply: &Value, labels: &[usize]) -> anyhow::Result<()> {
        let wrong = |name: &str| -> anyhow::Result<u64> {
            let outputs = reply["outputs"].as_array().context("outputs")?.iter();
            let mut named = outputs.filter(|output| output["name"] == name);
            let classes = named.next().and_then(|output| output["data"].as_array());
            let classes = classes.with_context(|| format!("the output `{name}`"))?;
            let pairs = classes.iter().zip(labels);
            let wrong = pairs.filter(|(class, label)| class.as_u64() != Some(**label as u64));
            Ok(wrong.count() as u64)
        };
        self.wrong += wrong("class")?;
        self.wrong_by_source += wrong("source_class")?;
        self.pictures += labels.len() as u64;
        Ok(())
    }

    fn tell(&self, what: &str, reply: &Value) {
        let percent = |wrong: u64| 100.0 * wrong as f64 / self.pictures.max(1) as f64;
        let said = &reply["parameters"];
        let text = |key: &str| said[key].as_str().unwrap_or("?").to_owned();
        say(&format!(
            "{what:>14}: of {} pictures the source gets {:4.1} % wrong, the answers {:4.1} %   version {}, {}, {}",
            self.pictures,
            percent(self.wrong_by_source),
            percent(self.wrong),
            said["weights_version"],
            text("mode"),
            text("health"),
        ));
    }
}
