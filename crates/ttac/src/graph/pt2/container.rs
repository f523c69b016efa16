//! The zip file around a program: which layout it has, and its records by name.
//!
//! Sizes in a zip file are claims. Nothing is allocated for a record before its claim is held against the length of the file: a
//! stored record cannot be longer than its bytes, a deflated one not longer than deflate can make of them, and all records
//! together not longer than the file.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use zip::CompressionMethod;
use zip::read::{ArchiveOffset, Config, ZipArchive, ZipReadOptions};

use super::fault::{EXPORT, Fault, Result};

/// The most that deflate makes of one byte.
const DEFLATE_RATIO: u64 = 1032;

/// What all deflated records together may be, as a multiple of the file's length, and what they may be in any case.
const INFLATED_RATIO: u64 = 32;
const INFLATED_ALWAYS: u64 = 64 << 20;

/// Where the tensors of a program lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// PyTorch up to 2.7: no folder, tensors in `torch.save` files.
    Flat,
    /// PyTorch 2.8: tensors in `torch.save` files.
    Pickled,
    /// PyTorch 2.9 and later: every storage is a record of raw bytes.
    Raw,
}

/// One record, as the directory of the zip file describes it.
#[derive(Clone, Debug)]
struct Record {
    name: String,
    size: u64,
    /// The problem that keeps it from being read, in words that follow its name.
    refused: Option<String>,
    /// Whether its checksum was left out, which PyTorch can be told to do.
    unchecked: bool,
}

/// An open `.pt2` file.
pub(super) struct Container<R> {
    archive: ZipArchive<R>,
    records: Vec<Record>,
    /// The places of the records in the directory, by name.
    index: BTreeMap<String, usize>,
    /// The length of the file in bytes.
    length: u64,
    /// The folder that all records lie in with its slash, or nothing.
    root: String,
    /// The name of the only program, such as `model`.
    pub(super) model: String,
    pub(super) layout: Layout,
}

impl<R: Read + Seek> Container<R> {
    /// Opens a file and finds its only program.
    pub(super) fn open(mut reader: R) -> Result<Self> {
        let length = reader
            .seek(SeekFrom::End(0))
            .map_err(|e| Fault::damaged(format!("it cannot be read: {e}")))?;
        // The offset is given, because the search for it expects the directory right before the end record. PyTorch writes 76 bytes
        // of zip64 records between them, and where the first entry of the directory has as many, the second is taken for it.
        let config = Config {
            archive_offset: ArchiveOffset::Known(0),
        };
        let mut archive = ZipArchive::with_config(config, reader).map_err(|e| {
            Fault::new(
                format!("it is no zip file, or its end is missing ({e})"),
                EXPORT,
            )
        })?;
        if archive.has_duplicate_names() {
            return Err(Fault::damaged("two of its records have the same name"));
        }
        let records = directory(&mut archive, length)?;
        let (root, model, layout) = find_program(&records)?;
        let names = records.iter().enumerate();
        Ok(Self {
            archive,
            index: names
                .map(|(index, record)| (record.name.clone(), index))
                .collect(),
            records,
            length,
            root,
            model,
            layout,
        })
    }

    /// Returns the length of the file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the full name of a record below the root folder.
    pub(super) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }

    /// Returns the size of a record below the root folder, if it is there.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        let index = self.index.get(&self.full_name(name))?;
        Some(self.records[*index].size)
    }

    /// Reads a whole record below the root folder.
    pub(super) fn read(&mut self, name: &str) -> Result<Vec<u8>> {
        let name = self.full_name(name);
        match self.index.get(&name) {
            Some(&index) => self.read_at(index),
            None => Err(Fault::damaged(format!("the record `{name}` is missing"))),
        }
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the full name of a record by its place in the directory.
    pub(super) fn name_at(&self, index: usize) -> &str {
        &self.records[index].name
    }

    /// Reads a whole record by its place in the directory.
    pub(super) fn read_at(&mut self, index: usize) -> Result<Vec<u8>> {
        let record = &self.records[index];
        let name = &record.name;
        if let Some(problem) = &record.refused {
            return Err(Fault::damaged(format!("the record `{name}` {problem}")));
        }
        let broken = |e: &dyn std::fmt::Display| {
            Fault::damaged(format!("the record `{name}` cannot be read: {e}"))
        };
        let options = ZipReadOptions::new().ignore_crc32(record.unchecked);
        let file = self
            .archive
            .by_index_with_options(index, options)
            .map_err(|e| broken(&e))?;
        // The size was held against the file's length when the directory was read.
        let mut bytes = Vec::with_capacity(record.size as usize);
        file.take(record.size + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| broken(&e))?;
        if bytes.len() as u64 != record.size {
            return Err(broken(&format!(
                "it has {} bytes instead of {}",
                bytes.len(),
                record.size
            )));
        }
        Ok(bytes)
    }

    /// Refuses numbers in another order of bytes than this reader expects.
    pub(super) fn check_byte_order(&mut self) -> Result<()> {
        match self.text("byteorder")? {
            Some(order) if order != "little" => Err(Fault::new(
                format!("its numbers are in the byte order `{order}`, expected is `little`"),
                "export the network again on an ordinary machine",
            )),
            _ => Ok(()),
        }
    }

    /// Reads a short record of text, if it is there.
    fn text(&mut self, name: &str) -> Result<Option<String>> {
        if self.size(name).is_none_or(|size| size > 1 << 10) {
            return Ok(None);
        }
        let bytes = self.read(name)?;
        Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
    }
}

/// Reads the directory of the zip file and holds every size in it against the file's length.
fn directory<R: Read + Seek>(archive: &mut ZipArchive<R>, length: u64) -> Result<Vec<Record>> {
    let mut records = Vec::with_capacity(archive.len());
    let (mut stored, mut inflated) = (0_u64, 0_u64);
    for index in 0..archive.len() {
        let entry = archive
            .by_index_data(index)
            .map_err(|e| Fault::damaged(format!("its directory cannot be read: {e}")))?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let (size, compressed) = (entry.size(), entry.compressed_size());
        stored = stored.saturating_add(compressed);
        let refused = match entry.compression() {
            _ if entry.encrypted() => Some("is encrypted".to_owned()),
            CompressionMethod::Stored => (size != compressed).then(|| {
                format!("claims {size} bytes and has {compressed}, although it is not compressed")
            }),
            CompressionMethod::Deflated => {
                inflated = inflated.saturating_add(size);
                (size > compressed.saturating_mul(DEFLATE_RATIO))
                    .then(|| format!("claims {size} bytes, packed into {compressed}"))
            }
            other => Some(format!("is compressed with {other}, not with deflate")),
        };
        records.push(Record {
            name,
            size,
            refused,
            unchecked: entry.crc32() == 0,
        });
    }
    if stored > length {
        return Err(Fault::damaged(format!(
            "its records claim {stored} bytes, and the file has {length}"
        )));
    }
    if inflated > length.saturating_mul(INFLATED_RATIO).max(INFLATED_ALWAYS) {
        return Err(Fault::damaged(format!(
            "its records claim {inflated} bytes when unpacked, more than {INFLATED_RATIO} times the file's {length}"
        )));
    }
    Ok(records)
}

/// Finds the root folder, the only program and the layout.
fn find_program(records: &[Record]) -> Result<(String, String, Layout)> {
    let has = |name: &str| records.iter().any(|record| record.name == name);
    if has("serialized_exported_program.json") {
        return Ok((String::new(), "model".to_owned(), Layout::Flat));
    }
    let first = records.first().map_or("", |record| record.name.as_str());
    let root = first
        .split_once('/')
        .map_or(String::new(), |(root, _)| format!("{root}/"));
    let models: Vec<&str> = records
        .iter()
        .filter_map(|record| {
            let inside = record.name.strip_prefix(&root)?.strip_prefix("models/")?;
            inside
                .strip_suffix(".json")
                .filter(|model| !model.contains('/'))
        })
        .collect();
    let model = match models[..] {
        [model] => model.to_owned(),
        [] => return Err(without_graph(records)),
        _ => {
            return Err(Fault::new(
                format!(
                    "it holds {} programs: `{}`",
                    models.len(),
                    models.join("`, `")
                ),
                "save the classifier alone, in a file of its own",
            ));
        }
    };
    let layout = if has(&format!("{root}data/weights/{model}_weights_config.json")) {
        Layout::Raw
    } else if has(&format!("{root}data/weights/{model}.pt")) {
        Layout::Pickled
    } else {
        return Err(Fault::damaged(format!(
            "it holds the program `{model}` and no weights of it"
        )));
    };
    Ok((root, model, layout))
}

/// Says what a zip file without a program is instead.
fn without_graph(records: &[Record]) -> Fault {
    let has = |part: &str| records.iter().any(|record| record.name.contains(part));
    let problem = if has("/code/") || has("/constants.pkl") {
        "it is TorchScript, which this program does not read"
    } else if has("data.pkl") {
        "it holds weights and no graph, as `torch.save` writes them"
    } else if has("/data/aotinductor/") {
        "it holds compiled code and no graph, as AOTInductor writes it"
    } else {
        "it holds no graph: there is no record `models/NAME.json`"
    };
    Fault::new(problem, EXPORT)
}
