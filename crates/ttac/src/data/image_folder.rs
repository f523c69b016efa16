//! Class folders of PNG and JPEG files: ImageNet, ImageNet-C, VisDA-C, PACS and your own.
//!
//! Classes are the folders in the order of their names or, where every folder is named as a class of the model, the model's, of which
//! some may have no pictures; a folder without folders may be read as
//! unlabelled. Where the folder has parts (`train`, and `test`,
//! `val` or `validation`), the part is taken; with a corruption and a severity, `CORRUPTION/SEVERITY`
//! below it, or the corruption is made on the fly where there are no such folders. What a model gets is described in [`ImageFolder`].

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use ttac_corrupt::Corruption;

use super::cifar_c::{check_severity, unknown_corruption};
use super::memory::pick;
use super::problem::{contents, wrong};
use super::{Batch, Dataset, Images, OpenOptions, Picture, SampleId, SetInfo, Split};
use crate::{Error, Remedy, Result};

const NAME: &str = "image-folder";

/// A file and its class, where it has one.
type Listed = (PathBuf, Option<usize>);

/// Files of class folders, decoded when asked for.
///
/// An image is decoded, its shorter side made 8/7 of the model's size (bilinear, antialiased, as Pillow
/// does it) and the middle cut out: 256 and 224 pixels for ImageNet. An image that has the model's size
/// already is used as it is. Grey images become RGB with three equal channels, or are refused if
/// [`OpenOptions::refuse_grey`] says so; an alpha channel is dropped; orientation tags are ignored.
///
/// Opening lists the folders and looks into no file: a file that cannot be decoded fails the batch it
/// is in, by its name. With [`OpenOptions::skip_bad`] every file is decoded once when opening, those that
/// fail are left out, and [`skipped`](Self::skipped) tells which.
pub struct ImageFolder {
    info: SetInfo,
    /// Class by class, files in the order of their names.
    files: Vec<PathBuf>,
    /// Classes of the files; none for a folder without class folders.
    labels: Option<Vec<usize>>,
    skipped: Vec<(PathBuf, String)>,
    size: usize,
    refuse_grey: bool,
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, classes) = (self.files.len(), self.info.classes.len());
        write!(f, "ImageFolder({files} images of {classes} classes)")
    }
}

impl ImageFolder {
    /// Lists the files of a folder.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self> {
        if !root.is_dir() {
            return Err(lacking(root, "no such folder".to_owned()));
        }
        if options.size == 0 {
            return Err(Error::Invalid {
                what: "image size",
                problem: "expected at least 1 pixel, found 0".to_owned(),
            });
        }
        let folder = corrupted(&part(root, split)?, options)?;
        let classes = classes(&folder, options)?;
        let files = files(&folder, &classes)?;
        if files.is_empty() {
            let problem = format!("expected a folder for every class, {}", contents(&folder));
            return Err(lacking(&folder, problem));
        }
        let mut set = Self {
            info: SetInfo::new(NAME, 0, classes),
            files: Vec::new(),
            labels: None,
            skipped: Vec::new(),
            size: options.size,
            refuse_grey: options.refuse_grey,
        };
        let files = if options.skip_bad {
            set.without_bad(files)
        } else {
            files
        };
        let (files, labels): (Vec<PathBuf>, Vec<Option<usize>>) = files.into_iter().unzip();
        let names = files.iter().map(|path| {
            let below = path.strip_prefix(&folder).unwrap_or(path);
            below.to_string_lossy().into_owned()
        });
        set.info.sample_names = Some(names.collect());
        set.info.len = files.len();
        set.info.skipped = set.skipped.len();
        set.labels = labels.into_iter().collect();
        set.files = files;
        Ok(set)
    }

    /// Tells whether a folder has corruptions below it, as ImageNet-C has, and not classes.
    pub(super) fn holds_corruptions(root: &Path, split: Split) -> Result<bool> {
        if !root.is_dir() {
            return Err(lacking(root, "no such folder".to_owned()));
        }
        let found = folders(&part(root, split)?)?;
        Ok(found.iter().any(|name| name.parse::<Corruption>().is_ok()))
    }

    /// Returns the files that were left out, with what is wrong with them.
    pub fn skipped(&self) -> &[(PathBuf, String)] {
        &self.skipped
    }

    /// Decodes every file; keeps those that succeed and notes the others.
    fn without_bad(&mut self, files: Vec<Listed>) -> Vec<Listed> {
        let problems: Vec<Option<String>> = (files.par_iter())
            .map(|(path, _)| self.decode(path).err())
            .collect();
        let mut kept = Vec::with_capacity(files.len());
        for (file, problem) in files.into_iter().zip(problems) {
            match problem {
                None => kept.push(file),
                Some(problem) => self.skipped.push((file.0, problem)),
            }
        }
        kept
    }

    /// An image as the model wants it, `[size, size, 3]`.
    fn decode(&self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("cannot be read ({e})"))?;
        let picture = Picture::read(&bytes, None)?;
        if self.refuse_grey && picture.is_grey() {
            return Err("expected RGB, found a grey image".to_owned());
        }
        Ok(picture.fit(self.size))
    }
}

fn lacking(root: &Path, problem: String) -> Error {
    wrong(NAME, root, problem, Remedy::ClassFolders)
}

/// The classes of a folder: the model's, in its order, where every folder is one of them, though some may have no folder; none for
/// pictures without classes.
fn classes(folder: &Path, options: &OpenOptions) -> Result<Vec<String>> {
    let found = folders(folder)?;
    if found.is_empty() && !options.unlabelled {
        let problem = format!("expected a folder for every class, {}", contents(folder));
        return Err(lacking(folder, problem));
    }
    let wanted: BTreeSet<&String> = options.classes.iter().collect();
    let known = !found.is_empty() && found.iter().all(|class| wanted.contains(class));
    Ok(if known {
        options.classes.clone()
    } else {
        found
    })
}

/// The pictures of all class folders with their classes; of the folder itself where there are no classes.
fn files(folder: &Path, classes: &[String]) -> Result<Vec<Listed>> {
    if classes.is_empty() {
        let found = pictures(folder)?.into_iter();
        return Ok(found.map(|path| (path, None)).collect());
    }
    let mut files = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let folder = folder.join(class);
        if !folder.is_dir() {
            continue;
        }
        let found = pictures(&folder)?;
        if found.is_empty() {
            let problem = format!("expected PNG or JPEG files, {}", contents(&folder));
            return Err(lacking(&folder, problem));
        }
        files.extend(found.into_iter().map(|path| (path, Some(label))));
    }
    Ok(files)
}

/// The folder of a split, where there is one that itself has folders; a class may be called `train`.
fn part(root: &Path, split: Split) -> Result<PathBuf> {
    let names: &[&str] = split.of(&["train"], &["test", "val", "validation"]);
    for name in names {
        let folder = root.join(name);
        if folder.is_dir() && !folders(&folder)?.is_empty() {
            return Ok(folder);
        }
    }
    Ok(root.to_owned())
}

/// The folder of a corruption and a severity, if they are asked for.
fn corrupted(root: &Path, options: &OpenOptions) -> Result<PathBuf> {
    let (corruption, severity) = match (&options.corruption, options.severity) {
        (None, None) => return Ok(root.to_owned()),
        (Some(corruption), Some(severity)) => (corruption, severity),
        _ => {
            return Err(Error::Invalid {
                what: "corruption",
                problem: "expected a corruption and a severity, found one of them".to_owned(),
            });
        }
    };
    check_severity(severity)?;
    let present = folders(root)?;
    if !present.contains(corruption) {
        return Err(unknown_corruption(corruption, &present));
    }
    let folder = root.join(corruption).join(severity.to_string());
    if !folder.is_dir() {
        return Err(lacking(&folder, "no such folder".to_owned()));
    }
    Ok(folder)
}

/// Names of the folders in a folder, sorted; hidden ones do not count.
fn folders(root: &Path) -> Result<Vec<String>> {
    list(root, |path, name| {
        (path.is_dir() && !name.starts_with('.')).then(|| name.to_owned())
    })
}

/// The PNG and JPEG files of a folder, sorted.
fn pictures(root: &Path) -> Result<Vec<PathBuf>> {
    list(root, |path, name| {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        let known = ["png", "jpg", "jpeg"].contains(&ending.as_str());
        (known && !name.starts_with('.')).then(|| path.to_owned())
    })
}

fn list<T: Ord>(root: &Path, keep: impl Fn(&Path, &str) -> Option<T>) -> Result<Vec<T>> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(root).map_err(Error::io("read", root))? {
        let entry = entry.map_err(Error::io("read", root))?;
        if let Some(name) = entry.file_name().to_str() {
            kept.extend(keep(&entry.path(), name));
        }
    }
    kept.sort();
    Ok(kept)
}

impl Dataset for ImageFolder {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let images: Vec<Vec<u8>> = (ids.par_iter())
            .map(|&id| {
                let path = &self.files[id as usize];
                let decoded = self.decode(path);
                decoded.map_err(|problem| wrong(NAME, path, problem, Remedy::LeaveOutUnreadable))
            })
            .collect::<Result<_>>()?;
        let images = Images {
            height: self.size,
            width: self.size,
            pixels: images.concat(),
        };
        Ok(Batch {
            ids: ids.to_vec(),
            samples: images.into(),
            labels: self.labels.as_ref().map(|labels| pick(labels, ids)),
        })
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        Ok(self.labels.clone())
    }
}
