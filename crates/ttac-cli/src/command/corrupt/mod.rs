//! `ttac corrupt`: writes a data set as it looks in bad weather, through a bad lens or after bad
//! compression.
//!
//! Arrays are written in the layout of CIFAR-10-C, image folders in that of ImageNet-C. Images are
//! read, corrupted and written in blocks, so that memory does not grow with the data set. A file gets
//! its name once it is whole; `manifest.json` lists what is there, and a command that was interrupted
//! goes on where it stopped.

mod manifest;
mod write;

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::json;
use ttac::Error;
use ttac::data::{Batch, Dataset, DatasetExt, Images, OpenOptions, SampleId, Samples};
use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

use self::manifest::Set;
use super::{open, print};
use crate::args::{Corrupt, Options};
use crate::progress::Progress;
use crate::sheet::Sheet;

/// The most images in memory at a time.
const BLOCK_IMAGES: usize = 1000;
/// The most bytes of images in memory at a time.
const BLOCK_BYTES: usize = 1 << 25;

/// The number of pictures of every corruption and severity on a preview.
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
    let work = Work::new(args, corruptor, &*data, severities)?;

    let mut result = json!({
        "data": data.name(),
        "split": args.source.split.to_string(),
        "samples": work.samples,
    });
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

/// Opens the clean images.
fn images(args: &Corrupt) -> anyhow::Result<Box<dyn Dataset>> {
    let folder = args.source.data == "image-folder";
    let usual = if folder { 224 } else { 32 };
    let size = args.size.map_or(usual, NonZeroUsize::get);
    let options = OpenOptions::new(size).with_skip_bad(args.skip_bad);
    open(&args.source, &options)
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
    /// The number of images in memory at a time.
    block: usize,
}

impl<'a> Work<'a> {
    /// Refuses a data set without images.
    fn new(
        args: &'a Corrupt,
        corruptor: Corruptor,
        data: &'a dyn Dataset,
        severities: Vec<Severity>,
    ) -> anyhow::Result<Self> {
        let samples = args.subset.map_or(data.len(), |n| n.get().min(data.len()));
        if samples == 0 {
            bail!("{} {} has no images", data.name(), args.source.split);
        }
        let one = match data.batch(&[0])?.samples {
            Samples::Images(one) => one,
            clouds @ Samples::Clouds(_) => bail!(
                "`ttac corrupt` writes images, and `{}` has {}; `eval` and `adapt` corrupt clouds as they read them",
                data.name(),
                clouds.describe()
            ),
        };
        Ok(Self {
            args,
            corruptor,
            data,
            samples,
            severities,
            height: one.height,
            width: one.width,
            block: (BLOCK_BYTES / one.pixels.len()).clamp(1, BLOCK_IMAGES),
        })
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
                let mut images = batch.samples.into_images()?;
                if (images.height, images.width) != (set.height, set.width) {
                    return Err(Error::Mismatch {
                        what: "size of images in one array".to_owned(),
                        expected: format!("{} x {}", set.height, set.width),
                        found: format!("{} x {}", images.height, images.width),
                    }
                    .into());
                }
                let start = Instant::now();
                self.corrupt(corruption, severity, &mut images, first)?;
                batch.samples = images.into();
                spent += start.elapsed();
                take(severity, &batch)?;
                progress.advance(batch.ids.len() as u64);
            }
        }
        Ok(spent)
    }

    /// Corrupts a block whose first image has the given number.
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

    /// Reads a block of clean images from the given one on.
    fn block(&self, first: usize) -> anyhow::Result<Batch> {
        let end = (first + self.block).min(self.samples);
        let ids: Vec<SampleId> = (first as SampleId..end as SampleId).collect();
        Ok(self.data.batch(&ids)?)
    }

    /// Draws a row for every corruption: clean images, then one severity after the other.
    fn preview(&self, corruptions: &[Corruption], path: &Path) -> anyhow::Result<()> {
        let count = PREVIEWED.min(self.samples);
        let ids: Vec<SampleId> = (0..count as SampleId).collect();
        let clean = self.data.batch(&ids)?.samples.into_images()?;
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
