//! MNIST, Fashion-MNIST and USPS: one contract, made-up and real files, and wrong ones.
//!
//! The real ones are MNIST (`$TTAC_DATA/mnist` or the user's cache, see `ttac fetch`) and USPS (`usps/usps.h5`
//! below `$TTAC_DATA` or the folder `../shared/data`); where they are absent, that is said and passed.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use hdf5_pure::FileBuilder;
use ttac::data::{Dataset, DatasetExt, Split, open_fashion_mnist, open_mnist, open_usps};

use crate::files::problem;
use crate::fixture::note;
use crate::real::at_hand;

fn idx(shape: &[u32], data: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, shape.len() as u8];
    file.extend(shape.iter().flat_map(|length| length.to_be_bytes()));
    file.extend(data);
    file
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Image `i` is `10 * i + 1` everywhere but for a 255 in its upper left corner.
fn digits() -> Vec<u8> {
    let image = |i: u8| (0..784).map(move |at| if at == 0 { 255 } else { 10 * i + 1 });
    (0..3).flat_map(image).collect()
}

const IMAGES: &str = "t10k-images-idx3-ubyte";
const LABELS: &str = "t10k-labels-idx1-ubyte";

fn mnist() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let images = idx(&[3, 28, 28], &digits());
    std::fs::write(folder.path().join(IMAGES), images).unwrap();
    std::fs::write(folder.path().join(LABELS), idx(&[3], &[7, 0, 9])).unwrap();
    folder
}

#[test]
fn grey_becomes_rgb_within_a_border_of_zeros() {
    let folder = mnist();
    let data = open_mnist(folder.path(), Split::Test, 32).unwrap();
    assert_eq!((data.name(), data.len()), ("mnist", 3));
    assert_eq!(data.classes()[7], "7");
    let batch = data.batch(&[2, 0]).unwrap();
    assert_eq!(batch.labels, Some(vec![9, 7]));
    let images = batch.samples.as_images().unwrap();
    assert_eq!((images.height, images.width, images.count()), (32, 32, 2));
    let pixel = |y: usize, x: usize| &images.pixels[(y * 32 + x) * 3..][..3];
    assert_eq!(pixel(2, 2), [255; 3]);
    assert_eq!(pixel(2, 3), [21; 3]);
    assert_eq!(pixel(29, 29), [21; 3]);
    for (y, x) in [(1, 2), (2, 1), (30, 29), (29, 30)] {
        assert_eq!(pixel(y, x), [0; 3], "{y} {x}");
    }
    assert_eq!(
        images.pixels.iter().filter(|&&byte| byte > 0).count(),
        2 * 28 * 28 * 3
    );

    let bare = open_mnist(folder.path(), Split::Test, 28).unwrap();
    assert_eq!(
        bare.batch(&[0])
            .unwrap()
            .samples
            .as_images()
            .unwrap()
            .pixels[..6],
        [255, 255, 255, 1, 1, 1]
    );
    for size in [27, 224] {
        let error = open_mnist(folder.path(), Split::Test, size).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "image size of mnist: expected a model for 28 to 56 pixels, found a model for {size}"
            )
        );
    }
}

#[test]
fn compressed_files_read_the_same() {
    let folder = mnist();
    let plain = open_mnist(folder.path(), Split::Test, 32).unwrap();
    for name in [IMAGES, LABELS] {
        let path = folder.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(folder.path().join(format!("{name}.gz")), gzip(&bytes)).unwrap();
        std::fs::remove_file(path).unwrap();
    }
    let packed = open_fashion_mnist(folder.path(), Split::Test, 32).unwrap();
    assert_eq!(packed.classes()[9], "Ankle boot");
    let ids = [0, 1, 2];
    assert_eq!(packed.batch(&ids).unwrap(), plain.batch(&ids).unwrap());

    // Half of a compressed file is a damaged file.
    let path = folder.path().join(format!("{IMAGES}.gz"));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let text = problem(folder.path(), open_mnist(folder.path(), Split::Test, 32));
    assert!(
        text.starts_with(&format!(
            "mnist in `ROOT/{IMAGES}.gz`: it cannot be read to its end"
        )),
        "{text}"
    );
}

#[test]
fn lying_headers_are_refused() {
    let folder = mnist();
    let root = folder.path();
    let open = || problem(root, open_mnist(root, Split::Test, 32));
    let with = |name: &str, file: &[u8]| {
        std::fs::write(root.join(name), file).unwrap();
        let text = open();
        let text = text.strip_prefix(&format!("mnist in `ROOT/{name}`: "));
        text.expect("the file is named").to_owned()
    };
    let images = |file: &[u8]| with(IMAGES, file);
    assert_eq!(
        images(&idx(&[u32::MAX, 28, 28], &digits())),
        "expected images [n, 28, 28], found [4294967295, 28, 28]"
    );
    assert_eq!(
        images(&idx(&[u32::MAX; 4], &[])),
        "not an IDX file: its header claims [4294967295, 4294967295, 4294967295, 4294967295]"
    );
    assert_eq!(
        images(&idx(&[4, 28, 28], &digits())),
        "expected 3136 bytes for [4, 28, 28] after the header, found 2352"
    );
    assert_eq!(
        images(&idx(&[2, 28, 28], &digits())),
        "expected 1568 bytes for [2, 28, 28] after the header, found more"
    );
    assert_eq!(
        images(&idx(&[3, 16, 49], &digits())),
        "expected images [n, 28, 28], found [3, 16, 49]"
    );
    assert_eq!(images(&[0, 0, 8]), "not an IDX file: it ends in its header");
    assert_eq!(
        images(b"<html>not found"),
        "not an IDX file: expected two zero bytes at its start, found 0x3c 0x68"
    );
    assert_eq!(
        images(&[0, 0, 0x0d, 3, 0, 0, 0, 1]),
        "not an IDX file: expected unsigned bytes (type 0x08), found type 0x0d"
    );
    // A small compressed file that unpacks to far more than its header says.
    let mut bomb = idx(&[3, 28, 28], &digits());
    bomb.resize(50_000_000, 0);
    assert_eq!(
        images(&gzip(&bomb)),
        "expected 2352 bytes for [3, 28, 28] after the header, found more"
    );
    std::fs::write(root.join(IMAGES), idx(&[3, 28, 28], &digits())).unwrap();
    assert_eq!(
        with(LABELS, &idx(&[2], &[1, 2])),
        "expected 3 labels, found 2"
    );
    assert_eq!(
        with(LABELS, &idx(&[3], &[1, 2, 10])),
        "record 2 has label 10, expected 0 to 9"
    );
    std::fs::remove_file(root.join(LABELS)).unwrap();
    assert_eq!(
        open(),
        "mnist in `ROOT`: expected `t10k-labels-idx1-ubyte` or `t10k-labels-idx1-ubyte.gz`, \
         found `t10k-images-idx3-ubyte`"
    );
}

/// A file like `usps.h5` with a group `test`.
fn usps(values: &[f32], width: u64, labels: &[i32]) -> Vec<u8> {
    let mut file = FileBuilder::new();
    let mut group = file.create_group("test");
    group
        .create_dataset("data")
        .with_f32_data(values)
        .with_shape(&[values.len() as u64 / width, width])
        .with_chunks(&[1, width])
        .with_deflate(4);
    group
        .create_dataset("target")
        .with_i32_data(labels)
        .with_shape(&[labels.len() as u64]);
    file.add_group(group.finish());
    file.finish().unwrap()
}

#[test]
fn usps_is_enlarged_to_the_size_of_mnist() {
    let folder = tempfile::tempdir().unwrap();
    let mut values = vec![0.0; 2 * 256];
    values[256..].fill(0.5);
    std::fs::write(folder.path().join("usps.h5"), usps(&values, 256, &[3, 8])).unwrap();
    let data = open_usps(folder.path(), Split::Test, 32).unwrap();
    assert_eq!((data.name(), data.len()), ("usps", 2));
    let batch = data.batch(&[0, 1]).unwrap();
    assert_eq!(batch.labels, Some(vec![3, 8]));
    let pixels = &batch.samples.as_images().unwrap().pixels;
    assert!(pixels[..3072].iter().all(|&byte| byte == 0));
    // 0.5 * 255 rounds to 128; 28 x 28 of them inside a border of two.
    assert_eq!(
        pixels.iter().map(|&byte| usize::from(byte)).sum::<usize>(),
        128 * 28 * 28 * 3
    );
}

#[test]
fn wrong_hdf5_files_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let open = |split| problem(root, open_usps(root, split, 32));
    assert_eq!(
        open(Split::Test),
        "usps in `ROOT`: expected `usps.h5`, the folder is empty"
    );
    let with = |file: &[u8]| {
        std::fs::write(root.join("usps.h5"), file).unwrap();
        let text = open(Split::Test);
        let text = text.strip_prefix("usps in `ROOT/usps.h5`: ");
        text.expect("the file is named").to_owned()
    };
    let good = usps(&[0.0; 512], 256, &[3, 8]);
    assert_eq!(
        with(&usps(&[0.0; 512], 128, &[3, 8])),
        "`test/data`: expected floats [n, 256], found [4, 128]"
    );
    assert_eq!(
        with(&usps(&[0.0; 512], 256, &[3])),
        "`test/target`: expected [2] labels for the images, found [1]"
    );
    assert_eq!(
        with(&usps(&[0.0; 512], 256, &[3, 10])),
        "`test/target`: label 1 is 10, expected 0 to 9"
    );
    for wrong in [1.5, -0.1, f32::NAN] {
        let mut values = vec![0.0; 512];
        values[300] = wrong;
        assert_eq!(
            with(&usps(&values, 256, &[3, 8])),
            format!("`test/data`: digit 1 has {wrong}, expected 0 to 1")
        );
    }
    let text = with(b"not an array at all");
    assert!(text.starts_with("not an HDF5 file: "), "{text}");
    let text = with(&good[..good.len() / 2]);
    assert!(text.contains("HDF5") || text.contains("`test/"), "{text}");
    std::fs::write(root.join("usps.h5"), good).unwrap();
    let text = open(Split::Train);
    assert!(text.contains("no `train/data`"), "{text}");
}

/// Samples per class.
fn balance(data: &dyn Dataset) -> Vec<usize> {
    let mut counts = vec![0; data.classes().len()];
    let ids: Vec<u64> = (0..data.len() as u64).collect();
    for ids in ids.chunks(1000) {
        let batch = data.batch(ids).unwrap();
        assert_eq!(batch.samples.describe(), "images of 32 x 32 pixels");
        let labels = batch.labels.unwrap();
        for label in labels {
            counts[label] += 1;
        }
    }
    counts
}

#[test]
fn real_usps_has_its_published_counts() {
    let Some(root) = at_hand("usps") else {
        return note("skipped: needs `usps/usps.h5`");
    };
    let counts = |split| balance(&open_usps(&root, split, 32).unwrap());
    let train = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644];
    let test = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177];
    assert_eq!(counts(Split::Train), train);
    assert_eq!(counts(Split::Test), test);
}

#[test]
fn real_mnist_has_its_published_counts() {
    let Some(root) = at_hand("mnist") else {
        return note("skipped: needs MNIST");
    };
    for (split, published) in [
        (
            Split::Train,
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        ),
        (
            Split::Test,
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
    ] {
        let data = open_mnist(&root, split, 32).unwrap();
        assert_eq!(balance(&data), published, "{split}");
    }
}
