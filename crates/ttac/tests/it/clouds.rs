//! Clouds: the embedded solids, readers of ModelNet, and every way a cloud can be wrong.
//!
//! The real ones are `modelnet40-sample` and `modelnet10` below `$TTAC_DATA` or the folder `../shared/data`; where
//! they are absent, that is said and passed.

use std::path::Path;

use burn::tensor::Device;
use hdf5_pure::FileBuilder;
use ttac::burn;
use ttac::checkpoint::{Augmentation, InputContract};
use ttac::data::{
    Clouds, CorruptedClouds, Dataset, DatasetExt, Draw, Images, ModelNet10Voxels, ModelNet40Text,
    OpenOptions, Part, Samples, Shapes10, Solids10, Split, augment, open, open_modelnet40_c,
    open_modelnet40_hdf5,
};

use crate::files::{npy, problem};
use crate::fixture::note;
use crate::real::at_hand;

fn clouds(data: &dyn Dataset, ids: &[u64]) -> (usize, Vec<f32>) {
    let Clouds { points, values } = data.batch(ids).unwrap().samples.into_clouds().unwrap();
    (points, values)
}

fn of_points(points: usize, values: Vec<f32>) -> Samples {
    Clouds { points, values }.into()
}

fn length(point: &[f32]) -> f32 {
    point.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn solids_are_balanced_and_lie_in_the_unit_ball() {
    let data = Solids10::new(Split::Train, 200, 0);
    let labels = data.known_labels().unwrap();
    for ten in labels.chunks_exact(10) {
        let mut ten = ten.to_vec();
        ten.sort_unstable();
        assert_eq!(ten, (0..10).collect::<Vec<_>>());
    }
    let ids: Vec<u64> = (0..200).collect();
    let (points, values) = clouds(&data, &ids);
    assert_eq!(points, 1024);
    for cloud in values.chunks_exact(3 * points) {
        let farthest = cloud.chunks_exact(3).map(length).fold(0.0, f32::max);
        assert!((farthest - 1.0).abs() < 1e-5, "{farthest}");
        for axis in 0..3 {
            let mean = cloud.iter().skip(axis).step_by(3).sum::<f32>() / points as f32;
            assert!(mean.abs() < 1e-4, "{mean}");
        }
    }
}

#[test]
fn solids_are_functions_of_seed_split_and_id() {
    let data = Solids10::new(Split::Train, 50, 3);
    let (points, together) = clouds(&data, &[7, 31]);
    assert_eq!(clouds(&data, &[31]).1, together[3 * points..]);
    for other in [
        Solids10::new(Split::Test, 50, 3),
        Solids10::new(Split::Train, 50, 4),
    ] {
        assert_ne!(clouds(&other, &[7, 31]).1, together);
    }
    // The same bits on every machine: a digest of the first ten.
    let ids: Vec<u64> = (0..10).collect();
    let sum = clouds(&Solids10::new(Split::Test, 10, 0), &ids)
        .1
        .iter()
        .fold(0_u64, |sum, value| {
            sum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(value.to_bits())
        });
    let digest = format!("{sum:016x}");
    assert_eq!(digest, "d2737128b3f63a31");
}

#[test]
fn points_lie_on_the_meshes() {
    // A cloud of many points reaches nearly as far as its mesh along every axis, in the same proportions.
    let data = Solids10::new(Split::Test, 30, 0).with_points(4096);
    for id in 0..30 {
        let mesh = data.mesh(id);
        let (_, cloud) = clouds(&data, &[id]);
        let side = |values: &mut dyn Iterator<Item = f32>| {
            let ends = values.fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(v), b.max(v)));
            ends.1 - ends.0
        };
        // y is up in clouds: (-x, z, y) of the mesh.
        let sides = [(0, 0), (1, 2), (2, 1)].map(|(ours, theirs)| {
            let of_cloud = side(&mut cloud.iter().skip(ours).step_by(3).copied());
            let of_mesh = side(&mut mesh.vertices.iter().map(|vertex| vertex[theirs]));
            of_cloud / of_mesh
        });
        let (low, high) = sides
            .iter()
            .fold((f32::MAX, 0_f32), |(a, b), &s| (a.min(s), b.max(s)));
        assert!(
            high / low < 1.15,
            "{id}, class {}: {sides:?}",
            data.label(id)
        );
    }
}

#[test]
fn every_corruption_of_solids_is_opened_by_name() {
    let root = Path::new("nowhere");
    for (corruption, points) in [
        ("gaussian", 1024),
        ("cutout", 724),
        ("occlusion", 1024),
        ("lidar", 768),
    ] {
        let options = OpenOptions::new(0).with_corruption(corruption, 5);
        let data = open("solids10", root, Split::Test, &options).unwrap();
        assert_eq!(clouds(data.as_ref(), &[0, 5]).0, points, "{corruption}");
        let made = format!("{corruption} 5, made on the fly with seed 0");
        assert_eq!(data.info().corruption, Some(made));
    }
    let message = |corruption: &str| {
        let options = OpenOptions::new(0).with_corruption(corruption, 5);
        let opened = open("solids10", root, Split::Test, &options);
        opened.err().unwrap().to_string()
    };
    assert_eq!(
        message("snow"),
        "invalid corruption: unknown corruption of point clouds `snow`; known corruptions of clouds are uniform, gaussian, \
         background, impulse, upsampling, rotation, shear, cutout, density, density_inc, distortion, distortion_rbf, \
         distortion_rbf_inv, occlusion, lidar"
    );
}

#[test]
fn wrapped_solids_keep_their_surfaces() {
    let part = Part::first(Box::new(Solids10::standard(Split::Test)), 10);
    let meshes = part.info().meshes.clone().expect("solids have surfaces");
    assert_eq!(meshes(&[3]).len(), 1);
    let data = CorruptedClouds::new(Box::new(part), "lidar", 5, 0, 1024).unwrap();
    assert_eq!(clouds(&data, &[0]).0, 768);
    assert_eq!(data.labels().unwrap().map(|labels| labels.len()), Some(10));
}

#[test]
fn models_refuse_what_they_cannot_look_at() {
    let device = Device::flex();
    let contract = InputContract::Clouds {
        points: 1024,
        fewest: 20,
    };
    let message = |contract: &InputContract, samples: &Samples| {
        let refused = contract.normalise(samples, &device).unwrap_err();
        refused.to_string()
    };
    let picture = Shapes10::standard(Split::Test).batch(&[0]).unwrap().samples;
    assert_eq!(
        message(&contract, &picture),
        "input: expected clouds of points for this model, found images of 32 x 32 pixels in the data"
    );
    let few = of_points(12, vec![0.5; 36]);
    assert_eq!(
        message(&contract, &few),
        "points of a cloud: expected at least 20, the neighbours that this model looks at, found 12 in the data"
    );
    let mut values = vec![0.25; 2 * 3 * 20];
    values[3 * 20 + 4] = f32::NAN;
    assert_eq!(
        message(&contract, &of_points(20, values)),
        "invalid cloud: point 1 of cloud 1 of the batch is NaN, expected finite coordinates"
    );
    let of_images = InputContract::measured(&Shapes10::new(Split::Train, 10, 0), 10).unwrap();
    assert_eq!(
        message(&of_images, &few),
        "image size: expected 32 x 32 pixels for this model, found clouds of 12 points in the data"
    );
    // Any number of points from the fewest on will do.
    let tensor = contract
        .normalise(&of_points(20, vec![0.5; 120]), &device)
        .unwrap();
    assert_eq!(tensor.dims(), [2, 20, 1, 3]);
    // Half a sample, none at all, and infinity.
    assert_eq!(
        message(&contract, &of_points(20, vec![0.5; 61])),
        "invalid batch: expected 60 values for each of clouds of 20 points, found 61 in all"
    );
    assert_eq!(
        message(&contract, &of_points(20, Vec::new())),
        "invalid batch: expected at least one of clouds of 20 points, found none"
    );
    assert_eq!(
        message(&contract, &of_points(20, vec![f32::INFINITY; 60])),
        "invalid cloud: point 0 of cloud 0 of the batch is inf, expected finite coordinates"
    );
    let none = Images {
        height: 32,
        width: 32,
        pixels: Vec::new(),
    };
    assert_eq!(
        message(&of_images, &none.into()),
        "invalid batch: expected at least one of images of 32 x 32 pixels, found none"
    );
    assert!(Augmentation::PadCropFlip.check(&contract).is_err());
    assert!(Augmentation::ScaleShift.check(&of_images).is_err());
    assert!(Augmentation::ScaleShift.check(&contract).is_ok());
}

#[test]
fn clouds_of_two_sizes_do_not_mix() {
    let mut samples = of_points(30, vec![0.0; 90]);
    let error = samples.append(of_points(20, vec![0.0; 60])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "sizes of samples in one batch: expected clouds of 30 points, found clouds of 20 points"
    );
}

#[test]
fn augmented_clouds_are_scaled_and_shifted_by_axis() {
    let batch = Solids10::new(Split::Train, 4, 0).batch(&[2, 0]).unwrap();
    let draw = Draw {
        seed: 1,
        epoch: 2,
        view: 0,
    };
    let vary = |ids: &[u64], samples: &Samples| {
        let varied = augment(ids, samples, Augmentation::ScaleShift, draw).unwrap();
        varied.into_clouds().unwrap().values
    };
    let varied = vary(&batch.ids, &batch.samples);
    let alone = vary(&batch.ids[1..], &batch.samples.pick(&[1]));
    assert_eq!(varied[3072..], alone);
    let before = batch.samples.into_clouds().unwrap().values;
    for axis in 0..3 {
        let along = |values: &[f32]| {
            let mut sorted: Vec<f32> = values[..3072]
                .iter()
                .skip(axis)
                .step_by(3)
                .copied()
                .collect();
            sorted.sort_by(f32::total_cmp);
            sorted
        };
        // Sorted coordinates undo the shuffle: what is left is one scale and one shift.
        let (old, new) = (along(&before), along(&varied));
        let scale = (new[1023] - new[0]) / (old[1023] - old[0]);
        let shift = new[0] - scale * old[0];
        assert!((2.0 / 3.0 - 1e-3..1.5 + 1e-3).contains(&scale), "{scale}");
        assert!(shift.abs() < 0.2 + 1e-3, "{shift}");
        for (old, new) in old.iter().zip(&new) {
            assert!((scale * old + shift - new).abs() < 1e-5);
        }
    }
}

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 101) as f32 / 101.0).collect()
}

#[test]
fn modelnet40_c_is_read_and_wrong_files_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let message = |corruption: &str| problem(root, open_modelnet40_c(root, corruption, 5));
    assert_eq!(
        message("cutout"),
        "modelnet40-c in `ROOT`: expected `data_cutout_5.npy`, the folder is empty"
    );
    let write = |name: &str, file: Vec<u8>| std::fs::write(root.join(name), file).unwrap();
    let bytes =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let mut values = floats(2 * 5 * 3);
    write(
        "data_cutout_5.npy",
        npy("<f4", false, &[2, 5, 3], &bytes(&values)),
    );
    write("label.npy", npy("|u1", false, &[2, 1], &[39, 0]));
    let data = open_modelnet40_c(root, "cutout", 5).unwrap();
    assert_eq!((data.len(), data.known_labels().unwrap()), (2, vec![39, 0]));
    assert_eq!(clouds(&data, &[1]), (5, values[15..].to_vec()));

    values[17] = f32::NAN;
    write(
        "data_cutout_5.npy",
        npy("<f4", false, &[2, 5, 3], &bytes(&values)),
    );
    assert_eq!(
        message("cutout"),
        "modelnet40-c in `ROOT/data_cutout_5.npy`: cloud 1: its point 0 has a coordinate NaN"
    );
    values[15..].fill(0.5);
    write(
        "data_cutout_5.npy",
        npy("<f4", false, &[2, 5, 3], &bytes(&values)),
    );
    assert_eq!(
        message("cutout"),
        "modelnet40-c in `ROOT/data_cutout_5.npy`: cloud 1: all its points are equal"
    );
    write(
        "data_cutout_5.npy",
        npy("<f4", false, &[10, 3], &bytes(&values)),
    );
    assert_eq!(
        message("cutout"),
        "modelnet40-c in `ROOT/data_cutout_5.npy`: expected clouds [n, points, 3], found [10, 3]"
    );
    write(
        "data_cutout_5.npy",
        npy("<i4", false, &[2, 5, 3], &bytes(&values)),
    );
    assert_eq!(
        message("cutout"),
        "modelnet40-c in `ROOT/data_cutout_5.npy`: expected floats (`<f4` or `<f8`), found `<i4`"
    );
}

#[test]
fn modelnet40_is_read_from_hdf5() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let file_of = |points: usize, clouds: usize, labels: &[i64]| {
        let mut builder = FileBuilder::new();
        builder
            .create_dataset("data")
            .with_f32_data(&floats(clouds * points * 3))
            .with_shape(&[clouds as u64, points as u64, 3]);
        builder
            .create_dataset("label")
            .with_i64_data(labels)
            .with_shape(&[labels.len() as u64, 1]);
        builder.finish().unwrap()
    };
    let file = |clouds, labels| file_of(2048, clouds, labels);
    std::fs::write(root.join("ply_data_test0.h5"), file(2, &[3, 39])).unwrap();
    std::fs::write(root.join("ply_data_test1.h5"), file(1, &[7])).unwrap();
    let data = open_modelnet40_hdf5(root, Split::Test, 1024).unwrap();
    assert_eq!(data.known_labels().unwrap(), [3, 39, 7]);
    let all = floats(2 * 2048 * 3);
    assert_eq!(
        clouds(&data, &[1]),
        (1024, all[2048 * 3..][..1024 * 3].to_vec())
    );
    let by_name = open("modelnet40", root, Split::Test, &OpenOptions::new(0)).unwrap();
    assert_eq!(by_name.len(), 3);

    // Points have no surface, so a depth camera sees nothing.
    let options = OpenOptions::new(0).with_corruption("lidar", 1);
    let error = open("modelnet40", root, Split::Test, &options)
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("`lidar` needs meshes"),
        "{error}"
    );

    let refused = |split, points, expected: &str| {
        let text = problem(root, open_modelnet40_hdf5(root, split, points));
        assert!(text.contains(expected), "{text}");
    };
    refused(Split::Train, 1024, "expected `ply_data_train0.h5`, found");
    std::fs::write(root.join("ply_data_test1.h5"), file(1, &[40])).unwrap();
    refused(Split::Test, 1024, "record 0 has label 40, expected 0 to 39");
    let few = file_of(1023, 1, &[7]);
    std::fs::write(root.join("ply_data_test1.h5"), few).unwrap();
    refused(
        Split::Test,
        1024,
        "at least 1024 points p, found [1, 1023, 3]",
    );

    // A sampling with fewer points than the published one gives what it has, and so do all files beside it.
    let fewer = file_of(1100, 1, &[7]);
    std::fs::write(root.join("ply_data_test1.h5"), fewer).unwrap();
    let data = open_modelnet40_hdf5(root, Split::Test, 2048).unwrap();
    assert_eq!(clouds(&data, &[2]), (1100, floats(1100 * 3)));
    assert_eq!(clouds(&data, &[1]).0, 1100);
}

#[test]
fn modelnet40_is_read_from_text() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir(root.join("night_stand")).unwrap();
    let path = root.join("night_stand/night_stand_0001.txt");
    std::fs::write(&path, "0,1,2,0,0,1\n3,4,5,0,0,1\n6,7,8,0,0,1\n").unwrap();
    let read = |points| ModelNet40Text::open(root, Split::Test, points).unwrap();
    assert_eq!(
        clouds(&read(2), &[0]),
        (2, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    );
    assert_eq!(read(2).known_labels().unwrap(), [23]);
    let message = |points: usize| problem(root, read(points).batch(&[0]));
    let place = "modelnet40 in `ROOT/night_stand/night_stand_0001.txt`: ";
    assert_eq!(
        message(4),
        format!("{place}expected at least 4 points, found 3")
    );
    std::fs::write(&path, "1,1,1\n1,1,1\n").unwrap();
    assert_eq!(message(2), format!("{place}all its points are equal"));
    std::fs::write(&path, "1,1,1\n1,chair\n").unwrap();
    assert_eq!(
        message(2),
        format!("{place}line 2: expected `x,y,z,nx,ny,nz`, found `1,chair`")
    );
    std::fs::write(root.join("modelnet40_test.txt"), "teapot_0001\n").unwrap();
    let error = ModelNet40Text::open(root, Split::Test, 2)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`teapot_0001` is of no class of ModelNet40"),
        "{error}"
    );
}

#[test]
fn real_clouds_are_read() {
    let Some(root) = at_hand("modelnet40-sample") else {
        return note("skipped: needs `modelnet40-sample`");
    };
    let data = open("modelnet40", &root, Split::Test, &OpenOptions::new(0)).unwrap();
    let ids: Vec<u64> = (0..data.len() as u64).collect();
    let (points, values) = clouds(data.as_ref(), &ids);
    assert_eq!(points, 1024);
    assert_eq!(values.len(), data.len() * 3 * 1024);
    assert!(values.iter().all(|value| value.abs() <= 1.0));
    let options = OpenOptions::new(0).with_corruption("density_inc", 5);
    let data = open("modelnet40", &root, Split::Test, &options).unwrap();
    assert_eq!(clouds(data.as_ref(), &ids[..3]).0, 1024);
}

#[test]
fn real_voxels_have_surfaces() {
    let Some(root) = at_hand("modelnet10") else {
        return note("skipped: needs `modelnet10/modelnet10_voxels32.npz`");
    };
    let data = ModelNet10Voxels::open(&root, Split::Test, 1024).unwrap();
    assert_eq!(data.name(), "modelnet10-derived");
    assert_eq!(data.len() + data.info().skipped, 908);
    let skipped = data.info().skipped;
    assert!((1..20).contains(&skipped), "{skipped}");
    let mut counts = [0; 10];
    for label in data.known_labels().unwrap() {
        counts[label] += 1;
    }
    assert!(counts.iter().all(|&count| count >= 40), "{counts:?}");
    let (points, values) = clouds(&data, &[0, 400, data.len() as u64 - 1]);
    for cloud in values.chunks_exact(3 * points) {
        let farthest = cloud.chunks_exact(3).map(length).fold(0.0, f32::max);
        assert!((farthest - 1.0).abs() < 1e-5);
    }
}
