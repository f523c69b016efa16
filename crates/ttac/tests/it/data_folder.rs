//! Class folders of pictures, sets by name, and every way either can be wrong.

use std::fs;
use std::path::Path;

use image::{GrayImage, Rgb, RgbImage};
use ttac::data::{Corrupted, Dataset, DatasetExt, ImageFolder, OpenOptions, Part, Split, open};

use crate::files::{assert_refused, assert_refused_with, message};

/// A picture of one colour.
fn plain(width: u32, height: u32, colour: [u8; 3]) -> RgbImage {
    RgbImage::from_pixel(width, height, Rgb(colour))
}

/// Classes `cat` and `dog`: two PNG of other sizes, one PNG of the model's size.
fn pets() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for class in ["dog", "cat"] {
        fs::create_dir(root.join(class)).unwrap();
    }
    plain(40, 60, [10, 20, 30])
        .save(root.join("cat/b.png"))
        .unwrap();
    plain(64, 48, [40, 50, 60])
        .save(root.join("cat/a.PNG"))
        .unwrap();
    let exact = RgbImage::from_fn(14, 14, |x, y| Rgb([x as u8, y as u8, 7]));
    exact.save(root.join("dog/c.png")).unwrap();
    fs::write(root.join("dog/notes.txt"), "not a picture").unwrap();
    folder
}

/// The bytes of one picture.
fn pixels(data: &dyn Dataset, id: u64) -> Vec<u8> {
    let samples = data.batch(&[id]).unwrap().samples;
    samples.into_images().unwrap().pixels
}

#[test]
fn classes_and_files_are_sorted_and_cropped() {
    let folder = pets();
    let data = ImageFolder::open(folder.path(), Split::Test, &OpenOptions::new(14)).unwrap();
    assert_eq!((data.name(), data.len()), ("image-folder", 3));
    assert_eq!(data.classes(), ["cat", "dog"]);
    let batch = data.batch(&[0, 1, 2]).unwrap();
    assert_eq!(batch.labels, Some(vec![0, 0, 1]));
    let images = batch.samples.as_images().unwrap();
    assert_eq!((images.height, images.width, images.count()), (14, 14, 3));
    let (first, rest) = images.pixels.split_at(14 * 14 * 3);
    let (second, third) = rest.split_at(14 * 14 * 3);
    assert!(
        first
            .as_chunks()
            .0
            .iter()
            .all(|pixel| *pixel == [40, 50, 60])
    );
    assert!(
        second
            .as_chunks()
            .0
            .iter()
            .all(|pixel| *pixel == [10, 20, 30])
    );
    // What has the model's size already is left as it is.
    assert_eq!(third[..6], [0, 0, 7, 1, 0, 7]);
}

/// Pillow 13.0 on the same picture: shorter side to 16, middle 14 x 14; rows 0 and 13, first pixels.
#[test]
fn a_picture_is_shrunk_as_pillow_does_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("one")).unwrap();
    let picture = RgbImage::from_fn(50, 37, |x, y| {
        Rgb([
            (x * x * 3 % 256) as u8,
            (y * y * 5 % 256) as u8,
            (x * y % 256) as u8,
        ])
    });
    picture.save(folder.path().join("one/a.png")).unwrap();
    let data = ImageFolder::open(folder.path(), Split::Test, &OpenOptions::new(14)).unwrap();
    let pixels = pixels(&data, 0);
    assert_eq!(pixels[..9], PILLOW_FIRST);
    assert_eq!(pixels[13 * 14 * 3..][..9], PILLOW_LAST);
}

const PILLOW_FIRST: [u8; 9] = [121, 49, 30, 175, 49, 37, 107, 49, 44];
const PILLOW_LAST: [u8; 9] = [121, 89, 82, 175, 89, 159, 107, 89, 161];

#[test]
fn splits_and_corruptions_are_folders() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (place, value) in [
        ("val/snow/3/train", 1),
        ("val/snow/3/truck", 2),
        ("train/bus", 3),
        ("train/train", 4),
    ] {
        fs::create_dir_all(root.join(place)).unwrap();
        let picture = plain(14, 14, [value; 3]);
        picture.save(root.join(place).join("a.png")).unwrap();
    }
    let options = OpenOptions::new(14);
    let first = |data: &ImageFolder| pixels(data, 0)[0];
    let train = ImageFolder::open(root, Split::Train, &options).unwrap();
    assert_eq!(
        (train.classes(), first(&train)),
        (&["bus".to_owned(), "train".to_owned()][..], 3)
    );
    let snow = options.clone().with_corruption("snow", 3);
    let data = ImageFolder::open(root, Split::Test, &snow).unwrap();
    assert_eq!(
        (data.classes(), first(&data)),
        (&["train".to_owned(), "truck".to_owned()][..], 1)
    );
    // A class that is called `train` is not a part of the set.
    let below = root.join("val/snow/3");
    assert_eq!(
        ImageFolder::open(&below, Split::Train, &options)
            .unwrap()
            .len(),
        2
    );

    let open = |options: OpenOptions| ImageFolder::open(root, Split::Test, &options);
    for (corruption, severity, problem) in [
        (
            "snwo",
            3,
            "corruption: there is no `snwo`; did you mean `snow`?",
        ),
        ("snow", 6, "severity: expected 1 to 5, found 6"),
    ] {
        let wrong = options.clone().with_corruption(corruption, severity);
        assert_eq!(message(root, open(wrong)), format!("invalid {problem}"));
    }
    assert_refused_with(
        root,
        open(options.with_corruption("snow", 2)),
        "image-folder in `ROOT/val/snow/2`: no such folder",
    );
}

#[test]
fn a_bad_file_is_named_or_skipped_and_counted() {
    let folder = pets();
    let root = folder.path();
    let whole = fs::read(root.join("dog/c.png")).unwrap();
    fs::write(root.join("dog/broken.png"), &whole[..whole.len() / 2]).unwrap();
    fs::write(root.join("cat/empty.jpeg"), "").unwrap();
    let options = OpenOptions::new(14);
    // Ids: cat/a.PNG, cat/b.png, cat/empty.jpeg, dog/broken.png, dog/c.png.
    let data = ImageFolder::open(root, Split::Test, &options).unwrap();
    assert_eq!((data.len(), data.info().skipped), (5, 0));
    assert!(data.batch(&[0, 1, 4]).is_ok());
    assert_refused_with(
        root,
        data.batch(&[0, 3]),
        "image-folder in `ROOT/dog/broken.png`: not a whole PNG or JPEG (",
    );
    let text = message(root, data.batch(&[3]));
    let hint = "hint: mend or remove the file, or leave out files that cannot be read";
    assert!(text.ends_with(hint), "{text}");
    let lenient = options.with_skip_bad(true);
    let data = ImageFolder::open(root, Split::Test, &lenient).unwrap();
    assert_eq!((data.len(), data.info().skipped), (3, 2));
    assert_eq!(data.batch(&[0, 1, 2]).unwrap().labels, Some(vec![0, 0, 1]));
    let (path, problem) = &data.skipped()[0];
    assert_eq!(*path, root.join("cat/empty.jpeg"));
    assert!(problem.starts_with("not a whole PNG or JPEG"), "{problem}");
}

#[test]
fn half_a_jpeg_is_a_bad_file() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("one")).unwrap();
    let path = root.join("one/a.JPEG");
    let picture = RgbImage::from_fn(99, 80, |x, y| Rgb([(x * y) as u8, (x ^ y) as u8, x as u8]));
    picture
        .save_with_format(&path, image::ImageFormat::Jpeg)
        .unwrap();
    let data = ImageFolder::open(root, Split::Test, &OpenOptions::new(14)).unwrap();
    assert!(data.batch(&[0]).is_ok());
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert_refused_with(
        root,
        data.batch(&[0]),
        "image-folder in `ROOT/one/a.JPEG`: not a whole PNG or JPEG",
    );
}

#[test]
fn grey_becomes_rgb_or_is_refused() {
    let folder = pets();
    let root = folder.path();
    let grey = GrayImage::from_pixel(20, 20, image::Luma([99]));
    grey.save(root.join("cat/grey.png")).unwrap();
    let options = OpenOptions::new(14);
    let data = ImageFolder::open(root, Split::Test, &options).unwrap();
    let pixels = pixels(&data, 2);
    assert_eq!(pixels, vec![99; 14 * 14 * 3]);
    let strict = options.with_refuse_grey(true);
    let data = ImageFolder::open(root, Split::Test, &strict).unwrap();
    assert_refused_with(
        root,
        data.batch(&[2]),
        "image-folder in `ROOT/cat/grey.png`: expected RGB, found a grey image",
    );
    let data = ImageFolder::open(root, Split::Test, &strict.with_skip_bad(true)).unwrap();
    assert_eq!((data.len(), data.skipped().len()), (3, 1));
}

#[test]
fn wrong_folders_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let options = OpenOptions::new(14);
    let open = || ImageFolder::open(root, Split::Test, &options);
    assert_eq!(
        message(root, open()),
        "image-folder in `ROOT`: expected a folder for every class, the folder is empty\n\
         hint: name the folder that holds a folder for every class; only adaptation takes pictures without classes"
    );
    fs::create_dir(root.join("cat")).unwrap();
    fs::write(root.join("cat/a.gif"), "GIF89a").unwrap();
    assert_refused_with(
        root,
        open(),
        "image-folder in `ROOT/cat`: expected PNG or JPEG files, found `a.gif`",
    );
    plain(600, 4, [1; 3])
        .save(root.join("cat/long.png"))
        .unwrap();
    assert_refused(
        root,
        open().unwrap().batch(&[0]),
        "600 x 4 pixels, expected sides that differ 50 times at most",
    );
}

#[test]
fn sets_open_by_name() {
    let folder = pets();
    let root = folder.path();
    let options = OpenOptions::new(14);
    let by_name = |name: &str, split, options: &OpenOptions| {
        message(root, open(name, root, split, options).map(drop))
    };
    let data = open("image-folder", root, Split::Test, &options).unwrap();
    assert_eq!(data.len(), 3);
    assert_eq!(
        open("shapes10", root, Split::Test, &options)
            .unwrap()
            .name(),
        "shapes10"
    );
    assert_eq!(
        by_name("cifar-10", Split::Test, &options),
        "unknown data set `cifar-10`\nhint: did you mean `cifar10`?"
    );
    assert_eq!(
        by_name("pets", Split::Test, &options),
        "unknown data set `pets`\n\
         hint: the known ones are `cifar10`, `cifar100`, `cifar10-c`, `cifar100-c`, `cifar10.1`, \
         `mnist`, `fashion-mnist`, `usps`, `image-folder`, `shapes10`, `solids10`, `modelnet40`, \
         `modelnet40-c`, `modelnet10-derived`"
    );
    assert_eq!(
        by_name("cifar10-c", Split::Test, &options),
        "invalid corruption: `cifar10-c` needs one, e.g. `snow`"
    );
    let snow = options.clone().with_corruption("snow", 5);
    assert_eq!(
        by_name("cifar10-c", Split::Train, &snow),
        "invalid split: `cifar10-c` has no training images"
    );
    let data = open("shapes10", root, Split::Test, &snow).unwrap();
    assert_eq!(
        data.info().corruption.as_deref().unwrap(),
        "snow 5, made on the fly with seed 0"
    );
    let six = options.clone().with_corruption("snow", 6);
    assert!(by_name("shapes10", Split::Test, &six).contains("severity"));
    let frost = options.clone().with_corruption("frost", 5);
    assert!(by_name("shapes10", Split::Test, &frost).contains("needs its photographs"));
    for name in [
        "cifar10",
        "cifar100",
        "cifar10.1",
        "mnist",
        "fashion-mnist",
        "usps",
    ] {
        let text = by_name(name, Split::Test, &options);
        assert!(
            text.starts_with(&format!("{name} in `ROOT`: expected `")),
            "{text}"
        );
    }
}

/// Three pictures without class folders.
fn unlabelled(root: &Path) -> Box<dyn Dataset> {
    for name in ["a", "b", "c"] {
        let picture = RgbImage::from_fn(14, 14, |x, y| Rgb([x as u8 * 9, y as u8 * 9, 40]));
        picture.save(root.join(format!("{name}.png"))).unwrap();
    }
    let mut options = OpenOptions::new(14);
    options.unlabelled = true;
    Box::new(ImageFolder::open(root, Split::Test, &options).unwrap())
}

#[test]
fn pictures_without_classes_have_no_labels_whatever_wraps_them() {
    let folder = tempfile::tempdir().unwrap();
    let plain = || unlabelled(folder.path());
    let corrupted = Corrupted::new(plain(), "snow", 3, 0, None).unwrap();
    let sets: [Box<dyn Dataset>; 3] = [
        plain(),
        Box::new(Part::first(plain(), 2)),
        Box::new(Part::first(Box::new(corrupted), 2)),
    ];
    for data in sets {
        assert!(!data.is_labelled());
        assert_eq!(data.labels().unwrap(), None);
        assert_eq!(data.batch(&[1, 0]).unwrap().labels, None);
        assert!(data.classes().is_empty());
        assert_eq!(data.info().sample_name(1), Some("b.png"));
        let last = data.len() as u64;
        assert_eq!(data.info().sample_name(last), None, "{last} are there");
        assert_eq!(
            data.known_labels().unwrap_err().to_string(),
            "labels of `image-folder`: expected the true class of every sample, found samples without labels"
        );
    }
}

#[test]
fn a_part_has_the_labels_of_its_samples() {
    let folder = pets();
    let options = OpenOptions::new(14).with_classes(&["dog".to_owned(), "cat".to_owned()]);
    let whole = ImageFolder::open(folder.path(), Split::Test, &options).unwrap();
    let part = Part::first(Box::new(whole), 2);
    assert_eq!(part.labels().unwrap(), Some(vec![0, 1]));
    assert_eq!(part.info().sample_name(0), Some("dog/c.png"));
    assert_eq!((part.len(), part.name()), (2, "image-folder"));
}
