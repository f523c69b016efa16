//! Where the axes of a value lie in memory.

use crate::graph::ir::Dim;

/// The order of a value's axes in memory: place `p` holds axis `order[p]` of the shape that the graph gives.
pub(super) type Order = Vec<usize>;

/// The order in which a graph writes the axes down.
pub(super) fn written(axes: usize) -> Order {
    (0..axes).collect()
}

/// The order in which the channels, axis 1, come last: that of images in all our kernels.
pub(super) fn channels_last(axes: usize) -> Order {
    std::iter::once(0).chain(2..axes).chain([1]).collect()
}

/// Moves an axis to the end and leaves the others in their order.
pub(super) fn with_last(order: &[usize], axis: usize) -> Order {
    let others = order.iter().copied().filter(|&other| other != axis);
    others.chain([axis]).collect()
}

/// Returns the sizes in the order of memory.
pub(super) fn physical(shape: &[Dim], order: &[usize]) -> Vec<Dim> {
    order.iter().map(|&axis| shape[axis]).collect()
}

/// Finds the place of an axis in memory.
///
/// # Panics
/// If the order has no such axis.
pub(super) fn place(order: &[usize], axis: usize) -> usize {
    let place = order.iter().position(|&held| held == axis);
    place.expect("an order holds every axis")
}

/// Tells whether two orders put the elements of a shape into the same sequence. Axes with one element may be anywhere.
pub(super) fn same_sequence(shape: &[Dim], a: &[usize], b: &[usize]) -> bool {
    let long = |order: &[usize]| -> Order {
        let long = order
            .iter()
            .copied()
            .filter(|&axis| shape[axis] != Dim::fixed(1));
        long.collect()
    };
    long(a) == long(b)
}

/// Renumbers an order after axes are gone from the shape.
pub(super) fn without(order: &[usize], gone: &[usize]) -> Order {
    let kept = order.iter().filter(|axis| !gone.contains(axis));
    kept.map(|&axis| axis - gone.iter().filter(|&&one| one < axis).count())
        .collect()
}

/// A part of a reshape: neighbouring axes of the old shape that become neighbouring axes of the new one.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    from: std::ops::Range<usize>,
    to: std::ops::Range<usize>,
}

/// Cuts a reshape into the smallest parts of equally many elements.
fn parts(from: &[Dim], to: &[Dim]) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (start_i, start_j) = (i, j);
        // Sizes and numbers of batches of the two sides so far.
        let (mut left, mut right) = ((1, 0), (1, 0));
        let step = |side: &mut (usize, usize), dim: Dim| {
            side.0 *= dim.size;
            side.1 += usize::from(dim.batch);
        };
        if i < from.len() {
            step(&mut left, from[i]);
            i += 1;
        } else {
            step(&mut right, to[j]);
            j += 1;
        }
        while left != right {
            // A side without its batch is behind; of sides with equally many, the smaller one is.
            let left_behind = (left.1, left.0) < (right.1, right.0);
            if (left_behind && i < from.len()) || j >= to.len() {
                if i >= from.len() {
                    break;
                }
                step(&mut left, from[i]);
                i += 1;
            } else {
                step(&mut right, to[j]);
                j += 1;
            }
        }
        parts.push(Part {
            from: start_i..i,
            to: start_j..j,
        });
    }
    parts
}

/// How a reshape is done: bring the value into `before`, give it the new sizes, and it lies in `after`.
pub(super) struct ReshapeLayout {
    pub before: Order,
    pub after: Order,
}

/// Finds the order that a value needs before its reshape, which is the order it has wherever that is possible: the axes of every
/// part must lie side by side and in the order of the shape. Where they do not, they are gathered at the place of the part's first one.
pub(super) fn reshape(from: &[Dim], order: &[usize], to: &[Dim]) -> ReshapeLayout {
    let parts = parts(from, to);
    // Axes with one element carry nothing: a part lies where its first longer axis lies, and a part without one at the end.
    let place_of = |part: &Part| {
        let long = part
            .from
            .clone()
            .filter(|&axis| from[axis] != Dim::fixed(1));
        let places = long.map(|axis| place(order, axis));
        places.min().unwrap_or(usize::MAX)
    };
    let mut sorted: Vec<&Part> = parts.iter().collect();
    sorted.sort_by_key(|part| place_of(part));
    ReshapeLayout {
        before: sorted.iter().flat_map(|part| part.from.clone()).collect(),
        after: sorted.iter().flat_map(|part| part.to.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(sizes: &[usize]) -> Vec<Dim> {
        let rest = sizes.iter().copied().map(Dim::fixed);
        std::iter::once(Dim::per_image(1)).chain(rest).collect()
    }

    #[test]
    fn flattening_the_pixels_of_an_image_moves_nothing() {
        let (from, to) = (dims(&[24, 4, 4]), dims(&[24, 16]));
        let order = channels_last(4);
        let layout = reshape(&from, &order, &to);
        assert!(same_sequence(&from, &layout.before, &order));
        assert_eq!(layout.after, [0, 2, 1]);
    }

    #[test]
    fn flattening_channels_and_pixels_needs_the_written_order() {
        let (from, to) = (dims(&[24, 4, 4]), dims(&[24 * 16]));
        let layout = reshape(&from, &channels_last(4), &to);
        assert_eq!(layout.before, [0, 1, 2, 3]);
        assert_eq!(layout.after, [0, 1]);
    }

    #[test]
    fn flattening_a_pooled_map_moves_nothing() {
        let (from, to) = (dims(&[24, 1, 1]), dims(&[24]));
        let order = channels_last(4);
        let layout = reshape(&from, &order, &to);
        assert!(same_sequence(&from, &layout.before, &order));
        assert_eq!(layout.after, [0, 1]);
    }

    #[test]
    fn heads_are_split_where_they_lie() {
        let (from, to) = (dims(&[5, 36]), dims(&[5, 3, 3, 4]));
        let layout = reshape(&from, &written(3), &to);
        assert_eq!(layout.before, [0, 1, 2]);
        assert_eq!(layout.after, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn windows_that_join_the_batch_are_gathered() {
        // [b, h, w, c] in windows, as Swin has them: the windows of an image become images.
        let from = dims(&[2, 7, 2, 7, 3]);
        let order = vec![0, 1, 3, 2, 4, 5];
        let to = vec![Dim::per_image(14), Dim::fixed(14), Dim::fixed(3)];
        let layout = reshape(&from, &order, &to);
        assert_eq!(layout.before, [0, 1, 2, 3, 4, 5]);
        assert_eq!(layout.after, [0, 1, 2]);
    }

    #[test]
    fn reshapes_with_ones_find_their_parts() {
        let (from, to) = (dims(&[1, 6]), dims(&[2, 3, 1]));
        let found = parts(&from, &to);
        let elements = |dims: &[Dim]| dims.iter().map(|dim| dim.size).product::<usize>();
        for part in &found {
            assert_eq!(
                elements(&from[part.from.clone()]),
                elements(&to[part.to.clone()])
            );
        }
        assert_eq!(found.first().unwrap().from.start, 0);
        assert_eq!(found.last().unwrap().to.end, to.len());
    }
}
