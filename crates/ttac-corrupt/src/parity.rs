//! The recipe's own output on one drawn picture, number for number. `reference/corruptions/make_fixture.py` made the
//! fixture with the recipe's libraries, fed by the generator of `replay`.

use crate::corruptor::{Corruptor, Kernel, Visitor};
use crate::replay::Replay;
use crate::size::Size;
use crate::{Corruption, Severity};

const FIXTURE: &[u8] = include_bytes!("../tests/fixtures/recipe.npy");

/// Bytes of the pixels that are compared of an image.
const GRID: usize = 16 * 16 * 3;

const LEFT_OUT: [Corruption; 5] = [
    Corruption::GaussianNoise,
    Corruption::ShotNoise,
    Corruption::ImpulseNoise,
    Corruption::SpeckleNoise,
    Corruption::Frost,
];

/// Largest mean absolute difference, in levels of 255. Single levels differ where single precision stands in for
/// double, and where a sum in another order lands on the other side of a whole number.
const BOUND: f64 = 0.02;

fn picture(side: usize) -> Vec<u8> {
    let mut pixels = Vec::new();
    for y in 0..side {
        for x in 0..side {
            let checked =
                2 * x > side && 2 * y < side && (x * 16 / side + y * 16 / side).is_multiple_of(2);
            let flat = 4 * x < side && 4 * y > 3 * side;
            let disk = (8 * x).abs_diff(3 * side).pow(2) + (8 * y).abs_diff(4 * side).pow(2)
                < (2 * side).pow(2);
            let colour = if disk {
                [255, 255, 255]
            } else if flat {
                [90, 90, 90]
            } else if checked {
                [20, 200, 30]
            } else {
                [
                    x * 255 / (side - 1),
                    y * 255 / (side - 1),
                    (x * 7 + y * 3) * 32 / side % 256,
                ]
            };
            pixels.extend(colour.map(|value| value as u8));
        }
    }
    pixels
}

/// Applies a kernel to one image.
struct Once<'a> {
    image: &'a mut [u8],
    seed: u64,
}

impl Visitor for Once<'_> {
    fn visit(self, mut kernel: impl Kernel) {
        kernel.apply(self.image, &mut Replay::new(self.seed));
    }
}

#[test]
#[expect(
    clippy::print_stdout,
    reason = "the differences are for the reader of the log"
)]
fn every_corruption_equals_the_recipe() {
    let (header, images) = FIXTURE.split_at(FIXTURE.len() - 2 * 14 * 5 * GRID);
    assert!(String::from_utf8_lossy(header).contains("(2, 14, 5, 16, 16, 3)"));
    let mut expected = images.chunks_exact(GRID);
    let corruptor = Corruptor::new(0);
    let mut failures = Vec::new();
    for side in [32, 224] {
        let clean = picture(side);
        let compared = Corruption::ALL.into_iter().enumerate();
        for (index, corruption) in compared.filter(|(_, one)| !LEFT_OUT.contains(one)) {
            for severity in Severity::ALL {
                let mut image = clean.clone();
                let seed = (1000 * side + 10 * index) as u64 + u64::from(severity.get());
                let size = Size::new(side, side).unwrap();
                corruptor.prepare(
                    corruption,
                    severity,
                    size,
                    Once {
                        image: &mut image,
                        seed,
                    },
                );

                let step = side / 16;
                let grid = (0..256).flat_map(|cell| {
                    let (y, x) = (cell / 16 * step + step / 2, cell % 16 * step + step / 2);
                    image[3 * (y * side + x)..][..3].to_vec()
                });
                let differences: Vec<u8> = grid
                    .zip(expected.next().unwrap())
                    .map(|(a, &b)| a.abs_diff(b))
                    .collect();
                let mean = differences.iter().map(|&one| f64::from(one)).sum::<f64>()
                    / differences.len() as f64;
                let largest = differences.iter().max().unwrap();
                println!("{side:3} {corruption:18} {severity}: mean {mean:.4}, largest {largest}");
                if mean > BOUND {
                    failures.push(format!(
                        "{side} {corruption} {severity}: {mean:.4}, {largest}"
                    ));
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "differ from the recipe:\n{}",
        failures.join("\n")
    );
}
