//! A stream at one moment, as a file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use ttac::SessionState;
use ttac::archive::{self, Array, Arrays, Kind};
use ttac::data::{Clouds, Images, Samples};

use super::disk;
use super::record::Sample;
use super::segment::Belongs;
use crate::{Error, Result};

/// Everything that a stream is after a record of its log.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What it was stored with.
    pub belongs: Belongs,
    /// The number of the last record that it contains.
    pub sequence: u64,
    /// The version of the weights.
    pub version: u64,
    /// The digest of the snapshot before.
    pub parent: Option<String>,
    /// What the guards remember, as JSON text.
    pub memory: String,
    /// Weights, optimiser, queue.
    pub session: SessionState,
    /// Images that wait for the rest of their learn batch.
    pub waiting: Vec<Sample>,
}

/// The header of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    belongs: Belongs,
    sequence: u64,
    version: u64,
    parent: Option<String>,
    program: String,
    memory: String,
    session: String,
    waiting: Vec<Waiting>,
}

/// An image that waits, without its values.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    client: String,
    request: String,
    /// Rows and columns of an image, or the number of points and zero.
    form: Option<(usize, usize)>,
}

const SESSION: &str = "session.";
const WAITING: &str = "waiting.";

impl Snapshot {
    /// Writes the file, atomically, and returns its digest.
    pub fn save(&self, path: &Path) -> Result<String> {
        let (session, inner) = self.session.clone().into_parts();
        let mut arrays = Arrays::default();
        for (name, array) in inner.0 {
            arrays.insert(format!("{SESSION}{name}"), array);
        }
        let mut waiting = Vec::new();
        for (place, sample) in self.waiting.iter().enumerate() {
            let name = format!("{WAITING}{place}");
            let form = match &sample.values {
                None => None,
                Some(Samples::Images(images)) => {
                    arrays.insert(name, Array::U8(images.pixels.clone()));
                    Some((images.height, images.width))
                }
                Some(Samples::Clouds(clouds)) => {
                    let values = clouds.values.clone();
                    arrays.insert(name, Array::F32(vec![values.len()], values));
                    Some((clouds.points, 0))
                }
            };
            waiting.push(Waiting {
                client: sample.client.clone(),
                request: sample.request.clone(),
                form,
            });
        }
        let header = Header {
            belongs: self.belongs.clone(),
            sequence: self.sequence,
            version: self.version,
            parent: self.parent.clone(),
            program: concat!("ttac-serve ", env!("CARGO_PKG_VERSION")).to_owned(),
            memory: self.memory.clone(),
            session,
            waiting,
        };
        let bytes = archive::to_bytes(Kind::Stream, &header, &arrays);
        disk::write(path, &bytes)?;
        Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
    }

    /// Reads a file and checks its digest.
    pub fn load(path: &Path) -> Result<Self> {
        let (header, mut arrays): (Header, _) = archive::load(path, Kind::Stream)?;
        let mut waiting = Vec::new();
        for (place, one) in header.waiting.into_iter().enumerate() {
            let array = arrays.0.remove(&format!("{WAITING}{place}"));
            let values = match (one.form, array) {
                (None, None) => None,
                (Some((height, width)), Some(Array::U8(pixels)))
                    if pixels.len() == 3 * height * width =>
                {
                    Some(Samples::Images(Images {
                        height,
                        width,
                        pixels,
                    }))
                }
                (Some((points, 0)), Some(Array::F32(_, values))) if values.len() == 3 * points => {
                    Some(Samples::Clouds(Clouds { points, values }))
                }
                _ => {
                    return Err(Error::Damaged {
                        path: path.to_owned(),
                        at: 0,
                        problem: format!("image {place} of those that wait is not whole"),
                    });
                }
            };
            waiting.push(Sample {
                client: one.client,
                request: one.request,
                values,
            });
        }
        let mut inner = Arrays::default();
        for (name, array) in arrays.0 {
            if let Some(name) = name.strip_prefix(SESSION) {
                inner.insert(name, array);
            }
        }
        Ok(Self {
            belongs: header.belongs,
            sequence: header.sequence,
            version: header.version,
            parent: header.parent,
            memory: header.memory,
            session: SessionState::from_parts(&header.session, inner)?,
            waiting,
        })
    }
}
