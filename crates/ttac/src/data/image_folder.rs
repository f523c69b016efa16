//! Class folders of PNG and JPEG files: ImageNet, ImageNet-C, VisDA-C, PACS and your own.
//!
//! Classes are the folders in the order of their names; a folder without folders may be read as
//! unlabelled. Where the folder has parts (`train`, and `test`,
//! `val` or `validation`), the part is taken; with a corruption and a severity, `CORRUPTION/SEVERITY`
//! below it. What a model gets is described in [`ImageFolder`].

use std::fmt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::cifar_c::{check_severity, unknown_corruption};
use super::problem::contents;
use super::resize::{Rgb, shrink_and_crop};
use super::{Batch, Dataset, Images, OpenOptions, SampleId, Samples, Split};
use crate::{Error, Result};

const NAME: &str = "image-folder";

/// How many times longer than the other a side may be; beyond, resizing would take all memory.
const MAX_ASPECT: usize = 50;

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
    folder: PathBuf,
    classes: Vec<String>,
    /// File and class, class by class, files in the order of their names.
    files: Vec<(PathBuf, usize)>,
    skipped: Vec<(PathBuf, String)>,
    size: usize,
    refuse_grey: bool,
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, classes) = (self.files.len(), self.classes.len());
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
        let mut classes = folders(&folder)?;
        let mut wanted = options.classes.clone();
        wanted.sort();
        if wanted == classes {
            classes.clone_from(&options.classes);
        }
        let mut files = Vec::new();
        if classes.is_empty() && options.unlabelled {
            files.extend(pictures(&folder)?.into_iter().map(|path| (path, 0)));
        }
        if classes.is_empty() && files.is_empty() {
            let problem = format!("expected a folder for every class, {}", contents(&folder));
            return Err(lacking(&folder, problem));
        }
        for (label, class) in classes.iter().enumerate() {
            let folder = folder.join(class);
            let found = pictures(&folder)?;
            if found.is_empty() {
                let problem = format!("expected PNG or JPEG files, {}", contents(&folder));
                return Err(lacking(&folder, problem));
            }
            files.extend(found.into_iter().map(|path| (path, label)));
        }
        let mut set = Self {
            folder,
            classes,
            files,
            skipped: Vec::new(),
            size: options.size,
            refuse_grey: options.refuse_grey,
        };
        if options.skip_bad {
            set.skip_bad();
        }
        Ok(set)
    }

    /// The files that were left out, with what is wrong with them.
    pub fn skipped(&self) -> &[(PathBuf, String)] {
        &self.skipped
    }

    /// Decodes every file and leaves out those that fail.
    fn skip_bad(&mut self) {
        let problems: Vec<Option<String>> = (self.files.par_iter())
            .map(|(path, _)| self.decode(path).err())
            .collect();
        let files = std::mem::take(&mut self.files);
        for (file, problem) in files.into_iter().zip(problems) {
            match problem {
                None => self.files.push(file),
                Some(problem) => self.skipped.push((file.0, problem)),
            }
        }
    }

    /// An image as the model wants it, `[size, size, 3]`.
    fn decode(&self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("cannot be read ({e})"))?;
        // The decoder fills up what is missing of a JPEG with grey.
        if bytes.starts_with(&[0xff, 0xd8]) && !jpeg_has_end(&bytes) {
            return Err("not a whole PNG or JPEG (it ends before its last row)".to_owned());
        }
        let image = image::load_from_memory(&bytes)
            .map_err(|e| format!("not a whole PNG or JPEG ({e})"))?;
        let (height, width) = (image.height() as usize, image.width() as usize);
        if height.max(width) > MAX_ASPECT * height.min(width) {
            return Err(format!(
                "{width} x {height} pixels, expected sides that differ {MAX_ASPECT} times at most"
            ));
        }
        if self.refuse_grey && !image.color().has_color() {
            return Err("expected RGB, found a grey image".to_owned());
        }
        let pixels = image.into_rgb8().into_raw();
        let image = Rgb {
            height,
            width,
            pixels,
        };
        Ok(shrink_and_crop(image, self.size))
    }
}

/// Whether the end marker of a JPEG comes behind its pixels; a thumbnail in its header has one too.
fn jpeg_has_end(bytes: &[u8]) -> bool {
    let mut rest = &bytes[2..];
    loop {
        // Between markers lie pixels, in which 0xff is followed by 0x00 or a restart marker.
        let Some(at) = rest.windows(2).position(|pair| {
            pair[0] == 0xff && !matches!(pair[1], 0x00 | 0x01 | 0xd0..=0xd7 | 0xff)
        }) else {
            return false;
        };
        if rest[at + 1] == 0xd9 {
            return true;
        }
        // Every other marker opens a segment that says how long it is.
        let Some(&[high, low]) = rest[at + 2..].first_chunk() else {
            return false;
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(behind) = rest.get(at + 2 + length..) else {
            return false;
        };
        rest = behind;
    }
}

fn lacking(root: &Path, problem: String) -> Error {
    Error::Data {
        data: NAME,
        path: root.to_owned(),
        problem,
        hint: Some("`--root DIR` names the folder that holds a folder for every class; only `ttac adapt` takes pictures without classes".to_owned()),
    }
}

/// The folder of a split, where there is one that itself has folders; a class may be called `train`.
fn part(root: &Path, split: Split) -> Result<PathBuf> {
    let names: &[&str] = match split {
        Split::Train => &["train"],
        Split::Test => &["test", "val", "validation"],
    };
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
    fn name(&self) -> &'static str {
        NAME
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn classes(&self) -> Vec<String> {
        self.classes.clone()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let files: Vec<_> = ids.iter().map(|&id| &self.files[id as usize]).collect();
        let images: Vec<Vec<u8>> = (files.par_iter())
            .map(|(path, _)| {
                self.decode(path).map_err(|problem| Error::Data {
                    data: NAME,
                    path: path.clone(),
                    problem,
                    hint: Some(
                        "mend or remove the file, or leave such files out with `--skip-bad`"
                            .to_owned(),
                    ),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images {
                    height: self.size,
                    width: self.size,
                    pixels: images.concat(),
                },
            },
            labels: files.iter().map(|(_, label)| *label).collect(),
        })
    }

    fn labels(&self) -> Result<Vec<usize>> {
        Ok(self.files.iter().map(|(_, label)| *label).collect())
    }

    fn is_labelled(&self) -> bool {
        !self.classes.is_empty()
    }

    fn sample_name(&self, id: SampleId) -> Option<String> {
        let (path, _) = self.files.get(usize::try_from(id).ok()?)?;
        let below = path.strip_prefix(&self.folder).unwrap_or(path);
        Some(below.to_string_lossy().into_owned())
    }

    fn skipped(&self) -> usize {
        self.skipped.len()
    }
}
