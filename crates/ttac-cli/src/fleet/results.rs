//! Results in a store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use tempfile::TempDir;
use ttac::protocol::FeatureRecord;
use ttac::report::CellRecord;
use ttac_fleet::Store;

/// Whether results that are there are replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    Yes,
    No,
}

/// Writes a cell, after the features that belong to it, so that a cell that is there is whole.
pub fn write(
    store: &Store,
    name: &str,
    cell: &CellRecord,
    features: Option<&FeatureRecord>,
    replace: Replace,
) -> anyhow::Result<()> {
    let put = |name: &str, bytes: &[u8]| match replace {
        Replace::Yes => store.put(name, bytes),
        Replace::No => store.create(name, bytes).map(|_| ()),
    };
    if let Some(features) = features {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("features");
        features.save(&file)?;
        let beside = FeatureRecord::path_beside(Path::new(name));
        put(&beside.to_string_lossy(), &std::fs::read(&file)?)?;
    }
    let json = serde_json::to_string(cell)?;
    put(name, format!("{json}\n").as_bytes())?;
    Ok(())
}

/// Tells which of some results are there and whole. In a bucket nothing is ever there that is not whole.
pub fn there(store: &Store, names: &[String]) -> anyhow::Result<BTreeSet<usize>> {
    if store.path("").is_some() {
        let whole = |name: &String| {
            let path = store.path(name).expect("it is a folder");
            CellRecord::load(&path).is_ok()
        };
        return Ok((0..names.len())
            .filter(|&index| whole(&names[index]))
            .collect());
    }
    let listed: BTreeSet<String> = store.list("")?.into_iter().collect();
    Ok((0..names.len())
        .filter(|&index| listed.contains(&names[index]))
        .collect())
}

/// Removes what lies in the place of a result and is none. Only a folder can hold half a file, from somebody who copied it there.
pub fn remove_damaged(store: &Store, name: &str) -> anyhow::Result<()> {
    let path = store.path(name).filter(|path| path.exists());
    if path.is_some_and(|path| CellRecord::load(&path).is_err()) {
        store.remove(name)?;
    }
    Ok(())
}

/// Whether a file is a record by its name.
fn is_record(name: &str) -> bool {
    Path::new(name).extension() == Some("json".as_ref())
}

/// Lists the results that are none of some names.
pub fn others(store: &Store, names: &[String]) -> anyhow::Result<Vec<String>> {
    let ours: BTreeSet<&String> = names.iter().collect();
    let mut all = store.list("")?;
    all.retain(|name| is_record(name) && !ours.contains(name));
    Ok(all)
}

/// Folders in which results can be read: those that were given, and copies of what lies in buckets.
pub struct Folders {
    pub paths: Vec<PathBuf>,
    _copies: Vec<TempDir>,
}

impl Folders {
    /// Takes paths of folders and addresses of stores.
    pub fn of(given: &[PathBuf]) -> anyhow::Result<Self> {
        let mut paths = Vec::new();
        let mut copies = Vec::new();
        for path in given {
            let address = path.to_str().filter(|text| text.contains("://"));
            let Some(address) = address else {
                paths.push(path.clone());
                continue;
            };
            let store = Store::open(address)?;
            if let Some(folder) = store.path("") {
                paths.push(folder);
                continue;
            }
            let copy = tempfile::tempdir()?;
            let mut found = false;
            for name in store.list("")? {
                if let Some(bytes) = store.get(&name)? {
                    ttac::write_atomically(&copy.path().join(&name), &bytes)?;
                    found |= is_record(&name);
                }
            }
            if !found {
                bail!("no cells of a grid in the store `{store}`");
            }
            paths.push(copy.path().to_owned());
            copies.push(copy);
        }
        Ok(Self {
            paths,
            _copies: copies,
        })
    }
}
