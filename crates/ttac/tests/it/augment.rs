//! Augmentations: the bytes of Pillow, the same for the same draw, distributed as they should be.

use std::collections::HashMap;

use safetensors::SafeTensors;
use serde_json::Value;
use ttac::checkpoint::Augmentation;
use ttac::data::{
    Adjustment, Batch, BatchAugmentation, BatchVariation, Crop, Dataset, Draw, Images,
    MixedVariation, Operation, Padding, SampleId, Sampling, Shapes10, Split, StrongVariation, Tone,
    Variation, rotate,
};

use crate::fixture;

const RANDOM: [Augmentation; 3] = [
    Augmentation::PadCropFlip,
    Augmentation::ResizedCropFlip,
    Augmentation::Simclr,
];

const DRAW: Draw = Draw {
    seed: 7,
    epoch: 2,
    view: 0,
};

fn samples(ids: &[u64]) -> Batch {
    let data = Shapes10::standard(Split::Test);
    data.batch(ids).unwrap()
}

fn augment_as(ids: &[SampleId], batch: &Batch, augmentation: Augmentation, draw: Draw) -> Images {
    let varied = ttac::data::augment(ids, &batch.samples, augmentation, draw);
    varied.unwrap().into_images().unwrap()
}

fn augment(batch: &Batch, augmentation: Augmentation, draw: Draw) -> Images {
    augment_as(&batch.ids, batch, augmentation, draw)
}

/// Many variations of one size.
fn variations(augmentation: Augmentation, size: [usize; 2]) -> Vec<Variation> {
    (0..20_000)
        .map(|id| Variation::draw(augmentation, size, &mut DRAW.rng(id)))
        .collect()
}

/// A frequency may be off by four standard deviations.
#[track_caller]
fn assert_frequency(hits: usize, count: usize, probability: f64) {
    let frequency = hits as f64 / count as f64;
    let deviation = (probability * (1.0 - probability) / count as f64).sqrt();
    assert!(
        (frequency - probability).abs() < 4.0 * deviation,
        "{frequency} instead of {probability}, standard deviation {deviation}"
    );
}

fn parse(case: &Value) -> Variation {
    let crop = match case["crop"][0].as_str() {
        None => Crop::Whole,
        Some(kind) => {
            let values: Vec<usize> = serde_json::from_value(case["crop"][1].clone()).unwrap();
            match (kind, &values[..]) {
                ("padded", &[top, left]) => Crop::Padded { top, left },
                ("resized", &[top, left, height, width]) => Crop::Resized {
                    top,
                    left,
                    height,
                    width,
                },
                _ => panic!("{case}"),
            }
        }
    };
    let colour = case["colour"].as_array().unwrap().iter().map(|adjustment| {
        let value = adjustment[1].as_f64().unwrap() as f32;
        match adjustment[0].as_str().unwrap() {
            "brightness" => Adjustment::Brightness(value),
            "contrast" => Adjustment::Contrast(value),
            "saturation" => Adjustment::Saturation(value),
            "hue" => Adjustment::Hue(value),
            "grey" => Adjustment::Grey,
            other => panic!("{other}"),
        }
    });
    Variation {
        crop,
        flip: case["flip"].as_bool().unwrap(),
        colour: colour.collect(),
    }
}

/// The fixture is made by `reference/augment`.
#[test]
fn variations_are_those_of_pillow_to_the_last_bit() {
    let bytes = std::fs::read(fixture::path("augment").join("data.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let about = metadata.metadata().as_ref().unwrap()["about"].as_str();
    let about: Value = serde_json::from_str(about).unwrap();
    let cases = about["cases"].as_array().unwrap();
    assert!(cases.len() > 30);
    for (index, case) in cases.iter().enumerate() {
        let picture = file.tensor(case["picture"].as_str().unwrap()).unwrap();
        let expected = file.tensor(&format!("case-{index:02}")).unwrap();
        let size = [picture.shape()[0], picture.shape()[1]];
        let actual = parse(case).apply(picture.data(), size);
        let differences = actual
            .iter()
            .zip(expected.data())
            .map(|(a, e)| a.abs_diff(*e));
        let (at, largest) = differences.enumerate().max_by_key(|(_, d)| *d).unwrap();
        assert_eq!(actual.len(), expected.data().len(), "{case}");
        assert_eq!(largest, 0, "{largest} apart at byte {at}: {case}");
    }
}

#[test]
fn an_image_varies_the_same_way_in_any_batch() {
    let ids: Vec<u64> = (0..40).collect();
    let reversed: Vec<u64> = ids.iter().rev().copied().collect();
    for augmentation in RANDOM {
        let together = augment(&samples(&ids), augmentation, DRAW);
        let in_parts: Vec<u8> = ids
            .chunks(7)
            .flat_map(|ids| augment(&samples(ids), augmentation, DRAW).pixels)
            .collect();
        assert_eq!(together.pixels, in_parts, "{augmentation:?}");
        let backwards = augment(&samples(&reversed), augmentation, DRAW).pixels;
        let images = together.pixels.chunks(32 * 32 * 3).rev();
        assert!(images.eq(backwards.chunks(32 * 32 * 3)), "{augmentation:?}");
    }
}

#[test]
fn seed_epoch_view_and_id_all_matter() {
    let samples = samples(&[5; 3]);
    for augmentation in RANDOM {
        let images = augment(&samples, augmentation, DRAW);
        assert_eq!(images, augment(&samples, augmentation, DRAW));
        let others = [
            Draw { seed: 8, ..DRAW },
            Draw { epoch: 3, ..DRAW },
            Draw { view: 1, ..DRAW },
        ];
        for other in others {
            assert_ne!(images, augment(&samples, augmentation, other), "{other:?}");
        }
        let renamed = augment_as(&[5, 6, 7], &samples, augmentation, DRAW);
        assert_ne!(images, renamed);
    }
}

/// Runs can be repeated only as long as these numbers stay.
#[test]
fn draws_are_the_same_on_every_machine() {
    let places = (0..4).map(|id| {
        let size = [32, 32];
        let draw = |augmentation| Variation::draw(augmentation, size, &mut DRAW.rng(id));
        let resized = match draw(Augmentation::Simclr).crop {
            Crop::Resized {
                top,
                left,
                height,
                width,
            } => [top, left, height, width],
            other => panic!("{other:?}"),
        };
        let padded = draw(Augmentation::PadCropFlip);
        let Crop::Padded { top, left } = padded.crop else {
            panic!("{padded:?}");
        };
        (resized, [top, left], padded.flip)
    });
    let expected = [
        ([5, 3, 25, 26], [5, 6], false),
        ([10, 7, 18, 22], [0, 7], false),
        ([1, 2, 30, 28], [3, 4], false),
        ([11, 6, 19, 24], [8, 7], true),
    ];
    assert_eq!(places.collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_not_known_is_not_varied() {
    let samples = samples(&[0, 1, 2]);
    for augmentation in [Augmentation::None, Augmentation::Unknown] {
        let images = samples.samples.as_images().unwrap();
        assert_eq!(augment(&samples, augmentation, DRAW), *images);
        let nothing = Variation::draw(augmentation, [32, 32], &mut DRAW.rng(0));
        let image = &images.pixels[..32 * 32 * 3];
        assert_eq!(nothing.apply(image, [32, 32]), image);
    }
}

#[test]
fn half_of_the_images_are_flipped() {
    for augmentation in RANDOM {
        let drawn = variations(augmentation, [32, 32]);
        let flips = drawn.iter().filter(|variation| variation.flip).count();
        assert_frequency(flips, drawn.len(), 0.5);
    }
}

#[test]
fn padded_crops_are_everywhere_as_often() {
    let drawn = variations(Augmentation::PadCropFlip, [32, 32]);
    let mut counts = HashMap::new();
    for variation in &drawn {
        assert_eq!(variation.colour, []);
        let Crop::Padded { top, left } = variation.crop else {
            panic!("{variation:?}");
        };
        assert!(top <= 8 && left <= 8, "{variation:?}");
        *counts.entry((top, left)).or_default() += 1;
    }
    assert_eq!(counts.len(), 81);
    for count in counts.into_values() {
        assert_frequency(count, drawn.len(), 1.0 / 81.0);
    }
}

/// In an image this large, rounding to pixels does not matter.
#[test]
fn resized_crops_have_the_areas_and_aspects_of_torchvision() {
    let (side, mut count) = (10_000, 0);
    let (mut areas, mut aspects, mut touching) = (0.0, 0.0, 0);
    for variation in variations(Augmentation::ResizedCropFlip, [side, side]) {
        let Crop::Resized {
            top,
            left,
            height,
            width,
        } = variation.crop
        else {
            panic!("{variation:?}");
        };
        assert!(top + height <= side && left + width <= side);
        let area = (height * width) as f64 / (side * side) as f64;
        let aspect = width as f64 / height as f64;
        assert!((0.1999..=1.0).contains(&area), "{variation:?}");
        assert!((0.7499..1.3335).contains(&aspect), "{variation:?}");
        // Below 0.75 every aspect fits, so that area and aspect are as drawn.
        if area < 0.75 {
            areas += area;
            aspects += aspect.ln();
            touching += usize::from(2 * top > side - height);
            count += 1;
        }
    }
    // Of those drawn, 55 of 80 have such an area; the others fit less often.
    assert!((0.68..0.85).contains(&(f64::from(count) / 20_000.0)));
    let (area, aspect) = (areas / f64::from(count), aspects / f64::from(count));
    assert!((area - 0.475).abs() < 0.005, "{area}");
    assert!(aspect.abs() < 0.006, "{aspect}");
    assert_frequency(touching, count as usize, 0.5);
}

/// No part of so narrow an image has an allowed aspect and a fifth of the area.
#[test]
fn resized_crops_of_narrow_images_are_their_middle() {
    let middle = Crop::Resized {
        top: 0,
        left: 43,
        height: 10,
        width: 13,
    };
    let drawn = variations(Augmentation::ResizedCropFlip, [10, 100]);
    assert!(drawn.iter().all(|variation| variation.crop == middle));
}

#[test]
fn colours_change_as_often_and_as_much_as_simclr_says() {
    let drawn = variations(Augmentation::Simclr, [32, 32]);
    let (mut jittered, mut grey, mut first) = (0, 0, [0; 4]);
    let mut sums = [0.0; 4];
    for variation in &drawn {
        let mut colour = &variation.colour[..];
        if let Some((Adjustment::Grey, rest)) = colour.split_last() {
            grey += 1;
            colour = rest;
        }
        if colour.is_empty() {
            continue;
        }
        jittered += 1;
        let mut seen = [false; 4];
        for (place, adjustment) in colour.iter().enumerate() {
            // In units of the largest change.
            let (kind, change) = match *adjustment {
                Adjustment::Brightness(factor) => (0, (factor - 1.0) / 0.4),
                Adjustment::Contrast(factor) => (1, (factor - 1.0) / 0.4),
                Adjustment::Saturation(factor) => (2, (factor - 1.0) / 0.4),
                Adjustment::Hue(turn) => (3, turn / 0.1),
                Adjustment::Grey => panic!("{variation:?}"),
            };
            assert!(change.abs() < 1.0001, "{variation:?}");
            seen[kind] = true;
            sums[kind] += change.abs();
            first[kind] += usize::from(place == 0);
        }
        assert_eq!((seen, colour.len()), ([true; 4], 4), "{variation:?}");
    }
    assert_frequency(jittered, drawn.len(), 0.8);
    assert_frequency(grey, drawn.len(), 0.2);
    for kind in 0..4 {
        assert_frequency(first[kind], jittered, 0.25);
        let mean = sums[kind] / jittered as f32;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}

/// Smaller than the padding, or only a pixel wide.
#[test]
fn images_may_have_any_size() {
    for (height, width) in [(1, 1), (2, 3), (3, 40), (40, 1), (9, 9)] {
        let images = Images {
            height,
            width,
            pixels: (0..20 * height * width * 3)
                .map(|i| (i % 251) as u8)
                .collect(),
        };
        let samples = Batch {
            ids: (0..20).collect(),
            samples: images.into(),
            labels: None,
        };
        for augmentation in RANDOM {
            let varied = augment(&samples, augmentation, DRAW);
            assert_eq!((varied.height, varied.width), (height, width));
            assert_eq!(varied.count(), 20);
        }
    }
}

#[test]
fn rotations_are_those_of_torch() {
    let grey = |pixels: &[u8]| pixels.iter().flat_map(|&pixel| [pixel; 3]).collect();
    // torch.rot90(torch.arange(9).view(3, 3), r, (0, 1)) for r in 0..4.
    let turned = [
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [2, 5, 8, 1, 4, 7, 0, 3, 6],
        [8, 7, 6, 5, 4, 3, 2, 1, 0],
        [6, 3, 0, 7, 4, 1, 8, 5, 2],
    ];
    let images = |pixels: Vec<u8>| Images {
        height: 3,
        width: 3,
        pixels,
    };
    let four = images(grey(&turned[0].repeat(4)));
    let expected = images(grey(turned.as_flattened()));
    assert_eq!(rotate(&four, &[0, 1, 2, 3]), expected);
    assert_eq!(rotate(&four, &[4, 5, 6, 7]), expected);
}

#[test]
fn four_quarter_turns_are_none() {
    let images = samples(&[0, 1]).samples.into_images().unwrap();
    let turn = |images: &Images| rotate(images, &[1, 3]);
    let half = turn(&turn(&images));
    assert_eq!(half, rotate(&images, &[2, 2]));
    assert_eq!(turn(&turn(&half)), images);
}

#[test]
#[should_panic(expected = "images of 2 x 3 cannot be turned")]
fn only_squares_are_turned() {
    let images = Images {
        height: 2,
        width: 3,
        pixels: vec![0; 18],
    };
    rotate(&images, &[1]);
}

/// A variation of a whole batch, as a fixture notes it.
fn batch_variation(case: &Value) -> BatchVariation {
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    let tones = case["tones"].as_array().unwrap().iter().map(|tone| {
        let amount = number(&tone[1]);
        match tone[0].as_str().unwrap() {
            "brightness" => Tone::Brightness(amount),
            "contrast" => Tone::Contrast(amount),
            "saturation" => Tone::Saturation(amount),
            "hue" => Tone::Hue(amount),
            "gamma" => Tone::Gamma(amount),
            other => panic!("no tone is called `{other}`"),
        }
    });
    BatchVariation {
        tones: tones.collect(),
        padding: serde_json::from_value(case["padding"].clone()).unwrap(),
        degrees: number(&case["degrees"]),
        shift: serde_json::from_value(case["shift"].clone()).unwrap(),
        scale: number(&case["scale"]),
        blur: case["blur"].as_f64().map(|deviation| deviation as f32),
        flip: case["flip"].as_bool().unwrap(),
        noise: 0.0,
    }
}

#[test]
fn a_batch_is_varied_as_pytorch_varies_it() {
    let path = fixture::path("methods").join("batch-variation/config.json");
    let config: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut expected = fixture::Fixture::open_in("methods", "batch-variation");
    let input = &config["inputs"]["images"];
    let shape: Vec<usize> = serde_json::from_value(input["shape"].clone()).unwrap();
    let images = fixture::values("varied", shape.iter().product(), 1.0, 0.5);
    for (name, case) in config["variations"].as_object().unwrap() {
        let found = batch_variation(case).apply(&images, [shape[1], shape[2]], DRAW);
        let found = burn::tensor::TensorData::new(found, shape.clone());
        expected.compare_data(name, name, &found);
        // Single precision against double; places of pixels are computed in double precision on both sides.
        expected.expect(name, 2e-6);
    }
}

#[test]
fn a_neutral_variation_of_a_batch_is_the_identity() {
    let images = fixture::values("varied", 2 * 7 * 6 * 3, 1.0, 0.5);
    let neutral = BatchVariation {
        tones: vec![
            Tone::Brightness(1.0),
            Tone::Contrast(1.0),
            Tone::Saturation(1.0),
            Tone::Hue(0.0),
            Tone::Gamma(1.0),
        ],
        // A Gaussian as narrow as this has all its weight in the middle.
        blur: Some(0.001),
        padding: Padding::Reflection,
        ..BatchVariation::neutral()
    };
    for (found, image) in neutral.apply(&images, [7, 6], DRAW).iter().zip(&images) {
        // The hue goes through a division by the range of the channels and back.
        assert!((found - image).abs() < 1e-6, "{found} instead of {image}");
    }
}

#[test]
fn variations_of_a_batch_are_drawn_within_their_bounds() {
    let size = [32, 20];
    let draws = (0..2_000).map(|view| {
        let mut rng = Draw { view, ..DRAW }.rng(0);
        BatchVariation::draw(BatchAugmentation::FULL, size, &mut rng)
    });
    let draws: Vec<BatchVariation> = draws.collect();
    for draw in &draws {
        assert_eq!(draw.tones.len(), 5);
        for tone in &draw.tones {
            let (value, least, most) = match *tone {
                Tone::Brightness(value) => (value, 0.6, 1.4),
                Tone::Contrast(value) | Tone::Gamma(value) => (value, 0.7, 1.3),
                Tone::Saturation(value) => (value, 0.5, 1.5),
                Tone::Hue(value) => (value, -0.06, 0.06),
            };
            assert!((least..=most).contains(&value), "{tone:?}");
        }
        assert!(draw.degrees.abs() <= 15.0 && (0.9..=1.1).contains(&draw.scale));
        // A sixteenth of the padded sides, 64 and 40.
        assert!(draw.shift[0].abs() <= 4 && draw.shift[1].abs() <= 3);
        assert!((0.001..=0.5).contains(&draw.blur.unwrap()));
    }
    let flips = draws.iter().filter(|draw| draw.flip).count();
    assert_frequency(flips, draws.len(), 0.5);
    let first = draws
        .iter()
        .filter(|draw| matches!(draw.tones[0], Tone::Hue(_)));
    assert_frequency(first.count(), draws.len(), 0.2);
    let plain = BatchVariation::draw(BatchAugmentation::PLAIN, size, &mut DRAW.rng(0));
    assert_eq!((plain.blur, plain.noise), (None, 0.0));
}

#[test]
fn a_batch_is_varied_alike_on_any_number_of_threads_and_noise_differs_between_images() {
    let image = fixture::values("varied", 8 * 8 * 3, 0.5, 0.5);
    let images = image.repeat(3);
    let noisy = BatchVariation {
        noise: 0.005,
        ..BatchVariation::neutral()
    };
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.build().unwrap();
        pool.install(|| noisy.apply(&images, [8, 8], DRAW))
    };
    let varied = with(1);
    assert_eq!(varied, with(3));
    let (first, second) = (&varied[..192], &varied[192..384]);
    assert_ne!(first, second);
    let squares = first
        .iter()
        .zip(&image)
        .map(|(a, b)| f64::from(a - b).powi(2));
    let deviation = (squares.sum::<f64>() / 192.0).sqrt();
    // The deviation of 192 draws is known to five hundredths of itself; four times that are allowed.
    assert!((deviation - 0.005).abs() < 0.001, "{deviation}");
}

fn parse_operation(kind: &str, value: &Value) -> Operation {
    let number = value.as_f64().unwrap_or_default();
    match kind {
        "auto-contrast" => Operation::AutoContrast,
        "equalise" => Operation::Equalise,
        "posterise" => Operation::Posterise(number as u32),
        "solarise" => Operation::Solarise(number as u32),
        "sharpness" => Operation::Sharpness(number as f32),
        "rotate" => Operation::Rotate(number),
        "shear-rows" => Operation::ShearRows(number),
        "shear-columns" => Operation::ShearColumns(number),
        "translate" => Operation::Translate(serde_json::from_value(value.clone()).unwrap()),
        other => panic!("{other}"),
    }
}

/// The fixture is made by `reference/augment`.
#[test]
fn strong_variations_are_those_of_pillow_to_the_last_bit() {
    let bytes = std::fs::read(fixture::path("augment").join("strong.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let about = metadata.metadata().as_ref().unwrap()["about"].as_str();
    let about: Value = serde_json::from_str(about).unwrap();
    let cases = about["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for (index, case) in cases.iter().enumerate() {
        let picture = file.tensor(case["picture"].as_str().unwrap()).unwrap();
        let expected = file.tensor(&format!("case-{index:02}")).unwrap();
        let size = [picture.shape()[0], picture.shape()[1]];
        let crop: Option<[usize; 2]> = serde_json::from_value(case["crop"].clone()).unwrap();
        let operations = case["operations"].as_array().unwrap().iter();
        let operations = operations.map(|one| parse_operation(one[0].as_str().unwrap(), &one[1]));
        let variation = StrongVariation {
            crop: crop.map_or(Crop::Whole, |[top, left]| Crop::Reflected { top, left }),
            flip: false,
            operations: operations.collect(),
            square: serde_json::from_value(case["square"].clone()).unwrap(),
        };
        let actual = if case["sampling"] == "bilinear" {
            let mut image = picture.data().to_vec();
            for operation in &variation.operations {
                operation.apply(&mut image, size, Sampling::Bilinear);
            }
            image
        } else {
            variation.apply(picture.data(), size)
        };
        let differences = actual.iter().zip(expected.data());
        let differences = differences.map(|(a, e)| a.abs_diff(*e)).enumerate();
        let (at, largest) = differences.max_by_key(|(_, d)| *d).unwrap();
        assert_eq!(largest, 0, "{largest} apart at byte {at}: {case}");
    }
}

#[test]
fn strong_variations_are_drawn_as_published() {
    let size = [32, 32];
    let drawn = (0..20_000).map(|id| StrongVariation::draw(size, true, &mut DRAW.rng(id)));
    let drawn: Vec<StrongVariation> = drawn.collect();
    let count = |hits: &dyn Fn(&StrongVariation) -> usize| drawn.iter().map(hits).sum::<usize>();
    assert_frequency(count(&|one| usize::from(one.flip)), drawn.len(), 0.5);
    // Two changes, each made in half of the cases.
    let made = count(&|one| one.operations.len());
    assert_frequency(made, 2 * drawn.len(), 0.5);
    let of = |kind: &dyn Fn(&Operation) -> bool| {
        count(&|one| {
            one.operations
                .iter()
                .filter(|&operation| kind(operation))
                .count()
        })
    };
    let solarised = of(&|one| matches!(one, Operation::Solarise(_)));
    assert_frequency(solarised, 2 * drawn.len(), 0.5 / 14.0);
    for operation in drawn.iter().flat_map(|one| &one.operations) {
        match *operation {
            Operation::Rotate(degrees) => assert!((3.0..=27.0).contains(&degrees.abs())),
            Operation::Solarise(threshold) => assert!((26..=231).contains(&threshold)),
            Operation::Posterise(bits) => assert!((4..=8).contains(&bits)),
            Operation::Sharpness(factor) => assert!((0.139..=0.861).contains(&factor)),
            Operation::Translate(way) => assert!(way.iter().all(|way| way.abs() <= 8)),
            Operation::ShearRows(share) | Operation::ShearColumns(share) => {
                assert!((0.029..=0.271).contains(&share.abs()));
            }
            Operation::AutoContrast | Operation::Equalise | Operation::Colour(_) => {}
        }
    }
    let flat = StrongVariation::draw(size, false, &mut DRAW.rng(0));
    assert!(!flat.flip);
    // The square is half as long as the image, and no longer; at the edges it is cut.
    for square in drawn.iter().filter_map(|one| one.square) {
        for [first, last] in square {
            assert!(
                last <= 32 && last - first <= 16 && last - first >= 8,
                "{square:?}"
            );
        }
    }
}

#[test]
fn a_mixture_is_between_the_image_and_its_chains() {
    let size = [32, 32];
    let batch = samples(&[3]);
    let image = batch.samples.as_images().unwrap().pixels.clone();
    let neutral = MixedVariation {
        crop: Crop::Whole,
        flip: false,
        chains: vec![(1.0, vec![Operation::Posterise(4)])],
        own: 1.0,
    };
    let as_it_is = neutral.apply(&image, size);
    for (value, &byte) in as_it_is.iter().zip(&image) {
        assert!((value - f32::from(byte) / 255.0).abs() < 1e-6);
    }
    let changed = MixedVariation {
        own: 0.0,
        ..neutral.clone()
    };
    let half = MixedVariation {
        own: 0.5,
        ..neutral
    };
    let (changed, half) = (changed.apply(&image, size), half.apply(&image, size));
    for ((value, &byte), posterised) in half.iter().zip(&image).zip(&changed) {
        assert!((posterised - f32::from(byte & 0xf0) / 255.0).abs() < 1e-6);
        let middle = (f32::from(byte) + f32::from(byte & 0xf0)) / 510.0;
        assert!((value - middle).abs() < 1e-6);
    }
    let drawn = (0..2_000).map(|id| MixedVariation::draw(size, true, &mut DRAW.rng(id)));
    for one in drawn {
        let sum: f32 = one.chains.iter().map(|(share, _)| share).sum();
        assert!((sum - 1.0).abs() < 1e-5 && one.chains.len() == 3);
        for operation in one.chains.iter().flat_map(|(_, chain)| chain) {
            match *operation {
                Operation::Rotate(degrees) => assert!([0.0, 1.0, 2.0].contains(&degrees.abs())),
                Operation::Posterise(bits) => assert_eq!(bits, 4),
                Operation::Translate(way) => assert!(way.iter().all(|way| way.abs() <= 1)),
                _ => {}
            }
        }
    }
}
