//! ModelNet40 resampled with normals: `CLASS/CLASS_0001.txt` with lines `x,y,z,nx,ny,nz`, and lists of the splits.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::super::problem::{absent, contents, damaged};
use super::super::{Batch, SampleId, SetInfo};
use super::{Dataset, MODELNET40_CLASSES, Split, batch, problem};
use crate::{Error, Result};

const NAME: &str = "modelnet40";

/// Clouds in text files, read when they are asked for. `modelnet40_train.txt` and `modelnet40_test.txt` list the splits; where
/// there are no lists, all clouds are test clouds.
#[derive(Debug)]
pub struct ModelNet40Text {
    info: SetInfo,
    points: usize,
    files: Vec<PathBuf>,
    labels: Vec<usize>,
}

impl ModelNet40Text {
    /// Opens a split; the first `points` points of every cloud are read.
    pub fn open(root: &Path, split: Split, points: usize) -> Result<Self> {
        let list = root.join(format!("modelnet40_{split}.txt"));
        let files = if list.is_file() {
            listed(root, &list)?
        } else if split == Split::Test {
            found(root)?
        } else {
            let problem = format!("expected `modelnet40_train.txt`, {}", contents(root));
            return Err(absent(NAME, root, problem));
        };
        if files.is_empty() {
            let problem = format!(
                "expected `airplane/airplane_0001.txt` and its like, {}",
                contents(root)
            );
            return Err(absent(NAME, root, problem));
        }
        let (files, labels): (Vec<PathBuf>, Vec<usize>) = files.into_iter().unzip();
        Ok(Self {
            info: SetInfo::new(NAME, files.len(), MODELNET40_CLASSES),
            points,
            files,
            labels,
        })
    }

    fn read(&self, path: &Path) -> Result<Vec<f32>> {
        let file = std::fs::File::open(path).map_err(Error::io("read", path))?;
        let mut cloud = Vec::with_capacity(3 * self.points);
        for (number, line) in BufReader::new(file).lines().take(self.points).enumerate() {
            let line = line.map_err(Error::io("read", path))?;
            let mut numbers = line.split(',').map(|number| number.trim().parse::<f32>());
            for _ in 0..3 {
                let Some(Ok(value)) = numbers.next() else {
                    let expected = "expected `x,y,z,nx,ny,nz`";
                    let problem = format!("line {}: {expected}, found `{line}`", number + 1);
                    return Err(damaged(NAME, path, problem));
                };
                cloud.push(value);
            }
        }
        let lines = cloud.len() / 3;
        if lines < self.points {
            let problem = format!("expected at least {} points, found {lines}", self.points);
            return Err(damaged(NAME, path, problem));
        }
        match problem(&cloud) {
            None => Ok(cloud),
            Some(problem) => Err(damaged(NAME, path, problem)),
        }
    }
}

fn class_of(name: &str) -> Option<usize> {
    MODELNET40_CLASSES.iter().position(|class| *class == name)
}

/// The files of a list with lines like `night_stand_0001`.
fn listed(root: &Path, list: &Path) -> Result<Vec<(PathBuf, usize)>> {
    let text = std::fs::read_to_string(list).map_err(Error::io("read", list))?;
    let names = text.lines().map(str::trim).filter(|line| !line.is_empty());
    names
        .map(|name| {
            let class = name.rsplit_once('_').map_or(name, |(class, _)| class);
            let label = class_of(class).ok_or_else(|| {
                damaged(NAME, list, format!("`{name}` is of no class of ModelNet40"))
            })?;
            Ok((root.join(class).join(format!("{name}.txt")), label))
        })
        .collect()
}

/// All clouds in class folders.
fn found(root: &Path) -> Result<Vec<(PathBuf, usize)>> {
    let mut files = Vec::new();
    for (label, class) in MODELNET40_CLASSES.iter().enumerate() {
        let folder = root.join(class);
        if folder.is_dir() {
            let entries = std::fs::read_dir(&folder).map_err(Error::io("read", &folder))?;
            let mut paths: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
                .collect();
            paths.sort();
            files.extend(paths.into_iter().map(|path| (path, label)));
        }
    }
    Ok(files)
}

impl Dataset for ModelNet40Text {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let cloud = |id| self.read(&self.files[id as usize]);
        batch(ids, self.points, cloud, |id| self.labels[id as usize])
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.labels.clone()))
    }
}
