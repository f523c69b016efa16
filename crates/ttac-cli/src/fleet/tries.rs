//! How often a piece of work was tried, and what nobody tries any more.

use serde::{Deserialize, Serialize};
use ttac_fleet::Store;

/// After so many tries that did not succeed nobody tries again.
pub const MOST_TRIES: usize = 3;

/// What a worker says about a try.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Try {
    pub worker: String,
    /// Why it failed; none while it goes on, and for ever if the worker died.
    pub problem: Option<String>,
}

/// What nobody tries any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    pub title: String,
    pub tries: usize,
    pub problem: String,
}

/// A note in the store for as long as a try has not succeeded. A worker that dies leaves it behind.
pub struct Note {
    name: String,
    content: Try,
}

impl Note {
    /// Notes that a try begins.
    pub fn begin(
        store: &Store,
        digest: &str,
        worker: &str,
        taken: u64,
    ) -> ttac_fleet::Result<Self> {
        let note = Self {
            name: format!("{}/{worker}-{taken}.json", folder(digest)),
            content: Try {
                worker: worker.to_owned(),
                problem: None,
            },
        };
        note.write(store)?;
        Ok(note)
    }

    /// Notes why it failed.
    pub fn fail(&mut self, store: &Store, problem: &str) -> ttac_fleet::Result<()> {
        self.content.problem = Some(problem.to_owned());
        self.write(store)
    }

    /// Takes the note away: the work is done, or was stopped on purpose.
    pub fn remove(&self, store: &Store) -> ttac_fleet::Result<()> {
        store.remove(&self.name)
    }

    fn write(&self, store: &Store) -> ttac_fleet::Result<()> {
        let bytes = serde_json::to_vec(&self.content).expect("a note is plain JSON");
        store.put(&self.name, &bytes)
    }
}

/// Reads the notes of all tries.
pub fn tries(store: &Store, digest: &str) -> ttac_fleet::Result<Vec<Try>> {
    let mut found = Vec::new();
    for name in store.list(&folder(digest))? {
        let note = store.get(&name)?;
        found.extend(note.and_then(|bytes| serde_json::from_slice(&bytes).ok()));
    }
    Ok(found)
}

/// Forgets all tries: the work is done, has come further than ever, or is submitted anew.
pub fn forget(store: &Store, digest: &str) -> ttac_fleet::Result<()> {
    for name in store.list(&folder(digest))? {
        store.remove(&name)?;
    }
    Ok(())
}

/// Lists a piece of work that nobody tries any more.
pub fn list_as_failed(
    store: &Store,
    digest: &str,
    title: &str,
    tries: &[Try],
) -> ttac_fleet::Result<Failed> {
    let last = tries.iter().rev().find_map(|one| one.problem.clone());
    let failed = Failed {
        title: title.to_owned(),
        tries: tries.len(),
        problem: last.unwrap_or_else(|| "every worker that tried it died".to_owned()),
    };
    let bytes = serde_json::to_vec(&failed).expect("a list is plain JSON");
    store.put(&failure(digest), &bytes)?;
    Ok(failed)
}

/// Reads what nobody tries any more.
pub fn failure_of(store: &Store, digest: &str) -> ttac_fleet::Result<Option<Failed>> {
    let bytes = store.get(&failure(digest))?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Lists the digests of what nobody tries any more.
pub fn failures(store: &Store) -> ttac_fleet::Result<Vec<String>> {
    let digest = |name: String| {
        let file = name.rsplit('/').next().unwrap_or_default();
        file.trim_end_matches(".json").to_owned()
    };
    Ok(store
        .list("fleet/failed")?
        .into_iter()
        .map(digest)
        .collect())
}

/// Lets it be tried again.
pub fn forgive(store: &Store, digest: &str) -> ttac_fleet::Result<()> {
    store.remove(&failure(digest))?;
    forget(store, digest)
}

fn folder(digest: &str) -> String {
    format!("fleet/tries/{digest}")
}

fn failure(digest: &str) -> String {
    format!("fleet/failed/{digest}.json")
}
