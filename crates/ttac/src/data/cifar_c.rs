//! CIFAR-10-C and CIFAR-100-C: one `.npy` file of images for every corruption, and `labels.npy`.
//!
//! `snow.npy` holds five blocks of rows, severity 1 first: row `i` of every block is test image `i`.
//! The published files have 10,000 rows to a block; any number divisible by five is read. Labels are
//! given for every row, or once for one block. Files are read batch by batch and never held whole.
//!
//! Folders that `ttac corrupt` wrote have a `manifest.json` that lists their severities, which may be
//! fewer than five.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cifar::SIDE;
use super::npy::{ImageArray, read_labels};
use super::problem::{absent, contents, damaged};
use super::{Batch, CIFAR10_CLASSES, CIFAR100_CLASSES, Dataset, Images, SampleId, Samples};
use crate::{Error, Result, nearest};

/// Blocks of a file that no manifest describes.
const SEVERITIES: [u8; 5] = [1, 2, 3, 4, 5];

/// One corruption at one severity.
pub struct CifarC {
    name: &'static str,
    classes: &'static [&'static str],
    images: ImageArray,
    /// First row of the block.
    first: usize,
    /// `[count]`.
    labels: Vec<u8>,
}

impl fmt::Debug for CifarC {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.first + self.labels.len();
        write!(f, "CifarC({}, rows {}..{last})", self.name, self.first)
    }
}

impl CifarC {
    /// A corruption of CIFAR-10, named like its file without `.npy`, at severity 1 to 5.
    pub fn cifar10(root: &Path, corruption: &str, severity: u8) -> Result<Self> {
        Self::open("cifar10-c", &CIFAR10_CLASSES, root, corruption, severity)
    }

    /// A corruption of CIFAR-100, named like its file without `.npy`, at severity 1 to 5.
    pub fn cifar100(root: &Path, corruption: &str, severity: u8) -> Result<Self> {
        Self::open("cifar100-c", &CIFAR100_CLASSES, root, corruption, severity)
    }

    fn open(
        name: &'static str,
        classes: &'static [&'static str],
        root: &Path,
        corruption: &str,
        severity: u8,
    ) -> Result<Self> {
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
        Ok(Self {
            name,
            classes,
            images,
            first,
            labels,
        })
    }

    /// Names of the corruptions that a folder of either set holds, sorted.
    pub fn corruptions(name: &'static str, root: &Path) -> Result<Vec<String>> {
        corruptions(name, root).map(|(_, present)| present)
    }
}

/// The folder of the files, which the archive puts one level down, and the corruptions in it.
fn corruptions(name: &'static str, root: &Path) -> Result<(PathBuf, Vec<String>)> {
    if !root.is_dir() {
        return Err(absent(name, root, "no such folder".to_owned()));
    }
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

impl Dataset for CifarC {
    fn name(&self) -> &'static str {
        self.name
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        self.classes.iter().map(|&class| class.to_owned()).collect()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let labels: Vec<usize> = (ids.iter())
            .map(|&id| self.labels[id as usize].into())
            .collect();
        let rows = ids.iter().map(|&id| self.first + id as usize);
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images {
                    height: SIDE,
                    width: SIDE,
                    pixels: self.images.read(rows)?,
                },
            },
            labels,
        })
    }
}
