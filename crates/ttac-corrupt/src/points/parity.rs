//! Against `reference/points/corruptions.py`, number for number: a second writing of the fifteen in numpy, fed by the
//! generator of `replay`. Its renderer casts rays where ours fills triangles.

use super::kernel::{Kernel, view};
use super::{Cloud, Mesh, Point, PointCorruption};
use crate::Severity;
use crate::random::Random;
use crate::replay::Replay;

const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/points.npy");

/// Points that are compared of a cloud, spread evenly over it; a row before them has the number of points.
const COMPARED: usize = 32;

/// The fixture is f32.
const BOUND: f64 = 2e-6;

/// 2,048 points on an ellipsoid, as f32.
fn cloud() -> Cloud {
    let mut random = Replay::new(7);
    let mut cloud = Vec::new();
    while cloud.len() < 2048 {
        let point: Point = std::array::from_fn(|_| random.uniform(-1.0, 1.0));
        let length = (point[0] * point[0] + point[1] * point[1] + point[2] * point[2]).sqrt();
        let radii = [0.95, 0.6, 0.8];
        cloud.push(std::array::from_fn(|axis| {
            f64::from((point[axis] / length * radii[axis]) as f32)
        }));
    }
    cloud
}

/// A box with a pyramid on top of it.
fn house() -> Mesh {
    Mesh {
        vertices: vec![
            [-0.9, -0.5, -0.6],
            [0.7, -0.5, -0.6],
            [0.7, 0.4, -0.6],
            [-0.9, 0.4, -0.6],
            [-0.9, -0.5, 0.2],
            [0.7, -0.5, 0.2],
            [0.7, 0.4, 0.2],
            [-0.9, 0.4, 0.2],
            [-0.2, 0.1, 0.8],
        ],
        faces: vec![
            [0, 1, 2],
            [0, 2, 3],
            [0, 1, 5],
            [0, 5, 4],
            [1, 2, 6],
            [1, 6, 5],
            [2, 3, 7],
            [2, 7, 6],
            [3, 0, 4],
            [3, 4, 7],
            [4, 5, 8],
            [5, 6, 8],
            [6, 7, 8],
            [7, 4, 8],
        ],
    }
}

#[test]
fn every_corruption_equals_the_reference() {
    let (header, numbers) = FIXTURE.split_at(FIXTURE.len() - 15 * 5 * (COMPARED + 1) * 3 * 4);
    assert!(String::from_utf8_lossy(header).contains("(15, 5, 33, 3)"));
    let numbers = numbers.as_chunks::<4>().0.iter();
    let expected: Vec<f64> = numbers
        .map(|&bytes| f32::from_le_bytes(bytes).into())
        .collect();
    let mut expected = expected.chunks_exact((COMPARED + 1) * 3);
    let (all, mesh) = (cloud(), house());
    let mut failures = Vec::new();
    for (index, corruption) in PointCorruption::ALL.into_iter().enumerate() {
        for severity in Severity::ALL {
            let mut random = Replay::new(100 * index as u64 + u64::from(severity.get()));
            let found = match Kernel::new(corruption, severity) {
                Some(kernel) => {
                    let start = if kernel.takes_all() {
                        &all[..]
                    } else {
                        &all[..1024]
                    };
                    kernel.apply(start.to_vec(), 1024, &mut random)
                }
                None => view(corruption, severity, &mesh, 1024, &mut random).unwrap(),
            };
            let expected = expected.next().unwrap();
            assert_eq!(
                found.len() as f64,
                expected[0],
                "points of {corruption} {severity}"
            );
            let chosen = (0..COMPARED).map(|i| found[i * found.len() / COMPARED]);
            let differences = chosen
                .flatten()
                .zip(&expected[3..])
                .map(|(a, b)| (a - b).abs());
            let largest = differences.fold(0.0, f64::max);
            if largest > BOUND {
                failures.push(format!("{corruption} {severity}: {largest}"));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "differ from the reference:\n{}",
        failures.join("\n")
    );
}
