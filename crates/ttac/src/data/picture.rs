//! Pictures of any size, and how one becomes what a network looks at.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use super::resize::{Rgb, shrink_and_crop};
use crate::{Error, Result};

/// How many times longer than the other a side may be; beyond, resizing would take all memory.
const MAX_ASPECT: usize = 50;

/// A picture as it came: RGB bytes of any size.
///
/// ```
/// use ttac::data::Picture;
///
/// let white = Picture::new(64, 96, vec![255; 64 * 96 * 3])?;
/// assert_eq!(white.fit(32), vec![255; 32 * 32 * 3]);
/// # Ok::<(), ttac::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    height: usize,
    width: usize,
    pixels: Vec<u8>,
    grey: bool,
}

/// The largest picture that is decoded for somebody who is not trusted. The header of the file is asked before memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureLimits {
    /// The most pixels of a side.
    pub side: usize,
    /// The most pixels in all.
    pub pixels: usize,
    /// The most memory of the decoder, in bytes.
    pub bytes: u64,
}

impl Picture {
    /// Takes the RGB bytes of a picture, `[height, width, 3]`.
    pub fn new(height: usize, width: usize, pixels: Vec<u8>) -> Result<Self> {
        let wrong = if height == 0 || width == 0 {
            Some(format!(
                "expected at least one pixel, found {width} x {height}"
            ))
        } else if pixels.len() != 3 * height * width {
            let (expected, found) = (3 * height * width, pixels.len());
            Some(format!(
                "expected {expected} bytes for {width} x {height} pixels, found {found}"
            ))
        } else {
            aspect_problem(height, width)
        };
        match wrong {
            Some(problem) => Err(invalid(problem)),
            None => Ok(Self {
                height,
                width,
                pixels,
                grey: false,
            }),
        }
    }

    /// Decodes a PNG or JPEG. Grey pictures become RGB with three equal channels, an alpha channel is dropped, orientation tags are
    /// ignored.
    pub fn decode(file: &[u8], limits: &PictureLimits) -> Result<Self> {
        Self::read(file, Some(limits)).map_err(invalid)
    }

    /// Decodes as [`decode`](Self::decode) does, and says what is wrong in words alone.
    pub(super) fn read(file: &[u8], limits: Option<&PictureLimits>) -> Result<Self, String> {
        // The decoder fills up what is missing of a JPEG with grey.
        if file.starts_with(&[0xff, 0xd8]) && !jpeg_has_end(file) {
            return Err("not a whole PNG or JPEG (it ends before its last row)".to_owned());
        }
        let not_whole = |e: &dyn std::fmt::Display| format!("not a whole PNG or JPEG ({e})");
        let mut reader = ImageReader::new(Cursor::new(file))
            .with_guessed_format()
            .map_err(|e| not_whole(&e))?;
        if let Some(limits) = limits {
            let mut allowed = Limits::default();
            allowed.max_alloc = Some(limits.bytes);
            reader.limits(allowed);
        }
        let decoder = reader.into_decoder().map_err(|e| not_whole(&e))?;
        let (width, height) = decoder.dimensions();
        let (height, width) = (height as usize, width as usize);
        if let Some(problem) = limits.and_then(|limits| limits.problem(height, width)) {
            return Err(problem);
        }
        let image = DynamicImage::from_decoder(decoder).map_err(|e| not_whole(&e))?;
        if let Some(problem) = aspect_problem(height, width) {
            return Err(problem);
        }
        let grey = !image.color().has_color();
        Ok(Self {
            height,
            width,
            pixels: image.into_rgb8().into_raw(),
            grey,
        })
    }

    /// Whether the file had one channel of colour.
    pub(super) fn is_grey(&self) -> bool {
        self.grey
    }

    /// Makes the picture `[size, size, 3]`: its shorter side becomes 8/7 of the size (bilinear, antialiased, as Pillow does it), and
    /// the middle is cut out. A picture that has the size already is left alone.
    pub fn fit(self, size: usize) -> Vec<u8> {
        let Self {
            height,
            width,
            pixels,
            ..
        } = self;
        shrink_and_crop(
            Rgb {
                height,
                width,
                pixels,
            },
            size,
        )
    }
}

impl PictureLimits {
    fn problem(&self, height: usize, width: usize) -> Option<String> {
        let found = format!("found {width} x {height}");
        if height.max(width) > self.side {
            Some(format!(
                "expected at most {} pixels a side, {found}",
                self.side
            ))
        } else if height * width > self.pixels {
            Some(format!("expected at most {} pixels, {found}", self.pixels))
        } else {
            None
        }
    }
}

fn invalid(problem: String) -> Error {
    Error::Invalid {
        what: "picture",
        problem,
    }
}

fn aspect_problem(height: usize, width: usize) -> Option<String> {
    (height.max(width) > MAX_ASPECT * height.min(width)).then(|| {
        format!("{width} x {height} pixels, expected sides that differ {MAX_ASPECT} times at most")
    })
}

/// Whether the end marker of a JPEG comes behind its pixels; a thumbnail in its header has one too.
fn jpeg_has_end(bytes: &[u8]) -> bool {
    let mut rest = &bytes[2..];
    loop {
        // Between markers lie pixels, in which 0xff is followed by 0x00 or a restart marker.
        let Some(at) = rest.windows(2).position(|pair| {
            pair[0] == 0xff && !matches!(pair[1], 0x00 | 0x01 | 0xd0..=0xd7 | 0xff)
        }) else {
            return false;
        };
        if rest[at + 1] == 0xd9 {
            return true;
        }
        // Every other marker opens a segment that says how long it is.
        let Some(&[high, low]) = rest[at + 2..].first_chunk() else {
            return false;
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(behind) = rest.get(at + 2 + length..) else {
            return false;
        };
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: PictureLimits = PictureLimits {
        side: 40,
        pixels: 1_000,
        bytes: 1 << 20,
    };

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        let image = DynamicImage::new_rgb8(width, height);
        image.write_to(&mut file, image::ImageFormat::Png).unwrap();
        file.into_inner()
    }

    #[test]
    fn the_header_is_asked_before_memory_is_taken() {
        assert!(Picture::decode(&png(25, 40), &SMALL).is_ok());
        for (file, words) in [
            (
                png(41, 1),
                "expected at most 40 pixels a side, found 41 x 1",
            ),
            (png(40, 26), "expected at most 1000 pixels, found 40 x 26"),
        ] {
            let error = Picture::decode(&file, &SMALL).unwrap_err().to_string();
            assert!(error.ends_with(words), "{error}");
        }
        // A header that promises more than is there.
        let mut huge = png(1, 1);
        huge[16..24].copy_from_slice(&[0, 0, 0x7f, 0, 0, 0, 0x7f, 0]);
        assert!(Picture::decode(&huge, &SMALL).is_err());
    }

    #[test]
    fn other_files_and_sizes_are_refused() {
        for bytes in [&b""[..], b"GIF89a", b"\xff\xd8\xff"] {
            let error = Picture::decode(bytes, &SMALL).unwrap_err().to_string();
            assert!(error.contains("not a whole PNG or JPEG"), "{error}");
        }
        for (height, width, bytes) in [(0, 4, 0), (2, 2, 11), (1, 60, 180)] {
            assert!(Picture::new(height, width, vec![0; bytes]).is_err());
        }
    }
}
