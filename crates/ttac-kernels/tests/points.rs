//! Kernels on clouds against plain loops in f64, and the same bits for any number of threads.

use rayon::ThreadPoolBuilder;
use ttac_kernels::Context;
use ttac_kernels::kernels::{
    CloudBackward, EdgeBackward, EdgeShape, Isa, LeakyNorm, cloud_pool, cloud_pool_backward,
    edge_pool, edge_pool_backward, nearest,
};

fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn distance(x: &[f32], channels: usize, i: usize, j: usize) -> f64 {
    let point = |p: usize| &x[p * channels..][..channels];
    let differences = point(i).iter().zip(point(j)).map(|(a, b)| f64::from(a - b));
    differences.map(|d| d * d).sum()
}

#[test]
fn neighbours_are_the_nearest_in_order() {
    for isa in Isa::available() {
        for (points, channels, k) in [
            (1, 1, 1),
            (5, 3, 5),
            (33, 3, 7),
            (130, 9, 20),
            (1024, 64, 20),
        ] {
            let x = numbers(7, 2 * points * channels);
            let found = nearest(&Context::new().with_isa(isa), &x, points, channels, k);
            assert_eq!(found.len(), 2 * points * k);
            for (row, found) in found.chunks_exact(k).enumerate() {
                let (cloud, i) = (row / points, row % points);
                let x = &x[cloud * points * channels..][..points * channels];
                let mut all: Vec<f64> = (0..points).map(|j| distance(x, channels, i, j)).collect();
                let ours: Vec<f64> = found.iter().map(|&j| all[j as usize]).collect();
                all.sort_by(f64::total_cmp);
                let mut sorted = found.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), k, "a neighbour comes once");
                for (ours, best) in ours.iter().zip(&all) {
                    // Distances come from products, which round at the size of the squares.
                    assert!(
                        (ours - best).abs() < 1e-5 * channels as f64,
                        "{isa:?} {points} {channels}"
                    );
                }
            }
        }
    }
}

#[test]
fn equal_points_are_neighbours_in_their_order() {
    let context = &Context::default();
    let x = vec![0.5; 40 * 3];
    let found = nearest(context, &x, 40, 3, 4);
    for row in found.chunks_exact(4) {
        assert_eq!(row, [0, 1, 2, 3]);
    }
}

#[test]
fn what_is_no_number_does_no_harm() {
    let context = &Context::default();
    let mut x = numbers(3, 30 * 3);
    x[31] = f32::NAN;
    let found = nearest(context, &x, 30, 3, 6);
    assert!(found.iter().all(|&j| j < 30));
}

#[test]
fn threads_change_no_bit() {
    let context = &Context::default();
    let shape = EdgeShape {
        batch: 5,
        points: 70,
        k: 9,
        channels: 37,
    };
    let rows = shape.batch * shape.points;
    let x = numbers(1, rows * 6);
    let ab = numbers(2, rows * 2 * shape.channels);
    let dy = numbers(3, rows * shape.channels);
    let (gamma, beta) = (numbers(4, shape.channels), numbers(5, shape.channels));
    let norm = LeakyNorm {
        gamma: &gamma,
        beta: &beta,
        epsilon: 1e-5,
        slope: 0.2,
    };
    let run = |threads: usize| {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let neighbours = nearest(context, &x, shape.points, 6, shape.k);
            let pooled = edge_pool(context, &ab, &neighbours, shape, None, norm);
            let saved = EdgeBackward::new(&ab, &neighbours, &pooled);
            let edges = edge_pool_backward(context, &dy, &saved, shape, norm);
            let (mean, variance) = (&pooled.mean, &pooled.variance);
            let clouds = cloud_pool(context, &dy, shape.points, mean, variance, norm);
            let saved = CloudBackward {
                x: &dy,
                points: shape.points,
                winners: &clouds.winners,
                mean,
                variance,
                batch_statistics: true,
            };
            let of_clouds = numbers(6, shape.batch * 2 * shape.channels);
            let back = cloud_pool_backward(context, &of_clouds, &saved, norm);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            (
                neighbours.clone(),
                [
                    bits(&pooled.y),
                    bits(&edges.ab),
                    bits(&edges.gamma),
                    bits(&edges.beta),
                    bits(&clouds.y),
                    bits(&back.x),
                    bits(&back.gamma),
                ],
            )
        })
    };
    let one = run(1);
    for threads in [2, 3] {
        assert_eq!(run(threads), one, "{threads} threads");
    }
}
