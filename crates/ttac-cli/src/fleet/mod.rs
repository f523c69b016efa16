//! Work on many machines: what is submitted, what workers do with it, and where everything lies in the store.
//!
//! Results lie in the store as they lie in a folder, so `ttac report` reads both. What only machines need lies under `fleet/`:
//! `about.json` names the queue and the version, `inputs/` has models and anchors by their digests, `checkpoints/` what long work has come to,
//! `tries/` a note for every try that did not succeed, and `failed/` what nobody tries any more.

pub mod anchors;
pub mod results;
pub mod status;
pub mod submit;
pub mod task;
mod tries;
pub mod worker;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use ttac::experiment::PROGRAM;
use ttac_fleet::{Created, Store};

/// What a store says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The program and its version. Another one would come to other results.
    pub program: String,
    /// The name of the queue, which no other store has.
    pub queue: String,
}

const ABOUT: &str = "fleet/about.json";

impl About {
    /// Reads what a store says about itself; none if nothing was submitted to it yet.
    pub fn load(store: &Store) -> anyhow::Result<Option<Self>> {
        let Some(bytes) = store.get(ABOUT)? else {
            return Ok(None);
        };
        let about: Self = serde_json::from_slice(&bytes)
            .with_context(|| format!("`{ABOUT}` in the store `{store}`"))?;
        if about.program != PROGRAM {
            bail!(
                "the store `{store}` belongs to {}, and this is {PROGRAM}: give this version a store of its own, or run the other one",
                about.program
            );
        }
        Ok(Some(about))
    }

    /// Reads what a store says about itself, or makes it. Of several who try at once all get the same.
    pub fn load_or_create(store: &Store) -> anyhow::Result<Self> {
        if let Some(about) = Self::load(store)? {
            return Ok(about);
        }
        let about = Self {
            program: PROGRAM.to_owned(),
            queue: format!("ttac-{}", unlike_any_other()),
        };
        match store.create(ABOUT, &serde_json::to_vec(&about)?)? {
            Created::Now => Ok(about),
            Created::Before => {
                Self::load(store)?.context("what the store says about itself was removed")
            }
        }
    }

    /// Reads what a store says about itself, and refuses one that nothing was submitted to.
    pub fn expect(store: &Store) -> anyhow::Result<Self> {
        Self::load(store)?.with_context(|| {
            format!("nothing was submitted to the store `{store}`: `ttac bench GRID --queue .. --store ..` does that")
        })
    }
}

/// Makes a name that no other process has. It has no influence on any result.
fn unlike_any_other() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let text = format!(
        "{host} {} {now} {:?}",
        std::process::id(),
        std::thread::current().id()
    );
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// Names this worker: the machine, and what no other worker has.
fn worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fits = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let host: String = host.chars().filter(fits).take(30).collect();
    format!("{host}-{}", &unlike_any_other()[..8])
}
