//! An array in the IDX format, plain or compressed, and nothing else: bytes in, an array out.
//!
//! Two zero bytes, a byte for the number type, a byte for the number of axes, a big-endian `u32` for
//! the length of each axis, and the numbers, the last index running fastest.

use std::io::{BufRead, Read};

use flate2::bufread::MultiGzDecoder;

/// Bytes to read from the start of a file to be sure of its header.
const MAX_HEADER: usize = 4 + 4 * MAX_AXES;

const MAX_AXES: usize = 4;
const UNSIGNED_BYTES: u8 = 0x08;

/// Unsigned bytes with a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Lengths along the axes, slowest first.
    pub shape: Vec<u32>,
    /// As many bytes as the shape says.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Reads an array to its end, unless its shape is not one that `fits`.
    pub fn read(
        mut source: impl BufRead,
        expected: &str,
        fits: impl Fn(&[u32]) -> bool,
    ) -> Result<Self, String> {
        let broken = |e: std::io::Error| format!("it cannot be read to its end ({e})");
        let packed = source
            .fill_buf()
            .map_err(broken)?
            .starts_with(&[0x1f, 0x8b]);
        let mut source: Box<dyn Read> = if packed {
            Box::new(MultiGzDecoder::new(&mut source))
        } else {
            Box::new(&mut source)
        };
        let mut bytes = Vec::new();
        (source.by_ref().take(MAX_HEADER as u64))
            .read_to_end(&mut bytes)
            .map_err(broken)?;
        let header = Header::parse(&bytes).map_err(|e| format!("not an IDX file: {e}"))?;
        let shape = header.shape;
        if !fits(&shape) {
            return Err(format!("expected {expected}, found {shape:?}"));
        }
        bytes.drain(..header.length);
        // One byte more than expected is enough to know that there is too much. Memory grows with
        // what is really there.
        let rest = (header.data.saturating_add(1)).saturating_sub(bytes.len() as u64);
        source.take(rest).read_to_end(&mut bytes).map_err(broken)?;
        let found = match bytes.len() as u64 {
            found if found == header.data => return Ok(Self { shape, bytes }),
            found if found > header.data => "more".to_owned(),
            found => found.to_string(),
        };
        let expected = header.data;
        Err(format!(
            "expected {expected} bytes for {shape:?} after the header, found {found}"
        ))
    }
}

/// What an IDX file of unsigned bytes says of itself.
struct Header {
    /// Lengths along the axes, slowest first.
    shape: Vec<u32>,
    /// Bytes of the header.
    length: usize,
    /// Bytes that follow the header.
    data: u64,
}

impl Header {
    /// Reads the header at the start of `bytes`, which may end anywhere behind it.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let ends = || "it ends in its header".to_owned();
        let (&[first, second, kind, axes], rest) = bytes.split_first_chunk().ok_or_else(ends)?;
        if (first, second) != (0, 0) {
            return Err(format!(
                "expected two zero bytes at its start, found {first:#04x} {second:#04x}"
            ));
        }
        if kind != UNSIGNED_BYTES {
            return Err(format!(
                "expected unsigned bytes (type {UNSIGNED_BYTES:#04x}), found type {kind:#04x}"
            ));
        }
        let axes = usize::from(axes);
        if !(1..=MAX_AXES).contains(&axes) {
            return Err(format!("expected 1 to {MAX_AXES} axes, found {axes}"));
        }
        let lengths = rest.get(..4 * axes).ok_or_else(ends)?;
        let shape: Vec<u32> = lengths
            .as_chunks::<4>()
            .0
            .iter()
            .map(|length| u32::from_be_bytes(*length))
            .collect();
        let data = (shape.iter())
            .try_fold(1_u64, |product, &length| product.checked_mul(length.into()))
            .ok_or_else(|| format!("its header claims {shape:?}"))?;
        Ok(Self {
            shape,
            length: 4 + 4 * axes,
            data,
        })
    }
}
