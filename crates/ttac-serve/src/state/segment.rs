//! A file of a log: a header, then records.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::Record;
use crate::{Error, Result};

/// The first bytes of a file of a log.
const MAGIC: &[u8; 8] = b"ttac-log";

/// The version of the files. Others are refused.
pub const FORMAT: u32 = 1;

/// Length, checksum, sequence number and kind, before the body of a record.
const HEAD: usize = 4 + 4 + 8 + 1;

/// No record is longer than this: the largest image is far smaller.
const LONGEST: usize = 512 * 1024 * 1024;

/// What a stream was stored with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Belongs {
    /// The version of the files.
    pub format: u32,
    /// The model's name and the stream's.
    pub stream: (String, String),
    /// The fingerprint of the source.
    pub source: String,
    /// The digest of the anchors.
    pub anchors: String,
    /// The digest of method, protocol and batch.
    pub configuration: String,
    /// The instruction set that computed. Another one rounds differently.
    pub instructions: String,
}

impl Belongs {
    /// Refuses a stream that was stored with something else. Another instruction set is not refused.
    pub fn check(&self, found: &Self, path: &Path) -> Result<()> {
        let same = |what: &'static str, expected: &str, found: &str| {
            if expected == found {
                return Ok(());
            }
            Err(Error::Foreign {
                path: path.to_owned(),
                what,
                expected: format!("`{expected}`"),
                found: format!("`{found}`"),
            })
        };
        let (format, other) = (self.format.to_string(), found.format.to_string());
        same("format", &format, &other)?;
        same("model", &self.stream.0, &found.stream.0)?;
        same("stream", &self.stream.1, &found.stream.1)?;
        same("network", &self.source, &found.source)?;
        same("anchor file", &self.anchors, &found.anchors)?;
        same(
            "method, protocol or batch",
            &self.configuration,
            &found.configuration,
        )
    }
}

/// Writes the header of a file.
pub fn header(belongs: &Belongs) -> Vec<u8> {
    let text = serde_json::to_vec(belongs).expect("headers are plain JSON");
    let mut bytes = MAGIC.to_vec();
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(&text).to_le_bytes());
    bytes.extend(text);
    bytes
}

/// Writes a record: `u32 length, u32 crc32, u64 seq, u8 kind, body`, little-endian. The length is that of the body, and the checksum is over
/// everything behind it.
pub fn write(record: &Record, sequence: u64, images: bool, into: &mut Vec<u8>) {
    let body = record.encode(images);
    into.extend((body.len() as u32).to_le_bytes());
    let mut checksum = crc32fast::Hasher::new();
    let sequence = sequence.to_le_bytes();
    let kind = [record.kind()];
    for part in [&sequence[..], &kind, &body] {
        checksum.update(part);
    }
    into.extend(checksum.finalize().to_le_bytes());
    into.extend(sequence);
    into.extend(kind);
    into.extend(body);
}

/// A record in the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub sequence: u64,
    pub kind: u8,
    pub body: &'a [u8],
    /// Where the next one begins.
    pub end: usize,
}

impl Found<'_> {
    /// Reads the record.
    pub fn record(&self) -> Option<Record> {
        Record::decode(self.kind, self.body)
    }
}

/// How the bytes of a file end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With a whole record, or with the header.
    Whole,
    /// With a part of a record, as a process leaves it that dies while it writes: it begins here.
    Torn(usize),
    /// There is damage here, and something whole behind it.
    Damaged(usize, String),
}

/// The content of a file of a log.
#[derive(Debug)]
pub struct Content<'a> {
    /// What the header says; none if it is not whole, and then there are no records.
    pub belongs: Option<Belongs>,
    /// The records as far as they are whole and follow each other.
    pub records: Vec<Found<'a>>,
    /// How it ends.
    pub end: End,
}

/// Finds the records in the bytes of a file whose first one should have the given number.
pub fn read(bytes: &[u8], first: u64) -> Content<'_> {
    let Some((belongs, mut at)) = read_header(bytes) else {
        // A file without a whole header was being made; if something was written behind it, it is damaged.
        let end = if resumes(bytes, 0, first) {
            End::Damaged(0, "its header is not whole".to_owned())
        } else {
            End::Torn(0)
        };
        return Content {
            belongs: None,
            records: Vec::new(),
            end,
        };
    };
    let mut records = Vec::new();
    let mut next = first;
    let end = loop {
        if at == bytes.len() {
            break End::Whole;
        }
        match record_at(bytes, at) {
            Some(found) if found.sequence == next && found.record().is_some() => {
                at = found.end;
                next += 1;
                records.push(found);
            }
            Some(found) => {
                let problem = format!(
                    "expected record {next}, found number {} of kind {}",
                    found.sequence, found.kind
                );
                break End::Damaged(at, problem);
            }
            None if resumes(bytes, at + 1, next) => {
                break End::Damaged(at, format!("record {next} is not what was written"));
            }
            None => break End::Torn(at),
        }
    };
    Content {
        belongs: Some(belongs),
        records,
        end,
    }
}

fn read_header(bytes: &[u8]) -> Option<(Belongs, usize)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    let text = rest.get(..length)?;
    (crc32fast::hash(text) == u32::from_le_bytes(*checksum)).then_some(())?;
    let belongs = serde_json::from_slice(text).ok()?;
    Some((belongs, MAGIC.len() + 8 + length))
}

/// Reads a whole record at a place.
fn record_at(bytes: &[u8], at: usize) -> Option<Found<'_>> {
    let head: &[u8; HEAD] = bytes.get(at..)?.first_chunk()?;
    let (length, rest) = head.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let (sequence, kind) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    (length <= LONGEST).then_some(())?;
    let end = at + HEAD + length;
    let body = bytes.get(at + HEAD..end)?;
    let checked = crc32fast::hash(&bytes[at + 8..end]);
    (checked == u32::from_le_bytes(*checksum)).then_some(Found {
        sequence: u64::from_le_bytes(*sequence),
        kind: kind[0],
        body,
        end,
    })
}

/// Whether a whole record of a later number lies anywhere behind a place. A process that dies leaves none, but a flipped bit does.
fn resumes(bytes: &[u8], from: usize, next: u64) -> bool {
    (from..bytes.len().saturating_sub(HEAD - 1)).any(|at| {
        // The number is looked at first, because checksums of long parts take their time.
        let number = bytes[at + 8..].first_chunk();
        let number = number.map(|number| u64::from_le_bytes(*number));
        number.is_some_and(|number| (next..next + 1_000_000).contains(&number))
            && record_at(bytes, at).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::Sample;

    fn belongs() -> Belongs {
        Belongs {
            format: FORMAT,
            stream: ("m".to_owned(), "s".to_owned()),
            source: "a".to_owned(),
            anchors: "b".to_owned(),
            configuration: "c".to_owned(),
            instructions: "d".to_owned(),
        }
    }

    fn three() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(&belongs());
        let mut starts = Vec::new();
        let sample = Record::Sample(Sample {
            client: "client".to_owned(),
            request: "request".to_owned(),
            values: None,
        });
        for (sequence, record) in [(5, sample), (6, Record::Cut), (7, Record::Passed(3))] {
            starts.push(bytes.len());
            write(&record, sequence, true, &mut bytes);
        }
        (bytes, starts)
    }

    #[test]
    fn a_file_that_is_cut_anywhere_has_the_records_before_the_cut() {
        let (bytes, starts) = three();
        let whole = read(&bytes, 5);
        assert_eq!((whole.records.len(), whole.end), (3, End::Whole));
        for length in 0..bytes.len() {
            let part = read(&bytes[..length], 5);
            let ends: Vec<usize> = starts[1..].iter().copied().chain([bytes.len()]).collect();
            let before = ends.iter().filter(|&&end| end <= length).count();
            assert_eq!(part.records.len(), before, "cut at {length}");
            let at_an_end = length == starts[0] || ends.contains(&length);
            assert_eq!(part.end == End::Whole, at_an_end, "cut at {length}");
            assert!(
                !matches!(part.end, End::Damaged(..)),
                "cut at {length} is no damage"
            );
        }
    }

    #[test]
    fn every_flipped_bit_is_found_and_tells_damage_from_an_unfinished_end() {
        let (bytes, starts) = three();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let found = read(&changed, 5);
                let hit = starts.iter().rposition(|&start| start <= at);
                match hit {
                    // The last one cannot be told from one that was being written.
                    Some(2) => assert!(matches!(found.end, End::Torn(_)), "byte {at}"),
                    _ => assert!(matches!(found.end, End::Damaged(..)), "byte {at}"),
                }
                assert!(found.records.len() <= hit.unwrap_or(0), "byte {at}");
            }
        }
    }

    #[test]
    fn a_missing_record_is_damage() {
        let mut bytes = header(&belongs());
        write(&Record::Cut, 5, true, &mut bytes);
        write(&Record::Cut, 7, true, &mut bytes);
        let found = read(&bytes, 5);
        assert!(matches!(found.end, End::Damaged(..)));
        assert_eq!(found.records.len(), 1);
    }

    #[test]
    fn what_belongs_to_something_else_is_named() {
        let path = Path::new("folder");
        let other = Belongs {
            source: "z".to_owned(),
            ..belongs()
        };
        let error = belongs().check(&other, path).unwrap_err().to_string();
        assert!(
            error.contains("another network: expected `a`, found `z`"),
            "{error}"
        );
        let elsewhere = Belongs {
            instructions: "z".to_owned(),
            ..belongs()
        };
        belongs().check(&elsewhere, path).unwrap();
    }
}
