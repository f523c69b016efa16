//! Arguments that several commands share: which images to read, and which corruption they are under.

use std::path::PathBuf;

use ttac::data::{DATA_SETS, Split};
use ttac_corrupt::FROST_VARIABLE;

use super::parse::any_path;

/// Which images, and where they lie.
#[derive(Clone, Debug, clap::Args)]
pub struct Source {
    /// The data set
    #[arg(long, value_name = "NAME", help = data_help())]
    pub data: String,

    /// Where the data lies; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Which part: `train` or `test`
    #[arg(long, default_value = "test")]
    pub split: Split,
}

/// What happened to them.
#[derive(Clone, Debug, clap::Args)]
pub struct Corrupted {
    /// The corruption: read from the files of `cifar10-c`, `cifar100-c` and folders like those of
    /// ImageNet-C, and made on the fly of a clean set. `adapt` visits the corruptions of a list
    /// `snow,fog,..` one after the other
    #[arg(long, value_name = "NAME", requires = "severity")]
    pub corruption: Option<String>,

    /// How strong the corruption is, 1 to 5
    #[arg(long, value_name = "N", requires = "corruption")]
    pub severity: Option<u8>,

    /// Seed of a corruption that is made on the fly
    #[arg(long, value_name = "N", default_value = "0")]
    pub corruption_seed: u64,

    /// Photographs for frost that is made on the fly
    #[arg(long, value_name = "DIR", env = FROST_VARIABLE, value_parser = any_path())]
    frost_textures: Option<PathBuf>,
}

impl Corrupted {
    /// Returns where the photographs of frost lie. A variable of the environment that is empty counts as not set.
    pub fn frost_textures(&self) -> Option<PathBuf> {
        let named = self.frost_textures.as_ref();
        named.filter(|path| !path.as_os_str().is_empty()).cloned()
    }
}

/// The help of `--data`: every data set that can be opened, images first.
fn data_help() -> String {
    let names = |of_clouds: bool| {
        let sets = DATA_SETS.iter().filter(|set| set.of_clouds == of_clouds);
        let names: Vec<String> = sets.map(|set| format!("`{}`", set.name)).collect();
        names.join(", ")
    };
    format!(
        "The data set: {}; clouds of points: {}",
        names(false),
        names(true)
    )
}
