//! A model that is served, with its streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use ttac::burn::tensor::Device;
use ttac::checkpoint::Checkpoint;

use super::admission::Admission;
use super::course::{Course, Rules};
use super::events::Events;
use super::evidence::{Labels, Ring};
use super::learner::{audited, damage_of};
use super::stream::{Intake, Learning, Stream};
use super::weights::Weights;
use crate::api::{Lane, ModelInfo, Statistics};
use crate::config::{Config, Loaded};
use crate::state::{
    Belongs, Card, FORMAT, Log, Record, Replay, Snapshot, StateFolder, StreamFolder, Survey,
};
use crate::{Error, Result};

/// The most images of a request.
pub const LARGEST_REQUEST: usize = 256;

/// A model that is served.
pub struct Served {
    /// What is the same for all of its streams.
    pub rules: Arc<Rules>,
    /// Its streams by name.
    pub streams: RwLock<BTreeMap<String, Arc<Stream>>>,
    /// Held while a stream is made, so that it is made once.
    making: Mutex<()>,
    /// The memory that a stream takes, about.
    pub stream_bytes: u64,
    statistics: [Mutex<Statistics>; 2],
}

impl Served {
    /// Gets ready to serve a model.
    pub fn new(loaded: Loaded, config: &Config) -> Result<Self> {
        let stream_bytes = loaded.check(config.state.keep_good)?.stream_bytes;
        let source = Weights::of_source(&loaded.model)?;
        Ok(Self {
            rules: Arc::new(Rules {
                loaded,
                bounds: config.guards,
                keep_good: config.state.keep_good,
                compare_share: config.learn.compare_share,
                source: Arc::new(source),
            }),
            streams: RwLock::default(),
            making: Mutex::default(),
            stream_bytes,
            statistics: Default::default(),
        })
    }

    /// Describes the model.
    pub fn info(&self, ready: bool) -> ModelInfo {
        let loaded = &self.rules.loaded;
        ModelInfo {
            name: loaded.name.clone(),
            input: loaded.model.input.clone(),
            classes: loaded.model.classes.clone(),
            architecture: loaded.model.architecture.clone(),
            largest_batch: LARGEST_REQUEST,
            ready,
        }
    }

    /// Returns what happened in a lane.
    pub fn statistics(&self, lane: Lane) -> &Mutex<Statistics> {
        match lane {
            Lane::Source => &self.statistics[0],
            Lane::Adapted => &self.statistics[1],
        }
    }

    /// Returns a stream, if there is one of that name.
    pub fn stream(&self, name: &str) -> Option<Arc<Stream>> {
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        streams.get(name).cloned()
    }

    /// Lists the streams by name.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        streams.values().cloned().collect()
    }

    /// Returns a stream, and makes it if there is none of that name and `room` for another.
    pub fn stream_or_new(
        &self,
        name: &str,
        config: &Config,
        folder: Option<&StateFolder>,
        room: impl Fn() -> bool,
    ) -> Result<Option<Arc<Stream>>> {
        if let Some(stream) = self.stream(name) {
            return Ok(Some(stream));
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = self.stream(name) {
            return Ok(Some(stream));
        }
        if !room() {
            return Ok(None);
        }
        let folder = folder.map(|folder| folder.stream(&self.rules.loaded.name, name));
        let stream = match folder {
            Some(folder) => self.open(name, config, folder)?,
            None => self.make(name, config)?,
        };
        self.insert(&stream);
        Ok(Some(stream))
    }

    /// Adds a stream.
    pub fn insert(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.insert(stream.name.clone(), Arc::clone(stream));
    }

    /// Takes a stream out.
    pub fn remove(&self, name: &str) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.remove(name);
    }

    /// Says what the files of a stream belong to.
    pub fn belongs(&self, stream: &str) -> Result<Belongs> {
        let loaded = &self.rules.loaded;
        let session = loaded.session()?;
        let configuration = serde_json::json!({
            "method": session.method(),
            "protocol": session.protocol(),
            "batch": loaded.config.batch,
        });
        let digest = blake3::hash(configuration.to_string().as_bytes()).to_hex();
        Ok(Belongs {
            format: FORMAT,
            stream: (loaded.name.clone(), stream.to_owned()),
            source: loaded.model.fingerprint.clone(),
            anchors: loaded.anchors_digest.clone(),
            configuration: digest[..16].to_owned(),
            instructions: format!("{:?}", ttac::kernels::Context::current().isa()),
        })
    }

    /// Makes a stream that is kept in memory alone.
    fn make(&self, name: &str, config: &Config) -> Result<Arc<Stream>> {
        let parts = Parts {
            course: Course::new(&self.rules)?,
            log: None,
            replay: None,
            damage: None,
            folder: None,
            files: Vec::new(),
            audited: 0,
        };
        self.assemble(name, config, parts)
    }

    /// Opens a stream in its folder, or starts one there. The log behind the newest snapshot is left to be learned from again.
    pub fn open(&self, name: &str, config: &Config, folder: StreamFolder) -> Result<Arc<Stream>> {
        folder.create()?;
        let belongs = self.belongs(name)?;
        let survey = Survey::of(&folder.log())?;
        if let Some(found) = &survey.belongs {
            belongs.check(found, folder.path())?;
        }
        let (course, mut alarms, files) = self.newest(&folder, &belongs)?;
        let sequence = course.memory().sequence;
        if folder.card()?.is_none() {
            let memory = course.memory();
            folder.write_card(&Card {
                format: FORMAT,
                model: belongs.stream.0.clone(),
                stream: name.to_owned(),
                mode: memory.mode,
                health: memory.health,
                snapshot: None,
            })?;
        }
        let first = survey.segments.first().map(|segment| segment.first);
        if let Some(first) = first.filter(|&first| first > sequence + 1) {
            alarms.push(format!(
                "records {} to {} are lost",
                sequence + 1,
                first - 1
            ));
        }
        let damage = damage_of(&survey);
        let log = if damage.is_none() {
            let durability = config.state.durability;
            let log = folder.log();
            Some(Log::open(&log, belongs, durability, &survey, sequence + 1)?)
        } else {
            None
        };
        let replay = Replay::new(&survey, sequence);
        let parts = Parts {
            course,
            log,
            replay: Some(replay),
            damage,
            files,
            audited: audited(&folder.trail()?),
            folder: Some(folder),
        };
        let stream = self.assemble(name, config, parts)?;
        let notices: Vec<_> = alarms
            .into_iter()
            .map(|reason| super::course::Notice {
                kind: "alarm",
                data: serde_json::json!({"guard": "state", "reason": reason}),
            })
            .collect();
        stream.tell(&notices);
        Ok(stream)
    }

    /// Goes on from the newest snapshot that is whole.
    fn newest(
        &self,
        folder: &StreamFolder,
        belongs: &Belongs,
    ) -> Result<(Course, Vec<String>, Vec<std::path::PathBuf>)> {
        let mut alarms = Vec::new();
        let files = folder.snapshots()?;
        for file in &files {
            let snapshot = match Snapshot::load(&file.path) {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    alarms.push(crate::error::in_full(&error));
                    continue;
                }
            };
            belongs.check(&snapshot.belongs, folder.path())?;
            let kept = files.iter().filter(|one| one.sequence <= file.sequence);
            let kept = kept
                .filter_map(|one| Snapshot::load(&one.path).ok())
                .collect();
            let course = Course::from_snapshot(&self.rules, snapshot, kept)?;
            return Ok((course, alarms, vec![file.path.clone()]));
        }
        Ok((Course::new(&self.rules)?, alarms, Vec::new()))
    }

    /// Opens a stream without a log to write to.
    pub fn look(&self, name: &str, config: &Config, folder: StreamFolder) -> Result<Arc<Stream>> {
        let belongs = self.belongs(name)?;
        let survey = Survey::of(&folder.log())?;
        if let Some(found) = &survey.belongs {
            belongs.check(found, folder.path())?;
        }
        let (course, _, files) = self.newest(&folder, &belongs)?;
        let parts = Parts {
            replay: Some(Replay::new(&survey, course.memory().sequence)),
            damage: damage_of(&survey),
            log: None,
            course,
            files,
            audited: u64::MAX,
            folder: Some(folder),
        };
        self.assemble(name, config, parts)
    }

    /// Returns a version as a ttac checkpoint.
    pub fn checkpoint(&self, course: &Course, version: u64) -> Result<Vec<u8>> {
        let loaded = &self.rules.loaded;
        let mut checkpoint = Checkpoint::load(&loaded.config.file, &Device::flex())?;
        if version > 0 {
            let model = match course.kept_state(version) {
                Some(state) => {
                    let mut session = loaded.session()?;
                    session.restore(&state)?;
                    session.model()
                }
                None => course.published_model(version)?,
            };
            checkpoint.network = model.network;
        }
        let folder = tempfile::tempdir().map_err(Error::io("create", std::env::temp_dir()))?;
        let path = folder.path().join("model.safetensors");
        checkpoint.save(&path)?;
        std::fs::read(&path).map_err(Error::io("read", &path))
    }

    fn assemble(&self, name: &str, config: &Config, parts: Parts) -> Result<Arc<Stream>> {
        let mut parts = parts;
        let memory = parts.course.memory().clone();
        let left = parts.replay.as_ref().map_or(0, Replay::left);
        let belongs = self.belongs(name)?;
        let model = &self.rules.loaded.config;
        let after = parts.log.as_ref().map_or(memory.sequence + 1, Log::next);
        let (open, accepted) = match &parts.folder {
            Some(folder) => waiting(folder, &memory)?,
            None => (0, 0),
        };
        let standing = parts.course.standing();
        Ok(Arc::new(Stream {
            model: self.rules.loaded.name.clone(),
            name: name.to_owned(),
            standing: ArcSwap::from_pointee(standing),
            intake: Mutex::new(Intake {
                refuses: parts.damage.is_some(),
                log: parts.log.take(),
                next: after,
                inbox: std::collections::VecDeque::new(),
                admission: Admission::new(
                    model.batch,
                    config.learn.client_share,
                    config.guards.window,
                ),
                open,
                open_since: (open > 0).then(Instant::now),
                mode: memory.mode,
                mode_record: 0,
                accepted: memory.accepted + accepted,
                ring: Ring::default(),
                labels: Labels::default(),
                write_error: None,
            }),
            learning: Mutex::new(Learning {
                course: parts.course,
                replay: parts.replay.filter(|_| left > 0),
                damage: parts.damage,
                folder: parts.folder,
                belongs,
                saved: memory.sequence,
                saved_at: Instant::now(),
                saved_cuts: memory.cuts,
                parent: None,
                files: parts.files,
                audited: parts.audited,
            }),
            events: Events::default(),
            counted: Mutex::default(),
            queued: AtomicBool::new(false),
            replay_left: AtomicU64::new(left),
            cuts_waiting: AtomicU64::new(0),
            applied: AtomicU64::new(memory.sequence),
            wants_snapshot: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
        }))
    }
}

/// What a stream is put together from.
struct Parts {
    course: Course,
    log: Option<Log>,
    replay: Option<Replay>,
    damage: Option<String>,
    folder: Option<StreamFolder>,
    files: Vec<std::path::PathBuf>,
    audited: u64,
}

/// Counts the images since the last cut, in snapshot and log, and all images in the log behind the snapshot.
fn waiting(folder: &StreamFolder, memory: &super::memory::Memory) -> Result<(usize, u64)> {
    let survey = Survey::of(&folder.log())?;
    let mut replay = Replay::new(&survey, memory.sequence);
    let (mut open, mut accepted) = (memory.open, 0);
    while let Some((_, record)) = replay.read()? {
        match record {
            Record::Sample(_) => {
                open += 1;
                accepted += 1;
            }
            Record::Cut => open = 0,
            _ => {}
        }
    }
    Ok((open, accepted))
}

/// Checks that a stored stream is one that is served, before anything is opened.
pub fn unknown_model(card: &Card, folder: &StreamFolder, known: &[String]) -> Error {
    Error::Foreign {
        path: folder.path().to_owned(),
        what: "model",
        expected: format!("one of `{}`", known.join("`, `")),
        found: format!("`{}`", card.model),
    }
}
