//! A clean data set, corrupted as it is read.

use std::fmt::Display;
use std::path::Path;

use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

use super::{Batch, Dataset, SampleId, SetInfo};
use crate::{Error, Remedy, Result};

/// The images of a data set under one corruption, made when they are asked for. Image `i` is the same,
/// bit for bit, as that of the arrays which `ttac corrupt` writes with the same seed.
pub struct Corrupted {
    info: SetInfo,
    clean: Box<dyn Dataset>,
    corruptor: Corruptor,
    corruption: Corruption,
    severity: Severity,
}

impl Corrupted {
    /// Puts a data set under a corruption of severity 1 to 5. Frost needs its photographs to be called
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
                return Err(Error::Needs {
                    what: "corruption",
                    problem: "`frost` needs its photographs".to_owned(),
                    remedy: Remedy::FrostPhotographs,
                });
            };
            corruptor =
                corruptor.with_frost(FrostTextures::load(folder).map_err(|error| invalid(&error))?);
        }
        let mut info = clean.info().clone();
        let name = corruptor.name_of(wanted);
        info.corruption = Some(on_the_fly(name, severity, seed));
        Ok(Self {
            info,
            clean,
            corruptor,
            corruption: wanted,
            severity,
        })
    }
}

/// A corruption in the words of a protocol card.
pub(super) fn on_the_fly(name: impl Display, severity: Severity, seed: u64) -> String {
    format!("{name} {severity}, made on the fly with seed {seed}")
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
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let clean = self.clean.batch(ids)?;
        let mut images = clean.samples.into_images()?;
        let (height, width) = (images.height, images.width);
        let pixels = &mut images.pixels;
        self.corruptor
            .apply_each(self.corruption, self.severity, pixels, height, width, ids)
            .map_err(|error| invalid(&error))?;
        Ok(Batch {
            samples: images.into(),
            ..clean
        })
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        self.clean.labels()
    }
}
