//! `ttac corrupt`: a data set as it looks in bad weather, through a bad lens, after bad compression.
//!
//! Arrays are written in the layout of CIFAR-10-C, image folders in that of ImageNet-C. Images are
//! read, corrupted and written in blocks, so that memory does not grow with the data set. A file gets
//! its name once it is whole; `manifest.json` lists what is there, and a command that was interrupted
//! goes on where it stopped.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};
use npyz::{DType, WriteOptions, WriterBuilder};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::json;
use ttac::data::{Batch, Dataset, Images, OpenOptions, SampleId};
use ttac::{Error, write_atomically, write_atomically_with};
use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

use super::{open, print};
use crate::args::{Corrupt, Layout, Options};
use crate::progress::{Progress, Unit, say};
use crate::sheet::Sheet;

/// At most so many images and bytes are in memory at a time.
const BLOCK_IMAGES: usize = 1000;
const BLOCK_BYTES: usize = 1 << 25;

/// Pictures of every corruption and severity on a preview.
const PREVIEWED: usize = 2;

pub fn run(args: &Corrupt, options: &Options) -> anyhow::Result<()> {
    let corruptions = match args.corruption.as_deref() {
        None => Corruption::ALL.to_vec(),
        Some("all") => Corruption::STANDARD.to_vec(),
        Some("held-out") => Corruption::HELD_OUT.to_vec(),
        Some(name) => vec![name.parse()?],
    };
    let severities = match args.severity.as_deref() {
        None | Some("all") => Severity::ALL.to_vec(),
        Some(number) => vec![number.parse()?],
    };
    let frost = FrostTextures::find(args.frost_textures.as_deref())?;
    let corruptor = Corruptor::new(args.seed).with_frost(frost);
    let data = images(args)?;
    let samples = args.subset.map_or(data.len(), |n| n.get().min(data.len()));
    if samples == 0 {
        bail!("{} {} has no images", data.name(), args.source.split);
    }
    let one = data.batch(&[0])?.samples.images;
    if one.width == Images::CLOUD_WIDTH {
        bail!(
            "`ttac corrupt` writes images, and `{}` has {}; `eval` and `adapt` corrupt clouds as they read them",
            data.name(),
            one.describe()
        );
    }
    let work = Work {
        args,
        corruptor,
        data: &*data,
        samples,
        severities,
        height: one.height,
        width: one.width,
        block: (BLOCK_BYTES / one.pixels.len()).clamp(1, BLOCK_IMAGES),
    };

    let mut result =
        json!({ "data": data.name(), "split": args.source.split.to_string(), "samples": samples });
    let mut text = String::new();
    if let Some(out) = &args.out {
        let written = work.write(&corruptions, out)?;
        for entry in &written.entries {
            let name = &entry.name;
            match entry.images_per_second {
                Some(speed) => writeln!(text, "{name:<18} {speed:>8.0} images/s")?,
                None => writeln!(text, "{name:<18} already there")?,
            }
        }
        let (images, seconds) = (written.images, written.seconds);
        writeln!(
            text,
            "{images} images in {seconds:.1} s with reading and writing, in {}",
            out.display()
        )?;
        result["out"] = json!(out);
        result["images"] = json!(images);
        result["seconds"] = json!(seconds);
        result["corruptions"] = json!(written.entries);
    }
    if let Some(path) = &args.preview {
        work.preview(&corruptions, path)?;
        writeln!(text, "contact sheet in {}", path.display())?;
        result["preview"] = json!(path);
    }
    print(options.json, &result, text.trim_end())
}

/// What is to be done, with everything it needs.
struct Work<'a> {
    args: &'a Corrupt,
    corruptor: Corruptor,
    data: &'a dyn Dataset,
    samples: usize,
    severities: Vec<Severity>,
    height: usize,
    width: usize,
    /// Images in memory at a time.
    block: usize,
}

fn images(args: &Corrupt) -> anyhow::Result<Box<dyn Dataset>> {
    let folder = args.source.data == "image-folder";
    let usual = if folder { 224 } else { 32 };
    let size = args.size.map_or(usual, NonZeroUsize::get);
    let options = OpenOptions::new(size).with_skip_bad(args.skip_bad);
    open(&args.source, &options)
}

/// What `manifest.json` says.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Manifest {
    #[serde(flatten)]
    set: Set,
    corruptions: Vec<Made>,
}

/// What all files of a folder have in common.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Set {
    format: u32,
    program: String,
    data: String,
    split: String,
    layout: Layout,
    /// Images of one corruption at one severity.
    samples: usize,
    /// Images of the data set that could not be read.
    skipped: usize,
    height: usize,
    width: usize,
    severities: Vec<u8>,
    seed: u64,
    classes: Vec<String>,
    /// Of `labels.npy` as it is, or would be.
    labels_blake3: String,
}

/// One corruption that is complete.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Made {
    name: String,
    /// A file, or a folder, beside the manifest.
    path: String,
    /// `[severities * samples, height, width, 3]`
    shape: [usize; 4],
    /// Whether it depends on the seed.
    random: bool,
    /// Of the file, or of the pixels in the order of an array.
    blake3: String,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    path: PathBuf,
    blake3: String,
    /// While corrupting, without reading and writing; none for what was there already.
    images_per_second: Option<f64>,
}

struct Written {
    entries: Vec<Entry>,
    images: usize,
    seconds: f64,
}

impl Work<'_> {
    fn write(&self, corruptions: &[Corruption], out: &Path) -> anyhow::Result<Written> {
        let start = Instant::now();
        fs::create_dir_all(out).map_err(Error::io("create", out))?;
        let labels = self.labels()?;
        let set = Set {
            format: 1,
            program: concat!("ttac ", env!("CARGO_PKG_VERSION")).to_owned(),
            data: self.data.name().to_owned(),
            split: self.args.source.split.to_string(),
            layout: self.args.format,
            samples: self.samples,
            skipped: self.data.skipped(),
            height: self.height,
            width: self.width,
            severities: self
                .severities
                .iter()
                .map(|severity| severity.get())
                .collect(),
            seed: self.args.seed,
            classes: self.data.classes(),
            labels_blake3: blake3::hash(&labels).to_hex().to_string(),
        };
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
            let name = self.corruptor.name_of(corruption);
            if name != corruption.name() {
                say(&format!(
                    "no photographs of frost, so a drawn texture is used and the result is called `{name}`; \
                     `--frost-textures DIR` takes photographs"
                ));
            }
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

    /// Writes one corruption; says how long the corrupting alone took.
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
                        Ok(write(&batch.samples.images.pixels)?)
                    })
                })?;
                (path, spent)
            }
            Layout::Folder => {
                let finished = out.join(name);
                if finished.exists() {
                    bail!(
                        "`{}` exists and is not in the manifest; remove it or choose another `--out`",
                        finished.display()
                    );
                }
                let folder = Unfinished::new(finished)?;
                let spent = self.blocks(corruption, set, progress, |severity, batch| {
                    hasher.update(&batch.samples.images.pixels);
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

    /// Hands all corrupted images to `take`, severity by severity, in blocks.
    fn blocks(
        &self,
        corruption: Corruption,
        set: &Set,
        progress: &mut Progress,
        mut take: impl FnMut(Severity, &Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        let mut spent = Duration::ZERO;
        for &severity in &self.severities {
            for first in (0..self.samples).step_by(self.block) {
                let mut batch = self.block(first)?;
                let images = &mut batch.samples.images;
                if (images.height, images.width) != (set.height, set.width) {
                    return Err(Error::Mismatch {
                        what: "size of images in one array".to_owned(),
                        expected: format!("{} x {}", set.height, set.width),
                        found: format!("{} x {}", images.height, images.width),
                    }
                    .into());
                }
                let start = Instant::now();
                self.corrupt(corruption, severity, images, first)?;
                spent += start.elapsed();
                take(severity, &batch)?;
                progress.advance(batch.labels.len() as u64);
            }
        }
        Ok(spent)
    }

    fn corrupt(
        &self,
        corruption: Corruption,
        severity: Severity,
        images: &mut Images,
        first: usize,
    ) -> anyhow::Result<()> {
        let (height, width) = (images.height, images.width);
        let pixels = &mut images.pixels;
        self.corruptor
            .apply_in_place(corruption, severity, pixels, height, width, first as u64)?;
        Ok(())
    }

    /// Clean images from the given one on.
    fn block(&self, first: usize) -> anyhow::Result<Batch> {
        let end = (first + self.block).min(self.samples);
        let ids: Vec<SampleId> = (first as SampleId..end as SampleId).collect();
        Ok(self.data.batch(&ids)?)
    }

    /// `labels.npy`: a byte for every image, all severities one after the other.
    fn labels(&self) -> anyhow::Result<Vec<u8>> {
        let classes = self.data.classes().len();
        if classes > 256 && self.args.format == Layout::Npy {
            bail!("labels of {classes} classes do not fit into bytes; use `--format folder`");
        }
        let mut labels = Vec::with_capacity(self.samples);
        for first in (0..self.samples).step_by(self.block) {
            labels.extend(self.block(first)?.labels.iter().map(|&label| label as u8));
        }
        let labels = labels.repeat(self.severities.len());
        let mut bytes = header(&[labels.len() as u64]);
        bytes.extend(labels);
        Ok(bytes)
    }

    /// One row for every corruption: clean images, then one severity after the other.
    fn preview(&self, corruptions: &[Corruption], path: &Path) -> anyhow::Result<()> {
        let count = PREVIEWED.min(self.samples);
        let ids: Vec<SampleId> = (0..count as SampleId).collect();
        let clean = self.data.batch(&ids)?.samples.images;
        let mut sheet = Sheet::new(count * (1 + self.severities.len()));
        for &corruption in corruptions {
            let mut row = clean.clone();
            for &severity in &self.severities {
                let mut images = clean.clone();
                self.corrupt(corruption, severity, &mut images, 0)?;
                row.pixels.extend(images.pixels);
            }
            sheet.push(self.corruptor.name_of(corruption), row);
        }
        sheet.save(path)
    }
}

/// What an earlier command left in the folder, if it belongs to the same set.
fn already_made(path: &Path, set: &Set) -> anyhow::Result<Vec<Made>> {
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

/// The header of an array of bytes in C order.
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
    let images = &batch.samples.images;
    let (height, width) = (images.height as u32, images.width as u32);
    images
        .pixels
        .par_chunks_exact(images.height * images.width * 3)
        .zip(&batch.samples.ids)
        .zip(&batch.labels)
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

/// A folder that has a temporary name until it is complete, and is removed if it never is.
struct Unfinished {
    path: PathBuf,
    finished: PathBuf,
}

impl Unfinished {
    fn new(finished: PathBuf) -> Result<Self, Error> {
        let name = finished.file_name().unwrap_or_default().to_string_lossy();
        let path = finished.with_file_name(format!(".{name}.part"));
        // What a killed process left.
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

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Gone already where it was finished; nothing to be done where it cannot be removed.
        let _ = fs::remove_dir_all(&self.path);
    }
}
