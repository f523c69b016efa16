//! CIFAR-10-C and CIFAR-100-C: one `.npy` file of images for every corruption, and `labels.npy`.
//!
//! `snow.npy` holds five blocks of rows, severity 1 first: row `i` of every block is test image `i`.
//! The published files have 10,000 rows to a block; any number divisible by five is read. Labels are
//! given for every row, or once for one block. Files are read batch by batch and never held whole.
//!
//! Folders that `ttac corrupt` wrote have a `manifest.json` that lists their severities, which may be
//! fewer than five.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::npy::{ImageArray, NpyImages, read_labels};
use super::problem::{absent, check_folder, contents, damaged};
use super::{CIFAR10_CLASSES, CIFAR100_CLASSES};
use crate::{Error, Result, nearest};

/// Blocks of a file that no manifest describes.
const SEVERITIES: [u8; 5] = [1, 2, 3, 4, 5];

/// Opens a corruption of CIFAR-10, named like its file without `.npy`, at severity 1 to 5.
pub fn open_cifar10_c(root: &Path, corruption: &str, severity: u8) -> Result<NpyImages> {
    open("cifar10-c", &CIFAR10_CLASSES, root, corruption, severity)
}

/// Opens a corruption of CIFAR-100, named like its file without `.npy`, at severity 1 to 5.
pub fn open_cifar100_c(root: &Path, corruption: &str, severity: u8) -> Result<NpyImages> {
    open("cifar100-c", &CIFAR100_CLASSES, root, corruption, severity)
}

/// Lists the corruptions that a folder of `cifar10-c` or `cifar100-c` holds, sorted by name.
pub fn cifar_c_corruptions(name: &'static str, root: &Path) -> Result<Vec<String>> {
    corruptions(name, root).map(|(_, present)| present)
}

fn open(
    name: &'static str,
    classes: &[&str],
    root: &Path,
    corruption: &str,
    severity: u8,
) -> Result<NpyImages> {
    check_severity(severity)?;
    let (folder, present) = corruptions(name, root)?;
    if !present.iter().any(|known| known == corruption) {
        return Err(unknown_corruption(corruption, &present));
    }
    let blocks = severities(name, &folder)?;
    let block = blocks.iter().position(|&block| block == severity);
    let block = block.ok_or_else(|| Error::Invalid {
        what: "severity",
        problem: format!("expected one of {blocks:?}, found {severity}"),
    })?;
    let path = folder.join(format!("{corruption}.npy"));
    let images = ImageArray::open(name, &path)?;
    if !images.count.is_multiple_of(blocks.len()) || images.count == 0 {
        let problem = format!(
            "expected a block of images for each severity {blocks:?}, found {} images",
            images.count
        );
        return Err(damaged(name, &path, problem));
    }
    let count = images.count / blocks.len();
    let first = block * count;
    let path = folder.join("labels.npy");
    let all = read_labels(name, &path, classes.len())?;
    let labels = match all.len() {
        found if found == images.count => all[first..first + count].to_vec(),
        found if found == count => all,
        found => {
            let problem = format!(
                "expected {} labels for `{corruption}.npy` (or {count}, one block), found {found}",
                images.count
            );
            return Err(damaged(name, &path, problem));
        }
    };
    Ok(NpyImages::new(name, classes, images, first, labels))
}

/// The folder of the files, which the archive puts one level down, and the corruptions in it.
fn corruptions(name: &'static str, root: &Path) -> Result<(PathBuf, Vec<String>)> {
    check_folder(name, root)?;
    let nested = root.join(match name {
        "cifar10-c" => "CIFAR-10-C",
        _ => "CIFAR-100-C",
    });
    for folder in [root, &nested] {
        if !folder.join("labels.npy").is_file() {
            continue;
        }
        let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
        let mut present: Vec<String> = entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                Some(name.strip_suffix(".npy")?.to_owned())
            })
            .filter(|stem| stem != "labels")
            .collect();
        present.sort();
        if !present.is_empty() {
            return Ok((folder.to_owned(), present));
        }
    }
    let expected = "expected `labels.npy` and a `.npy` file for every corruption";
    let problem = format!("{expected}, {}", contents(root));
    Err(absent(name, root, problem))
}

/// The severities of the blocks, in their order.
fn severities(name: &'static str, folder: &Path) -> Result<Vec<u8>> {
    #[derive(Deserialize)]
    struct Manifest {
        severities: Vec<u8>,
    }
    let path = folder.join("manifest.json");
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(SEVERITIES.to_vec()),
        Err(e) => return Err(Error::io("read", &path)(e)),
    };
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|e| damaged(name, &path, format!("not a manifest of corruptions ({e})")))?;
    if manifest.severities.is_empty() {
        return Err(damaged(name, &path, "it lists no severities".to_owned()));
    }
    Ok(manifest.severities)
}

/// Whether a severity is one of the five.
pub(super) fn check_severity(severity: u8) -> Result<()> {
    if SEVERITIES.contains(&severity) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "severity",
        problem: format!("expected 1 to 5, found {severity}"),
    })
}

pub(super) fn unknown_corruption(found: &str, present: &[String]) -> Error {
    let present = present.iter().map(String::as_str);
    let known = match nearest(found, present.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("there are `{}`", present.collect::<Vec<_>>().join("`, `")),
    };
    Error::Invalid {
        what: "corruption",
        problem: format!("there is no `{found}`; {known}"),
    }
}
