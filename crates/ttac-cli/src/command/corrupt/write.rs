//! Corrupted images on disk: arrays as in CIFAR-10-C, or folders of pictures as in ImageNet-C.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};
use npyz::{DType, WriteOptions, WriterBuilder};
use rayon::prelude::*;
use serde::Serialize;
use ttac::data::{Batch, DatasetExt};
use ttac::{Error, write_atomically, write_atomically_with};
use ttac_corrupt::Corruption;

use super::Work;
use super::manifest::{Made, Manifest, Set, already_made};
use crate::args::Layout;
use crate::command::program;
use crate::progress::{Progress, Unit, say};

/// What was written, and what was there already.
pub struct Written {
    pub entries: Vec<Entry>,
    /// The number of images that were made.
    pub images: usize,
    /// The time of everything, reading and writing included.
    pub seconds: f64,
}

/// One corruption of a folder.
#[derive(Serialize)]
pub struct Entry {
    pub name: String,
    pub path: PathBuf,
    pub blake3: String,
    /// The speed of corrupting, without reading and writing; absent for what was there already.
    pub images_per_second: Option<f64>,
}

impl Work<'_> {
    /// Writes the corruptions that the folder does not have yet.
    pub fn write(&self, corruptions: &[Corruption], out: &Path) -> anyhow::Result<Written> {
        let start = Instant::now();
        fs::create_dir_all(out).map_err(Error::io("create", out))?;
        let labels = self.labels()?;
        let set = self.set(&labels);
        let path = out.join("manifest.json");
        let mut manifest = Manifest {
            corruptions: already_made(&path, &set)?,
            set,
        };
        if self.args.format == Layout::Npy {
            write_atomically(&out.join("labels.npy"), &labels)?;
        }

        let each = self.severities.len() * self.samples;
        let total = (corruptions.len() * each) as u64;
        let mut progress = Progress::new("corrupt", total, Unit::Images);
        let mut written = Written {
            entries: Vec::new(),
            images: 0,
            seconds: 0.0,
        };
        for &corruption in corruptions {
            let name = self.name_of(corruption);
            let known = manifest.corruptions.iter().find(|made| made.name == name);
            let (made, images_per_second) = match known {
                Some(made) if out.join(&made.path).exists() => {
                    progress.advance(each as u64);
                    (made.clone(), None)
                }
                _ => {
                    let (made, spent) = self.make(corruption, &manifest.set, out, &mut progress)?;
                    manifest.corruptions.retain(|other| other.name != name);
                    manifest.corruptions.push(made.clone());
                    write_atomically(&path, &serde_json::to_vec_pretty(&manifest)?)?;
                    written.images += each;
                    (made, Some(each as f64 / spent.as_secs_f64()))
                }
            };
            written.entries.push(Entry {
                path: out.join(&made.path),
                name: made.name,
                blake3: made.blake3,
                images_per_second,
            });
        }
        written.seconds = start.elapsed().as_secs_f64();
        Ok(written)
    }

    /// Describes what all files of the folder have in common.
    fn set(&self, labels: &[u8]) -> Set {
        let severities = self.severities.iter();
        Set {
            format: 1,
            program: program(),
            data: self.data.name().to_owned(),
            split: self.args.source.split.to_string(),
            layout: self.args.format,
            samples: self.samples,
            skipped: self.data.info().skipped,
            height: self.height,
            width: self.width,
            severities: severities.map(|severity| severity.get()).collect(),
            seed: self.args.seed,
            classes: self.data.classes().to_vec(),
            labels_blake3: blake3::hash(labels).to_hex().to_string(),
        }
    }

    /// Names the result of a corruption, and says so if it is not what was asked for.
    fn name_of(&self, corruption: Corruption) -> &'static str {
        let name = self.corruptor.name_of(corruption);
        if name != corruption.name() {
            say(&format!(
                "no photographs of frost, so a drawn texture is used and the result is called `{name}`; \
                 `--frost-textures DIR` takes photographs"
            ));
        }
        name
    }

    /// Writes one corruption, and returns how long the corrupting alone took.
    fn make(
        &self,
        corruption: Corruption,
        set: &Set,
        out: &Path,
        progress: &mut Progress,
    ) -> anyhow::Result<(Made, Duration)> {
        let name = self.corruptor.name_of(corruption);
        let shape = [
            self.severities.len() * set.samples,
            set.height,
            set.width,
            3,
        ];
        let mut hasher = blake3::Hasher::new();
        let (path, spent) = match set.layout {
            Layout::Npy => {
                let path = format!("{name}.npy");
                let file = out.join(&path);
                let spent = write_atomically_with(&file, |writer| {
                    let header = header(&shape.map(|side| side as u64));
                    let mut write = |bytes: &[u8]| {
                        hasher.update(bytes);
                        writer.write_all(bytes).map_err(Error::io("write", &file))
                    };
                    write(&header)?;
                    self.blocks(corruption, set, progress, |_, batch| {
                        Ok(write(&batch.samples.as_images()?.pixels)?)
                    })
                })?;
                (path, spent)
            }
            Layout::Folder => {
                let folder = UnfinishedFolder::new(out.join(name))?;
                let spent = self.blocks(corruption, set, progress, |severity, batch| {
                    hasher.update(&batch.samples.as_images()?.pixels);
                    let root = folder.path.join(severity.to_string());
                    write_pictures(&root, &set.classes, batch)
                })?;
                folder.finish()?;
                (name.to_owned(), spent)
            }
        };
        let made = Made {
            name: name.to_owned(),
            path,
            shape,
            random: corruption.is_random(),
            blake3: hasher.finalize().to_hex().to_string(),
        };
        Ok((made, spent))
    }

    /// Makes the content of `labels.npy`: a byte for every image, all severities one after the other.
    fn labels(&self) -> anyhow::Result<Vec<u8>> {
        let classes = self.data.classes().len();
        if classes > 256 && self.args.format == Layout::Npy {
            bail!("labels of {classes} classes do not fit into bytes; use `--format folder`");
        }
        let labels = self.data.known_labels()?.into_iter().take(self.samples);
        let labels: Vec<u8> = labels.map(|label| label as u8).collect();
        let labels = labels.repeat(self.severities.len());
        let mut bytes = header(&[labels.len() as u64]);
        bytes.extend(labels);
        Ok(bytes)
    }
}

/// Makes the header of an array of bytes in C order.
fn header(shape: &[u64]) -> Vec<u8> {
    let dtype = DType::Plain("|u1".parse().expect("bytes are a type of numpy"));
    WriteOptions::new_header_only()
        .dtype(dtype)
        .shape(shape)
        .writer(Vec::new())
        .write_header_only()
        .expect("memory can be written")
}

/// Writes `CLASS/ID.png` for every image.
fn write_pictures(root: &Path, classes: &[String], batch: &Batch) -> anyhow::Result<()> {
    let folder_of = |label: usize| root.join(classes[label].replace(['/', '\\'], "_"));
    for label in 0..classes.len() {
        let folder = folder_of(label);
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    }
    let images = batch.samples.as_images()?;
    let labels = batch.known_labels("data")?;
    let (height, width) = (images.height as u32, images.width as u32);
    images
        .pixels
        .par_chunks_exact(images.height * images.width * 3)
        .zip(&batch.ids)
        .zip(labels)
        .try_for_each(|((pixels, id), &label)| {
            let mut bytes = Vec::new();
            PngEncoder::new(&mut bytes).write_image(
                pixels,
                width,
                height,
                ExtendedColorType::Rgb8,
            )?;
            let path = folder_of(label).join(format!("{id:08}.png"));
            fs::write(&path, bytes).map_err(Error::io("write", &path))?;
            Ok(())
        })
}

/// A folder that has a temporary name until it is complete, and is removed if that never happens.
struct UnfinishedFolder {
    path: PathBuf,
    finished: PathBuf,
}

impl UnfinishedFolder {
    fn new(finished: PathBuf) -> anyhow::Result<Self> {
        if finished.exists() {
            bail!(
                "`{}` exists and is not in the manifest; remove it or choose another `--out`",
                finished.display()
            );
        }
        let name = finished.file_name().unwrap_or_default().to_string_lossy();
        let path = finished.with_file_name(format!(".{name}.part"));
        // A process that was killed left it.
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
        }
        fs::create_dir_all(&path).map_err(Error::io("create", &path))?;
        Ok(Self { path, finished })
    }

    fn finish(self) -> Result<(), Error> {
        if self.finished.exists() {
            fs::remove_dir_all(&self.finished).map_err(Error::io("remove", &self.finished))?;
        }
        fs::rename(&self.path, &self.finished).map_err(Error::io("write", &self.finished))
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        // A finished folder has another name by now; one that cannot be removed has to stay.
        let _ = fs::remove_dir_all(&self.path);
    }
}
