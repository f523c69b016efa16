//! Contact sheets: many small pictures on one PNG, with a name beside every row.

use std::io::Cursor;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use ttac::data::Images;
use ttac::write_atomically;

/// White pixels between pictures.
const GAP: usize = 4;
/// Sides of a letter's dots.
const DOT: usize = 2;
const LETTER_WIDTH: usize = 4 * DOT;
const LETTER_HEIGHT: usize = 5 * DOT;

/// A sheet while it is put together.
pub struct Sheet {
    columns: usize,
    rows: Vec<(String, Images)>,
}

impl Sheet {
    /// Starts a sheet whose rows have this many pictures.
    pub fn new(columns: usize) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row of pictures of the size of all others.
    pub fn push(&mut self, name: &str, pictures: Images) {
        assert_eq!(pictures.count(), self.columns);
        if let Some((_, first)) = self.rows.first() {
            assert_eq!(
                (first.height, first.width),
                (pictures.height, pictures.width)
            );
        }
        self.rows.push((name.to_owned(), pictures));
    }

    /// Writes the sheet as a PNG.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let mut bytes = Cursor::new(Vec::new());
        self.draw().write_to(&mut bytes, ImageFormat::Png)?;
        write_atomically(path, bytes.get_ref())?;
        Ok(())
    }

    fn draw(&self) -> RgbImage {
        let Some((_, first)) = self.rows.first() else {
            return RgbImage::new(1, 1);
        };
        // Small pictures are enlarged, every pixel to a square.
        let zoom = (96 / first.width.max(1)).clamp(1, 3);
        let (height, width) = (zoom * first.height, zoom * first.width);
        let longest = self.rows.iter().map(|(name, _)| name.len()).max();
        let margin = 2 * GAP + LETTER_WIDTH * longest.unwrap_or(0);
        let mut sheet = RgbImage::from_pixel(
            (margin + self.columns * (width + GAP)) as u32,
            (GAP + self.rows.len() * (height + GAP)) as u32,
            Rgb([255, 255, 255]),
        );
        for (row, (name, pictures)) in self.rows.iter().enumerate() {
            let top = GAP + row * (height + GAP);
            write_name(&mut sheet, name, GAP, top + (height - LETTER_HEIGHT) / 2);
            let picture_bytes = first.height * first.width * 3;
            for (column, picture) in pictures.pixels.chunks_exact(picture_bytes).enumerate() {
                let left = margin + column * (width + GAP);
                for y in 0..height {
                    for x in 0..width {
                        let at = 3 * (y / zoom * first.width + x / zoom);
                        let colour = [picture[at], picture[at + 1], picture[at + 2]];
                        sheet.put_pixel((left + x) as u32, (top + y) as u32, Rgb(colour));
                    }
                }
            }
        }
        sheet
    }
}

fn write_name(sheet: &mut RgbImage, name: &str, left: usize, top: usize) {
    for (position, letter) in name.bytes().enumerate() {
        let rows = glyph(letter);
        for y in 0..LETTER_HEIGHT {
            for x in 0..3 * DOT {
                if rows[y / DOT] >> (2 - x / DOT) & 1 == 1 {
                    let x = left + position * LETTER_WIDTH + x;
                    sheet.put_pixel(x as u32, (top + y) as u32, Rgb([0, 0, 0]));
                }
            }
        }
    }
}

/// Five rows of three dots; letters in capitals, since nothing smaller can be read.
fn glyph(letter: u8) -> [u8; 5] {
    match letter.to_ascii_uppercase() {
        b'A' => [0b010, 0b101, 0b111, 0b101, 0b101],
        b'B' => [0b110, 0b101, 0b110, 0b101, 0b110],
        b'C' => [0b011, 0b100, 0b100, 0b100, 0b011],
        b'D' => [0b110, 0b101, 0b101, 0b101, 0b110],
        b'E' => [0b111, 0b100, 0b110, 0b100, 0b111],
        b'F' => [0b111, 0b100, 0b110, 0b100, 0b100],
        b'G' => [0b011, 0b100, 0b101, 0b101, 0b011],
        b'H' => [0b101, 0b101, 0b111, 0b101, 0b101],
        b'I' => [0b111, 0b010, 0b010, 0b010, 0b111],
        b'J' => [0b001, 0b001, 0b001, 0b101, 0b010],
        b'K' => [0b101, 0b101, 0b110, 0b101, 0b101],
        b'L' => [0b100, 0b100, 0b100, 0b100, 0b111],
        b'M' => [0b101, 0b111, 0b111, 0b101, 0b101],
        b'N' => [0b110, 0b101, 0b101, 0b101, 0b101],
        b'O' => [0b010, 0b101, 0b101, 0b101, 0b010],
        b'P' => [0b110, 0b101, 0b110, 0b100, 0b100],
        b'Q' => [0b010, 0b101, 0b101, 0b110, 0b011],
        b'R' => [0b110, 0b101, 0b110, 0b101, 0b101],
        b'S' => [0b011, 0b100, 0b010, 0b001, 0b110],
        b'T' => [0b111, 0b010, 0b010, 0b010, 0b010],
        b'U' => [0b101, 0b101, 0b101, 0b101, 0b111],
        b'V' => [0b101, 0b101, 0b101, 0b101, 0b010],
        b'W' => [0b101, 0b101, 0b111, 0b111, 0b101],
        b'X' => [0b101, 0b101, 0b010, 0b101, 0b101],
        b'Y' => [0b101, 0b101, 0b010, 0b010, 0b010],
        b'Z' => [0b111, 0b001, 0b010, 0b100, 0b111],
        b'-' => [0b000, 0b000, 0b111, 0b000, 0b000],
        _ => [0; 5],
    }
}
