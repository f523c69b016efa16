//! The same seed gives the same bits.

use proptest::prelude::*;
use ttac_corrupt::{Corruption, Corruptor, FrostTextures, Severity};

/// Colour waves with some texture.
fn pictures(count: usize, height: usize, width: usize) -> Vec<u8> {
    let pixel = |index: usize| {
        let (x, y) = (index / 3 % width, index / 3 / width % height);
        (x * 5 + y * 3 + index % 3 * 60 + index / (3 * height * width) * 11 + x * y % 17) % 256
    };
    (0..count * height * width * 3)
        .map(|index| pixel(index) as u8)
        .collect()
}

fn severity(number: u8) -> Severity {
    number.try_into().unwrap()
}

fn on_threads(threads: usize, work: impl FnOnce() -> Vec<u8> + Send) -> Vec<u8> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let images = pictures(9, 32, 32);
    for corruption in Corruption::ALL {
        let corrupt = || {
            Corruptor::new(3)
                .apply(corruption, severity(4), &images, 32, 32, 0)
                .unwrap()
        };
        let alone = on_threads(1, corrupt);
        for threads in [2, 3] {
            assert_eq!(
                alone,
                on_threads(threads, corrupt),
                "{corruption} on {threads} threads"
            );
        }
    }
}

#[test]
fn another_seed_changes_the_random_corruptions_and_only_those() {
    let images = pictures(4, 32, 32);
    for corruption in Corruption::ALL {
        let with = |seed| {
            Corruptor::new(seed)
                .apply(corruption, severity(5), &images, 32, 32, 0)
                .unwrap()
        };
        assert_eq!(with(1), with(1), "{corruption}");
        assert_eq!(with(1) != with(2), corruption.is_random(), "{corruption}");
    }
}

#[test]
fn images_of_one_call_draw_from_different_streams() {
    let one = pictures(1, 32, 32);
    let two = [one.clone(), one].concat();
    let noisy = Corruptor::new(1)
        .apply(Corruption::ShotNoise, severity(3), &two, 32, 32, 0)
        .unwrap();
    let (first, second) = noisy.split_at(noisy.len() / 2);
    assert_ne!(first, second);
}

#[test]
fn stronger_severities_lie_farther_from_clean() {
    let images = pictures(30, 32, 32);
    let corruptor = Corruptor::new(8);
    for corruption in [
        Corruption::GaussianNoise,
        Corruption::ShotNoise,
        Corruption::ImpulseNoise,
        Corruption::Brightness,
        Corruption::Contrast,
        Corruption::JpegCompression,
        Corruption::SpeckleNoise,
        Corruption::GaussianBlur,
    ] {
        let distance = |severity| -> u64 {
            let corrupted = corruptor
                .apply(corruption, severity, &images, 32, 32, 0)
                .unwrap();
            corrupted
                .iter()
                .zip(&images)
                .map(|(a, b)| u64::from(a.abs_diff(*b)))
                .sum()
        };
        assert!(Severity::ALL.map(distance).is_sorted(), "{corruption}");
    }
}

#[test]
fn every_size_works_at_every_severity() {
    let corruptor = Corruptor::new(0).with_frost(FrostTextures::procedural());
    for (height, width) in [(8, 8), (9, 31), (33, 17), (84, 85), (97, 85)] {
        let images = pictures(2, height, width);
        for corruption in Corruption::ALL {
            for severity in Severity::ALL {
                let out = corruptor
                    .apply(corruption, severity, &images, height, width, 0)
                    .unwrap();
                assert_eq!(
                    out.len(),
                    images.len(),
                    "{corruption} {severity} {height} x {width}"
                );
            }
        }
    }
}

#[test]
fn extreme_images_are_taken() {
    for value in [0, 255] {
        let images = vec![value; 2 * 32 * 32 * 3];
        for corruption in Corruption::ALL {
            for severity in Severity::ALL {
                Corruptor::new(0)
                    .apply(corruption, severity, &images, 32, 32, u64::MAX)
                    .unwrap();
            }
        }
    }
}

#[test]
fn public_types_can_cross_threads() {
    fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<Corruptor>();
    assert_send_sync::<FrostTextures>();
    assert_send_sync::<ttac_corrupt::Error>();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cutting_a_set_into_calls_changes_nothing(
        corruption in prop::sample::select(Corruption::ALL.to_vec()),
        level in 1u8..=5,
        seed: u64,
        first in 0u64..1000,
        cut in 0usize..=6,
    ) {
        let (height, width) = (16, 20);
        let images = pictures(6, height, width);
        let corruptor = Corruptor::new(seed);
        let apply = |part: &[u8], first| {
            corruptor.apply(corruption, severity(level), part, height, width, first).unwrap()
        };
        let (left, right) = images.split_at(cut * height * width * 3);
        let pieces = [apply(left, first), apply(right, first + cut as u64)].concat();
        prop_assert_eq!(apply(&images, first), pieces);
    }
}
