//! Clouds: counts, bounds, determinism, messages.

use proptest::prelude::*;
use rayon::ThreadPoolBuilder;
use ttac_corrupt::points::{Mesh, PointCorruption, PointCorruptor};
use ttac_corrupt::{Error, Severity};

/// Clouds of points spread over an ellipsoid, different from each other.
fn clouds(count: usize, points: usize) -> Vec<f32> {
    let golden = 2.399_963_f32;
    (0..count)
        .flat_map(|cloud| {
            (0..points).flat_map(move |i| {
                let z = 1.0 - 2.0 * (i as f32 + 0.5) / points as f32;
                let radius = (1.0 - z * z).sqrt();
                let (sin, cos) = (golden * i as f32 + cloud as f32).sin_cos();
                [radius * cos, 0.7 * radius * sin, 0.9 * z]
            })
        })
        .collect()
}

/// A pyramid on a square: the square's two halves, then a face on each of its edges.
fn pyramid() -> Mesh {
    let edges = (0..4).map(|corner| [corner, (corner + 1) % 4, 4]);
    Mesh {
        vertices: vec![
            [-1.0, -1.0, 0.0],
            [1.0, -1.0, 0.0],
            [1.0, 1.0, 0.0],
            [-1.0, 1.0, 0.0],
            [0.0, 0.0, 1.5],
        ],
        faces: [[0, 1, 2], [0, 2, 3]].into_iter().chain(edges).collect(),
    }
}

fn corrupt(corruption: PointCorruption, severity: Severity, seed: u64) -> (usize, Vec<f32>) {
    let corruptor = PointCorruptor::new(seed);
    let clouds = if corruption.needs_meshes() {
        let meshes = [pyramid(), pyramid(), pyramid()];
        corruptor.apply_to_meshes(corruption, severity, &meshes, &[0, 1, 2])
    } else {
        corruptor.apply(corruption, severity, &clouds(3, 2048), 2048, &[0, 1, 2])
    };
    let clouds = clouds.unwrap();
    assert_eq!(clouds.count(), 3);
    (clouds.points, clouds.values)
}

fn extent(cloud: &[f32], axis: usize) -> (f32, f32) {
    let values = cloud.iter().skip(axis).step_by(3);
    values.fold((f32::MAX, f32::MIN), |(low, high), &v| {
        (low.min(v), high.max(v))
    })
}

#[test]
fn counts_at_the_strongest_are_those_of_the_published_files() {
    for corruption in PointCorruption::ALL {
        let expected = match corruption {
            PointCorruption::Background => 1075,
            PointCorruption::Upsampling => 2048,
            PointCorruption::Cutout => 724,
            PointCorruption::Density => 649,
            PointCorruption::Lidar => 768,
            _ => 1024,
        };
        assert_eq!(
            corrupt(corruption, Severity::STRONGEST, 1).0,
            expected,
            "{corruption}"
        );
    }
}

#[test]
fn counts_grow_with_the_severity() {
    let counts = |corruption| Severity::ALL.map(|severity| corrupt(corruption, severity, 1).0);
    assert_eq!(
        counts(PointCorruption::Background),
        [1046, 1049, 1053, 1058, 1075]
    );
    assert_eq!(
        counts(PointCorruption::Upsampling),
        [1228, 1280, 1365, 1536, 2048]
    );
    assert_eq!(counts(PointCorruption::Cutout), [964, 934, 874, 814, 724]);
    assert_eq!(counts(PointCorruption::Density), [949, 874, 799, 724, 649]);
}

#[test]
fn clouds_stay_in_the_box() {
    for corruption in PointCorruption::ALL {
        for severity in Severity::ALL {
            let (points, values) = corrupt(corruption, severity, 3);
            for cloud in values.chunks_exact(3 * points) {
                let ends = [0, 1, 2].map(|axis| extent(cloud, axis));
                let longest = ends
                    .map(|(low, high)| high - low)
                    .into_iter()
                    .fold(0.0, f32::max);
                let outermost = ends
                    .map(|(low, high)| high.max(-low))
                    .into_iter()
                    .fold(0.0, f32::max);
                assert!(outermost < 1.8, "{corruption} {severity}: {ends:?}");
                let normed = !matches!(
                    corruption,
                    PointCorruption::Gaussian
                        | PointCorruption::Cutout
                        | PointCorruption::Density
                        | PointCorruption::DensityIncrease
                        | PointCorruption::Lidar
                );
                if normed {
                    assert!(
                        (longest - 2.0).abs() < 1e-5,
                        "{corruption} {severity}: {ends:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn points_that_only_go_are_points_of_the_cloud() {
    let source = clouds(1, 2048);
    let known: Vec<&[f32]> = source.chunks_exact(3).collect();
    for corruption in [
        PointCorruption::Cutout,
        PointCorruption::Density,
        PointCorruption::DensityIncrease,
    ] {
        let found = PointCorruptor::new(9)
            .apply(corruption, Severity::STRONGEST, &source, 2048, &[4])
            .unwrap();
        let mut points: Vec<&[f32]> = found.values.chunks_exact(3).collect();
        assert!(
            points.iter().all(|point| known.contains(point)),
            "{corruption}"
        );
        points.sort_by(|a, b| a.partial_cmp(b).unwrap());
        points.dedup();
        let repeats = corruption == PointCorruption::DensityIncrease;
        assert_eq!(points.len() < found.points, repeats, "{corruption}");
    }
}

#[test]
fn noise_has_the_deviation_of_its_constant() {
    let source = clouds(20, 1024);
    let indices: Vec<u64> = (0..20).collect();
    let constants = [0.01, 0.015, 0.02, 0.025, 0.03];
    for (severity, sigma) in Severity::ALL.into_iter().zip(constants) {
        let noisy = PointCorruptor::new(2)
            .apply(PointCorruption::Gaussian, severity, &source, 1024, &indices)
            .unwrap();
        // Away from the walls of the box nothing is cut.
        let differences: Vec<f64> = noisy
            .values
            .iter()
            .zip(&source)
            .filter(|(_, clean)| clean.abs() < 0.8)
            .map(|(noisy, clean)| f64::from(noisy - clean))
            .collect();
        let n = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / n;
        let deviation = (differences.iter().map(|d| d * d).sum::<f64>() / n).sqrt();
        assert!(
            mean.abs() < 4.0 * sigma / n.sqrt(),
            "{severity}: mean {mean}"
        );
        assert!(
            (deviation / sigma - 1.0).abs() < 0.02,
            "{severity}: {deviation} for {sigma}"
        );
    }
}

#[test]
fn threads_change_nothing() {
    let pool = |threads| {
        ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap()
    };
    for corruption in PointCorruption::ALL {
        let run = |threads| pool(threads).install(|| corrupt(corruption, Severity::STRONGEST, 5));
        assert_eq!(run(1), run(3), "{corruption}");
        let other = corrupt(corruption, Severity::STRONGEST, 6);
        assert_ne!(run(1), other, "{corruption}: another seed, another cloud");
    }
}

#[test]
fn meshes_are_needed_for_two() {
    let corruptor = PointCorruptor::new(0);
    for corruption in [PointCorruption::Occlusion, PointCorruption::Lidar] {
        let error = corruptor
            .apply(
                corruption,
                Severity::STRONGEST,
                &clouds(1, 1024),
                1024,
                &[0],
            )
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "`{corruption}` needs meshes: what hides behind a surface cannot be told from points"
            )
        );
        assert!(error.hint().unwrap().contains("solids10"));
    }
    let error = corruptor
        .apply_to_meshes(
            PointCorruption::Shear,
            Severity::STRONGEST,
            &[pyramid()],
            &[0],
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`shear` is made from points, not from meshes"
    );
}

#[test]
fn meshes_that_show_nothing_are_named_and_counted() {
    let corners = pyramid().vertices;
    let with = |vertices: &[[f32; 3]], faces: &[[u32; 3]]| Mesh {
        vertices: vertices.to_vec(),
        faces: faces.to_vec(),
    };
    let mut wild = pyramid();
    wild.vertices[3][1] = f32::NAN;
    let meshes = [
        pyramid(),
        with(&corners, &[]),
        with(&corners, &[[0, 1, 2], [0, 1, 7]]),
        wild,
        with(&[[1.0; 3]; 3], &[[0, 1, 2]]),
        // A face that is a line has no area to see.
        with(&corners, &[[0, 1, 1]]),
    ];
    let error = PointCorruptor::new(0)
        .apply_to_meshes(
            PointCorruption::Lidar,
            Severity::STRONGEST,
            &meshes,
            &[10, 11, 12, 13, 14, 15],
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "5 of 6 meshes cannot be rendered: mesh 11 has no faces, mesh 12 has a face 1 without a vertex, \
         mesh 13 has a vertex 3 that is not finite, mesh 14 has all vertices at one place, \
         mesh 15 leaves the depth image empty"
    );
}

#[test]
fn bad_clouds_are_errors_that_name_them() {
    let corruptor = PointCorruptor::new(0);
    let apply = |corruption, clouds: &[f32], points| {
        let indices: Vec<u64> = (20..).take(clouds.len() / (3 * points)).collect();
        let error: Error = corruptor
            .apply(corruption, Severity::STRONGEST, clouds, points, &indices)
            .unwrap_err();
        assert!(error.hint().is_some());
        error.to_string()
    };
    let mut wild = clouds(2, 1024);
    wild[3 * 1024 + 5] = f32::INFINITY;
    assert_eq!(
        apply(PointCorruption::Uniform, &wild, 1024),
        "point 1 of cloud 21 is not finite"
    );
    let equal = vec![0.5; 3 * 1024];
    assert_eq!(
        apply(PointCorruption::Uniform, &equal, 1024),
        "all points of cloud 20 are equal"
    );
    assert_eq!(
        apply(PointCorruption::Uniform, &clouds(1, 19), 19),
        "clouds are too small for `uniform`: expected at least 1024 points, found 19"
    );
    assert_eq!(
        apply(PointCorruption::Uniform, &wild[1..], 1024),
        "buffer does not hold whole clouds: expected a multiple of 3072 numbers (1024 points x 3), found 6143"
    );
    let small = PointCorruptor::new(0).with_points(64);
    let error = small.apply(
        PointCorruption::Cutout,
        Severity::STRONGEST,
        &clouds(1, 64),
        64,
        &[0],
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "clouds are too small for `cutout`: expected at least 301 points, found 64"
    );
    let unknown = "distorsion".parse::<PointCorruption>().unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "unknown corruption of point clouds `distorsion`"
    );
    assert_eq!(unknown.hint().unwrap(), "did you mean `distortion`?");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cutting_a_set_into_calls_changes_nothing(
        corruption in prop::sample::select(PointCorruption::ALL[..13].to_vec()),
        level in 1u8..=5,
        seed: u64,
        first in 0u64..1000,
        cut in 0usize..=4,
    ) {
        let severity = Severity::try_from(level).unwrap();
        let corruptor = PointCorruptor::new(seed).with_points(600);
        let source = clouds(4, 700);
        let apply = |part: &[f32], first: u64| {
            let indices: Vec<u64> = (first..).take(part.len() / 2100).collect();
            corruptor.apply(corruption, severity, part, 700, &indices).unwrap().values
        };
        let (left, right) = source.split_at(cut * 2100);
        let pieces = [apply(left, first), apply(right, first + cut as u64)].concat();
        prop_assert_eq!(apply(&source, first), pieces);
    }
}
