//! ModelNet10 as occupancy grids of 32 x 32 x 32: points on the faces between full and empty voxels.

use std::fmt;
use std::io::Read;
use std::path::Path;

use super::super::dice::Dice;
use super::super::npy::header::{Header, MAX_HEADER, integers};
use super::super::problem::{absent, check_label, contents, damaged};
use super::super::{Batch, SampleId, SetInfo};
use super::npz::entry;
use super::{Dataset, Split, batch, to_unit_ball};
use crate::rng::Purpose;
use crate::{Error, Result};

const NAME: &str = "modelnet10-derived";
const FILE: &str = "modelnet10_voxels32.npz";
const SIDE: usize = 32;
const VOXELS: usize = SIDE * SIDE * SIDE;
/// More shapes than a split has.
const MAX_SHAPES: u64 = 20_000;

/// Names of the ten classes, in the order of the labels.
pub const MODELNET10_CLASSES: [&str; 10] = [
    "bathtub",
    "bed",
    "chair",
    "desk",
    "dresser",
    "monitor",
    "night_stand",
    "sofa",
    "table",
    "toilet",
];

/// One split of ModelNet10 as occupancy grids in memory (16 MB for training), and clouds drawn on their surfaces.
///
/// A surface is a square between a full voxel and an empty one or the outside. Points are uniform on the surfaces, a function
/// of the sample's id alone; empty grids are left out and [counted](SetInfo::skipped). Then the cloud's mean goes to the origin and its farthest point to distance one.
pub struct ModelNet10Voxels {
    info: SetInfo,
    split: Split,
    points: usize,
    /// A bit for every voxel, `[count, 32 * 32 * 32 / 8]`.
    grids: Vec<u8>,
    labels: Vec<usize>,
}

impl fmt::Debug for ModelNet10Voxels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelNet10Voxels({} shapes)", self.labels.len())
    }
}

impl ModelNet10Voxels {
    /// Reads a split; `points` points are drawn for every cloud.
    pub fn open(root: &Path, split: Split, points: usize) -> Result<Self> {
        let path = root.join(FILE);
        if !path.is_file() {
            let problem = format!("expected `{FILE}`, {}", contents(root));
            return Err(absent(NAME, root, problem));
        }
        let archive = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let wrong = |problem| damaged(NAME, &path, problem);
        let grids = grids(&archive, &format!("X_{split}.npy")).map_err(wrong)?;
        let labels = labels(&archive, &format!("y_{split}.npy")).map_err(wrong)?;
        for (index, &label) in labels.iter().enumerate() {
            check_label(NAME, &path, index, label, MODELNET10_CLASSES.len())?;
        }
        let count = grids.len() / (VOXELS / 8);
        if labels.len() != count {
            return Err(wrong(format!("{} labels for {count} shapes", labels.len())));
        }
        // Some of the published grids are empty: nothing can be drawn on them.
        let full = |grid: &&[u8]| grid.iter().any(|&byte| byte != 0);
        let shapes = grids.chunks_exact(VOXELS / 8).zip(&labels);
        let kept: Vec<(&[u8], &i64)> = shapes.filter(|(grid, _)| full(grid)).collect();
        Ok(Self {
            info: SetInfo {
                skipped: count - kept.len(),
                ..SetInfo::new(NAME, kept.len(), MODELNET10_CLASSES)
            },
            split,
            points,
            labels: kept.iter().map(|(_, label)| **label as usize).collect(),
            grids: kept
                .into_iter()
                .flat_map(|(grid, _)| grid)
                .copied()
                .collect(),
        })
    }

    fn cloud(&self, id: SampleId) -> Vec<f32> {
        let purpose = Purpose::new(*b"ttac modelnet10 voxels .").with(23, [self.split as u8]);
        let mut dice = Dice::new(purpose, 0, id);
        let grid = &self.grids[id as usize * (VOXELS / 8)..][..VOXELS / 8];
        let squares = squares(grid);
        let mut cloud = Vec::with_capacity(3 * self.points);
        for _ in 0..self.points {
            let (corner, axis) = squares[dice.below(squares.len())];
            let place: [f64; 3] = std::array::from_fn(|other| {
                let within = if other == axis { 0.0 } else { dice.unit() };
                f64::from(corner[other]) + within
            });
            cloud.extend(place.map(|value| value as f32));
        }
        to_unit_ball(&mut cloud);
        cloud
    }
}

/// Corner and normal axis of every square between full and empty.
fn squares(grid: &[u8]) -> Vec<([u8; 3], usize)> {
    let full = |place: [usize; 3]| {
        let index = (place[0] * SIDE + place[1]) * SIDE + place[2];
        grid[index / 8] >> (index % 8) & 1 == 1
    };
    let mut squares = Vec::new();
    for index in 0..VOXELS {
        let place = [index / (SIDE * SIDE), index / SIDE % SIDE, index % SIDE];
        if !full(place) {
            continue;
        }
        for axis in 0..3 {
            let mut beside = place;
            beside[axis] = place[axis].wrapping_sub(1);
            let corner = place.map(|value| value as u8);
            if place[axis] == 0 || !full(beside) {
                squares.push((corner, axis));
            }
            beside[axis] = place[axis] + 1;
            if beside[axis] == SIDE || !full(beside) {
                squares.push((beside.map(|value| value as u8), axis));
            }
        }
    }
    squares
}

/// The header of an array and the bytes behind it, to be read.
fn open<'a>(archive: &'a [u8], name: &str) -> Result<(Header, Box<dyn Read + 'a>), String> {
    let mut start = Vec::new();
    let unpack = |e: std::io::Error| format!("`{name}` cannot be unpacked: {e}");
    let stream = entry(archive, name)?;
    stream
        .take(MAX_HEADER as u64)
        .read_to_end(&mut start)
        .map_err(unpack)?;
    let header = Header::parse(&start).map_err(|problem| format!("`{name}`: {problem}"))?;
    // From the start again, up to the numbers.
    let mut stream = entry(archive, name)?;
    let mut skipped = vec![0; header.data_start as usize];
    stream.read_exact(&mut skipped).map_err(unpack)?;
    Ok((header, stream))
}

/// Occupancy, a bit each, of an integer array `[n, 32, 32, 32]`. Read shape by shape: unpacked it takes half a gigabyte.
fn grids(archive: &[u8], name: &str) -> Result<Vec<u8>, String> {
    let (header, mut stream) = open(archive, name)?;
    let side = SIDE as u64;
    let count = match header.shape[..] {
        [count, a, b, c]
            if [a, b, c] == [side; 3] && count <= MAX_SHAPES && !header.fortran_order =>
        {
            count
        }
        _ => {
            return Err(format!(
                "`{name}`: expected grids [n, {SIDE}, {SIDE}, {SIDE}], found {:?}",
                header.shape
            ));
        }
    };
    let width = header
        .dtype
        .trim_start_matches(|c: char| !c.is_ascii_digit());
    let width: usize = width
        .parse()
        .ok()
        .filter(|width| *width <= 8)
        .ok_or("its numbers are of no known type")?;
    let mut grids = Vec::with_capacity(count as usize * VOXELS / 8);
    let mut bytes = vec![0; VOXELS * width];
    for _ in 0..count {
        stream
            .read_exact(&mut bytes)
            .map_err(|e| format!("`{name}` cannot be unpacked: {e}"))?;
        let numbers = integers(&header.dtype, &bytes)
            .ok_or_else(|| format!("`{name}`: expected integers, found `{}`", header.dtype))?;
        let bits = numbers.chunks_exact(8).map(|eight| {
            let bit = |(place, number): (usize, &i64)| u8::from(*number != 0) << place;
            eight.iter().enumerate().map(bit).fold(0, |a, b| a | b)
        });
        grids.extend(bits);
    }
    Ok(grids)
}

fn labels(archive: &[u8], name: &str) -> Result<Vec<i64>, String> {
    let (header, stream) = open(archive, name)?;
    let mut bytes = Vec::new();
    stream
        .take(8 * MAX_SHAPES)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("`{name}` cannot be unpacked: {e}"))?;
    integers(&header.dtype, &bytes)
        .ok_or_else(|| format!("`{name}`: expected integers, found `{}`", header.dtype))
}

impl Dataset for ModelNet10Voxels {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let cloud = |id| Ok(self.cloud(id));
        batch(ids, self.points, cloud, |id| self.labels[id as usize])
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.labels.clone()))
    }
}
