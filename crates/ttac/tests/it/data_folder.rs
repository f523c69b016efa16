//! Class folders of pictures, sets by name, and every way either can be wrong.

use std::fs;
use std::path::Path;

use image::{GrayImage, Rgb, RgbImage};
use ttac::Result;
use ttac::data::{Dataset, ImageFolder, OpenOptions, Split, open};

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

fn message<T>(root: &Path, result: Result<T>) -> String {
    let error = result.err().expect("it has to fail");
    let text = match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    };
    text.replace(&root.display().to_string(), "ROOT")
}

#[test]
fn classes_and_files_are_sorted_and_cropped() {
    let folder = pets();
    let data = ImageFolder::open(folder.path(), Split::Test, &OpenOptions::new(14)).unwrap();
    assert_eq!((data.name(), data.len()), ("image-folder", 3));
    assert_eq!(data.classes(), ["cat", "dog"]);
    let batch = data.batch(&[0, 1, 2]).unwrap();
    assert_eq!(batch.labels, [0, 0, 1]);
    let images = &batch.samples.images;
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
    let pixels = data.batch(&[0]).unwrap().samples.images.pixels;
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
    let first = |data: &ImageFolder| data.batch(&[0]).unwrap().samples.images.pixels[0];
    let train = ImageFolder::open(root, Split::Train, &options).unwrap();
    assert_eq!(
        (train.classes(), first(&train)),
        (vec!["bus".into(), "train".into()], 3)
    );
    let snow = options.clone().with_corruption("snow", 3);
    let data = ImageFolder::open(root, Split::Test, &snow).unwrap();
    assert_eq!(
        (data.classes(), first(&data)),
        (vec!["train".into(), "truck".into()], 1)
    );
    // A class that is called `train` is not a part of the set.
    let below = root.join("val/snow/3");
    assert_eq!(
        ImageFolder::open(&below, Split::Train, &options)
            .unwrap()
            .len(),
        2
    );

    let open = |options: OpenOptions| message(root, ImageFolder::open(root, Split::Test, &options));
    assert_eq!(
        open(options.clone().with_corruption("snwo", 3)),
        "invalid corruption: there is no `snwo`; did you mean `snow`?"
    );
    assert_eq!(
        open(options.clone().with_corruption("snow", 6)),
        "invalid severity: expected 1 to 5, found 6"
    );
    let text = open(options.with_corruption("snow", 2));
    assert!(
        text.starts_with("image-folder in `ROOT/val/snow/2`: no such folder"),
        "{text}"
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
    assert_eq!((data.len(), Dataset::skipped(&data)), (5, 0));
    assert!(data.batch(&[0, 1, 4]).is_ok());
    let text = message(root, data.batch(&[0, 3]));
    assert!(
        text.starts_with("image-folder in `ROOT/dog/broken.png`: not a whole PNG or JPEG ("),
        "{text}"
    );
    assert!(
        text.ends_with("hint: mend or remove the file, or leave such files out with `--skip-bad`"),
        "{text}"
    );
    let lenient = options.with_skip_bad(true);
    let data = ImageFolder::open(root, Split::Test, &lenient).unwrap();
    assert_eq!((data.len(), Dataset::skipped(&data)), (3, 2));
    assert_eq!(data.batch(&[0, 1, 2]).unwrap().labels, [0, 0, 1]);
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
    let text = message(root, data.batch(&[0]));
    assert!(
        text.starts_with("image-folder in `ROOT/one/a.JPEG`: not a whole PNG or JPEG"),
        "{text}"
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
    let pixels = data.batch(&[2]).unwrap().samples.images.pixels;
    assert_eq!(pixels, vec![99; 14 * 14 * 3]);
    let strict = options.with_refuse_grey(true);
    let data = ImageFolder::open(root, Split::Test, &strict).unwrap();
    let text = message(root, data.batch(&[2]));
    assert!(
        text.starts_with("image-folder in `ROOT/cat/grey.png`: expected RGB, found a grey image"),
        "{text}"
    );
    let data = ImageFolder::open(root, Split::Test, &strict.with_skip_bad(true)).unwrap();
    assert_eq!((data.len(), data.skipped().len()), (3, 1));
}

#[test]
fn wrong_folders_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let options = OpenOptions::new(14);
    let open = || message(root, ImageFolder::open(root, Split::Test, &options));
    assert_eq!(
        open(),
        "image-folder in `ROOT`: expected a folder for every class, the folder is empty\n\
         hint: `--root DIR` names the folder that holds a folder for every class; only `ttac adapt` takes pictures without classes"
    );
    fs::create_dir(root.join("cat")).unwrap();
    fs::write(root.join("cat/a.gif"), "GIF89a").unwrap();
    let text = open();
    assert!(
        text.starts_with("image-folder in `ROOT/cat`: expected PNG or JPEG files, found `a.gif`"),
        "{text}"
    );
    plain(600, 4, [1; 3])
        .save(root.join("cat/long.png"))
        .unwrap();
    let data = ImageFolder::open(root, Split::Test, &options).unwrap();
    let text = message(root, data.batch(&[0]));
    assert!(
        text.contains("600 x 4 pixels, expected sides that differ 50 times at most"),
        "{text}"
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
        data.corruption().unwrap(),
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
