//! Products of sizes, checked before memory is touched.
//!
//! A kernel walks memory by products of sizes that the caller gave. If such a product wrapped around, a huge batch could pass for an empty one, and
//! the kernel would leave its slices. So every check of a length goes through this file, in release builds too.

use std::fmt::Debug;

/// The largest number of floats that a slice can hold.
const MOST: usize = isize::MAX as usize / size_of::<f32>();

/// The largest kernel, stride, dilation or padding. Products of two of them, and sums of such products, stay far below the largest integer.
const MOST_OF_WINDOW: usize = 1 << (usize::BITS / 2 - 2);

/// The number of elements of a shape, if a slice could hold them.
///
/// A size of 0 counts as 1 in the search for an overflow, since kernels multiply some of the sizes without the others.
fn checked(shape: &[usize]) -> Option<usize> {
    let without_zeros = shape.iter().try_fold(1usize, |product, &size| {
        product.checked_mul(size.max(1)).filter(|&p| p <= MOST)
    })?;
    Some(if shape.contains(&0) { 0 } else { without_zeros })
}

/// The number of elements of a shape.
///
/// # Panics
/// If no slice could hold them.
pub(crate) fn elements(what: &str, shape: &[usize]) -> usize {
    checked(shape).unwrap_or_else(|| {
        panic!("{what}: no slice can hold the shape {shape:?}: the most are {MOST} values")
    })
}

/// Compares the length of a slice with the shape it should have; `whole` is the shape of the operation, for the message.
///
/// # Panics
/// If they differ, or if no slice could hold the shape.
pub(crate) fn check_len(what: &str, found: usize, expected: &[usize], whole: &dyn Debug) {
    let note = match checked(expected) {
        Some(len) if len == found => return,
        Some(_) => "",
        None => " (more than a slice can hold)",
    };
    panic!("{what}: expected the shape {expected:?}{note}, found {found} values, for {whole:?}");
}

/// Checks the sizes of a window that moves over images, along one axis.
///
/// # Panics
/// If the kernel, the stride or the dilation is 0, or any of the sizes is absurdly large.
pub(crate) fn check_window(
    what: &str,
    [kernel, stride, dilation]: [usize; 3],
    padding: [usize; 2],
    whole: &dyn Debug,
) {
    assert!(
        kernel > 0 && stride > 0 && dilation > 0,
        "{what} needs a window, a stride and a dilation of at least 1, found {whole:?}"
    );
    let largest = kernel
        .max(stride)
        .max(dilation)
        .max(padding[0])
        .max(padding[1]);
    assert!(
        largest <= MOST_OF_WINDOW,
        "{what} needs a window, a stride, a dilation and a padding of at most {MOST_OF_WINDOW}, found {whole:?}"
    );
}

/// Returns the length of an edge with `padding` before and after it.
///
/// # Panics
/// If it is longer than any slice.
pub(crate) fn padded(edge: usize, padding: [usize; 2]) -> usize {
    let padded = padding[0]
        .checked_add(padding[1])
        .and_then(|p| p.checked_add(edge));
    padded.filter(|&padded| padded <= MOST).unwrap_or_else(|| {
        panic!("an edge of {edge} with a padding of {padding:?} has more than {MOST} places")
    })
}

/// Returns how often a window of `span` pixels fits along an edge with `padding` before and after it.
///
/// # Panics
/// If the padded edge is longer than any slice. (The sizes of the window were checked.)
pub(crate) fn places(edge: usize, span: usize, stride: usize, padding: [usize; 2]) -> usize {
    match padded(edge, padding).checked_sub(span) {
        None => 0,
        Some(rest) => rest / stride + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_that_wraps_is_no_length() {
        assert_eq!(checked(&[2, 3, 4]), Some(24));
        assert_eq!(checked(&[]), Some(1));
        assert_eq!(checked(&[5, 0, 4]), Some(0));
        // 2^64, which is 0 modulo the word.
        assert_eq!(checked(&[1 << (usize::BITS - 2), 2, 2]), None);
        // An empty tensor, but the product of the other sizes wraps.
        assert_eq!(checked(&[usize::MAX, 2, 0]), None);
        // No overflow of the word, but no slice is as long.
        assert_eq!(checked(&[MOST, 2]), None);
    }

    #[test]
    #[should_panic(expected = "an edge of 8 with a padding of")]
    fn a_padding_that_wraps_is_refused() {
        places(8, 3, 1, [usize::MAX / 2; 2]);
    }
}
