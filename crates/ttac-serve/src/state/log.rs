//! The log of a stream: everything that it learned from and that was decided, in order.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::disk;
use super::record::Record;
use super::segment::{self, Belongs, End};
use crate::config::Durability;
use crate::{Error, Result};

/// A file of the log is closed when it is longer than this.
const LONGEST_SEGMENT: u64 = 64 * 1024 * 1024;

/// A file of a log that was looked through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it lies.
    pub path: PathBuf,
    /// The number of its first record.
    pub first: u64,
    /// The number after that of its last record.
    pub end: u64,
    /// How long it is.
    pub bytes: u64,
}

/// What was found of a log.
#[derive(Debug)]
pub struct Survey {
    /// The files in order, as far as they are whole.
    pub segments: Vec<Segment>,
    /// What the first header says.
    pub belongs: Option<Belongs>,
    /// An unfinished end: a file, and where it begins.
    pub torn: Option<(PathBuf, u64)>,
    /// Damage behind which something whole lies.
    pub damage: Option<(PathBuf, u64, String)>,
}

impl Survey {
    /// Looks through the files of a folder and changes nothing.
    pub fn of(folder: &Path) -> Result<Self> {
        let mut survey = Self {
            segments: Vec::new(),
            belongs: None,
            torn: None,
            damage: None,
        };
        let files = files(folder)?;
        for (place, (first, path)) in files.iter().enumerate() {
            let expected = survey.segments.last().map_or(*first, |before| before.end);
            if *first != expected {
                let problem = format!("expected record {expected}, found {first}");
                survey.damage = Some((path.clone(), 0, problem));
                break;
            }
            let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
            let content = segment::read(&bytes, *first);
            let length = content.records.last().map(|last| last.end as u64);
            if content.belongs.is_some() {
                survey.segments.push(Segment {
                    path: path.clone(),
                    first: *first,
                    end: first + content.records.len() as u64,
                    bytes: length.unwrap_or(bytes.len() as u64),
                });
            }
            if survey.belongs.is_none() {
                survey.belongs = content.belongs;
            }
            let last = place + 1 == files.len();
            match content.end {
                End::Whole => {}
                End::Torn(at) if last => survey.torn = Some((path.clone(), at as u64)),
                End::Torn(at) => {
                    let problem = "it ends within a record, and another file follows".to_owned();
                    survey.damage = Some((path.clone(), at as u64, problem));
                    break;
                }
                End::Damaged(at, problem) => {
                    survey.damage = Some((path.clone(), at as u64, problem));
                    break;
                }
            }
        }
        Ok(survey)
    }

    /// Returns the number of the record after the last whole one; none if there are no files.
    pub fn next(&self) -> Option<u64> {
        self.segments.last().map(|last| last.end)
    }
}

/// Lists the files of a log by the numbers of their first records.
fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", folder)(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str());
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if let Some(first) = number
            .and_then(|number| number.parse().ok())
            .filter(|_| is_log)
        {
            files.push((first, path));
        }
    }
    files.sort();
    Ok(files)
}

/// The log of a stream, open for writing.
pub struct Log {
    folder: PathBuf,
    belongs: Belongs,
    durability: Durability,
    /// Closed files and the open one, which comes last.
    segments: Vec<Segment>,
    file: Option<File>,
    next: u64,
    synced: Arc<Synced>,
}

/// How far a log has reached the disk itself.
#[derive(Default)]
pub struct Synced(Mutex<u64>);

impl Log {
    /// Goes on with a log that was surveyed: an unfinished end is cut off. `next` is the number of the first record where there are no
    /// files.
    pub fn open(
        folder: &Path,
        belongs: Belongs,
        durability: Durability,
        survey: &Survey,
        next: u64,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        if let Some((path, at)) = &survey.torn {
            if survey.segments.iter().any(|segment| segment.path == *path) {
                let file = File::options().write(true).open(path);
                let cut = file.and_then(|file| file.set_len(*at));
                cut.map_err(Error::io("cut", path))?;
            } else {
                disk::remove(path)?;
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            belongs,
            durability,
            next: survey.next().unwrap_or(next).max(next),
            segments: survey.segments.clone(),
            file: None,
            synced: Arc::default(),
        })
    }

    /// Returns the number that the next record gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns how long all files are together.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Writes records in one piece and returns their numbers. If that fails, the log is as it was before.
    pub fn append(&mut self, records: &[Record]) -> Result<Range<u64>> {
        let full = self
            .segments
            .last()
            .is_some_and(|last| last.bytes > LONGEST_SEGMENT);
        if full {
            self.close();
        }
        let images = self.durability != Durability::None;
        let mut bytes = Vec::new();
        for (sequence, record) in (self.next..).zip(records) {
            segment::write(record, sequence, images, &mut bytes);
        }
        self.ready()?;
        let (Some(file), Some(last)) = (&mut self.file, self.segments.last_mut()) else {
            unreachable!("a file was just opened");
        };
        if let Err(error) = disk::append(file, &last.path, &bytes) {
            // What was written in part must not stay before what comes later.
            let cut = file.set_len(last.bytes);
            let path = last.path.clone();
            if cut.is_err() {
                self.close();
            }
            return Err(Error::io("write", path)(error));
        }
        last.bytes += bytes.len() as u64;
        let numbers = self.next..self.next + records.len() as u64;
        self.next = numbers.end;
        last.end = numbers.end;
        Ok(numbers)
    }

    /// Begins a new file with the next record.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Opens the file that the next record belongs to.
    fn ready(&mut self) -> Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        // A file without records has the name that the new one gets.
        self.segments.retain(|segment| segment.first < self.next);
        let path = self.folder.join(format!("{}.log", self.next));
        disk::remove(&path)?;
        let mut file = disk::open(&path).map_err(Error::io("create", &path))?;
        let header = segment::header(&self.belongs);
        if let Err(error) = disk::append(&mut file, &path, &header) {
            drop(file);
            // A failure here leaves a file without a whole header, which the next start takes for unfinished.
            let _ = disk::remove(&path);
            return Err(Error::io("write", &path)(error));
        }
        self.file = Some(file);
        self.segments.push(Segment {
            path,
            first: self.next,
            end: self.next,
            bytes: header.len() as u64,
        });
        Ok(())
    }

    /// Returns what is needed to wait until the records so far are on the disk itself; none where nobody asked for that.
    pub fn unsynced(&self) -> Result<Option<Unsynced>> {
        let (Some(file), Durability::Power) = (&self.file, self.durability) else {
            return Ok(None);
        };
        let path = &self.segments.last().expect("there is a file").path;
        Ok(Some(Unsynced {
            file: file.try_clone().map_err(Error::io("sync", path))?,
            path: path.clone(),
            up_to: self.next,
            synced: Arc::clone(&self.synced),
        }))
    }

    /// Removes the files whose records all come before a number, because a snapshot has what they led to.
    pub fn forget(&mut self, before: u64) -> Result<()> {
        if self.next <= before {
            self.close();
        }
        // The open file stays, and with it what comes next.
        let closed = self.segments.len() - usize::from(self.file.is_some());
        for _ in 0..closed {
            let Some(first) = self.segments.first().filter(|first| first.end <= before) else {
                break;
            };
            disk::remove(&first.path)?;
            self.segments.remove(0);
        }
        Ok(())
    }
}

/// Records that are in the hands of the system and perhaps not on the disk.
pub struct Unsynced {
    file: File,
    path: PathBuf,
    up_to: u64,
    synced: Arc<Synced>,
}

impl Unsynced {
    /// Waits until they are on the disk. Of many who wait, one does it for all that have come until then.
    pub fn wait(self) -> Result<()> {
        let mut synced = self.synced.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *synced >= self.up_to {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(Error::io("sync", &self.path))?;
        *synced = self.up_to;
        Ok(())
    }
}

/// The records of a log after a number, read file by file.
pub struct Replay {
    segments: VecDeque<Segment>,
    after: u64,
    records: VecDeque<(u64, Record)>,
    left: u64,
}

impl Replay {
    /// Starts behind a record.
    pub fn new(survey: &Survey, after: u64) -> Self {
        let segments = survey.segments.iter();
        let segments: VecDeque<Segment> = segments
            .filter(|segment| segment.end > after + 1)
            .cloned()
            .collect();
        let last = segments.back().map_or(after + 1, |segment| segment.end);
        let first = segments
            .front()
            .map_or(after + 1, |segment| segment.first.max(after + 1));
        Self {
            left: last - first,
            segments,
            after,
            records: VecDeque::new(),
        }
    }

    /// Returns how many records are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Returns the next record with its number.
    pub fn read(&mut self) -> Result<Option<(u64, Record)>> {
        loop {
            if let Some(record) = self.records.pop_front() {
                self.left = self.left.saturating_sub(1);
                return Ok(Some(record));
            }
            let Some(segment) = self.segments.pop_front() else {
                return Ok(None);
            };
            let path = &segment.path;
            let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
            let content = segment::read(&bytes, segment.first);
            for found in &content.records {
                if found.sequence <= self.after {
                    continue;
                }
                let record = found.record().ok_or_else(|| Error::Damaged {
                    path: path.clone(),
                    at: found.end as u64,
                    problem: format!("record {} cannot be read", found.sequence),
                })?;
                self.records.push_back((found.sequence, record));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::segment::FORMAT;

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

    fn open(folder: &Path, next: u64) -> Log {
        let survey = Survey::of(folder).unwrap();
        assert_eq!(survey.damage, None);
        Log::open(folder, belongs(), Durability::Process, &survey, next).unwrap()
    }

    fn numbers(folder: &Path, after: u64) -> Vec<u64> {
        let mut replay = Replay::new(&Survey::of(folder).unwrap(), after);
        let left = replay.left();
        let mut found = Vec::new();
        while let Some((number, _)) = replay.read().unwrap() {
            found.push(number);
        }
        assert_eq!(left, found.len() as u64);
        found
    }

    #[test]
    fn a_log_goes_on_where_it_ended_and_forgets_what_a_snapshot_has() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut log = open(folder, 1);
        assert_eq!(log.append(&[Record::Cut, Record::Passed(1)]).unwrap(), 1..3);
        log.close();
        assert_eq!(log.append(&[Record::Cut]).unwrap(), 3..4);
        drop(log);
        let mut log = open(folder, 1);
        assert_eq!(log.append(&[Record::Cut]).unwrap(), 4..5);
        assert_eq!(numbers(folder, 0), [1, 2, 3, 4]);
        assert_eq!(numbers(folder, 2), [3, 4]);
        log.forget(3).unwrap();
        assert_eq!(numbers(folder, 2), [3, 4]);
        log.forget(5).unwrap();
        assert_eq!(numbers(folder, 4), [0; 0]);
        drop(log);
        // The snapshot knows what comes next.
        let mut log = open(folder, 5);
        assert_eq!(log.append(&[Record::Cut]).unwrap(), 5..6);
        assert_eq!(numbers(folder, 4), [5]);
    }

    #[test]
    fn an_unfinished_end_is_cut_off_and_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut log = open(folder, 1);
        log.append(&[Record::Cut, Record::Passed(1)]).unwrap();
        drop(log);
        let path = folder.join("1.log");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let mut log = open(folder, 1);
        assert_eq!(log.append(&[Record::Passed(2)]).unwrap(), 2..3);
        drop(log);
        assert_eq!(numbers(folder, 0), [1, 2]);
        // A header in part is no file.
        std::fs::write(folder.join("3.log"), &bytes[..5]).unwrap();
        let mut log = open(folder, 1);
        assert_eq!(log.append(&[Record::Cut]).unwrap(), 3..4);
        assert_eq!(numbers(folder, 0), [1, 2, 3]);
    }

    #[test]
    fn a_write_that_fails_leaves_the_log_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for writes in 1..8 {
            let mut log = open(folder, 1);
            let before = log.next();
            disk::fault::after(folder, writes);
            let mut written = 0;
            let mut failed = false;
            for _ in 0..3 {
                match log.append(&[Record::Cut, Record::Passed(9)]) {
                    Ok(_) if failed => panic!("nothing can be written any more"),
                    Ok(_) => written += 2,
                    Err(_) => failed = true,
                }
                log.close();
            }
            disk::fault::clear(folder);
            assert_eq!(log.append(&[Record::Cut]).unwrap().start, before + written);
            let whole: Vec<u64> = (1..=before + written).collect();
            assert_eq!(numbers(folder, 0), whole);
        }
    }

    #[test]
    fn a_missing_file_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut log = open(folder, 1);
        for _ in 0..3 {
            log.append(&[Record::Cut]).unwrap();
            log.close();
        }
        std::fs::remove_file(folder.join("2.log")).unwrap();
        let survey = Survey::of(folder).unwrap();
        assert!(survey.damage.unwrap().2.contains("expected record 2"));
    }
}
