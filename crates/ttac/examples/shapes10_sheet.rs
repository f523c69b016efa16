//! Draws the contact sheet of `shapes10`: a row for every class, twelve test samples each.
//!
//! Run with `cargo run -p ttac --example shapes10_sheet -- docs/shapes10.png`.

use image::{Rgb, RgbImage};
use ttac::data::{Dataset, DatasetExt, SampleId, Shapes10, Split};

const COLUMNS: usize = 12;
const ZOOM: u32 = 3;
const CELL: u32 = 32 * ZOOM + 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("expected the PNG to write")?;
    let set = Shapes10::standard(Split::Test);
    let classes = set.classes().len();
    let mut sheet = RgbImage::from_pixel(
        COLUMNS as u32 * CELL + 2,
        classes as u32 * CELL + 2,
        Rgb([255, 255, 255]),
    );
    for label in 0..classes {
        let of_class = (0..set.len() as SampleId).filter(|&id| set.label(id) == label);
        let ids: Vec<SampleId> = of_class.take(COLUMNS).collect();
        let images = set.batch(&ids)?.samples.into_images()?;
        for (column, pixels) in images.each().enumerate() {
            let (left, top) = (2 + column as u32 * CELL, 2 + label as u32 * CELL);
            for y in 0..32 * ZOOM {
                for x in 0..32 * ZOOM {
                    let at = 3 * (y / ZOOM * 32 + x / ZOOM) as usize;
                    let colour = [pixels[at], pixels[at + 1], pixels[at + 2]];
                    sheet.put_pixel(left + x, top + y, Rgb(colour));
                }
            }
        }
    }
    sheet.save(path)?;
    Ok(())
}
