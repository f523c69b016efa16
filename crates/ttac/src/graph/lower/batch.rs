//! The batch: where it lies in every value.
//!
//! A program is exported with an example, and often with that example's sizes written out. In every value that depends on the
//! images one axis holds them: `outer x batch x inner` elements, of which `outer` and `inner` are sizes of the network, as in
//! the `[197 * batch, 768]` of a network whose tokens come first. In row-major order `L = prefix(axis) * outer` blocks lie before
//! the batch, and a reshape changes shapes but not `L`: so the new axis is the one with `prefix <= L < prefix * size`.

use crate::graph::dims::describe;
use crate::graph::ir::Dim;
use crate::graph::op::Op;

/// The shape of a value, and where in it the batch lies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shaped {
    /// The sizes, at most one of which depends on the batch.
    pub dims: Vec<Dim>,
    /// How many blocks of the axis that holds the batch lie outside of it; 1 if no axis does.
    pub outer: usize,
}

impl Shaped {
    /// Makes the shape of something that depends on no image.
    pub(super) fn fixed(shape: &[usize]) -> Self {
        Self {
            dims: shape.iter().copied().map(Dim::fixed).collect(),
            outer: 1,
        }
    }

    /// Returns the axis that holds the batch.
    pub(super) fn axis(&self) -> Option<usize> {
        self.dims.iter().position(|dim| dim.batch)
    }

    /// Returns the sizes for a batch.
    pub(super) fn at(&self, batch: usize) -> Vec<usize> {
        self.dims.iter().map(|dim| dim.at(batch)).collect()
    }

    /// Returns how many blocks lie before the batch in row-major order.
    fn blocks(&self) -> Option<usize> {
        let prefix = self.dims[..self.axis()?].iter().map(|dim| dim.size);
        Some(prefix.product::<usize>() * self.outer)
    }
}

/// Turns the sizes that a reshape has for the example's batch into sizes for any batch.
pub(super) fn reshaped(from: &Shaped, sizes: &[usize], batch: usize) -> Result<Vec<Dim>, String> {
    let mut dims: Vec<Dim> = sizes.iter().copied().map(Dim::fixed).collect();
    let Some(blocks) = from.blocks() else {
        return Ok(dims);
    };
    let example = from.at(batch);
    let lost = || format!("{example:?} cannot become {sizes:?} for every batch: images would mix");
    let axis = if batch == 1 {
        // With one image the rule finds the axis behind the batch.
        axis_of_one(sizes, blocks).ok_or_else(|| {
            format!("where the images lie in {sizes:?} cannot be told from an example of one image")
        })?
    } else {
        let mut prefix = 1;
        let found = sizes.iter().position(|&size| {
            let here = prefix <= blocks && blocks < prefix * size;
            prefix *= size;
            here
        });
        found.ok_or_else(lost)?
    };
    let prefix: usize = sizes[..axis].iter().product();
    let outer = blocks / prefix;
    if !blocks.is_multiple_of(prefix) || !sizes[axis].is_multiple_of(outer * batch) {
        return Err(lost());
    }
    dims[axis] = Dim::per_image(sizes[axis] / batch);
    Ok(dims)
}

/// Finds the axis of the batch in an example of one image: an axis of size 1 behind so many blocks, or the first.
fn axis_of_one(sizes: &[usize], blocks: usize) -> Option<usize> {
    let prefix = |axis: usize| sizes[..axis].iter().product::<usize>();
    let single = (0..sizes.len()).find(|&axis| sizes[axis] == 1 && prefix(axis) == blocks);
    single.or((blocks == 1 && !sizes.is_empty()).then_some(0))
}

/// Returns how many blocks lie outside the batch in the result of an operation, or says why it would mix images.
pub(super) fn outer(op: &Op, inputs: &[&Shaped], result: &[Dim]) -> Result<usize, String> {
    let Some(axis) = result.iter().position(|dim| dim.batch) else {
        return match inputs.iter().find(|input| input.axis().is_some()) {
            Some(input) => Err(mixes(input)),
            None => Ok(1),
        };
    };
    if result[axis + 1..].iter().any(|dim| dim.batch) {
        return Err(format!(
            "its result {} has the batch twice, and would mix images",
            describe(result)
        ));
    }
    let batched: Vec<&&Shaped> = inputs
        .iter()
        .filter(|input| input.axis().is_some())
        .collect();
    let Some(first) = batched.first() else {
        // An expansion to the batch: each image has a copy.
        return Ok(1);
    };
    if let Op::Reshape { .. } = op {
        let prefix: usize = result[..axis].iter().map(|dim| dim.size).product();
        let blocks = first.blocks().unwrap_or(1);
        let fits = prefix > 0
            && blocks.is_multiple_of(prefix)
            && result[axis].size.is_multiple_of((blocks / prefix).max(1));
        return if fits && blocks >= prefix {
            Ok(blocks / prefix)
        } else {
            Err(mixes(first))
        };
    }
    let contracted = |input: &Shaped, from_end: usize| {
        input.axis().map(|axis| input.dims.len() - axis) == Some(from_end)
    };
    let mixing = match op {
        Op::MatMul => contracted(inputs[0], 1) || contracted(inputs[1], 2),
        Op::GroupNorm { .. } => first.axis() != Some(0),
        _ => false,
    };
    if mixing {
        return Err(mixes(first));
    }
    if let Some(other) = batched.iter().find(|input| input.outer != first.outer) {
        return Err(format!(
            "it reads {} and {}, whose images have another order",
            describe(&first.dims),
            describe(&other.dims)
        ));
    }
    Ok(first.outer)
}

fn mixes(input: &Shaped) -> String {
    format!(
        "it works along the batch of {}, and would mix images",
        describe(&input.dims)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(dims: &[Dim], outer: usize) -> Shaped {
        Shaped {
            dims: dims.to_vec(),
            outer,
        }
    }

    const B: Dim = Dim::per_image(1);

    #[test]
    fn literals_of_static_exports_become_multiples_of_the_batch() {
        // A ViT's queries, keys and values for an example of two images.
        let tokens = shaped(&[B, Dim::fixed(197), Dim::fixed(576)], 1);
        let dims = reshaped(&tokens, &[2, 197, 3, 3, 64], 2).unwrap();
        assert_eq!(describe(&dims), "[b, 197, 3, 3, 64]");
        // Heads merged with the images.
        let heads = shaped(&[B, Dim::fixed(4), Dim::fixed(16), Dim::fixed(12)], 1);
        let dims = reshaped(&heads, &[8, 16, 12], 2).unwrap();
        assert_eq!(describe(&dims), "[4b, 16, 12]");
    }

    #[test]
    fn tokens_before_images_are_an_outer_factor() {
        let tokens = shaped(&[Dim::fixed(17), B, Dim::fixed(24)], 1);
        let dims = reshaped(&tokens, &[34, 24], 2).unwrap();
        assert_eq!(describe(&dims), "[17b, 24]");
        let op = Op::Reshape {
            shape: dims.clone(),
        };
        assert_eq!(outer(&op, &[&tokens], &dims), Ok(17));
        let rows = shaped(&dims, 17);
        let back = reshaped(&rows, &[17, 2, 24], 2).unwrap();
        assert_eq!(describe(&back), "[17, b, 24]");
        let heads = reshaped(&tokens, &[17, 8, 6], 2).unwrap();
        assert_eq!(describe(&heads), "[17, 4b, 6]");
    }

    #[test]
    fn a_batch_that_is_cut_is_refused() {
        let images = shaped(&[B, Dim::fixed(3)], 1);
        assert!(reshaped(&images, &[2, 6], 4).is_err());
        assert!(reshaped(&images, &[3, 4], 4).is_err());
    }

    #[test]
    fn an_example_of_one_image_is_read_where_it_is_clear() {
        let images = shaped(&[B, Dim::fixed(3), Dim::fixed(4)], 1);
        let dims = reshaped(&images, &[1, 12], 1).unwrap();
        assert_eq!(describe(&dims), "[b, 12]");
        let dims = reshaped(&images, &[3, 4], 1).unwrap();
        assert_eq!(describe(&dims), "[3b, 4]");
        let tokens = shaped(&[Dim::fixed(3), B, Dim::fixed(4)], 1);
        assert!(reshaped(&tokens, &[3, 4], 1).is_err());
    }

    #[test]
    fn images_in_another_order_do_not_add() {
        let a = shaped(&[Dim::per_image(17), Dim::fixed(4)], 17);
        let b = shaped(&[Dim::per_image(17), Dim::fixed(4)], 1);
        assert_eq!(outer(&Op::Add, &[&a, &a], &a.dims), Ok(17));
        assert!(outer(&Op::Add, &[&a, &b], &a.dims).is_err());
    }

    #[test]
    fn products_over_images_are_refused() {
        let rows = shaped(&[Dim::fixed(4), B], 1);
        let columns = shaped(&[B, Dim::fixed(4)], 1);
        let result = [Dim::fixed(4), Dim::fixed(4)];
        assert!(outer(&Op::MatMul, &[&rows, &columns], &result).is_err());
        let result = [B, B];
        assert!(outer(&Op::MatMul, &[&columns, &rows], &result).is_err());
    }
}
