//! Compares with CIFAR-10 images that the public recipe corrupted, which are not part of the repository. The folder
//! `cifar10c-oracle` is looked for in `TTAC_DATA`, then in `../shared/data` beside the workspace.

use std::fs::File;
use std::path::{Path, PathBuf};

use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

const SIDE: usize = 32;

/// Largest mean absolute difference, in levels of 255, of corruptions without random numbers. What is found is zero, or
/// nearly so for defocus blur.
const DETERMINISTIC_BOUND: f64 = 1.0;
const JPEG_BOUND: f64 = 2.0;

/// Largest relative difference of a statistic of random corruptions.
const STATISTIC_BOUND: f64 = 0.05;

fn data() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("TTAC_DATA").map_or(beside, PathBuf::from);
    folder.join("cifar10c-oracle").is_dir().then_some(folder)
}

/// Images [count, 32, 32, 3] of a file: a magic number, the length of the header, the header, the bytes.
fn read(path: &Path) -> Vec<u8> {
    let mut file = std::fs::read(path).unwrap();
    assert!(file.starts_with(b"\x93NUMPY\x01"), "{}", path.display());
    let start = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    let header = String::from_utf8_lossy(&file[10..start]).into_owned();
    assert!(
        header.contains("'|u1'") && header.contains("False") && header.contains(", 32, 32, 3)"),
        "{header}"
    );
    file.drain(..start);
    file
}

/// Channel means, channel deviations, mean absolute difference from clean, mean absolute horizontal gradient.
fn statistics(images: &[u8], clean: &[u8]) -> [f64; 8] {
    let mut statistics = [0.0; 8];
    let count = (images.len() / 3) as f64;
    for channel in 0..3 {
        let values = || {
            images
                .iter()
                .skip(channel)
                .step_by(3)
                .map(|&byte| f64::from(byte))
        };
        let mean = values().sum::<f64>() / count;
        statistics[channel] = mean;
        statistics[3 + channel] =
            (values().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    }
    statistics[6] = mean_difference(images, clean);
    let rows = images.chunks_exact(3 * SIDE);
    let gradient: u64 = rows
        .map(|row| {
            row.iter()
                .zip(&row[3..])
                .map(|(a, b)| u64::from(a.abs_diff(*b)))
                .sum::<u64>()
        })
        .sum();
    statistics[7] = gradient as f64 / (images.len() / SIDE * (SIDE - 1)) as f64;
    statistics
}

fn mean_difference(one: &[u8], other: &[u8]) -> f64 {
    let sum: u64 = one
        .iter()
        .zip(other)
        .map(|(a, b)| u64::from(a.abs_diff(*b)))
        .sum();
    sum as f64 / one.len() as f64
}

/// The recipe's statistics over 1000 images at a severity.
fn recipe_statistics(all: &serde_json::Value, corruption: Corruption, severity: u8) -> [f64; 8] {
    let key = if severity == 5 {
        "5".to_owned()
    } else {
        format!("{severity}_first1000")
    };
    let entry = &all[corruption.name()][key];
    assert_eq!(entry["images"], 1000, "{corruption} {severity}");
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    std::array::from_fn(|index| match index {
        0..3 => number(&entry["mean"][index]),
        3..6 => number(&entry["std"][index - 3]),
        6 => number(&entry["mean_abs_diff_to_clean"]),
        _ => number(&entry["mean_abs_horizontal_gradient"]),
    })
}

#[test]
#[expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "the table is for the reader of the log"
)]
fn images_are_those_of_the_recipe() {
    let Some(data) = data() else {
        eprintln!("skipped: no folder `cifar10c-oracle` in TTAC_DATA or beside the workspace");
        return;
    };
    let oracle = data.join("cifar10c-oracle");
    let clean = read(&oracle.join("clean.npy"));
    let all = serde_json::from_reader(File::open(oracle.join("statistics.json")).unwrap()).unwrap();
    let mut corruptor = Corruptor::new(20);
    match FrostTextures::load(data.join("frost")) {
        Ok(textures) => corruptor = corruptor.with_frost(textures),
        Err(error) => eprintln!("frost is skipped: {error}"),
    }

    println!(
        "{:18} severity  difference  worst statistic   means, deviations, from clean, gradient: ours / recipe",
        "corruption"
    );
    let mut failures = Vec::new();
    for corruption in Corruption::STANDARD {
        if corruptor.name_of(corruption) != corruption.name() {
            continue;
        }
        for severity in [5, 3, 1] {
            let recipe = read(&oracle.join(format!("severity{severity}/{corruption}.npy")));
            let expected = recipe_statistics(&all, corruption, severity);
            let severity = Severity::try_from(severity).unwrap();
            let ours = corruptor
                .apply(corruption, severity, &clean, SIDE, SIDE, 0)
                .unwrap();
            let difference = mean_difference(&ours[..recipe.len()], &recipe);
            let found = statistics(&ours, &clean);
            let relative = |index: usize| (found[index] - expected[index]).abs() / expected[index];
            let worst = (0..8).map(relative).fold(0.0, f64::max);
            let list = |values: [f64; 8]| values.map(|value| format!("{value:.2}")).join(" ");
            println!(
                "{corruption:18} {severity:>8} {difference:>11.4} {:>15.2}%   {} / {}",
                100.0 * worst,
                list(found),
                list(expected)
            );
            let passed = match corruption {
                Corruption::JpegCompression => difference <= JPEG_BOUND,
                _ if corruption.is_random() => worst <= STATISTIC_BOUND,
                _ => difference <= DETERMINISTIC_BOUND,
            };
            if !passed {
                failures.push(format!(
                    "{corruption} at severity {severity}: difference {difference:.4}, worst statistic {worst:.4}"
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "outside the bounds:\n{}",
        failures.join("\n")
    );
}
