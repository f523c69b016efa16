//! Ordinary and bad streams through the engine, without any transport: how often the guards are wrong, and what they see.
//!
//! ```text
//! cargo run -p ttac-serve --example guards -- configs/serve/guards.toml
//! ```
//!
//! Every stream has an engine of its own that keeps nothing on disk. Images come in batches, and the next one waits until the last was
//! learned from, so that the table does not depend on the machine.

#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use ttac::data::{Dataset, Images, OpenOptions, Samples, Split, open};
use ttac_serve::api::{Request, Service};
use ttac_serve::config::Config;
use ttac_serve::engine::Engine;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// `[streams]` of the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Streams {
    data: String,
    images: u64,
    severity: u8,
    held_out: Vec<String>,
    reported: Vec<String>,
    bad: String,
}

/// A stream: its name, its images with their classes if those mean anything, and how its learning rate is changed.
struct Case {
    name: String,
    images: Samples,
    classes: Option<Vec<usize>>,
    rate: f64,
}

/// What came of a stream.
#[derive(Default)]
struct Outcome {
    /// Images of each request, and how many of them the answers and the source got wrong.
    requests: Vec<[u64; 3]>,
    steps: u64,
    open: u64,
    alarms: Vec<(u64, String)>,
    /// The value of each guard that came closest to its bound, or went beyond it.
    extremes: BTreeMap<String, f64>,
}

/// The guards in the order of the table, with whether their values have to stay below their bounds.
const GUARDS: [(&str, bool); 6] = [
    ("marginal", false),
    ("marginal-of-source", false),
    ("entropy", false),
    ("agreement", false),
    ("drift", true),
    ("anchors", true),
];

impl Outcome {
    /// Returns how many images of some requests the source and the answers got wrong, in words; nothing where nobody knows.
    fn wrong(requests: &[[u64; 3]]) -> [String; 2] {
        let sum = |column: usize| requests.iter().map(|request| request[column]).sum::<u64>();
        [2, 1].map(|column| match sum(0) {
            0 => String::new(),
            images => percent(sum(column), images),
        })
    }

    /// Hears the value of a guard.
    fn hear(&mut self, guard: &str, value: &Value) {
        let known = GUARDS.iter().find(|(name, _)| *name == guard);
        let (Some((_, most)), Some(value)) = (known, value.as_f64()) else {
            return;
        };
        let extreme = self.extremes.entry(guard.to_owned()).or_insert(value);
        *extreme = if *most {
            extreme.max(value)
        } else {
            extreme.min(value)
        };
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1);
    let path = path.ok_or("usage: guards CONFIG.toml")?;
    let folder = Path::new(&path).parent().unwrap_or(Path::new(""));
    let mut table: toml::Table = std::fs::read_to_string(&path)?.parse()?;
    let streams: Streams = match table.remove("streams") {
        Some(streams) => streams.try_into()?,
        None => return Err("expected a section `[streams]`, found none".into()),
    };
    let config = Config::take(&mut table, folder)?;
    let (_, model) = config.models.first_key_value().ok_or("no model")?;
    let batch = model.batch;
    println!(
        "windows of {} images, batches of {batch}; guards are at their worst\n",
        config.guards.window
    );
    println!(
        "| stream | images | gate open | source wrong | answers wrong | marginal | of source | entropy | agreement | drift | anchors | alarms | first, and what was wrong in the window before |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let groups = [
        ("clean", vec![None]),
        ("held-out", streams.held_out.iter().map(Some).collect()),
        ("reported", streams.reported.iter().map(Some).collect()),
    ];
    for (group, corruptions) in groups {
        let mut sum = (0, 0);
        for corruption in corruptions {
            let set = set(&streams, Split::Test, corruption.map(String::as_str))?;
            let taken = set.batch(&(0..streams.images).collect::<Vec<_>>())?;
            let case = Case {
                name: corruption.map_or("clean".to_owned(), |name| format!("{group}: {name}")),
                images: taken.samples,
                classes: taken.labels,
                rate: 1.0,
            };
            let outcome = run(&config, &case)?;
            show(&case, &outcome, &config);
            sum = (sum.0 + outcome.alarms.len(), sum.1 + case.images.count());
        }
        println!(
            "| **{group}** | {} | | | | | | | | | | {} | |",
            sum.1, sum.0
        );
    }
    for case in bad(&streams)? {
        let outcome = run(&config, &case)?;
        show(&case, &outcome, &config);
    }
    Ok(())
}

/// In which order images come, or which of them.
#[derive(Clone, Copy)]
enum Order {
    AsItIs,
    ByClass,
    OneClass,
}

fn set(streams: &Streams, split: Split, corruption: Option<&str>) -> Result<Box<dyn Dataset>> {
    let options = OpenOptions::new(32);
    let options = match corruption {
        Some(name) => options.with_corruption(name, streams.severity),
        None => options,
    };
    Ok(open(&streams.data, Path::new(""), split, &options)?)
}

/// Makes the streams that guards are there for.
fn bad(streams: &Streams) -> Result<Vec<Case>> {
    let count = streams.images as usize;
    let case = |name: &str, split: Split, order: Order, rate: f64| -> Result<Case> {
        let set = set(streams, split, Some(&streams.bad))?;
        let labels = set.labels()?.ok_or("bad streams are made by classes")?;
        let mut ids: Vec<u64> = (0..labels.len() as u64).collect();
        match order {
            Order::AsItIs => {}
            Order::ByClass => ids.sort_by_key(|&id| labels[id as usize]),
            Order::OneClass => ids.retain(|&id| labels[id as usize] == labels[0]),
        }
        ids.truncate(count);
        let taken = set.batch(&ids)?;
        Ok(Case {
            name: format!("{}: {name}", streams.bad),
            images: taken.samples,
            classes: taken.labels,
            rate,
        })
    };
    let mut cases = vec![
        case("class after class", Split::Test, Order::ByClass, 1.0)?,
        // There are not enough test images of one class to fill the windows.
        case("one class", Split::Train, Order::OneClass, 1.0)?,
        case("learning rate x 100", Split::Test, Order::AsItIs, 100.0)?,
    ];
    let first = set(streams, Split::Test, Some(&streams.bad))?
        .batch(&[0])?
        .samples;
    let Samples::Images(first) = first else {
        return Err("bad streams are made of images".into());
    };
    let each = first.pixels.len();
    // Equal images would not be learned from, since each counts once in a window.
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 32) as u8
    };
    let mut made = |name: &str, pixel: &dyn Fn(u8, u8) -> u8| {
        let pixels = first.pixels.iter().cycle().take(count * each);
        let pixels = pixels.map(|&value| pixel(value, next())).collect();
        Case {
            name: name.to_owned(),
            images: Samples::Images(Images {
                height: first.height,
                width: first.width,
                pixels,
            }),
            classes: None,
            rate: 1.0,
        }
    };
    cases.push(made("one image that flickers", &|value, dice| {
        value.saturating_add(dice & 1)
    }));
    cases.push(made("noise", &|_, dice| dice));
    Ok(cases)
}

/// Sends a stream to an engine of its own.
fn run(config: &Config, case: &Case) -> Result<Outcome> {
    let mut config = config.clone();
    config.state.folder = None;
    let name = config.models.keys().next().cloned().ok_or("no model")?;
    let model = config.models.get_mut(&name).ok_or("no model")?;
    let batch = model.batch;
    if case.rate != 1.0 {
        // That of the preset, many times; what a step may be at most grows with it.
        model.set = BTreeMap::from([
            ("learning_rate".to_owned(), (0.04 * case.rate).into()),
            ("gradient_bound".to_owned(), Value::Null),
        ]);
    }
    let engine = Engine::start(config)?;
    let mut outcome = Outcome::default();
    for from in (0..case.images.count()).step_by(batch) {
        let places: Vec<usize> = (from..(from + batch).min(case.images.count())).collect();
        let request = Request {
            model: name.clone(),
            lane: None,
            at: None,
            stream: "s".to_owned(),
            id: None,
            client: None,
            samples: case.images.pick(&places),
            source_too: true,
            learn: true,
            deadline: None,
        };
        let reply = engine.infer(request)?;
        if let Some(classes) = &case.classes {
            let wrong = |found: &[usize]| {
                let pairs = found.iter().zip(&places);
                pairs
                    .filter(|(found, place)| **found != classes[**place])
                    .count() as u64
            };
            let by_source = wrong(reply.source_classes.as_deref().unwrap_or_default());
            outcome
                .requests
                .push([places.len() as u64, wrong(&reply.classes), by_source]);
        }
        while engine.streams(&name)?[0].pending >= batch as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for event in engine.events(&name, "s", None, Duration::ZERO)? {
        let data: Value = serde_json::from_str(&event.data)?;
        match event.kind {
            "step" => {
                outcome.steps += 1;
                outcome.open += u64::from(data["source_answers"] == false);
                for (guard, value) in data["guards"].as_object().into_iter().flatten() {
                    outcome.hear(guard, value);
                }
            }
            "alarm" if data["guard"] != "rollbacks" => {
                let guard = data["guard"].as_str().unwrap_or("?").to_owned();
                outcome.hear(&guard, &data["value"]);
                // A learn batch has a record for each image and one for its end.
                let record = data["seq"].as_u64().unwrap_or(0);
                outcome
                    .alarms
                    .push((record * batch as u64 / (batch as u64 + 1), guard));
            }
            _ => {}
        }
    }
    Ok(outcome)
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64)
}

fn show(case: &Case, outcome: &Outcome, config: &Config) {
    let images = case.images.count();
    let [source, answers] = Outcome::wrong(&outcome.requests);
    let guards = GUARDS.map(|(name, _)| match outcome.extremes.get(name) {
        // No guard has a sign.
        Some(value) => format!("{:.2}", value.abs()),
        None => String::new(),
    });
    let first = outcome.alarms.first().map(|(images, guard)| {
        let batch = config.models.values().next().map_or(1, |model| model.batch);
        let (to, window) = (*images as usize / batch, config.guards.window / batch);
        let before = outcome.requests.get(to.saturating_sub(window)..to);
        match Outcome::wrong(before.unwrap_or_default()) {
            [source, _] if source.is_empty() => format!("{guard} after {images}"),
            [source, answers] => format!("{guard} after {images}, where the source had {source} wrong and the answers {answers}"),
        }
    });
    println!(
        "| {} | {images} | {} | {source} | {answers} | {} | {} | {} |",
        case.name,
        percent(outcome.open, outcome.steps),
        guards.join(" | "),
        outcome.alarms.len(),
        first.unwrap_or_default(),
    );
}
