//! The native checkpoint: safetensors with a header that is checked.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::tensor::{DType, Device, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use super::LoadReport;
use crate::backbone::{Architecture, Network, load_tensors, tensors};
use crate::{Error, Result, write_atomically};

/// Version of the header. A file with a higher one is refused.
pub const FORMAT: u32 = 1;

/// Key of the header in the metadata of the safetensors file.
const HEADER_KEY: &str = "ttac";

/// What a checkpoint says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of this header, [`FORMAT`].
    pub format: u32,
    /// The network.
    pub architecture: Architecture,
    /// Names of the classes, in the order of the logits.
    pub classes: Vec<String>,
    /// What images have to look like.
    pub input: InputContract,
    /// How training images were varied.
    pub augmentation: Augmentation,
    /// What the weights were trained for.
    pub objective: Objective,
    /// How the file came to be.
    pub provenance: Provenance,
}

/// What a network expects of its input. Images: RGB, scaled to `[0, 1]`, then `(x - mean) / std`. Clouds: coordinates as they
/// are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputContract {
    /// Images, unless it says otherwise.
    #[serde(default, skip_serializing_if = "InputKind::is_image")]
    pub kind: InputKind,
    /// Rows; for clouds the points of those it was trained with.
    pub height: usize,
    /// Columns; for clouds [`Images::CLOUD_WIDTH`](crate::data::Images::CLOUD_WIDTH).
    pub width: usize,
    /// Mean per channel.
    pub mean: [f32; 3],
    /// Standard deviation per channel.
    pub std: [f32; 3],
}

/// What a network looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputKind {
    /// Pictures of one size.
    #[default]
    Image,
    /// Clouds of points.
    Points {
        /// The fewest points of a cloud: as many as the network takes for neighbours.
        fewest: usize,
    },
}

impl InputKind {
    fn is_image(&self) -> bool {
        *self == Self::Image
    }
}

/// How training images were varied. Source statistics are made with the same variation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Augmentation {
    /// Nobody recorded it.
    Unknown,
    /// None at all.
    None,
    /// Four pixels of padding, random crop, horizontal flip.
    PadCropFlip,
    /// Random resized crop of 20 to 100 % of the area, horizontal flip.
    ResizedCropFlip,
    /// The above with colour jitter and greyscale (SimCLR).
    Simclr,
    /// Of clouds: scaled by 2/3 to 3/2 and shifted by up to 0.2 along every axis, points shuffled (DGCNN).
    ScaleShift,
}

impl Augmentation {
    /// Refuses to vary clouds like images, or images like clouds.
    pub fn check(self, input: &InputContract) -> Result<()> {
        let of_clouds = match self {
            Self::Unknown | Self::None => return Ok(()),
            Self::ScaleShift => true,
            Self::PadCropFlip | Self::ResizedCropFlip | Self::Simclr => false,
        };
        if of_clouds == (input.kind != InputKind::Image) {
            return Ok(());
        }
        let (expected, found) = if of_clouds {
            ("clouds of points", "images")
        } else {
            ("images", "clouds of points")
        };
        Err(Error::Mismatch {
            what: format!("augmentation {self:?}"),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }
}

/// What the weights were trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Cross-entropy alone.
    Plain,
    /// Cross-entropy and a contrastive loss.
    Simclr,
    /// Cross-entropy and the prediction of rotations.
    Rotation,
}

/// How a checkpoint came to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Program and version that wrote it.
    pub program: String,
    /// The command line, if it was one.
    pub command: String,
    /// Name and BLAKE3 digest of the file the weights came from, for imported ones.
    pub source: Option<String>,
}

impl Header {
    /// Everything that is wrong with the header.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(Error::InvalidArchitecture { problems: found }) = self.architecture.validate() {
            problems.extend(found);
        }
        let (named, outputs) = (self.classes.len(), self.architecture.num_classes());
        if named != outputs {
            problems.push(format!("{named} class names for {outputs} classes"));
        }
        problems.extend(self.input.problems());
        let (height, width) = (self.input.height, self.input.width);
        if let Some(size) = self.architecture.fixed_image_size()
            && (height, width) != (size, size)
        {
            problems.push(format!(
                "images of {height} x {width} pixels for a network of {size} x {size} alone"
            ));
        }
        problems
    }
}

impl InputContract {
    /// Mean and standard deviation by name: `imagenet`, `cifar10`, `cifar100`, `none`.
    pub const NORMALISATIONS: [(&'static str, [f32; 3], [f32; 3]); 4] = [
        ("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        (
            "cifar10",
            [0.4914, 0.4822, 0.4465],
            [0.2023, 0.1994, 0.2010],
        ),
        (
            "cifar100",
            [0.5071, 0.4867, 0.4408],
            [0.2675, 0.2565, 0.2761],
        ),
        ("none", [0.0; 3], [1.0; 3]),
    ];

    /// Clouds of `points` points, or of any other number from `fewest` on.
    pub fn points(points: usize, fewest: usize) -> Self {
        Self {
            kind: InputKind::Points { fewest },
            height: points,
            width: crate::data::Images::CLOUD_WIDTH,
            mean: [0.0; 3],
            std: [1.0; 3],
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.height == 0 || self.width == 0 || self.height.max(self.width) > 10_000 {
            let (height, width) = (self.height, self.width);
            problems.push(format!("images of {height} x {width} pixels"));
        }
        if !self.mean.iter().all(|m| m.is_finite()) {
            problems.push(format!("mean {:?} is not finite", self.mean));
        }
        if !self.std.iter().all(|s| s.is_finite() && *s > 0.0) {
            problems.push(format!("standard deviation {:?} is not positive", self.std));
        }
        problems
    }
}

/// A network and what is known about it.
#[derive(Debug)]
pub struct Checkpoint {
    /// What the file says about itself.
    pub header: Header,
    /// The network.
    pub network: Network,
}

impl Checkpoint {
    /// Reads and checks a native checkpoint: version, header, every tensor's key, shape, type and
    /// finiteness.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let (header, found) = parse(path, &bytes)?;
        let blank = header.architecture.blank(device)?;
        let (report, fitting) = LoadReport::sort(&blank, found);
        if !report.is_complete() {
            return Err(Error::Weights {
                path: path.to_owned(),
                architecture: header.architecture.name(),
                report: Box::new(report),
            });
        }
        Ok(Self {
            header,
            network: load_tensors(blank, &fitting),
        })
    }

    /// Reads the header alone.
    pub fn load_header(path: &Path) -> Result<Header> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        Ok(parse(path, &bytes)?.0)
    }

    /// Writes the checkpoint, atomically. A header that does not describe the network, or weights
    /// that are not finite, are refused before anything is written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let problems = self.header.problems();
        if !problems.is_empty() {
            return Err(Error::Invalid {
                what: "checkpoint header",
                problem: problems.join("; "),
            });
        }
        let values = tensors(&self.network);
        let (report, _) = LoadReport::sort(&self.network, values.clone());
        if !report.is_complete() {
            return Err(Error::Weights {
                path: path.to_owned(),
                architecture: self.header.architecture.name(),
                report: Box::new(report),
            });
        }
        let header = serde_json::to_string(&self.header).expect("a header is plain JSON");
        let metadata = HashMap::from([(HEADER_KEY.to_owned(), header)]);
        write_atomically(path, &serialise(&values, &[], Some(metadata)))
    }
}

/// A digest of the architecture and all values: the identity of a trained network. Statistics made
/// with one network carry it, and are refused by another.
pub fn fingerprint(architecture: &Architecture, network: &Network) -> String {
    let config = serde_json::to_vec(architecture).expect("a configuration is plain JSON");
    let mut hasher = blake3::Hasher::new();
    hasher.update(&config);
    for (key, data) in tensors(network) {
        hasher.update(key.as_bytes());
        hasher.update(data.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The bytes of a safetensors file of f32 tensors, and of integer counters that are all zero.
pub(super) fn serialise(
    values: &BTreeMap<String, TensorData>,
    counters: &[String],
    metadata: Option<HashMap<String, String>>,
) -> Vec<u8> {
    let zero = 0_i64.to_le_bytes();
    let weights = values.iter().map(|(key, data)| {
        let view = TensorView::new(Dtype::F32, data.shape().to_vec(), data.as_bytes());
        (key, view)
    });
    let counters = counters
        .iter()
        .map(|key| (key, TensorView::new(Dtype::I64, Vec::new(), &zero)));
    let views = weights
        .chain(counters)
        .map(|(key, view)| (key, view.expect("shape and bytes agree")));
    safetensors::serialize(views, metadata).expect("serialising to memory cannot fail")
}

/// Header and tensors of a native file.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Header, BTreeMap<String, TensorData>)> {
    let format_error = |problem: String, hint: Option<&str>| Error::Format {
        path: path.to_owned(),
        expected: "a ttac checkpoint",
        problem,
        hint: hint.map(str::to_owned),
    };
    let import = "weights of other programs come in by `ttac import`";
    let (_, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|e| format_error(format!("not safetensors ({e})"), Some(import)))?;
    let text = metadata.metadata().as_ref().and_then(|m| m.get(HEADER_KEY));
    let text =
        text.ok_or_else(|| format_error("safetensors without a ttac header".into(), Some(import)))?;
    let version: Version = serde_json::from_str(text)
        .map_err(|e| format_error(format!("its header is no JSON of ours ({e})"), None))?;
    if version.format != FORMAT {
        return Err(format_error(
            format!("header version {}, expected {FORMAT}", version.format),
            Some("it was written by another version of ttac"),
        ));
    }
    let header: Header = serde_json::from_str(text)
        .map_err(|e| format_error(format!("its header is damaged ({e})"), None))?;
    let problems = header.problems();
    if !problems.is_empty() {
        return Err(format_error(
            format!("its header says: {}", problems.join("; ")),
            None,
        ));
    }
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| format_error(format!("damaged ({e})"), None))?;
    let found = file
        .tensors()
        .into_iter()
        .map(|(key, view)| {
            let data = to_data(&view).map_err(|dtype| {
                format_error(format!("tensor `{key}` is {dtype:?}, expected F32"), None)
            })?;
            Ok((key, data))
        })
        .collect::<Result<_>>()?;
    Ok((header, found))
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// A float tensor as f32; the type of any other.
pub(super) fn to_data(view: &TensorView<'_>) -> Result<TensorData, Dtype> {
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(other),
    };
    let data = TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype);
    Ok(data.convert::<f32>())
}
