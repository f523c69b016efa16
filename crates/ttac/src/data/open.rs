//! Data sets by name.

use std::path::{Path, PathBuf};

use super::{
    Corrupted, CorruptedClouds, Dataset, DatasetExt, ImageFolder, ModelNet10Voxels, Shapes10,
    Solids10, Split, open_cifar10, open_cifar10_1, open_cifar10_c, open_cifar100, open_cifar100_c,
    open_fashion_mnist, open_mnist, open_modelnet40, open_modelnet40_c, open_usps,
};
use crate::input::InputContract;
use crate::{Error, Result, nearest};

/// Points that a corruption of clouds is made from, twice as many as it starts with.
const DENSE: usize = 2 * Solids10::POINTS;

type Opened = Result<Box<dyn Dataset>>;

/// A data set that [`open`] knows.
#[derive(Clone, Copy, Debug)]
pub struct NamedSet {
    /// The name that [`open`] takes.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Whether it holds clouds of points instead of images.
    pub of_clouds: bool,
    open: fn(&Path, Split, &OpenOptions) -> Opened,
}

/// Every data set that [`open`] knows. This is the one list of them.
pub const DATA_SETS: [NamedSet; 14] = [
    images(
        "cifar10",
        "CIFAR-10, in its binary files or as PNG sprites",
        |root, split, options| options.corrupt(open_cifar10(root, split)?),
    ),
    images(
        "cifar100",
        "CIFAR-100 with its fine labels, in its binary files",
        |root, split, options| options.corrupt(open_cifar100(root, split)?),
    ),
    images(
        "cifar10-c",
        "corrupted test images of CIFAR-10, in `.npy` files",
        |root, split, options| {
            let (corruption, severity) = options.of_files("cifar10-c", split)?;
            Ok(Box::new(open_cifar10_c(root, corruption, severity)?))
        },
    ),
    images(
        "cifar100-c",
        "corrupted test images of CIFAR-100, in `.npy` files",
        |root, split, options| {
            let (corruption, severity) = options.of_files("cifar100-c", split)?;
            Ok(Box::new(open_cifar100_c(root, corruption, severity)?))
        },
    ),
    images(
        "cifar10.1",
        "newer photographs of CIFAR-10's classes, test images only",
        |root, split, options| {
            test_only("cifar10.1", split)?;
            options.corrupt(open_cifar10_1(root)?)
        },
    ),
    images("mnist", "MNIST, in IDX files", |root, split, options| {
        options.corrupt(open_mnist(root, split, options.size)?)
    }),
    images(
        "fashion-mnist",
        "Fashion-MNIST, in IDX files",
        |root, split, options| options.corrupt(open_fashion_mnist(root, split, options.size)?),
    ),
    images(
        "usps",
        "USPS digits, in an HDF5 file",
        |root, split, options| options.corrupt(open_usps(root, split, options.size)?),
    ),
    images(
        "image-folder",
        "PNG and JPEG files in class folders: ImageNet, ImageNet-C and your own",
        |root, split, options| {
            if options.asks_for_clean() || ImageFolder::holds_corruptions(root, split)? {
                return Ok(Box::new(ImageFolder::open(root, split, options)?));
            }
            let clean = OpenOptions {
                corruption: None,
                severity: None,
                ..options.clone()
            };
            options.corrupt(ImageFolder::open(root, split, &clean)?)
        },
    ),
    images(
        "shapes10",
        "ten shapes drawn by code, no files",
        |_, split, options| options.corrupt(Shapes10::standard(split)),
    ),
    clouds(
        "solids10",
        "clouds of ten solids made by code, no files",
        |_, split, options| {
            options.corrupt_clouds(|points| {
                Ok(Box::new(Solids10::standard(split).with_points(points)))
            })
        },
    ),
    clouds(
        "modelnet40",
        "ModelNet40, in HDF5 or text files",
        |root, split, options| {
            options.corrupt_clouds(|points| open_modelnet40(root, split, points))
        },
    ),
    clouds(
        "modelnet40-c",
        "corrupted test clouds of ModelNet40, in `.npy` files",
        |root, split, options| {
            let (corruption, severity) = options.of_files("modelnet40-c", split)?;
            Ok(Box::new(open_modelnet40_c(root, corruption, severity)?))
        },
    ),
    clouds(
        "modelnet10-derived",
        "clouds drawn on the occupancy grids of ModelNet10",
        |root, split, options| {
            options
                .corrupt_clouds(|points| Ok(Box::new(ModelNet10Voxels::open(root, split, points)?)))
        },
    ),
];

const fn images(
    name: &'static str,
    about: &'static str,
    open: fn(&Path, Split, &OpenOptions) -> Opened,
) -> NamedSet {
    NamedSet {
        name,
        about,
        of_clouds: false,
        open,
    }
}

const fn clouds(
    name: &'static str,
    about: &'static str,
    open: fn(&Path, Split, &OpenOptions) -> Opened,
) -> NamedSet {
    NamedSet {
        of_clouds: true,
        ..images(name, about, open)
    }
}

/// Returns the names of the data sets that [`open`] knows.
pub fn data_names() -> [&'static str; DATA_SETS.len()] {
    DATA_SETS.map(|set| set.name)
}

/// Opens a data set by its name, one of [`DATA_SETS`], in the folder it lies in
/// (`shapes10` and `solids10` are made by code and look at no folder). A corruption of a clean set is made on the fly.
pub fn open(name: &str, root: &Path, split: Split, options: &OpenOptions) -> Opened {
    let Some(set) = DATA_SETS.iter().find(|set| set.name == name) else {
        return Err(Error::UnknownData {
            found: name.to_owned(),
            nearest: nearest(name, data_names()),
        });
    };
    (set.open)(root, split, options)
}

fn test_only(name: &str, split: Split) -> Result<()> {
    match split {
        Split::Test => Ok(()),
        Split::Train => Err(Error::Invalid {
            what: "split",
            problem: format!("`{name}` has no training images"),
        }),
    }
}

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
    /// Accept a folder of pictures without folders for classes: see [`SetInfo::is_labelled`](super::SetInfo::is_labelled).
    pub unlabelled: bool,
    /// Seed of corruptions that are made on the fly.
    pub corruption_seed: u64,
    /// Photographs for frost that is made on the fly.
    pub frost_textures: Option<PathBuf>,
    /// The model's classes. A folder that has the same ones takes their order, instead of the alphabet's.
    pub classes: Vec<String>,
}

impl OpenOptions {
    /// Makes options for a model that wants `size` rows and columns, without a corruption and without leniency.
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

    /// Makes options for a model with this input, without a corruption and without leniency.
    pub fn for_input(input: &InputContract) -> Self {
        Self::new(match *input {
            InputContract::Images { height, .. } => height,
            // A size that every set of images has, so that it is the model that objects to images.
            InputContract::Clouds { .. } => 32,
        })
    }

    /// Opens data for a model: samples of its size, classes in its order.
    pub fn for_model(input: &InputContract, classes: &[String]) -> Self {
        Self::for_input(input).with_classes(classes)
    }

    /// Sets the order of the classes, for folders that have the same ones.
    pub fn with_classes(mut self, classes: &[String]) -> Self {
        self.classes = classes.to_vec();
        self
    }

    /// Asks for one corruption at one severity.
    pub fn with_corruption(mut self, corruption: impl Into<String>, severity: u8) -> Self {
        self.corruption = Some(corruption.into());
        self.severity = Some(severity);
        self
    }

    /// Says whether to leave out files that cannot be read, and count them.
    pub fn with_skip_bad(mut self, skip_bad: bool) -> Self {
        self.skip_bad = skip_bad;
        self
    }

    /// Says whether to refuse grey images instead of making RGB of them.
    pub fn with_refuse_grey(mut self, refuse_grey: bool) -> Self {
        self.refuse_grey = refuse_grey;
        self
    }

    /// The corruption and severity that a set cannot do without.
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

    /// The corruption and severity of a set that has files of them, of test images only.
    fn of_files(&self, name: &str, split: Split) -> Result<(&str, u8)> {
        test_only(name, split)?;
        self.corrupted(name)
    }

    fn asks_for_clean(&self) -> bool {
        self.corruption.is_none() && self.severity.is_none()
    }

    /// A clean set under the corruption that was asked for, if one was.
    fn corrupt(&self, clean: impl Dataset + 'static) -> Opened {
        if self.asks_for_clean() {
            return Ok(Box::new(clean));
        }
        let (corruption, severity) = self.corrupted(clean.name())?;
        let textures = self.frost_textures.as_deref();
        let seed = self.corruption_seed;
        Ok(Box::new(Corrupted::new(
            Box::new(clean),
            corruption,
            severity,
            seed,
            textures,
        )?))
    }

    /// A set of clouds, of as many points as it needs, under the corruption that was asked for, if one was.
    fn corrupt_clouds(&self, open: impl FnOnce(usize) -> Opened) -> Opened {
        if self.asks_for_clean() {
            return open(Solids10::POINTS);
        }
        let clean = open(DENSE)?;
        let (corruption, severity) = self.corrupted(clean.name())?;
        let (seed, points) = (self.corruption_seed, Solids10::POINTS);
        Ok(Box::new(CorruptedClouds::new(
            clean, corruption, severity, seed, points,
        )?))
    }
}
