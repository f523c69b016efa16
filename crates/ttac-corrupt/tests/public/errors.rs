//! Messages and hints.

use ttac_corrupt::{Corruption, Corruptor, Error, FrostTextures, Severity};

fn apply(images: &[u8], height: usize, width: usize) -> Result<Vec<u8>, Error> {
    Corruptor::new(0).apply(
        Corruption::Fog,
        Severity::STRONGEST,
        images,
        height,
        width,
        0,
    )
}

#[test]
fn severities_end_at_one_and_five() {
    for severity in [0, 6, 255] {
        let error = Severity::try_from(severity).unwrap_err();
        let expected = format!("severity is out of range: expected 1 to 5, found `{severity}`");
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().is_some());
    }
    let error = "five".parse::<Severity>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "severity is out of range: expected 1 to 5, found `five`"
    );
    assert_eq!(Severity::ALL.map(Severity::get), [1, 2, 3, 4, 5]);
    assert_eq!("3".parse::<Severity>().unwrap().to_string(), "3");
}

#[test]
fn buffers_must_hold_whole_images() {
    let error = apply(&[0; 3071], 32, 32).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pixel buffer does not hold whole images: expected a multiple of 3072 bytes (32 x 32 x 3), found 3071"
    );
    assert!(error.hint().unwrap().contains("RGB"));
    assert!(apply(&[], 32, 32).unwrap().is_empty());
}

#[test]
fn sizes_have_limits() {
    for (height, width) in [(0, 0), (7, 32), (32, 8193), (usize::MAX, usize::MAX)] {
        let error = apply(&[], height, width).unwrap_err();
        let expected = format!(
            "image size is not supported: expected sides of 8 to 8192 pixels, found {height} x {width}"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn names_are_read_back_and_near_misses_are_suggested() {
    for corruption in Corruption::ALL {
        assert_eq!(
            corruption.to_string().parse::<Corruption>().unwrap(),
            corruption
        );
        let dashed = corruption.name().replace('_', "-").to_uppercase();
        assert_eq!(dashed.parse::<Corruption>().unwrap(), corruption);
    }
    let hint = |name: &str| name.parse::<Corruption>().unwrap_err().hint().unwrap();
    assert_eq!(hint("jpeg"), "known corruptions are ".to_owned() + &names());
    assert_eq!(hint("defocus_blurr"), "did you mean `defocus_blur`?");
    assert_eq!(hint("elastic"), "did you mean `elastic_transform`?");
    assert_eq!(hint("frost-like"), "did you mean `frost`?");
}

fn names() -> String {
    Corruption::ALL.map(Corruption::name).join(", ")
}

#[test]
fn frost_without_photographs_is_not_called_frost() {
    assert_eq!(Corruptor::new(0).name_of(Corruption::Frost), "frost-like");
    assert_eq!(Corruptor::new(0).name_of(Corruption::Fog), "fog");
    assert!(!FrostTextures::procedural().are_photographs());
}

#[test]
fn incomplete_photographs_are_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let message = |error: Error| {
        assert!(error.hint().unwrap().contains("frost5.jpg"));
        error.to_string()
    };
    let missing = message(FrostTextures::load(folder.path()).unwrap_err());
    assert!(
        missing.starts_with("cannot read the frost photograph `") && missing.contains("frost1.png"),
        "{missing}"
    );
    std::fs::write(folder.path().join("frost1.png"), b"not a picture").unwrap();
    let broken = message(FrostTextures::find(Some(folder.path())).unwrap_err());
    assert!(broken.contains("frost1.png"), "{broken}");
}

#[test]
fn photographs_are_read_from_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let ice = image::RgbaImage::from_pixel(300, 260, image::Rgba([200, 210, 220, 7]));
    let white = image::RgbImage::from_pixel(300, 260, image::Rgb([255, 255, 255]));
    for name in ["frost1.png", "frost2.png", "frost3.png"] {
        ice.save(folder.path().join(name)).unwrap();
    }
    for name in ["frost4.jpg", "frost5.jpg"] {
        white.save(folder.path().join(name)).unwrap();
    }
    let corruptor = Corruptor::new(1).with_frost(FrostTextures::load(folder.path()).unwrap());
    assert_eq!(corruptor.name_of(Corruption::Frost), "frost");
    let black = vec![0; 20 * 32 * 32 * 3];
    let frosted = corruptor
        .apply(Corruption::Frost, Severity::STRONGEST, &black, 32, 32, 0)
        .unwrap();
    // 0.45 of the ice, whose alpha is ignored, or of white.
    for image in frosted.chunks_exact(32 * 32 * 3) {
        assert!(
            image.starts_with(&[90, 94, 99]) || image.starts_with(&[114, 114, 114]),
            "{:?}",
            &image[..3]
        );
    }
}
