//! `manifest.json`, which lists what a folder of corrupted images holds.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use ttac::Error;

use crate::args::Layout;

/// The content of `manifest.json`.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Manifest {
    #[serde(flatten)]
    pub set: Set,
    pub corruptions: Vec<Made>,
}

/// What all files of a folder have in common.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Set {
    pub format: u32,
    pub program: String,
    pub data: String,
    pub split: String,
    pub layout: Layout,
    /// The number of images of one corruption at one severity.
    pub samples: usize,
    /// The number of images of the data set that could not be read.
    pub skipped: usize,
    pub height: usize,
    pub width: usize,
    pub severities: Vec<u8>,
    pub seed: u64,
    pub classes: Vec<String>,
    /// The digest of `labels.npy`, also where the layout has no such file.
    pub labels_blake3: String,
}

/// One corruption that is complete.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Made {
    pub name: String,
    /// The name of a file, or of a folder, beside the manifest.
    pub path: String,
    /// The shape of the array, `[severities * samples, height, width, 3]`.
    pub shape: [usize; 4],
    /// Whether the images depend on the seed.
    pub random: bool,
    /// The digest of the file, or of the pixels in the order of an array.
    pub blake3: String,
}

/// Reads what an earlier command left in the folder. An error says how it differs if it belongs to
/// another set.
pub fn already_made(path: &Path, set: &Set) -> anyhow::Result<Vec<Made>> {
    let text = match fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("read", path))?,
    };
    let foreign = |problem: String| Error::Format {
        path: path.to_owned(),
        expected: "the manifest of these images",
        problem,
        hint: Some("choose another folder with `--out`, or remove this one".to_owned()),
    };
    let found: Manifest = serde_json::from_slice(&text).map_err(|e| foreign(e.to_string()))?;
    if found.set == *set {
        return Ok(found.corruptions);
    }
    let (expected, found) = (
        serde_json::to_value(set)?,
        serde_json::to_value(&found.set)?,
    );
    let fields = expected.as_object().into_iter().flatten();
    let differing: Vec<String> = fields
        .filter(|(field, value)| found[*field] != **value)
        .map(|(field, value)| format!("expected {field} {value}, found {}", found[field]))
        .collect();
    Err(foreign(differing.join("; ")).into())
}
