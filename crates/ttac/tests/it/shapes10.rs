//! The embedded images.

use ttac::data::{Batch, Dataset, DatasetExt, Images, SHAPES10_CLASSES, SampleId, Shapes10, Split};

fn batch(set: &Shapes10, ids: std::ops::Range<SampleId>) -> Batch {
    set.batch(&ids.collect::<Vec<_>>()).unwrap()
}

fn images(batch: &Batch) -> &Images {
    batch.samples.as_images().unwrap()
}

#[test]
fn a_sample_depends_on_seed_split_and_index_alone() {
    let set = Shapes10::new(Split::Test, 200, 0);
    let all = batch(&set, 0..200);
    assert_eq!(all.samples.count(), 200);
    assert_eq!(all.samples.describe(), "images of 32 x 32 pixels");
    // In another order, from a larger set, twice.
    let other = Shapes10::new(Split::Test, 1000, 0)
        .batch(&[150, 3, 3])
        .unwrap();
    let labels = all.labels.as_ref().unwrap();
    assert_eq!(other.labels, Some(vec![labels[150], labels[3], labels[3]]));
    let image = |batch: &Batch, at: usize| images(batch).pixels[at * 3072..][..3072].to_vec();
    assert_eq!(image(&other, 0), image(&all, 150));
    assert_eq!(image(&other, 1), image(&all, 3));
    assert_eq!(image(&other, 2), image(&all, 3));
    for different in [
        Shapes10::new(Split::Train, 200, 0),
        Shapes10::new(Split::Test, 200, 1),
    ] {
        let different = batch(&different, 0..200);
        assert_ne!(different.labels, all.labels);
        assert_ne!(image(&different, 0), image(&all, 0));
    }
}

#[test]
fn the_images_never_change_between_versions_and_machines() {
    let digest = |split| {
        let batch = batch(&Shapes10::standard(split), 0..100);
        blake3::hash(&images(&batch).pixels).to_hex()[..16].to_owned()
    };
    assert_eq!(digest(Split::Train), "a66664a16fc0fa33");
    assert_eq!(digest(Split::Test), "aa7b1ecf2f42db70");
}

#[test]
fn every_ten_samples_hold_every_class_in_another_order() {
    let set = Shapes10::standard(Split::Test);
    assert_eq!(set.len(), 10_000);
    assert_eq!(set.classes(), SHAPES10_CLASSES);
    let labels: Vec<usize> = (0..10_000).map(|id| set.label(id)).collect();
    assert_eq!(set.labels().unwrap().as_ref(), Some(&labels));
    let mut orders: Vec<&[usize]> = labels.chunks(10).collect();
    for block in &orders {
        let mut sorted = block.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 990, "{} orders", orders.len());
}

#[test]
fn images_use_the_range_of_bytes() {
    let batch = batch(&Shapes10::standard(Split::Train), 0..500);
    let pixels = &images(&batch).pixels;
    for channel in 0..3 {
        let values = pixels
            .iter()
            .skip(channel)
            .step_by(3)
            .map(|&byte| f64::from(byte));
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let variance = values.map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        assert!((90.0..140.0).contains(&mean), "{mean}");
        assert!(
            (45.0..75.0).contains(&variance.sqrt()),
            "{}",
            variance.sqrt()
        );
    }
}

#[test]
#[should_panic(expected = "200 of 200 samples")]
fn a_sample_that_is_not_there_is_a_bug() {
    let _ = Shapes10::new(Split::Test, 200, 0).batch(&[200]);
}
