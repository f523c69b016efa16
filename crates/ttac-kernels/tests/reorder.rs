//! Copies in another order of axes, against their definition.

#![allow(missing_docs)]

mod comparison;

use comparison::values;
use proptest::prelude::*;
use ttac_kernels::Context;
use ttac_kernels::kernels::copy_strided;

/// Value after value of the result.
fn expected(x: &[f32], shape: &[usize], strides: &[usize]) -> Vec<f32> {
    (0..shape.iter().product())
        .map(|mut index: usize| {
            let mut at = 0;
            for (size, stride) in shape.iter().zip(strides).rev() {
                at += index % size * stride;
                index /= size;
            }
            x[at]
        })
        .collect()
}

/// The tensor `shape` with its axes in the order `order`.
fn permuted(shape: &[usize], order: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let sizes = order.iter().map(|&axis| shape[axis]).collect();
    (sizes, order.iter().map(|&axis| stride(axis)).collect())
}

fn check(shape: &[usize], order: &[usize]) {
    let x = values(shape.iter().product(), 1);
    let (sizes, strides) = permuted(shape, order);
    let found = copy_strided(&Context::default(), &x, &sizes, &strides);
    assert!(
        found == expected(&x, &sizes, &strides),
        "{shape:?} by {order:?}"
    );
}

#[test]
fn tensors_of_many_tasks() {
    check(&[300, 500], &[1, 0]);
    check(&[2, 200, 3, 70], &[0, 3, 1, 2]);
    check(&[70, 3, 200], &[2, 1, 0]);
    check(&[40, 50, 33, 4], &[1, 0, 2, 3]);
    check(&[33, 40, 50], &[1, 2, 0]);
    check(&[2, 0, 5], &[2, 1, 0]);
}

proptest! {
    #[test]
    fn any_order(
        shape in prop::collection::vec(1usize..12, 1..6),
        seed in any::<u64>(),
    ) {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        // A shuffle by the digits of the seed.
        let mut digits = seed;
        for i in (1..order.len()).rev() {
            order.swap(i, (digits % (i as u64 + 1)) as usize);
            digits /= i as u64 + 1;
        }
        check(&shape, &order);
    }
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let x = values(64 * 49 * 96, 1);
    let (sizes, strides) = permuted(&[64, 49, 96], &[0, 2, 1]);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let copy = || copy_strided(&Context::default(), &x, &sizes, &strides);
        pool.build().unwrap().install(copy)
    };
    let one = with(1);
    assert!(one == with(2) && one == with(3));
}

#[test]
#[should_panic(expected = "copy: values of [3, 2], [1, 3] apart, do not fit into 5 values")]
fn values_beyond_the_end_are_refused() {
    copy_strided(&Context::default(), &[0.; 5], &[3, 2], &[1, 3]);
}
