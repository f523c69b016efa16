//! Arguments of `anchors`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use ttac::checkpoint::Augmentation;
use ttac::data::Split;
use ttac::stats::{CovarianceKind, SourceLabels};

use super::parse::json_value;

#[derive(Debug, clap::Args)]
pub struct Anchors {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    /// The data set the model was trained on, whose training images are used
    #[arg(long, value_name = "NAME")]
    pub data: String,

    /// Where the data lies; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Which part: `train` or `test`
    #[arg(long, default_value = "train")]
    pub split: Split,

    /// Only the first N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Where to write the anchors
    #[arg(long, short, value_name = "FILE", required_unless_present = "estimate")]
    pub out: Option<PathBuf>,

    /// How images are varied. The released program always takes `resized-crop-flip`
    #[arg(long, value_name = "KIND", default_value = "none", value_parser = json_value::<Augmentation>)]
    pub transform: Augmentation,

    /// Where classes come from: `predicted` by the model, as released, or `true` labels
    #[arg(long, value_name = "KIND", default_value = "predicted", value_parser = json_value::<SourceLabels>)]
    pub labels: SourceLabels,

    /// How much of the class covariances to keep: `full` or `diagonal`
    #[arg(long, value_name = "KIND", default_value = "full", value_parser = json_value::<CovarianceKind>)]
    pub class_covariance: CovarianceKind,

    /// Keep only the N largest directions of each class, and a ridge for the rest
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,

    /// Images in a batch whose moments feature alignment compares
    #[arg(long, value_name = "N", default_value = "1536")]
    pub alignment_batch: usize,

    /// Images per forward pass; has no influence on the result
    #[arg(long, value_name = "N", default_value = "250")]
    pub batch_size: NonZeroUsize,

    /// Seed of order and variation
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,

    /// Images that the network was not trained on, to calibrate the gate by: a split of the data set,
    /// `train` or `test`, or a folder of the same kind of data. Their labels are used once. Without
    /// this the source images serve, and the gate sees less
    #[arg(long, value_name = "SPLIT|DIR")]
    pub calibrate: Option<String>,

    /// How many of them: the last N of a split, so that its first ones are left for a stream; N of a
    /// folder, spread over all
    #[arg(long, value_name = "N", default_value = "2000", requires = "calibrate")]
    pub calibration_images: NonZeroUsize,

    /// How many source images, as they are, the reference moments of the norms are taken from, at
    /// most; 0 for none
    #[arg(long, value_name = "N", default_value = "10000")]
    pub reference_images: usize,

    /// How many source images, as they are, `eata` learns from which scales and shifts of the norms
    /// matter, at most; 0 for none
    #[arg(long, value_name = "N", default_value = "2000")]
    pub importance_images: usize,

    /// Have the features computed by the workers at a broker, chunk by chunk; any number of them gives
    /// the same bits as this machine alone
    #[arg(long, value_name = "URL", requires = "store")]
    pub queue: Option<String>,

    /// The store of chunks, `s3://BUCKET/PREFIX` or `file:///DIR`, that the workers have too
    #[arg(long, value_name = "URL", requires = "queue")]
    pub store: Option<String>,

    /// After how long without a word from its worker a chunk is given to another
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "queue")]
    pub ack_wait: NonZeroU64,

    /// Only say how much memory and disk it would take
    #[arg(long)]
    pub estimate: bool,
}
