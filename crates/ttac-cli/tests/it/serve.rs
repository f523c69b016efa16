//! A service as an operator starts and ends it, and what it stores.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ttac::data::{OpenOptions, Split, open};
use ttac_serve::api::{Request, Service};
use ttac_serve::config::Config;
use ttac_serve::engine::Engine;
use ttac_serve::state::StateFolder;

use crate::{World, ended};

/// The shipped network of drawn shapes.
const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/shapes10");

/// A configuration that learns from the first batch on, whatever comes.
fn configuration(more: &str) -> String {
    format!(
        "[model.shapes]\nfile = '{SHIPPED}/model.safetensors'\nanchors = '{SHIPPED}/anchors.safetensors'\npreset = 'recommended-0.1'\n\
         batch = 16\n[guards]\nwindow = 64\nmarginal = 0.0\nmarginal_of_source = 0.0\nagreement = 0.0\nanchors = 1e9\n\
         [state]\nfolder = 'state'\n[listen]\nrest = 0\ngrpc = 0\nadmin = 0\n[threads]\npredict = 1\nupdate = 1\nidle = false\n{more}"
    )
}

impl World {
    /// Writes `serve.toml`.
    fn configure(&self, text: &str) {
        std::fs::write(self.path("serve.toml"), text).unwrap();
    }

    /// Stores a stream that has learned from two batches, with the rest of its images in the log.
    fn store(&self, name: &str) {
        self.configure(&configuration(""));
        let config = Config::load(&self.path("serve.toml")).unwrap();
        let engine = Engine::start(config).unwrap();
        send(&engine, name, 0..32);
        let begun = Instant::now();
        while engine.streams("shapes").unwrap()[0].learned < 32 {
            assert!(begun.elapsed() < Duration::from_mins(2));
            std::thread::sleep(Duration::from_millis(2));
        }
        engine.snapshot("shapes", name).unwrap();
        send(&engine, name, 32..40);
        // Saves the stream, with the images that wait.
        engine.stop();
    }
}

fn send(engine: &Engine, stream: &str, ids: std::ops::Range<u64>) {
    let options = OpenOptions::new(32).with_corruption("contrast", 5);
    let set = open("shapes10", Path::new(SHIPPED), Split::Test, &options).unwrap();
    let batch = set.batch(&ids.collect::<Vec<u64>>()).unwrap();
    let request = Request {
        model: "shapes".to_owned(),
        lane: None,
        at: None,
        stream: stream.to_owned(),
        id: None,
        client: None,
        samples: batch.samples,
        source_too: false,
        learn: true,
        deadline: None,
    };
    assert!(engine.infer(request).unwrap().sequence.is_some());
}

/// A service that runs, and is killed when a test ends before it does.
struct Running {
    child: Child,
    rest: String,
    page: String,
    errors: BufReader<ChildStderr>,
}

impl Running {
    /// Starts a service and reads its addresses from standard output.
    fn start(world: &World, arguments: &str) -> Self {
        let mut child = world
            .ttac(&format!("serve {arguments} --json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let Ok(addresses) = serde_json::from_str::<Value>(&line) else {
            let mut said = String::new();
            errors.read_to_string(&mut said).unwrap();
            panic!("no addresses in `{line}`: {said}");
        };
        let text = |key: &str| addresses[key].as_str().unwrap().to_owned();
        Self {
            rest: text("rest"),
            page: text("admin"),
            child,
            errors,
        }
    }

    /// Waits until the only stream is so.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let begun = Instant::now();
        loop {
            let url = format!("{}/v2/models/shapes/streams", self.page);
            let streams: Value = serde_json::from_str(&get(&url)).unwrap();
            if is_so(&streams["streams"][0]) {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_mins(2),
                "{what}: {streams}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks for the end as Ctrl-C does.
    fn ask_for_the_end(&self) {
        let number = self.child.id().to_string();
        ended(Command::new("kill").args(["-INT", &number]), 0);
    }

    /// Waits for the end, which has to have a status, and returns what was said on standard error.
    fn ended(mut self, code: i32) -> String {
        let mut said = String::new();
        self.errors.read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{said}");
        said
    }

    /// Interrupts it, and returns what it said on standard error.
    fn interrupt(self) -> String {
        self.ask_for_the_end();
        self.ended(0)
    }
}

fn get(url: &str) -> String {
    let mut answer = ureq::get(url).call().unwrap();
    answer.body_mut().read_to_string().unwrap()
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already where everything went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_answers_says_what_happens_and_ends_when_it_is_interrupted() {
    let world = World::new();
    world.store("camera");
    let service = Running::start(&world, "serve.toml --log-format json");
    service.until("the stored stream", |one| {
        one["stream"] == "camera" && one["accepted"] == 40
    });
    let image = vec![7; 32 * 32 * 3];
    let body = json!({
        "parameters": { "stream": "camera" },
        "inputs": [{ "name": "images", "datatype": "UINT8", "shape": [1, 32, 32, 3], "data": image }],
    });
    let url = format!("{}/v2/models/shapes/infer", service.rest);
    let mut answer = ureq::post(&url).send(body.to_string()).unwrap();
    let answer: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(answer["parameters"]["learned"], "accepted", "{answer}");
    assert!(get(&service.page).contains("<title>ttac serve</title>"));
    let said = service.interrupt();
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let messages: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["message"].as_str())
        .collect();
    for expected in [
        "a model is loaded",
        "a stored stream goes on",
        "requests are taken",
        "ended",
        "saved up to",
    ] {
        assert!(
            messages.iter().any(|message| message.starts_with(expected)),
            "{expected} is not in {said}"
        );
    }
    assert!(!said.contains("7,7,7"), "pixels are in the log");
    // The image is in the state, and nothing is wrong with it.
    let listed = world.json("state state --json");
    let stream = &listed["streams"][0];
    assert_eq!(
        (&stream["stream"], &stream["records_left"]),
        (&json!("camera"), &json!(0))
    );
    world.stdout("state state verify");
    let quiet = Running::start(&world, "serve.toml --log-level error");
    // Once it answers, it listens for signals.
    get(&quiet.page);
    assert_eq!(quiet.interrupt(), "");
}

#[test]
fn who_interrupts_twice_does_not_wait_for_requests() {
    let world = World::new();
    world.store("camera");
    let service = Running::start(&world, "serve.toml");
    let address = service.rest.strip_prefix("http://").unwrap();
    // A request whose body does not come.
    let mut slow = TcpStream::connect(address).unwrap();
    let head =
        "POST /v2/models/shapes/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).unwrap();
    get(&service.page);
    service.ask_for_the_end();
    let begun = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(begun.elapsed() < Duration::from_mins(2));
        std::thread::sleep(Duration::from_millis(5));
    }
    service.ask_for_the_end();
    let said = service.ended(130);
    assert!(said.contains("ended at once"), "{said}");
    world.stdout("state state verify");
}

#[test]
fn the_demo_serves_a_camera_and_a_page_without_a_file() {
    let world = World::new();
    let service = Running::start(
        &world,
        "--demo --rate 10000 --rest 0 --grpc 0 --admin 0 --state kept",
    );
    service.until("learning", |one| {
        one["stream"] == "camera" && one["mode"] == "active" && one["learned"].as_u64() >= Some(128)
    });
    assert!(get(&service.page).contains("id=\"curves\""));
    let page = service.page.clone();
    let said = service.interrupt();
    for expected in ["clean pictures come", "Ctrl-C ends it", page.as_str()] {
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
    assert!(!said.contains("the camera stops"), "{said}");
    let listed = world.json("state kept --json");
    assert_eq!(listed["streams"][0]["stream"], "camera");
}

#[test]
fn a_check_says_what_a_stream_takes_and_opens_nothing() {
    let world = World::new();
    // A port that is taken is no matter, since none is opened.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    world.configure(&configuration(""));
    let text = world.stdout(&format!("serve serve.toml --check --rest {port}"));
    assert!(
        text.starts_with("shapes: resnet-cifar with 10 classes, ttac; a stream takes about "),
        "{text}"
    );
    let checked = world.json("serve serve.toml --check --json");
    let model = &checked["models"][0];
    assert_eq!(
        (&model["name"], &model["classes"]),
        (&json!("shapes"), &json!(10))
    );
    assert!(model["stream_bytes"].as_u64() > Some(1_000_000));
    assert!(world.json("serve --demo --check --json")["models"][0]["warnings"] == json!([]));
}

#[test]
fn what_cannot_be_served_is_said_before_a_port_opens() {
    let world = World::new();
    let fails = |words: &[&str]| world.fails_with("serve serve.toml", words);
    world.fails_with("serve serve.toml", &["cannot read `serve.toml`"]);
    world.fails_with("serve", &["<CONFIG.toml>"]);
    world.fails_with("serve serve.toml --demo", &["cannot be used with"]);
    world.configure("[model.shapes]\nfile = 'm.safetensors'\nmetod = 'ttac'\n[lisen]\n");
    fails(&[
        "invalid configuration `serve.toml`",
        "[model.shapes] unknown key `metod`; did you mean `method`?",
        "unknown section `[lisen]`; did you mean `[listen]`?",
    ]);
    world.configure("[model.shapes]\nfile = 'missing.safetensors'\n");
    fails(&["[model.shapes]", "missing.safetensors"]);
    world.configure("[learn]\nbacklog = 2\n");
    fails(&["there is no `[model.NAME]`"]);
    world.configure(&configuration("").replace("preset", "method = 'tent'\npreset"));
    fails(&["one client would change the answers to another"]);
    world.configure(&configuration(""));
    world.fails_with(
        "serve serve.toml --host 0.0.0.0",
        &["lets other machines in", "give a file of tokens"],
    );
    assert!(!world.path("state").exists());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    world.fails_with(
        &format!("serve serve.toml --admin {port}"),
        &[
            "cannot open the port `admin` at 127.0.0.1",
            "in use",
            "hint: another program has the port; give another by `admin` in `[listen]` or `--admin`",
        ],
    );
}

#[test]
fn state_of_another_network_or_of_another_process_is_refused() {
    let world = World::new();
    world.store("camera");
    let held = StateFolder::open(&world.path("state")).unwrap();
    let in_use = [
        "the state folder",
        "is in use by another process",
        "hint: stop the other service",
    ];
    world.fails_with("serve serve.toml", &in_use);
    world.fails_with("state state verify", &in_use);
    // Looking is no serving.
    world.stdout("serve serve.toml --check");
    world.stdout("state state");
    drop(held);
    // The same stream by another configuration, by another model, and by another network of the same name.
    let other = configuration("").replace("batch = 16", "batch = 32");
    world.configure(&other);
    let refused = |words: &[&str]| {
        world.fails_with("serve serve.toml", words);
        world.fails_with("serve serve.toml --check", words);
    };
    refused(&[
        "belongs to another method, protocol or batch",
        "hint: serve the model",
    ]);
    world.fails_with(
        "state state replay --config serve.toml",
        &["belongs to another method, protocol or batch"],
    );
    world.configure(&configuration("").replace("model.shapes", "model.others"));
    refused(&["belongs to another model: expected one of `others`, found `shapes`"]);
    world.import();
    let other = configuration("")
        .replace(&format!("{SHIPPED}/model.safetensors"), "model.safetensors")
        .replace(
            &format!("anchors = '{SHIPPED}/anchors.safetensors'\n"),
            "method = 'shot'\n",
        );
    world.configure(&other);
    refused(&["belongs to another network"]);
}

#[test]
fn stored_streams_are_listed_verified_replayed_and_exported() {
    let world = World::new();
    world.fails_with("state nowhere", &["`nowhere` is no state folder"]);
    world.store("camera");
    let text = world.stdout("state state");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("model   stream  mode    health"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("shapes  camera  shadow  warming  version 2 at "),
        "{text}"
    );
    let listed = world.json("state state --json");
    let stream = &listed["streams"][0];
    let keys: Vec<&String> = stream.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "folder",
            "health",
            "log_bytes",
            "mode",
            "model",
            "records_left",
            "snapshot",
            "stream",
            "versions"
        ]
    );
    assert_eq!(stream["snapshot"]["version"], 2);
    assert_eq!(
        world.stdout("state state verify"),
        "shapes / camera: whole\n"
    );

    let replayed = world.json("state state replay --config serve.toml --json");
    let one = &replayed["streams"][0];
    assert_eq!(
        (&one["accepted"], &one["learned"]),
        (&json!(40), &json!(32)),
        "{one}"
    );
    assert_eq!(one["damage"], Value::Null);
    let text = world.stdout("state state replay camera --config serve.toml");
    assert!(text.starts_with("shapes / camera: version 2 b3:"), "{text}");
    world.fails_with(
        "state state replay garage --config serve.toml",
        &["there is no stream `garage` in `state`; those that are stored: `camera` of `shapes`"],
    );

    let export = "state state export camera out.safetensors --config serve.toml";
    let exported = world.json(&format!("{export} --json"));
    assert_eq!(exported["weights"], one["weights"]);
    let info = world.json("info out.safetensors --json");
    assert_eq!(info["header"]["classes"][9], "spiral");
    let shipped = format!(
        "eval --model {SHIPPED}/model.safetensors --data shapes10 --subset 300 --corruption contrast --severity 5 --json"
    );
    let (before, after) = (
        world.json(&shipped),
        world.json(&shipped.replace(&format!("{SHIPPED}/model.safetensors"), "out.safetensors")),
    );
    assert_ne!(before["fingerprint"], after["fingerprint"]);
}

#[test]
fn damage_is_named_and_ends_with_status_one() {
    let world = World::new();
    world.store("camera");
    let listed = world.json("state state --json");
    let stream = &listed["streams"][0];
    let snapshot = stream["snapshot"]["file"].as_str().unwrap();
    let mut bytes = std::fs::read(world.path(snapshot)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(world.path(snapshot), bytes).unwrap();
    let output = ended(&mut world.ttac("state state verify"), 1);
    let (out, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(out.starts_with("shapes / camera:\n- "), "{out}");
    assert!(
        errors.contains("expected 1 that are whole, found 1 that are not"),
        "{errors}"
    );
    // A card that cannot be read is said, and the rest is listed.
    let card = world
        .path(stream["folder"].as_str().unwrap())
        .join("stream.json");
    std::fs::write(card, "{").unwrap();
    let text = world.stdout("state state");
    assert!(text.contains("unreadable: `state/streams/"), "{text}");
    let output = ended(&mut world.ttac("state state verify --json"), 1);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        result["streams"][0]["problems"][0]
            .as_str()
            .unwrap()
            .contains("stream.json")
    );
}
