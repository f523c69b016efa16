//! A session's state as a value and as a file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::archive::{self, Arrays, Kind};
use crate::gate::GateState;
use crate::method::MethodSpec;
use crate::protocol::{Clock, Protocol, Queue, Watch};
use crate::{Error, Result};

/// Version of a saved session. Files of another version are refused.
pub const STATE_FORMAT: u32 = 3;

/// What a session keeps from batch to batch besides its method.
#[derive(Clone, Debug)]
pub(crate) struct RunState {
    pub queue: Queue,
    pub clock: Option<Clock>,
    pub watch: Watch,
    pub gate: Option<GateState>,
    /// Batches observed so far.
    pub batches: usize,
    /// Samples observed so far, which numbers those to come.
    pub samples: u64,
    /// Why the guard stopped the session, if it did.
    pub stopped: Option<String>,
}

impl RunState {
    /// Makes the state before the first batch.
    pub fn new(protocol: &Protocol) -> Self {
        Self {
            queue: Queue::new(protocol.queue.map_or(0, |queue| queue.capacity)),
            clock: protocol.arrival_rate.map(Clock::new),
            watch: Watch::default(),
            gate: protocol.gate.as_ref().map(GateState::new),
            batches: 0,
            samples: 0,
            stopped: None,
        }
    }
}

/// Everything a session has learned and remembers, at one moment. It can be written to a file, and a session that
/// takes it back goes on with the same bits.
#[derive(Clone, Debug)]
pub struct SessionState {
    pub(super) header: StateHeader,
    pub(super) arrays: Arrays,
}

/// What a saved session says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateHeader {
    pub format: u32,
    /// Fingerprint of the source model.
    pub model: String,
    pub method: MethodSpec,
    pub protocol: Protocol,
    pub clock: Option<Clock>,
    pub watch: Watch,
    pub gate: Option<GateState>,
    pub batches: usize,
    pub samples: u64,
    pub stopped: Option<String>,
    /// Further parts of a run by name, as JSON text, which keeps the digits of floats.
    pub attached: std::collections::BTreeMap<String, String>,
}

/// Reads the version first, since a later one may have other fields.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl SessionState {
    /// Returns how many batches the session had observed.
    pub fn batches(&self) -> usize {
        self.header.batches
    }

    /// Returns how many samples the session had observed.
    pub fn samples(&self) -> u64 {
        self.header.samples
    }

    /// Adds a part of a run that the session itself does not know, such as a
    /// [`Recorder`](crate::protocol::Recorder), to be saved with it.
    ///
    /// # Panics
    /// If the part is not plain JSON.
    pub fn attach(&mut self, name: &str, part: &impl Serialize) {
        let text = serde_json::to_string(part).expect("parts of a run are plain JSON");
        self.header.attached.insert(name.to_owned(), text);
    }

    /// Takes a part back that was [attached](Self::attach).
    pub fn attached<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T> {
        let invalid = |problem: String| Error::Invalid {
            what: "saved session",
            problem,
        };
        let text = self.header.attached.get(name);
        let text = text.ok_or_else(|| invalid(format!("it has no `{name}`")))?;
        serde_json::from_str(text).map_err(|e| invalid(format!("its `{name}`: {e}")))
    }

    /// Takes the state apart into a header, as JSON text, and arrays, so that it can be a part of a larger file.
    pub fn into_parts(self) -> (String, Arrays) {
        let header = serde_json::to_string(&self.header).expect("headers are plain JSON");
        (header, self.arrays)
    }

    /// Puts a state together again from [its parts](Self::into_parts), and checks the version.
    pub fn from_parts(header: &str, arrays: Arrays) -> Result<Self> {
        let text = serde_json::from_str(header).map_err(|e| e.to_string());
        let header = text.and_then(|text| read_header(&text));
        let header = header.map_err(|problem| Error::Invalid {
            what: "saved session",
            problem,
        })?;
        Ok(Self { header, arrays })
    }

    /// Writes the state to a file, atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        archive::save(path, Kind::Session, &self.header, &self.arrays)
    }

    /// Reads a state from a file, and checks its version and digest.
    pub fn load(path: &Path) -> Result<Self> {
        let (text, arrays): (serde_json::Value, _) = archive::load(path, Kind::Session)?;
        let wrong = |problem: String| Error::Format {
            path: path.to_owned(),
            expected: Kind::Session.description(),
            problem,
            hint: Some("it was written by another version of ttac; start the run again".to_owned()),
        };
        let header = read_header(&text).map_err(wrong)?;
        Ok(Self { header, arrays })
    }
}

/// Reads a header of this version, or says what is wrong with it.
fn read_header(text: &serde_json::Value) -> Result<StateHeader, String> {
    let version = Version::deserialize(text).map_err(|e| e.to_string())?;
    if version.format != STATE_FORMAT {
        return Err(format!(
            "version {}, expected {STATE_FORMAT}",
            version.format
        ));
    }
    StateHeader::deserialize(text).map_err(|e| e.to_string())
}

/// Adds arrays under a prefix.
pub(super) fn nest(prefix: &str, inner: Arrays, into: &mut Arrays) {
    let named = inner.0.into_iter();
    into.0
        .extend(named.map(|(name, array)| (format!("{prefix}{name}"), array)));
}

/// Takes the arrays under a prefix back out.
pub(super) fn unnest(prefix: &str, from: &mut Arrays) -> Arrays {
    let all = std::mem::take(&mut from.0);
    let (mut inside, mut outside) = (Arrays::default(), Arrays::default());
    for (name, array) in all {
        match name.strip_prefix(prefix) {
            Some(rest) => inside.0.insert(rest.to_owned(), array),
            None => outside.0.insert(name, array),
        };
    }
    *from = outside;
    inside
}

/// Whether any array lies under a prefix.
pub(super) fn has(prefix: &str, arrays: &Arrays) -> bool {
    let names = arrays.0.keys();
    names
        .into_iter()
        .any(|name: &String| name.starts_with(prefix))
}
