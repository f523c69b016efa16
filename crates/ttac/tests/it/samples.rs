//! Samples as types, data sets in memory, and the input contract in files.

use ttac::data::{Clouds, Dataset, DatasetExt, Images, InMemory, Samples};
use ttac::input::InputContract;

/// Pictures of 1 x 2 pixels; picture `i` is `i` everywhere.
fn pictures(count: u8) -> Samples {
    let pixels = (0..count).flat_map(|i| [i; 6]).collect();
    Images {
        height: 1,
        width: 2,
        pixels,
    }
    .into()
}

/// Clouds of two points; cloud `i` is `i` everywhere.
fn clouds(count: u8) -> Samples {
    let values = (0..count).flat_map(|i| [f32::from(i); 6]).collect();
    Clouds { points: 2, values }.into()
}

#[test]
fn rows_are_picked_in_the_order_of_their_places() {
    let picked = pictures(4).pick(&[3, 0, 3]).into_images().unwrap();
    assert_eq!((picked.height, picked.width, picked.count()), (1, 2, 3));
    assert!(picked.each().eq([[3; 6], [0; 6], [3; 6]]));
    let picked = clouds(4).pick(&[2, 1]).into_clouds().unwrap();
    assert_eq!((picked.points, picked.count()), (2, 2));
    assert!(picked.each().eq([[2.0; 6], [1.0; 6]]));
    assert!(pictures(4).pick(&[]).is_empty());
}

#[test]
fn samples_of_one_form_are_joined_and_others_refused() {
    let mut samples = pictures(1);
    samples.append(pictures(2)).unwrap();
    assert_eq!((samples.count(), samples.bytes()), (3, 18));
    assert_eq!(clouds(3).bytes(), 72);
    let before = samples.clone();
    assert_eq!(
        samples.append(clouds(1)).unwrap_err().to_string(),
        "sizes of samples in one batch: expected images of 1 x 2 pixels, found clouds of 2 points"
    );
    let turned = Images {
        height: 2,
        width: 1,
        pixels: vec![0; 6],
    };
    assert!(samples.append(turned.into()).is_err());
    assert_eq!(samples, before, "what was refused changed nothing");
    assert!(samples.same_form(&pictures(9)) && !samples.same_form(&clouds(3)));
    assert_eq!(
        clouds(1).as_images().unwrap_err().to_string(),
        "samples: expected images, found clouds of 2 points"
    );
    assert_eq!(
        pictures(1).into_clouds().unwrap_err().to_string(),
        "samples: expected clouds of points, found images of 1 x 2 pixels"
    );
}

#[test]
fn samples_without_a_size_are_none() {
    let nothing = Images {
        height: 0,
        width: 4,
        pixels: Vec::new(),
    };
    assert_eq!((nothing.count(), nothing.each().count()), (0, 0));
    let (points, values) = (0, Vec::new());
    assert!(Samples::from(Clouds { points, values }).is_empty());
}

#[test]
fn a_data_set_of_ones_own_is_samples_and_labels() {
    let data = InMemory::new("mine", ["a", "b"], clouds(3), Some(vec![1, 0, 1])).unwrap();
    assert_eq!((data.name(), data.len()), ("mine", 3));
    let batch = data.batch(&[2, 1]).unwrap();
    assert_eq!(batch.labels, Some(vec![1, 0]));
    assert_eq!(batch.samples, clouds(3).pick(&[2, 1]));
    assert_eq!(data.labels().unwrap(), Some(vec![1, 0, 1]));

    let data = InMemory::new("mine", ["a", "b"], pictures(3), None).unwrap();
    assert!(!data.is_labelled() && data.classes().is_empty());
    assert_eq!(data.batch(&[0]).unwrap().labels, None);

    let wrong = |labels| {
        let made = InMemory::new("mine", ["a", "b"], pictures(3), Some(labels));
        made.unwrap_err().to_string()
    };
    assert_eq!(
        wrong(vec![0, 1]),
        "labels of `mine`: expected 3, one for every sample, found 2"
    );
    assert_eq!(
        wrong(vec![0, 2, 1]),
        "labels of `mine`: expected numbers below 2, the classes, found 2"
    );
}

/// Checkpoints and states of training that exist have these words.
#[test]
fn contracts_are_written_as_ever() {
    let images = crate::files::contract([32, 48], [0.5, 0.25, 0.0], [1.0, 0.5, 2.0]);
    let clouds = InputContract::Clouds {
        points: 1024,
        fewest: 20,
    };
    let pairs = [
        (
            images,
            r#"{"height":32,"width":48,"mean":[0.5,0.25,0.0],"std":[1.0,0.5,2.0]}"#,
        ),
        (
            clouds,
            r#"{"kind":{"points":{"fewest":20}},"height":1024,"width":4,"mean":[0.0,0.0,0.0],"std":[1.0,1.0,1.0]}"#,
        ),
    ];
    for (contract, text) in pairs {
        assert_eq!(serde_json::to_string(&contract).unwrap(), text);
        let read: InputContract = serde_json::from_str(text).unwrap();
        assert_eq!(read, contract);
    }
    let refused = |text: &str| {
        let read: Result<InputContract, _> = serde_json::from_str(text);
        read.unwrap_err().to_string()
    };
    let unknown = r#"{"height":1,"width":1,"mean":[0,0,0],"std":[1,1,1],"depth":1}"#;
    assert!(refused(unknown).contains("unknown field `depth`"));
    let odd =
        r#"{"kind":{"points":{"fewest":1}},"height":9,"width":5,"mean":[0,0,0],"std":[1,1,1]}"#;
    assert!(
        refused(odd).contains("expected width 4"),
        "{}",
        refused(odd)
    );
}
