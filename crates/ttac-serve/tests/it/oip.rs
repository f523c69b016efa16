//! Requests of any kind become samples or an answer that says what is wrong.

use std::io::Cursor;

use proptest::prelude::*;
use ttac::data::{PictureLimits, Samples};
use ttac::input::InputContract;
use ttac_serve::oip::{
    InferRequest, Limits, Tensor, Values, encode, outputs, raw_input, read_request,
    reply_parameters, samples, split,
};

use crate::formula;

const IMAGES: InputContract = InputContract::Images {
    height: 4,
    width: 4,
    mean: [0.5, 0.4, 0.3],
    std: [0.2, 0.25, 0.5],
};

const CLOUDS: InputContract = InputContract::Clouds {
    points: 5,
    fewest: 2,
};

fn tensor(name: &str, datatype: &str, shape: &[u64], values: Values) -> Tensor {
    Tensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        base64: false,
        values,
    }
}

fn read(input: Tensor) -> Result<Samples, String> {
    let contract = if input.name == "points" {
        CLOUDS
    } else {
        IMAGES
    };
    samples(vec![input], &contract, &Limits::default()).map_err(|error| error.to_string())
}

fn pixels(input: Tensor) -> Vec<u8> {
    read(input).unwrap().into_images().unwrap().pixels
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let image = image::RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, 9]));
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

#[test]
fn images_files_and_pixel_values_are_the_same_pictures() {
    let bytes: Vec<u8> = (0..2 * 48).map(|i| (i * 7 % 256) as u8).collect();
    let images = tensor("images", "UINT8", &[2, 4, 4, 3], Values::Raw(bytes.clone()));
    assert_eq!(pixels(images), bytes);

    let InputContract::Images { mean, std, .. } = IMAGES else {
        unreachable!()
    };
    let mut planes = vec![0.0; bytes.len()];
    for (at, &byte) in bytes.iter().enumerate() {
        let (image, place, channel) = (at / 48, at / 3 % 16, at % 3);
        planes[image * 48 + channel * 16 + place] =
            (f32::from(byte) / 255.0 - mean[channel]) / std[channel];
    }
    let normalised = tensor(
        "pixel_values",
        "FP32",
        &[2, 3, 4, 4],
        Values::Numbers(planes),
    );
    assert_eq!(pixels(normalised), bytes);

    let file = png(4, 4);
    let decoded = pixels(tensor(
        "files",
        "BYTES",
        &[1],
        Values::Texts(vec![file.clone()]),
    ));
    assert_eq!(decoded[..6], [0, 0, 9, 1, 0, 9]);
    let mut raw = (file.len() as u32).to_le_bytes().to_vec();
    raw.extend(&file);
    assert_eq!(
        pixels(tensor("files", "BYTES", &[1], Values::Raw(raw))),
        decoded
    );
}

#[test]
fn pictures_of_other_sizes_are_cut_as_those_of_a_folder() {
    use ttac::data::{OpenOptions, Split, open};
    let file = png(9, 12);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("class")).unwrap();
    std::fs::write(folder.path().join("class/a.png"), &file).unwrap();
    let set = open(
        "image-folder",
        folder.path(),
        Split::Test,
        &OpenOptions::new(4),
    )
    .unwrap();
    let expected = set
        .batch(&[0])
        .unwrap()
        .samples
        .into_images()
        .unwrap()
        .pixels;
    assert_eq!(
        pixels(tensor(
            "files",
            "BYTES",
            &[1],
            Values::Texts(vec![file.clone()])
        )),
        expected
    );
    let bytes = image::load_from_memory(&file)
        .unwrap()
        .into_rgb8()
        .into_raw();
    assert_eq!(
        pixels(tensor(
            "images",
            "UINT8",
            &[1, 12, 9, 3],
            Values::Raw(bytes)
        )),
        expected
    );
}

#[test]
fn a_body_without_json_is_one_tensor() {
    let input = raw_input(vec![3; 96], &IMAGES);
    assert_eq!(
        (input.name.as_str(), &input.shape[..]),
        ("images", &[2, 4, 4, 3][..])
    );
    assert_eq!(read(input).unwrap().count(), 2);
    assert!(
        read(raw_input(vec![3; 97], &IMAGES))
            .unwrap_err()
            .contains("needs 96 bytes, found 97")
    );
    assert!(read(raw_input(Vec::new(), &IMAGES)).is_err());
    let values = (0..30_u8)
        .flat_map(|i| f32::from(i).to_le_bytes())
        .collect();
    assert_eq!(read(raw_input(values, &CLOUDS)).unwrap().count(), 2);
}

#[test]
fn what_is_wrong_with_an_input_is_said() {
    let raw = |length: usize| Values::Raw(vec![0; length]);
    let text = |text: &[u8]| Values::Texts(vec![text.to_vec()]);
    let numbers = |value: f32, count: usize| Values::Numbers(vec![value; count]);
    let mut base64 = tensor("files", "BYTES", &[1], text(b"not base64!"));
    base64.base64 = true;
    for (input, words) in [
        (
            tensor("image", "UINT8", &[1], raw(1)),
            "expected one of `images`, `files`, `pixel_values`, found `image`",
        ),
        (
            tensor("images", "FP32", &[1, 4, 4, 3], raw(192)),
            "input `images`: expected datatype UINT8, found FP32",
        ),
        (
            tensor("images", "UINT8", &[4, 4, 3], raw(48)),
            "expected shape [n,n,n,3], found [4, 4, 3]",
        ),
        (
            tensor("images", "UINT8", &[1, 4, 4, 3], raw(47)),
            "needs 48 bytes, found 47",
        ),
        (
            tensor("images", "UINT8", &[257, 4, 4, 3], raw(0)),
            "expected at most 256 samples, found 257",
        ),
        (
            tensor("images", "UINT8", &[1, 1 << 40, 1 << 40, 3], raw(0)),
            "expected at most",
        ),
        (
            tensor("images", "UINT8", &[1, 1, 90, 3], raw(270)),
            "sides that differ 50 times at most",
        ),
        (
            tensor("files", "BYTES", &[2], text(b"a")),
            "needs 2 texts, found 1",
        ),
        (
            tensor("files", "BYTES", &[1], text(b"GIF89a")),
            "file 0: invalid picture: not a whole PNG or JPEG",
        ),
        (
            tensor("files", "BYTES", &[1], text(b"GIF89a")),
            "`content_type` to `base64`",
        ),
        (base64, "file 0 is no base64"),
        (
            tensor("pixel_values", "FP32", &[1, 3, 4, 4], numbers(3.0, 48)),
            "mean [0.5, 0.4, 0.3] and std [0.2, 0.25, 0.5]",
        ),
        (
            tensor("pixel_values", "FP32", &[1, 3, 4, 4], numbers(f32::NAN, 48)),
            "channel 0 has NaN",
        ),
        (
            tensor("points", "FP32", &[1, 5, 3], numbers(f32::INFINITY, 15)),
            "point 0 of cloud 0 is inf",
        ),
        (
            tensor("points", "FP32", &[1, 4, 3], numbers(0.0, 12)),
            "expected shape [n,5,3], found [1, 4, 3]",
        ),
    ] {
        let error = read(input).unwrap_err();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    let two = vec![raw_input(vec![0; 48], &IMAGES); 2];
    let error = samples(two, &IMAGES, &Limits::default())
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("found 2"), "{error}");
}

#[test]
fn a_picture_that_is_too_large_is_not_decoded() {
    let picture = PictureLimits {
        side: 8,
        pixels: 64,
        bytes: 1 << 20,
    };
    let limits = Limits {
        picture,
        ..Limits::default()
    };
    let files = tensor("files", "BYTES", &[1], Values::Texts(vec![png(9, 1)]));
    let error = samples(vec![files], &IMAGES, &limits)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("expected at most 8 pixels a side, found 9 x 1"),
        "{error}"
    );
}

#[test]
fn replies_are_json_with_the_tensors_that_were_asked_for() {
    let (model, reply) = formula::reply();
    let request = br#"{"inputs":[],"outputs":[{"name":"probabilities","parameters":{"classification":2}},
        {"name":"class","parameters":{"binary_data":true}},{"name":"source_class"},{"name":"label"}]}"#;
    let wanted = read_request(request, b"").unwrap().outputs;
    let tensors = outputs(&reply, &model, &wanted, false);
    let encoded = encode(
        "m",
        "1",
        Some("42"),
        &reply_parameters(&reply, "cam"),
        &tensors,
    );
    let (json, binary) = encoded.body.split_at(encoded.json_length.unwrap());
    let json: serde_json::Value = serde_json::from_slice(json).unwrap();
    assert_eq!(json["id"], "42");
    assert_eq!(json["parameters"]["learned"], "accepted");
    assert_eq!(json["outputs"][0]["data"][0], "0.750000:1:b");
    assert_eq!(json["outputs"][0]["shape"], serde_json::json!([2, 2]));
    assert_eq!(json["outputs"][1]["parameters"]["binary_data_size"], 16);
    assert_eq!(binary, [1_i64.to_le_bytes(), 0_i64.to_le_bytes()].concat());
    assert_eq!(json["outputs"][3]["data"], serde_json::json!(["b", "a"]));
}

fn decode(header: Option<usize>, body: &[u8]) -> Result<InferRequest, String> {
    let header = header.map(|length| length.to_string());
    let parts =
        split(header.as_deref(), body).and_then(|(json, binary)| read_request(json, binary));
    parts.map_err(|error| error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..400), header in proptest::option::of(0_usize..500)) {
        let _ = decode(header, &body);
        let _ = read(raw_input(body.clone(), &IMAGES));
        let _ = read(tensor("files", "BYTES", &[1], Values::Texts(vec![body.clone()])));
        let _ = read(tensor("files", "BYTES", &[2], Values::Raw(body)));
    }

    #[test]
    fn a_request_with_bytes_changed_never_panics(at in 0_usize..300, byte in any::<u8>(), cut in 0_usize..300) {
        let mut body = br#"{"id":"1","parameters":{"sequence_id":7,"timeout":100},"inputs":[{"name":"images","shape":[1,4,4,3],"datatype":"UINT8",
            "parameters":{"binary_data_size":48}}],"outputs":[{"name":"class"}]}"#.to_vec();
        let json = body.len();
        body.extend([5; 48]);
        let place = at % body.len();
        body[place] = byte;
        body.truncate(body.len() - cut % body.len());
        if let Ok(request) = decode(Some(json), &body) {
            let _ = samples(request.inputs, &IMAGES, &Limits::default());
        }
    }

    #[test]
    fn a_picture_with_bytes_changed_never_panics(at in 0_usize..2000, byte in any::<u8>(), jpeg in any::<bool>()) {
        let mut file = png(9, 7);
        if jpeg {
            let image = image::load_from_memory(&file).unwrap();
            let mut written = Cursor::new(Vec::new());
            image.write_to(&mut written, image::ImageFormat::Jpeg).unwrap();
            file = written.into_inner();
        }
        let place = at % file.len();
        file[place] = byte;
        let _ = read(tensor("files", "BYTES", &[1], Values::Texts(vec![file])));
    }

    #[test]
    fn shapes_of_any_numbers_never_panic(shape in proptest::collection::vec(any::<u64>(), 0..6), length in 0_usize..100) {
        for name in ["images", "files", "pixel_values", "points"] {
            for datatype in ["UINT8", "BYTES", "FP32"] {
                let _ = read(tensor(name, datatype, &shape, Values::Raw(vec![1; length])));
            }
        }
    }
}
