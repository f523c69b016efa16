//! A file that `torch.export.save` wrote, with other weights in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use burn::tensor::TensorData;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::super::program::Values;
use super::container::{Container, Layout};
use super::fault::Fault;
use super::refuse;
use super::storage::{is_float, rounded};
use super::tensors::{Placed, place};
use crate::{Error, Result, write_file_atomically};

/// Where the data of every record begins, in bytes: a multiple of this, as PyTorch has it.
const ALIGNMENT: u16 = 64;

/// What became of the tensors of a file whose weights were replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The keys whose values were replaced, all names of tied weights among them.
    pub replaced: Vec<String>,
    /// The keys whose values are not floating-point numbers and were left as they are, such as `bn1.num_batches_tracked`.
    pub kept: Vec<String>,
}

/// Copies a file that `torch.export.save` of PyTorch 2.9 or later wrote, with new weights in it.
///
/// `weights` has the values of every floating-point tensor of the `state_dict`, by its key and in PyTorch's shape; of tied weights one
/// name is enough. They are written in the type of element and in the strides of the original. All other records are copied as
/// they are. The file `out` is whole or not there, and may be the original.
pub fn replace_weights(
    original: &Path,
    weights: &BTreeMap<String, TensorData>,
    out: &Path,
) -> Result<Report> {
    let file = File::open(original).map_err(Error::io("read", original))?;
    let in_original = |fault: Fault| refuse(fault, original);
    let mut container = Container::open(BufReader::new(file)).map_err(in_original)?;
    if container.layout != Layout::Raw {
        return Err(in_original(Fault::new(
            "its weights are pickled, as PyTorch up to 2.8 wrote them, and cannot be replaced",
            "export the network again with PyTorch 2.9 or newer",
        )));
    }
    container.check_byte_order().map_err(in_original)?;
    let placed = place(&mut container, &[]).map_err(in_original)?;
    let (report, records) = plan(original, placed, weights)?;
    write_file_atomically(out, |file| {
        copy(&mut container, &records, file).map_err(|failure| match failure {
            Failure::Read(fault) => in_original(fault),
            Failure::Weights(problem) => invalid(problem),
            Failure::Write(source) => Error::io("write", out)(source),
        })
    })?;
    Ok(report)
}

/// The tensors with new values, by record.
type Records = BTreeMap<String, Vec<(Placed, Vec<f32>)>>;

/// Holds the weights against the tensors of the file.
fn plan(
    original: &Path,
    placed: Vec<Placed>,
    weights: &BTreeMap<String, TensorData>,
) -> Result<(Report, Records)> {
    let mut problems = Vec::new();
    let (floats, others): (Vec<_>, Vec<_>) =
        placed.into_iter().partition(|one| is_float(one.element));
    let mut report = Report {
        replaced: floats.iter().map(|one| one.key.clone()).collect(),
        kept: others.into_iter().map(|one| one.key).collect(),
    };
    report.replaced.sort();
    report.kept.sort();
    let given: BTreeSet<(String, _)> = floats
        .iter()
        .filter(|one| weights.contains_key(&one.key))
        .map(|one| (one.record.clone(), one.view.clone()))
        .collect();
    let unknown = weights.keys().filter(|key| {
        report.replaced.binary_search(key).is_err() && report.kept.binary_search(key).is_err()
    });
    problems.extend(unknown.map(|key| format!("`{key}` is not in the file")));
    let mut records = Records::new();
    for one in floats {
        let Some(data) = weights.get(&one.key) else {
            if !given.contains(&(one.record.clone(), one.view.clone())) {
                problems.push(format!("`{}` is missing", one.key));
            }
            continue;
        };
        if data.shape().to_vec() != one.view.sizes {
            problems.push(format!(
                "`{}` has the shape {:?}, the file {:?}",
                one.key,
                data.shape().to_vec(),
                one.view.sizes
            ));
        } else if data.dtype().is_float() {
            let values = data.iter::<f32>().collect();
            let record = records.entry(one.record.clone()).or_default();
            record.push((one, values));
        } else {
            problems.push(format!("`{}` has no floating-point numbers", one.key));
        }
    }
    if problems.is_empty() {
        return Ok((report, records));
    }
    Err(invalid(format!(
        "they do not fit `{}`: {}",
        original.display(),
        problems.join("; ")
    )))
}

fn invalid(problem: String) -> Error {
    Error::Invalid {
        what: "weights",
        problem,
    }
}

/// What can fail while the copy is written.
enum Failure {
    Read(Fault),
    Weights(String),
    Write(std::io::Error),
}

impl From<zip::result::ZipError> for Failure {
    fn from(e: zip::result::ZipError) -> Self {
        Self::Write(e.into())
    }
}

/// Writes all records in their order, stored and aligned.
fn copy<R: Read + Seek>(
    container: &mut Container<R>,
    records: &Records,
    file: &mut File,
) -> Result<(), Failure> {
    let by_name: BTreeMap<String, _> = records
        .iter()
        .map(|(record, members)| (container.full_name(record), members))
        .collect();
    let mut zip = ZipWriter::new(BufWriter::new(file));
    for index in 0..container.len() {
        let name = container.name_at(index).to_owned();
        let mut bytes = container.read_at(index).map_err(Failure::Read)?;
        for (one, values) in by_name.get(&name).into_iter().copied().flatten() {
            one.view.scatter(one.element, values, &mut bytes);
        }
        for (one, values) in by_name.get(&name).into_iter().copied().flatten() {
            check_written(one, values, &bytes)?;
        }
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(bytes.len() >= u32::MAX as usize);
        if name.ends_with('/') {
            zip.add_directory(name, options)?;
            continue;
        }
        zip.start_file(name, options.with_alignment(ALIGNMENT))?;
        zip.write_all(&bytes).map_err(Failure::Write)?;
    }
    zip.finish()?.flush().map_err(Failure::Write)
}

/// Refuses values that became infinite in the type of the file, and values that another name for the same memory overwrote.
fn check_written(one: &Placed, values: &[f32], bytes: &[u8]) -> Result<(), Failure> {
    let Values::F32(written) = one.view.gather(one.element, bytes) else {
        return Ok(());
    };
    for (&value, written) in values.iter().zip(written) {
        let expected = rounded(one.element, value);
        if value.is_finite() && expected.is_infinite() {
            return Err(Failure::Weights(format!(
                "`{}` holds {value}, too large for {:?}, the type of the file",
                one.key, one.element
            )));
        }
        if written.to_bits() != expected.to_bits() && !(written.is_nan() && expected.is_nan()) {
            return Err(Failure::Weights(format!(
                "`{}` shares memory with another tensor of the file that was given other values",
                one.key
            )));
        }
    }
    Ok(())
}
