//! The CIFAR-10 reader on made-up files of the right layout, and on wrong ones.

use std::path::Path;

use burn::tensor::Device;
use ttac::data::{Dataset, DatasetExt, Images, Samples, Split, open_cifar10};

use crate::files;

const RECORD: usize = 3073;

/// 10,000 records; image `i` has label `i % 10`, red `i % 251`, green 2, blue by pixel.
fn binary() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(10_000 * RECORD);
    for i in 0..10_000_usize {
        bytes.push((i % 10) as u8);
        bytes.extend(std::iter::repeat_n((i % 251) as u8, 1024));
        bytes.extend(std::iter::repeat_n(2, 1024));
        bytes.extend((0..1024).map(|pixel| (pixel % 256) as u8));
    }
    bytes
}

fn message(root: &Path, split: Split) -> String {
    files::message(root, open_cifar10(root, split))
}

#[test]
fn binary_records_become_interleaved_pixels() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("test_batch.bin"), binary()).unwrap();
    let data = open_cifar10(folder.path(), Split::Test).unwrap();
    assert_eq!(data.len(), 10_000);
    assert_eq!(data.classes()[3], "cat");
    let batch = data.batch(&[260, 7]).unwrap();
    assert_eq!(batch.labels, Some(vec![0, 7]));
    assert_eq!(batch.ids, [260, 7]);
    let pixels = &batch.samples.as_images().unwrap().pixels;
    assert_eq!(pixels[..6], [9, 2, 0, 9, 2, 1]);
    assert_eq!(pixels[3072..3078], [7, 2, 0, 7, 2, 1]);
    assert_eq!(batch.samples.count(), 2);
}

#[test]
fn the_unpacked_archive_is_found_one_folder_down() {
    let folder = tempfile::tempdir().unwrap();
    let nested = folder.path().join("cifar-10-batches-bin");
    std::fs::create_dir(&nested).unwrap();
    std::fs::write(nested.join("test_batch.bin"), binary()).unwrap();
    assert!(open_cifar10(folder.path(), Split::Test).is_ok());
}

#[test]
fn sprites_hold_one_image_per_row() {
    let folder = tempfile::tempdir().unwrap();
    let sprite = image::RgbImage::from_fn(1024, 10_000, |x, y| {
        image::Rgb([(y % 251) as u8, 2, (x % 256) as u8])
    });
    sprite.save(folder.path().join("test_batch.png")).unwrap();
    let labels: Vec<usize> = (0..10_000).map(|i| i % 10).collect();
    let text = serde_json::to_string(&labels).unwrap();
    std::fs::write(folder.path().join("test_lables.json"), &text).unwrap();
    let sprites = open_cifar10(folder.path(), Split::Test).unwrap();
    // The same content in both layouts reads the same.
    std::fs::write(folder.path().join("test_batch.bin"), binary()).unwrap();
    let records = open_cifar10(folder.path(), Split::Test).unwrap();
    let ids = [0, 1, 255, 9_999];
    assert_eq!(sprites.batch(&ids).unwrap(), records.batch(&ids).unwrap());

    std::fs::remove_file(folder.path().join("test_batch.bin")).unwrap();
    let short = serde_json::to_string(&labels[..9_999]).unwrap();
    std::fs::write(folder.path().join("test_lables.json"), short).unwrap();
    let text = message(folder.path(), Split::Test);
    assert!(
        text.contains("test_lables.json`: expected 10000 labels, found 9999"),
        "{text}"
    );
    let png = std::fs::read(folder.path().join("test_batch.png")).unwrap();
    std::fs::write(folder.path().join("test_batch.png"), &png[..png.len() / 2]).unwrap();
    let text = message(folder.path(), Split::Test);
    assert!(text.contains("test_batch.png`: not a whole PNG"), "{text}");
}

#[test]
fn wrong_folders_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nowhere");
    assert_eq!(
        message(&missing, Split::Test),
        "cifar10 in `ROOT`: no such folder\n\
         hint: put the files of the data set into this folder, or name another"
    );
    let text = message(folder.path(), Split::Train);
    assert!(
        text.contains("expected `data_batch_1.bin` or `data_batch_1.png`, the folder is empty")
    );
    std::fs::write(folder.path().join("train-images-idx3-ubyte"), "x").unwrap();
    let text = message(folder.path(), Split::Test);
    assert!(text.contains("found `train-images-idx3-ubyte`"), "{text}");
    std::fs::create_dir(folder.path().join("cifar-10-batches-py")).unwrap();
    let text = message(folder.path(), Split::Test);
    assert!(
        text.contains("found the Python pickles; the binary version is needed"),
        "{text}"
    );
}

#[test]
fn damaged_records_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test_batch.bin");
    let mut bytes = binary();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let text = message(folder.path(), Split::Test);
    assert!(text.contains(
        "test_batch.bin`: expected 30730000 bytes (10000 records of 3073), found 30729999"
    ));
    bytes[5 * RECORD] = 77;
    std::fs::write(&path, &bytes).unwrap();
    let text = message(folder.path(), Split::Test);
    assert!(
        text.contains("record 5 has label 77, expected 0 to 9"),
        "{text}"
    );
    assert!(
        text.contains("hint: the file is damaged or of another data set"),
        "{text}"
    );
}

#[test]
fn the_input_contract_normalises_and_checks_the_size() {
    let contract = files::contract([1, 2], [0.0, 0.5, 1.0], [1.0, 0.5, 2.0]);
    let images = |height, width| {
        Samples::from(Images {
            height,
            width,
            pixels: vec![255, 255, 255, 0, 0, 0],
        })
    };
    let device = Device::flex();
    let tensor = contract.normalise(&images(1, 2), &device).unwrap();
    assert_eq!(tensor.dims(), [1, 1, 2, 3]);
    let values: Vec<f32> = tensor.to_data().try_to_vec().unwrap();
    assert_eq!(values, [1.0, 1.0, 0.0, 0.0, -1.0, -0.5]);
    let error = contract.normalise(&images(2, 1), &device).unwrap_err();
    assert_eq!(
        error.to_string(),
        "image size: expected 1 x 2 pixels for this model, found 2 x 1 in the data"
    );
}
