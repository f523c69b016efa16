//! Arguments of `eval`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::source::{Corrupted, Source};

#[derive(Debug, clap::Args)]
pub struct Eval {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    #[command(flatten)]
    pub source: Source,

    #[command(flatten)]
    pub corrupted: Corrupted,

    /// Leave out pictures that cannot be decoded, and count them; all are decoded once more
    #[arg(long)]
    pub skip_bad: bool,

    /// Refuse grey pictures instead of making RGB of them
    #[arg(long)]
    pub refuse_grey: bool,

    /// Only the first N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Images per forward pass; has no influence on the result
    #[arg(long, value_name = "N", default_value = "250")]
    pub batch_size: NonZeroUsize,

    /// Also write `id,label,predicted,confidence` for every image to this CSV file
    #[arg(long, value_name = "FILE")]
    pub predictions: Option<PathBuf>,
}
