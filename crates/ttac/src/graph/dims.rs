//! Sizes of values: counting, describing and broadcasting them.

use super::ir::Dim;

/// The largest size along one axis, and the most elements of a value for one image. A header must not make us compute without
/// bounds, and products of two sizes stay far from overflow.
const MOST_ELEMENTS: usize = 1 << 40;

/// Counts the elements of a shape, for one image where it depends on the batch. `None` if they are absurdly many.
pub fn elements(shape: &[Dim]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, dim| {
        let product = product.checked_mul(dim.size)?;
        (product <= MOST_ELEMENTS).then_some(product)
    })
}

/// Writes a shape for a message: `[b, 3, 32, 32]`, where `b` is the batch and `2b` twice as many.
pub fn describe(shape: &[Dim]) -> String {
    let sizes = shape.iter().map(|dim| match (dim.batch, dim.size) {
        (false, size) => size.to_string(),
        (true, 1) => "b".to_owned(),
        (true, size) => format!("{size}b"),
    });
    format!("[{}]", sizes.collect::<Vec<_>>().join(", "))
}

/// Returns the shape that two shapes broadcast to.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, String> {
    let axes = a.len().max(b.len());
    let size = |shape: &[Dim], axis: usize| {
        let missing = axes - shape.len();
        axis.checked_sub(missing)
            .map_or(Dim::fixed(1), |at| shape[at])
    };
    let one = |axis| match (size(a, axis), size(b, axis)) {
        (x, y) if x == y => Ok(x),
        (x, y) if x == Dim::fixed(1) => Ok(y),
        (x, y) if y == Dim::fixed(1) => Ok(x),
        _ => Err(format!(
            "{} and {} do not broadcast",
            describe(a),
            describe(b)
        )),
    };
    (0..axes).map(one).collect()
}
