//! CIFAR-100, CIFAR-10-C, CIFAR-100-C and CIFAR-10.1 on made-up files, and on wrong ones.

use ttac::data::{
    Batch, Dataset, DatasetExt, Split, cifar_c_corruptions, open_cifar10_1, open_cifar10_c,
    open_cifar100, open_cifar100_c,
};

use crate::files::{assert_refused, message, npy};

/// Image `i` has red `i`, green 2, blue by pixel.
fn images(count: usize) -> Vec<u8> {
    let image = |i: usize| (0..1024).flat_map(move |pixel| [i as u8, 2, (pixel % 256) as u8]);
    (0..count).flat_map(image).collect()
}

/// Ten images of snow, two to a severity, with labels 0 to 9.
fn snow() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = npy("|u1", false, &[10, 32, 32, 3], &images(10));
    std::fs::write(folder.path().join("snow.npy"), file).unwrap();
    let labels: Vec<u8> = (0..10).collect();
    let file = npy("|u1", false, &[10], &labels);
    std::fs::write(folder.path().join("labels.npy"), file).unwrap();
    folder
}

fn pixels(batch: &Batch) -> &[u8] {
    &batch.samples.as_images().unwrap().pixels
}

#[test]
fn cifar100_reads_the_fine_label() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut bytes = Vec::new();
    for i in 0..10_000_usize {
        bytes.extend([(i % 20) as u8, (i % 100) as u8]);
        bytes.extend(std::iter::repeat_n((i % 251) as u8, 1024));
        bytes.extend(std::iter::repeat_n(2, 1024));
        bytes.extend((0..1024).map(|pixel| (pixel % 256) as u8));
    }
    let path = root.join("test.bin");
    std::fs::write(&path, &bytes).unwrap();
    let data = open_cifar100(root, Split::Test).unwrap();
    assert_eq!((data.name(), data.len()), ("cifar100", 10_000));
    assert_eq!(data.classes()[97], "wolf");
    let batch = data.batch(&[260, 97]).unwrap();
    assert_eq!(batch.labels, Some(vec![60, 97]));
    assert_eq!(pixels(&batch)[..6], [9, 2, 0, 9, 2, 1]);

    bytes[7 * 3074 + 1] = 100;
    std::fs::write(&path, &bytes).unwrap();
    assert_refused(
        root,
        open_cifar100(root, Split::Test),
        "record 7 has label 100, expected 0 to 99",
    );
    bytes.pop();
    std::fs::write(&path, &bytes).unwrap();
    assert_refused(
        root,
        open_cifar100(root, Split::Test),
        "expected 30740000 bytes (10000 records of 3074), found 30739999",
    );
}

#[test]
fn cifar100_pickles_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    assert_eq!(
        message(root, open_cifar100(root, Split::Train)),
        "cifar100 in `ROOT`: expected `train.bin`, the folder is empty\n\
         hint: put the files of the data set into this folder, or name another"
    );
    std::fs::create_dir(root.join("cifar-100-python")).unwrap();
    assert_refused(
        root,
        open_cifar100(root, Split::Train),
        "found the Python pickles; the binary version is needed",
    );
}

#[test]
fn a_severity_is_a_block_of_rows() {
    let folder = snow();
    let root = folder.path();
    let data = open_cifar10_c(root, "snow", 2).unwrap();
    assert_eq!((data.name(), data.len()), ("cifar10-c", 2));
    let batch = data.batch(&[1, 0]).unwrap();
    assert_eq!(batch.labels, Some(vec![3, 2]));
    assert_eq!(pixels(&batch)[..6], [3, 2, 0, 3, 2, 1]);
    assert_eq!(pixels(&batch)[3072..3078], [2, 2, 0, 2, 2, 1]);
    let last = open_cifar10_c(root, "snow", 5).unwrap();
    assert_eq!(last.batch(&[1]).unwrap().labels, Some(vec![9]));

    // The archive's folder, and labels for one block, in another integer type.
    let nested = root.join("CIFAR-100-C");
    std::fs::create_dir(&nested).unwrap();
    std::fs::rename(root.join("snow.npy"), nested.join("snow.npy")).unwrap();
    std::fs::remove_file(root.join("labels.npy")).unwrap();
    let labels: Vec<u8> = [98_i64, 99].iter().flat_map(|l| l.to_le_bytes()).collect();
    std::fs::write(nested.join("labels.npy"), npy("<i8", false, &[2], &labels)).unwrap();
    let data = open_cifar100_c(root, "snow", 4).unwrap();
    assert_eq!(data.batch(&[0, 1]).unwrap().labels, Some(vec![98, 99]));
    assert_eq!(data.classes()[99], "worm");
    assert_eq!(cifar_c_corruptions("cifar100-c", root).unwrap(), ["snow"]);
}

#[test]
fn a_manifest_says_which_severities_there_are() {
    let folder = snow();
    let root = folder.path();
    std::fs::write(
        root.join("manifest.json"),
        r#"{"severities": [5, 3], "seed": 0}"#,
    )
    .unwrap();
    let data = open_cifar10_c(root, "snow", 3).unwrap();
    assert_eq!(data.batch(&[0, 4]).unwrap().labels, Some(vec![5, 9]));
    assert_eq!(
        message(root, open_cifar10_c(root, "snow", 1)),
        "invalid severity: expected one of [5, 3], found 1"
    );
    std::fs::write(root.join("manifest.json"), "{}").unwrap();
    assert_refused(
        root,
        open_cifar10_c(root, "snow", 3),
        "manifest.json`: not a manifest of corruptions",
    );
}

#[test]
fn wrong_names_and_severities_are_answered() {
    let folder = snow();
    let root = folder.path();
    let open = |corruption, severity| message(root, open_cifar10_c(root, corruption, severity));
    let answers = [
        ("snow", 0, "severity: expected 1 to 5, found 0"),
        ("snow", 6, "severity: expected 1 to 5, found 6"),
        (
            "snwo",
            1,
            "corruption: there is no `snwo`; did you mean `snow`?",
        ),
        (
            "gaussian_noise",
            1,
            "corruption: there is no `gaussian_noise`; there are `snow`",
        ),
    ];
    for (corruption, severity, problem) in answers {
        assert_eq!(open(corruption, severity), format!("invalid {problem}"));
    }
    std::fs::remove_file(root.join("labels.npy")).unwrap();
    assert_eq!(
        open("snow", 1),
        "cifar10-c in `ROOT`: expected `labels.npy` and a `.npy` file for every corruption, \
         found `snow.npy`\n\
         hint: put the files of the data set into this folder, or name another"
    );
}

#[test]
fn wrong_arrays_are_described() {
    let folder = snow();
    let root = folder.path();
    let with = |file: Vec<u8>| {
        std::fs::write(root.join("snow.npy"), file).unwrap();
        let text = message(root, open_cifar10_c(root, "snow", 1));
        let text = text.strip_prefix("cifar10-c in `ROOT/snow.npy`: ");
        let text = text.expect("the file is named");
        let (text, hint) = text.split_once("\nhint: ").unwrap();
        assert!(hint.starts_with("the file is damaged or of another data set"));
        text.to_owned()
    };
    let shape = [10, 32, 32, 3];
    let whole = npy("|u1", false, &shape, &images(10));
    assert_eq!(
        with(whole[..whole.len() - 7].to_vec()),
        "expected 30720 bytes for [10, 32, 32, 3] of `|u1` after the header, found 30713"
    );
    assert_eq!(
        with(whole[..40].to_vec()),
        "not a `.npy` array: it ends in its header"
    );
    assert_eq!(
        with(b"PK\x03\x04 an archive".to_vec()),
        "not a `.npy` array: it does not begin with `\\x93NUMPY`"
    );
    assert_eq!(
        with(npy("<f4", false, &shape, &vec![0; 4 * 30720])),
        "expected unsigned bytes (`|u1`), found `<f4`"
    );
    assert_eq!(
        with(npy("|u1", true, &shape, &images(10))),
        "expected C order (the last index runs fastest), found Fortran order"
    );
    assert_eq!(
        with(npy("|u1", false, &[10, 3, 32, 32], &images(10))),
        "expected images [n, 32, 32, 3], found [10, 3, 32, 32]"
    );
    assert_eq!(
        with(npy("|u1", false, &[9, 32, 32, 3], &images(9))),
        "expected a block of images for each severity [1, 2, 3, 4, 5], found 9 images"
    );
    // A header that lies is refused before anything is allocated or multiplied over.
    assert_eq!(
        with(npy("|u1", false, &[1 << 62, 32, 32, 3], &[])),
        "its header claims [4611686018427387904, 32, 32, 3] of `|u1`"
    );
    assert_eq!(
        with(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec()),
        "not a `.npy` array: expected a header of at most 10000 bytes, found 4294967295"
    );
    assert_eq!(
        with(npy("|O", false, &shape, &[])),
        "its header claims [10, 32, 32, 3] of `|O`"
    );

    let file = npy("|u1", false, &shape, &images(10));
    std::fs::write(root.join("snow.npy"), file).unwrap();
    let labels = |file: Vec<u8>| {
        std::fs::write(root.join("labels.npy"), file).unwrap();
        message(root, open_cifar10_c(root, "snow", 1))
    };
    let text = labels(npy("|u1", false, &[7], &[0; 7]));
    assert!(
        text.contains("labels.npy`: expected 10 labels for `snow.npy` (or 2, one block), found 7"),
        "{text}"
    );
    let text = labels(npy("|u1", false, &[10], &[10; 10]));
    assert!(
        text.contains("record 0 has label 10, expected 0 to 9"),
        "{text}"
    );
    let text = labels(npy("|i1", false, &[10], &[0xff; 10]));
    assert!(
        text.contains("record 0 has label -1, expected 0 to 9"),
        "{text}"
    );
    let text = labels(npy("<f8", false, &[10], &[0; 80]));
    assert!(text.contains("expected integers, found `<f8`"), "{text}");
}

#[test]
fn cifar10_1_reads_its_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    assert_refused(
        root,
        open_cifar10_1(root),
        "expected `cifar10.1_v6_data.npy`, the folder is empty",
    );
    let file = npy("|u1", false, &[3, 32, 32, 3], &images(3));
    std::fs::write(root.join("cifar10.1_v6_data.npy"), file).unwrap();
    let labels: Vec<u8> = [4_i32, 5, 9].iter().flat_map(|l| l.to_le_bytes()).collect();
    let path = root.join("cifar10.1_v6_labels.npy");
    std::fs::write(&path, npy("<i4", false, &[3], &labels)).unwrap();
    let data = open_cifar10_1(root).unwrap();
    assert_eq!((data.name(), data.len()), ("cifar10.1", 3));
    let batch = data.batch(&[2, 0]).unwrap();
    assert_eq!(batch.labels, Some(vec![9, 4]));
    assert_eq!(pixels(&batch)[..3], [2, 2, 0]);

    std::fs::write(&path, npy("<i4", false, &[2], &labels[..8])).unwrap();
    assert_refused(
        root,
        open_cifar10_1(root),
        "expected 3 labels for `cifar10.1_v6_data.npy`, found 2",
    );
}
