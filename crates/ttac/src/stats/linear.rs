//! Products and solutions of matrices whose bits do not depend on the number of threads.
//!
//! Left to itself, `faer` splits sums by the number of threads, which shows in the last bits. Here its
//! factorisation is told a fixed number of parts, and the rest runs on one thread per block of
//! columns: columns are independent, and the blocks depend on the shape alone.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::linalg::triangular_solve::{
    solve_lower_triangular_in_place, solve_upper_triangular_in_place,
};
use faer::{Accum, Mat, MatMut, MatRef, Par, Spec};
use rayon::prelude::*;

/// The number of columns that a thread takes at a time.
pub(super) const BLOCK: usize = 64;
/// The number of rows below which a matrix is not worth sharing among threads.
const SHARED: usize = 256;
/// The number of parts into which a factorisation is cut, whatever the number of threads.
const PARTS: usize = 4;

/// Cuts a matrix into blocks of columns, each with the number of its first column.
fn blocks(
    matrix: MatMut<'_, f64>,
) -> impl IndexedParallelIterator<Item = (usize, MatMut<'_, f64>)> {
    let width = if matrix.nrows() < SHARED {
        matrix.ncols().max(1)
    } else {
        BLOCK
    };
    let blocks = matrix.par_col_chunks_mut(width).enumerate();
    blocks.map(move |(index, block)| (index * width, block))
}

/// Adds a product: `Y <- Y + scale M X`.
pub(super) fn add_product(
    y: MatMut<'_, f64>,
    matrix: MatRef<'_, f64>,
    x: MatRef<'_, f64>,
    scale: f64,
) {
    blocks(y).for_each(|(start, block)| {
        let x = x.subcols(start, block.ncols());
        matmul(block, Accum::Add, matrix, x, scale, Par::Seq);
    });
}

/// Returns `L X`.
pub(super) fn lower_product(lower: MatRef<'_, f64>, x: &Mat<f64>) -> Mat<f64> {
    triangular_product(lower, BlockStructure::TriangularLower, x)
}

/// Returns `L' X`.
pub(super) fn upper_product(lower: MatRef<'_, f64>, x: &Mat<f64>) -> Mat<f64> {
    triangular_product(lower.transpose(), BlockStructure::TriangularUpper, x)
}

fn triangular_product(
    triangle: MatRef<'_, f64>,
    structure: BlockStructure,
    x: &Mat<f64>,
) -> Mat<f64> {
    let mut product = Mat::zeros(x.nrows(), x.ncols());
    blocks(product.as_mut()).for_each(|(start, block)| {
        let x = x.subcols(start, block.ncols());
        triangular::matmul(
            block,
            BlockStructure::Rectangular,
            Accum::Replace,
            triangle,
            structure,
            x,
            BlockStructure::Rectangular,
            1.0,
            Par::Seq,
        );
    });
    product
}

/// Adds `scale X X'` to the lower triangle of a symmetric matrix. Entries above the diagonal have no
/// meaning afterwards.
pub(super) fn add_outer_products(lower: MatMut<'_, f64>, x: MatRef<'_, f64>, scale: f64) {
    blocks(lower).for_each(|(start, block)| {
        let (rest, width) = (block.nrows() - start, block.ncols());
        let right = x.subrows(start, width).transpose();
        matmul(
            block.subrows_mut(start, rest),
            Accum::Add,
            x.subrows(start, rest),
            right,
            scale,
            Par::Seq,
        );
    });
}

/// Solves `X <- L^-1 X`.
pub(super) fn solve_lower(lower: MatRef<'_, f64>, x: MatMut<'_, f64>) {
    blocks(x).for_each(|(_, block)| solve_lower_triangular_in_place(lower, block, Par::Seq));
}

/// Solves `X <- L'^-1 X`.
pub(super) fn solve_upper(lower: MatRef<'_, f64>, x: MatMut<'_, f64>) {
    let upper = lower.transpose();
    blocks(x).for_each(|(_, block)| solve_upper_triangular_in_place(upper, block, Par::Seq));
}

/// Returns `L^-1 M` of two lower triangles. Entries above the diagonal stay zero, so that two thirds
/// of the work are saved.
pub(super) fn quotient_of_triangles(lower: &Mat<f64>, other: &Mat<f64>) -> Mat<f64> {
    let mut quotient = other.clone();
    blocks(quotient.as_mut()).for_each(|(start, block)| {
        let rest = block.nrows() - start;
        solve_lower_triangular_in_place(
            lower.as_ref().submatrix(start, start, rest, rest),
            block.subrows_mut(start, rest),
            Par::Seq,
        );
    });
    quotient
}

/// Returns the Cholesky factor, zero above the diagonal, of a symmetric matrix whose lower triangle is
/// given, if all its pivots are above `floor`.
pub(super) fn cholesky(mut lower: Mat<f64>, floor: f64) -> Option<Mat<f64>> {
    let dimension = lower.nrows();
    let parts = if dimension < SHARED {
        Par::Seq
    } else {
        Par::rayon(PARTS)
    };
    let scratch = llt::factor::cholesky_in_place_scratch::<f64>(dimension, parts, Spec::default());
    llt::factor::cholesky_in_place(
        lower.as_mut(),
        llt::factor::LltRegularization::default(),
        parts,
        MemStack::new(&mut MemBuffer::new(scratch)),
        Spec::default(),
    )
    .ok()?;
    // The factorisation uses the other triangle as it likes.
    for column in 1..dimension {
        lower.col_mut(column).subrows_mut(0, column).fill(0.0);
    }
    let pivot = |index| lower[(index, index)] * lower[(index, index)];
    let sound = (0..dimension).all(|index| pivot(index) > floor && pivot(index).is_finite());
    sound.then_some(lower)
}

/// Returns `(L L')^-1`.
pub(super) fn inverse(lower: &Mat<f64>) -> Mat<f64> {
    let identity = Mat::identity(lower.nrows(), lower.nrows());
    let mut inverse = quotient_of_triangles(lower, &identity);
    solve_upper(lower.as_ref(), inverse.as_mut());
    mirror(inverse.as_mut());
    inverse
}

/// Returns the lower triangle of `(M + M')/2`.
pub(super) fn symmetrised(matrix: &[f64], dimension: usize) -> Mat<f64> {
    let matrix = MatRef::from_column_major_slice(matrix, dimension, dimension);
    let mut lower = Mat::zeros(dimension, dimension);
    for_lower_triangle(dimension, |row, column| {
        lower[(row, column)] = 0.5 * (matrix[(row, column)] + matrix[(column, row)]);
    });
    lower
}

/// Copies the lower triangle above the diagonal.
pub(super) fn mirror(mut matrix: MatMut<'_, f64>) {
    for_lower_triangle(matrix.ncols(), |row, column| {
        matrix[(column, row)] = matrix[(row, column)];
    });
}

/// Visits the rows and columns of a lower triangle, diagonal included, in tiles of a cache line
/// squared. Code that touches the transpose as well would otherwise wait for memory at every entry.
fn for_lower_triangle(dimension: usize, mut visit: impl FnMut(usize, usize)) {
    const TILE: usize = 8;
    for left in (0..dimension).step_by(TILE) {
        for top in (left..dimension).step_by(TILE) {
            for column in left..dimension.min(left + TILE) {
                for row in top.max(column)..dimension.min(top + TILE) {
                    visit(row, column);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Larger than several blocks and no multiple of one.
    const DIMENSION: usize = 5 * BLOCK + 5;

    fn triangle(phase: f64) -> Mat<f64> {
        let entry = |row: usize, column: usize| match row.cmp(&column) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => 3.0 + phase,
            std::cmp::Ordering::Greater => {
                (phase + (row * 31 + column * 17) as f64).sin() / DIMENSION as f64
            }
        };
        Mat::from_fn(DIMENSION, DIMENSION, entry)
    }

    fn columns(count: usize) -> Mat<f64> {
        Mat::from_fn(DIMENSION, count, |row, column| {
            ((row * 7 + column * 13) as f64).cos()
        })
    }

    /// Everything above, on one column and on many.
    fn everything(count: usize) -> Vec<Mat<f64>> {
        let (lower, x) = (triangle(0.1), columns(count));
        let mut products = Mat::zeros(DIMENSION, DIMENSION);
        add_outer_products(products.as_mut(), x.as_ref(), 0.5);
        mirror(products.as_mut());
        for index in 0..DIMENSION {
            products[(index, index)] += 3.0;
        }
        let mut product = x.clone();
        add_product(product.as_mut(), products.as_ref(), x.as_ref(), 2.0);
        let mut by_lower = x.clone();
        solve_lower(lower.as_ref(), by_lower.as_mut());
        let mut by_upper = x.clone();
        solve_upper(lower.as_ref(), by_upper.as_mut());
        let factor = cholesky(products.clone(), 0.0).unwrap();
        let inverse = inverse(&factor);
        let by_factor = [
            lower_product(factor.as_ref(), &x),
            upper_product(factor.as_ref(), &x),
        ];
        let quotient = quotient_of_triangles(&lower, &factor);
        let mut all = vec![
            products, product, by_lower, by_upper, factor, inverse, quotient,
        ];
        all.extend(by_factor);
        all
    }

    #[test]
    fn blocks_make_up_the_whole() {
        for count in [1, 70] {
            let (lower, x) = (triangle(0.1), columns(count));
            let all = everything(count);
            let [
                products,
                product,
                by_lower,
                by_upper,
                factor,
                inverse,
                quotient,
            ] = &all[..7]
            else {
                panic!("seven and two more")
            };
            let near = |a: &Mat<f64>, b: &Mat<f64>| (a - b).norm_max() < 1e-10;
            let identity = Mat::<f64>::identity(DIMENSION, DIMENSION);
            assert!(near(
                products,
                &(&x * x.transpose() * 0.5 + &identity * 3.0)
            ));
            assert!(near(product, &(&x + products * &x * 2.0)));
            assert!(near(&(&lower * by_lower), &x));
            assert!(near(&(lower.transpose() * by_upper), &x));
            assert!(near(&(factor * factor.transpose()), products));
            assert!(near(&(inverse * products), &identity));
            assert!(near(&(&lower * quotient), factor));
            assert!(near(&all[7], &(factor * &x)));
            assert!(near(&all[8], &(factor.transpose() * &x)));
        }
    }

    #[test]
    fn the_number_of_threads_does_not_show() {
        for count in [1, 70] {
            let with_threads = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
                pool.build().unwrap().install(|| everything(count))
            };
            let one = with_threads(1);
            assert!(one == with_threads(2));
            assert!(one == with_threads(3));
        }
    }
}
