//! Reading and writing native checkpoints: safetensors with a header that is checked.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::tensor::{DType, Device, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use super::graph::check_sizes;
use super::report::{LoadReport, fill};
use crate::backbone::{Architecture, InputForm, Network, tensors};
use crate::input::InputContract;
use crate::{Error, Result, write_atomically};

/// The version of the header this program writes. A file with another one is refused.
pub const FORMAT: u32 = 1;

/// Key of the header in the metadata of the safetensors file.
const HEADER_KEY: &str = "ttac";

/// Describes the network in a checkpoint: how to build it, what to show it, where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of this header, [`FORMAT`].
    pub format: u32,
    /// The configuration of the network.
    pub architecture: Architecture,
    /// The names of the classes, in the order of the logits.
    pub classes: Vec<String>,
    /// What the network expects of its input.
    pub input: InputContract,
    /// The variation of the training samples.
    pub augmentation: Augmentation,
    /// The loss that the weights were trained with.
    pub objective: Objective,
    /// The program and the command that made the file.
    pub provenance: Provenance,
}

/// The way training samples were varied. Source statistics are made with the same variation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Augmentation {
    /// Nobody recorded how they were varied.
    Unknown,
    /// They were not varied.
    None,
    /// Images got four pixels of padding, were cropped at random to their size, and flipped from left to right.
    PadCropFlip,
    /// A random 20 to 100 % of an image's area was cut out, resized, and flipped from left to right.
    ResizedCropFlip,
    /// The same, with colour jitter and greyscale (SimCLR).
    Simclr,
    /// Clouds were scaled by 2/3 to 3/2 and shifted by up to 0.2 along every axis, and their points shuffled (DGCNN).
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
        if of_clouds == matches!(input, InputContract::Clouds { .. }) {
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

/// The loss that weights were trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The loss was cross-entropy alone.
    Plain,
    /// The loss was cross-entropy and a contrastive loss on the projection head.
    Simclr,
    /// The loss was cross-entropy and the cross-entropy of the rotation head.
    Rotation,
}

/// Tells how a checkpoint came to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The program that wrote it, with its version.
    pub program: String,
    /// The command line, or nothing if it was written by another program than the command.
    pub command: String,
    /// The name and BLAKE3 digest of the file that imported weights came from.
    pub source: Option<String>,
}

impl Header {
    /// Lists everything that is wrong with the header.
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
        // What a network takes can be asked of a valid one alone.
        let valid = self.architecture.validate().is_ok();
        if valid && let InputForm::Images { size, fixed: true } = self.architecture.input() {
            let fits = matches!(self.input, InputContract::Images { height, width, .. } if [height, width] == size);
            if !fits {
                let found = self.input.describe();
                let [height, width] = size;
                problems.push(format!("{found} for a network of {height} x {width} alone"));
            }
        }
        problems
    }
}

/// A trained network with its header, as a file holds them.
#[derive(Debug)]
pub struct Checkpoint {
    /// The description of the network.
    pub header: Header,
    /// The network with its weights.
    pub network: Network,
}

impl Checkpoint {
    /// Reads and checks a native checkpoint: version, header, every tensor's key, shape, type and
    /// finiteness.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let (header, found) = parse(path, &bytes)?;
        // A header must not make us allocate more than the file holds.
        if let Architecture::Graph(config) = &header.architecture {
            check_sizes(path, &config.graph, &found)?;
        }
        let blank = header.architecture.blank(device)?;
        let network = fill(path, &header.architecture, blank, found)?;
        Ok(Self { header, network })
    }

    /// Reads and checks the header alone.
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
        let architecture = &self.header.architecture;
        let (report, _) = LoadReport::sort(architecture, &self.network, values.clone());
        if !report.is_complete() {
            return Err(report.into_error(path, architecture));
        }
        let header = serde_json::to_string(&self.header).expect("a header is plain JSON");
        let metadata = HashMap::from([(HEADER_KEY.to_owned(), header)]);
        write_atomically(path, &serialise(&values, &[], Some(metadata)))
    }
}

/// Computes the identity of a trained network, a digest of its architecture and all its values. Statistics made
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

/// Returns the bytes of a safetensors file of f32 tensors, and of integer counters that are all zero.
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

/// Reads the header and the tensors of a native file.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Header, BTreeMap<String, TensorData>)> {
    let format_error = |problem: String, hint: Option<&str>| Error::Format {
        path: path.to_owned(),
        expected: "a ttac checkpoint",
        problem,
        hint: hint.map(str::to_owned),
    };
    let foreign = |problem: String| Error::Foreign {
        path: path.to_owned(),
        problem,
    };
    let (_, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|e| foreign(format!("not safetensors ({e})")))?;
    let text = metadata.metadata().as_ref().and_then(|m| m.get(HEADER_KEY));
    let text = text.ok_or_else(|| foreign("safetensors without a ttac header".to_owned()))?;
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

/// Converts a float tensor to f32. For another tensor the error is its type.
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
