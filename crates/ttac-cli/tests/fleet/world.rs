//! A folder with a small network, and the command working in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::engines::{Bucket, Process, wait_for};

/// How long the tests' queues wait for word of a worker, in seconds.
const PATIENCE: &str = "2";

pub struct World {
    folder: TempDir,
    /// The port of a store that speaks S3; results are in a folder without one.
    bucket: Option<u16>,
}

impl World {
    /// Trains a network on a few images that are part of the program.
    pub fn new() -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
            bucket: None,
        };
        let train = "train --data shapes10 --subset 200 --arch resnet20-cifar --set depth=8 --set width=4 --held-out 20 \
                     --batch-size 20 --epochs 1 --warm-up 0 --out run";
        world.stdout(train);
        world
    }

    pub fn with_bucket(port: u16) -> Self {
        let mut world = Self::new();
        world.bucket = Some(port);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// The address of the store.
    pub fn store(&self) -> String {
        match self.bucket {
            Some(_) => "s3://results/table".to_owned(),
            None => format!("file://{}", self.path("store").display()),
        }
    }

    pub fn ttac(&self, arguments: &str) -> Command {
        self.ttac_in(self.folder.path(), arguments)
    }

    fn ttac_in(&self, folder: &Path, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ttac"));
        command
            .args(arguments.split_whitespace())
            .current_dir(folder)
            .env("TTAC_DATA", self.path("data"))
            .env("COLUMNS", "100")
            .envs(Bucket::variables(self.bucket.unwrap_or(9)));
        command
    }

    pub fn stdout(&self, arguments: &str) -> String {
        let output = self.ended(arguments, 0);
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.stdout(&format!("{arguments} --json"))).unwrap()
    }

    /// Standard error of a command that has to fail, and has to say all of some words.
    #[track_caller]
    pub fn fails_with(&self, arguments: &str, words: &[&str]) {
        let output = self.ended(arguments, 2);
        let error = String::from_utf8(output.stderr).unwrap();
        for words in words {
            assert!(error.contains(words), "`{words}` is not in: {error}");
        }
    }

    #[track_caller]
    fn ended(&self, arguments: &str, code: i32) -> Output {
        let output = self.ttac(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}:\n{errors}");
        output
    }

    /// Submits what is left of `grid.toml`.
    pub fn submit(&self, queue: &str) -> Value {
        self.json(&format!("{} --ack-wait {PATIENCE}", self.bench(queue)))
    }

    /// Brokers that are killed one after the other may elect for longer than the command waits, so silence is asked again.
    #[track_caller]
    pub fn status(&self, queue: &str) -> Value {
        let arguments = format!("{} --status --json", self.bench(queue));
        let mut said = Vec::new();
        wait_for("the brokers answer", || {
            let output = self.ttac(&arguments).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            let answered = output.status.success();
            assert!(answered || error.contains("does not answer"), "{error}");
            said = output.stdout;
            answered
        });
        serde_json::from_slice(&said).unwrap()
    }

    pub fn bench(&self, queue: &str) -> String {
        format!("bench grid.toml --queue {queue} --store {}", self.store())
    }

    /// A worker in a folder of its own, so that it finds no file where the submitter had it.
    pub fn worker(&self, queue: &str, rest: &str) -> Command {
        let folder = self.path("elsewhere");
        std::fs::create_dir_all(&folder).unwrap();
        let store = self.store();
        let arguments = format!("work --threads 1 --queue {queue} --store {store} {rest}");
        let mut command = self.ttac_in(&folder, &arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub fn start_worker(&self, queue: &str, rest: &str) -> Process {
        Process::start(&mut self.worker(queue, rest))
    }

    /// Works until nothing is left, and returns what the worker said.
    #[track_caller]
    pub fn work(&self, queue: &str) -> String {
        let mut command = self.worker(queue, "--until-empty");
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    }

    /// The table of what is in the store is that of a run on one machine.
    #[track_caller]
    pub fn check_table(&self) {
        self.stdout("bench grid.toml --out alone");
        let expected = self.stdout("report alone");
        assert_eq!(self.stdout(&format!("report {}", self.store())), expected);
    }
}
