//! Stored streams without serving them: learning again from them, and whether they would go on.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::pools::Pool;
use super::served::Served;
use super::stream::lock;
use crate::Result;
use crate::api::{Health, Mode};
use crate::config::{Config, Loaded};
use crate::state::{Snapshot, StreamFolder, Survey, stream_folders};

/// What a stored stream comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The last record.
    pub sequence: u64,
    /// Records that were behind the newest snapshot.
    pub records: u64,
    /// The published version.
    pub version: u64,
    /// The digest of its weights.
    pub weights: String,
    /// The mode.
    pub mode: Mode,
    /// The health.
    pub health: Health,
    /// Images that were accepted.
    pub accepted: u64,
    /// Images that were learned from.
    pub learned: u64,
    /// Images whose values were not on disk.
    pub forgotten: u64,
    /// What is wrong with the log, if anything is.
    pub damage: Option<String>,
    /// The published weights as a ttac checkpoint.
    pub checkpoint: Vec<u8>,
}

/// Learns from what a stored stream's log has beyond its newest snapshot, and writes nothing to the folder. An unfinished end of the log is
/// passed over. The folder may not be served from meanwhile.
pub fn replay(config: &Config, folder: &StreamFolder) -> Result<Option<Replayed>> {
    let Some(card) = folder.card()? else {
        return Ok(None);
    };
    let Some(model) = config.models.get(&card.model) else {
        let known: Vec<String> = config.models.keys().cloned().collect();
        return Err(super::unknown_model(&card, folder, &known));
    };
    let served = Served::new(Loaded::read(&card.model, model)?, config)?;
    let stream = served.look(&card.stream, config, folder.clone())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Pool::updating(cores, false)?;
    let mut learning = lock(&stream.learning);
    let mut records = 0;
    while let Some((sequence, record)) = learning.next(&stream)? {
        let course = &mut learning.course;
        pool.run(|| course.apply(sequence, record));
        records += 1;
    }
    let standing = learning.course.standing();
    let checkpoint = served.checkpoint(&learning.course, standing.published.version)?;
    Ok(Some(Replayed {
        sequence: learning.course.memory().sequence,
        records,
        version: standing.published.version,
        weights: standing.published.digest.clone(),
        mode: standing.mode,
        health: standing.health,
        accepted: learning.course.memory().accepted,
        learned: standing.learned,
        forgotten: learning.course.memory().forgotten,
        damage: learning.damage.clone(),
        checkpoint,
    }))
}

/// Refuses stored streams that would not go on with a configuration, as a start does. It changes nothing, and the folder may be in use.
pub fn check_stored(config: &Config) -> Result<()> {
    let state = config.state.folder.as_ref();
    let Some(state) = state.filter(|folder| folder.join("streams").is_dir()) else {
        return Ok(());
    };
    let mut models: BTreeMap<String, Served> = BTreeMap::new();
    for folder in stream_folders(state)? {
        let Some(card) = folder.card()? else {
            continue;
        };
        let served = match models.entry(card.model.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let Some(model) = config.models.get(&card.model) else {
                    let known: Vec<String> = config.models.keys().cloned().collect();
                    return Err(super::unknown_model(&card, &folder, &known));
                };
                place.insert(Served::new(Loaded::read(&card.model, model)?, config)?)
            }
        };
        let mut found = Survey::of(&folder.log())?.belongs;
        if found.is_none() {
            // The log up to a snapshot is removed, so that there may be snapshots alone.
            let mut snapshots = folder.snapshots()?.into_iter();
            found = snapshots.find_map(|file| Some(Snapshot::load(&file.path).ok()?.belongs));
        }
        if let Some(found) = found {
            served.belongs(&card.stream)?.check(&found, folder.path())?;
        }
    }
    Ok(())
}

/// A stream is learned from on any thread.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<super::stream::Stream>>();
};
