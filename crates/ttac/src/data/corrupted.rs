//! A clean data set, corrupted as it is read.

use std::path::Path;

use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

use super::{Batch, Dataset, SampleId};
use crate::{Error, Result};

/// The images of a data set under one corruption, made when they are asked for. Image `i` is the same,
/// bit for bit, as that of the arrays which `ttac corrupt` writes with the same seed.
pub struct Corrupted {
    clean: Box<dyn Dataset>,
    corruptor: Corruptor,
    corruption: Corruption,
    severity: Severity,
}

impl Corrupted {
    /// A data set under a corruption of severity 1 to 5. Frost needs its photographs to be called
    /// frost: `frost-like` is the corruption without.
    pub fn new(
        clean: Box<dyn Dataset>,
        corruption: &str,
        severity: u8,
        seed: u64,
        frost_textures: Option<&Path>,
    ) -> Result<Self> {
        let wanted = if corruption == "frost-like" {
            "frost"
        } else {
            corruption
        };
        let wanted: Corruption = wanted.parse().map_err(|error| invalid(&error))?;
        let severity = Severity::try_from(severity).map_err(|error| invalid(&error))?;
        let mut corruptor = Corruptor::new(seed);
        if wanted == Corruption::Frost && corruption == "frost" {
            let Some(folder) = frost_textures else {
                return Err(Error::Invalid {
                    what: "corruption",
                    problem: "`frost` needs its photographs: give `--frost-textures` or set `TTAC_FROST`, or ask for `frost-like`".to_owned(),
                });
            };
            corruptor =
                corruptor.with_frost(FrostTextures::load(folder).map_err(|error| invalid(&error))?);
        }
        Ok(Self {
            clean,
            corruptor,
            corruption: wanted,
            severity,
        })
    }
}

/// An error of the corruptions, with its hint.
pub(super) fn invalid(error: &ttac_corrupt::Error) -> Error {
    let hint = error
        .hint()
        .map_or(String::new(), |hint| format!("; {hint}"));
    Error::Invalid {
        what: "corruption",
        problem: format!("{error}{hint}"),
    }
}

impl Dataset for Corrupted {
    fn name(&self) -> &'static str {
        self.clean.name()
    }

    fn len(&self) -> usize {
        self.clean.len()
    }

    fn classes(&self) -> Vec<String> {
        self.clean.classes()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut batch = self.clean.batch(ids)?;
        let images = &mut batch.samples.images;
        let (height, width) = (images.height, images.width);
        self.corruptor
            .apply_each(
                self.corruption,
                self.severity,
                &mut images.pixels,
                height,
                width,
                ids,
            )
            .map_err(|error| invalid(&error))?;
        Ok(batch)
    }

    fn labels(&self) -> Result<Vec<usize>> {
        self.clean.labels()
    }

    fn corruption(&self) -> Option<String> {
        let name = self.corruptor.name_of(self.corruption);
        let (severity, seed) = (self.severity.get(), self.corruptor.seed());
        Some(format!(
            "{name} {severity}, made on the fly with seed {seed}"
        ))
    }

    fn skipped(&self) -> usize {
        self.clean.skipped()
    }
}
