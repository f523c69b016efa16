//! Images cut into patches that change places, which destroys shapes and keeps colours and textures.

use rand::Rng;

use crate::rng::shuffle;

/// Puts the `patches` by `patches` parts of an image `[height, width, 3]` of `size`, `[height, width]`, into a random order. Where a side
/// is no multiple of `patches`, the rest at its end stays in place.
///
/// # Panics
/// If `patches` is zero or the image has another size.
pub fn shuffle_patches(
    image: &[u8],
    [height, width]: [usize; 2],
    patches: usize,
    rng: &mut impl Rng,
) -> Vec<u8> {
    assert_eq!(
        image.len(),
        3 * height * width,
        "an image of {height} x {width}"
    );
    let [rows, columns] = [height, width].map(|side| side / patches);
    let mut order: Vec<usize> = (0..patches * patches).collect();
    shuffle(&mut order, rng);
    let mut result = image.to_vec();
    for (to, from) in order.into_iter().enumerate() {
        let corner = |patch: usize| [patch / patches * rows, patch % patches * columns];
        let ([to_y, to_x], [from_y, from_x]) = (corner(to), corner(from));
        for row in 0..rows {
            let place = |y: usize, x: usize| 3 * ((y + row) * width + x);
            let (to, from) = (place(to_y, to_x), place(from_y, from_x));
            result[to..to + 3 * columns].copy_from_slice(&image[from..from + 3 * columns]);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::seeded;

    /// Every pixel says which patch it is of.
    fn image(side: usize, patches: usize) -> Vec<u8> {
        let patch = side / patches;
        let pixels = (0..side * side).flat_map(|at| {
            let (y, x) = (at / side / patch, at % side / patch);
            [(y * patches + x) as u8; 3]
        });
        pixels.collect()
    }

    #[test]
    fn each_patch_comes_once_and_whole() {
        let plain = image(8, 4);
        let shuffled = shuffle_patches(&plain, [8, 8], 4, &mut seeded(0, 0));
        assert_ne!(shuffled, plain);
        assert_ne!(
            shuffled,
            shuffle_patches(&plain, [8, 8], 4, &mut seeded(0, 1))
        );
        let pixel = |y: usize, x: usize| shuffled[3 * (8 * y + x)];
        let mut seen = Vec::new();
        for (y, x) in (0..16).map(|patch| (patch / 4 * 2, patch % 4 * 2)) {
            let own = pixel(y, x);
            assert!(
                [(0, 1), (1, 0), (1, 1)]
                    .iter()
                    .all(|(dy, dx)| pixel(y + dy, x + dx) == own)
            );
            seen.push(own);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..16).collect::<Vec<u8>>());
    }

    #[test]
    fn one_patch_and_what_is_left_over_stay() {
        let plain = image(8, 4);
        assert_eq!(shuffle_patches(&plain, [8, 8], 1, &mut seeded(0, 0)), plain);
        let shuffled = shuffle_patches(&plain, [8, 8], 3, &mut seeded(0, 0));
        let last_row = 3 * 8 * 6;
        assert_eq!(shuffled[last_row..], plain[last_row..]);
    }
}
