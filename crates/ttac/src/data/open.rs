//! Data sets by name, as the command knows them.

use std::path::{Path, PathBuf};

use super::{
    Cifar10, Cifar10Dot1, Cifar100, CifarC, Corrupted, CorruptedClouds, Dataset, Idx, ImageFolder,
    ModelNet10Voxels, ModelNet40C, Shapes10, Solids10, Split, Usps, open_modelnet40,
};
use crate::{Error, Result, nearest};

/// Names of the data sets that [`open`] knows.
pub const DATA_NAMES: [&str; 14] = [
    "cifar10",
    "cifar100",
    "cifar10-c",
    "cifar100-c",
    "cifar10.1",
    "mnist",
    "fashion-mnist",
    "usps",
    "image-folder",
    "shapes10",
    "solids10",
    "modelnet40",
    "modelnet40-c",
    "modelnet10-derived",
];

/// Points that a corruption of clouds is made from, twice as many as it starts with.
const DENSE: usize = 2 * Solids10::POINTS;

/// What else decides how a data set is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Which corruption, where a set has files of them.
    pub corruption: Option<String>,
    /// Its severity, 1 to 5.
    pub severity: Option<u8>,
    /// Rows and columns that the model wants; sets of one size only leave it to the model to object.
    pub size: usize,
    /// Leave out files that cannot be read, and count them.
    pub skip_bad: bool,
    /// Refuse grey images instead of making RGB of them.
    pub refuse_grey: bool,
    /// Accept a folder of pictures without folders for classes: see [`Dataset::is_labelled`].
    pub unlabelled: bool,
    /// Seed of corruptions that are made on the fly.
    pub corruption_seed: u64,
    /// Photographs for frost that is made on the fly.
    pub frost_textures: Option<PathBuf>,
    /// The model's classes. A folder that has the same ones takes their order, instead of the alphabet's.
    pub classes: Vec<String>,
}

impl OpenOptions {
    /// For a model that wants `size` rows and columns; no corruption, no leniency.
    pub fn new(size: usize) -> Self {
        Self {
            corruption: None,
            severity: None,
            size,
            skip_bad: false,
            refuse_grey: false,
            unlabelled: false,
            corruption_seed: 0,
            frost_textures: None,
            classes: Vec::new(),
        }
    }

    /// The order of the classes, for folders that have the same ones.
    pub fn with_classes(mut self, classes: &[String]) -> Self {
        self.classes = classes.to_vec();
        self
    }

    /// One corruption at one severity.
    pub fn with_corruption(mut self, corruption: impl Into<String>, severity: u8) -> Self {
        self.corruption = Some(corruption.into());
        self.severity = Some(severity);
        self
    }

    /// Leave out files that cannot be read, and count them.
    pub fn with_skip_bad(mut self, skip_bad: bool) -> Self {
        self.skip_bad = skip_bad;
        self
    }

    /// Refuse grey images instead of making RGB of them.
    pub fn with_refuse_grey(mut self, refuse_grey: bool) -> Self {
        self.refuse_grey = refuse_grey;
        self
    }

    /// The corruption and severity that a `-c` set cannot do without.
    fn corrupted(&self, name: &str) -> Result<(&str, u8)> {
        match (&self.corruption, self.severity) {
            (Some(corruption), Some(severity)) => Ok((corruption, severity)),
            (None, _) => Err(Error::Invalid {
                what: "corruption",
                problem: format!("`{name}` needs one, e.g. `snow`"),
            }),
            (_, None) => Err(Error::Invalid {
                what: "severity",
                problem: format!("`{name}` needs one, 1 to 5"),
            }),
        }
    }

    /// A clean set under the corruption that was asked for, if one was.
    fn corrupt(&self, name: &str, clean: Box<dyn Dataset>) -> Result<Box<dyn Dataset>> {
        if self.corruption.is_none() && self.severity.is_none() {
            return Ok(clean);
        }
        let (corruption, severity) = self.corrupted(name)?;
        let textures = self.frost_textures.as_deref();
        let seed = self.corruption_seed;
        Ok(Box::new(Corrupted::new(
            clean, corruption, severity, seed, textures,
        )?))
    }
}

/// Opens a data set by its name, one of [`DATA_NAMES`], in the folder it lies in
/// (`shapes10` and `solids10` are made by code and look at no folder). A corruption of a clean set is made on the fly.
pub fn open(
    name: &str,
    root: &Path,
    split: Split,
    options: &OpenOptions,
) -> Result<Box<dyn Dataset>> {
    let size = options.size;
    let test_only = || match split {
        Split::Test => Ok(()),
        Split::Train => Err(Error::Invalid {
            what: "split",
            problem: format!("`{name}` has no training images"),
        }),
    };
    match name {
        "cifar10-c" | "cifar100-c" => {
            test_only()?;
            let (corruption, severity) = options.corrupted(name)?;
            Ok(Box::new(match name {
                "cifar10-c" => CifarC::cifar10(root, corruption, severity)?,
                _ => CifarC::cifar100(root, corruption, severity)?,
            }))
        }
        "modelnet40-c" => {
            test_only()?;
            let (corruption, severity) = options.corrupted(name)?;
            Ok(Box::new(ModelNet40C::open(root, corruption, severity)?))
        }
        "solids10" | "modelnet40" | "modelnet10-derived" => {
            let clean = options.corruption.is_none() && options.severity.is_none();
            let points = if clean { Solids10::POINTS } else { DENSE };
            let clouds: Box<dyn Dataset> = match name {
                "solids10" => Box::new(Solids10::standard(split).with_points(points)),
                "modelnet40" => open_modelnet40(root, split, points)?,
                _ => Box::new(ModelNet10Voxels::open(root, split, points)?),
            };
            if clean {
                return Ok(clouds);
            }
            let (corruption, severity) = options.corrupted(name)?;
            let (seed, points) = (options.corruption_seed, Solids10::POINTS);
            Ok(Box::new(CorruptedClouds::new(
                clouds, corruption, severity, seed, points,
            )?))
        }
        "image-folder" => Ok(Box::new(ImageFolder::open(root, split, options)?)),
        _ if DATA_NAMES.contains(&name) => {
            let clean: Box<dyn Dataset> = match name {
                "cifar10" => Box::new(Cifar10::open(root, split)?),
                "cifar100" => Box::new(Cifar100::open(root, split)?),
                "cifar10.1" => {
                    test_only()?;
                    Box::new(Cifar10Dot1::open(root)?)
                }
                "mnist" => Box::new(Idx::mnist(root, split, size)?),
                "fashion-mnist" => Box::new(Idx::fashion_mnist(root, split, size)?),
                "shapes10" => Box::new(Shapes10::standard(split)),
                _ => Box::new(Usps::open(root, split, size)?),
            };
            options.corrupt(name, clean)
        }
        unknown => Err(Error::UnknownData {
            found: unknown.to_owned(),
            nearest: nearest(unknown, DATA_NAMES),
        }),
    }
}
