//! The digits of one group of `usps.h5`, and nothing else: the file's bytes in, images and labels out.

use hdf5_pure::File;

/// Rows and columns of a digit.
pub const SIDE: usize = 16;

/// More digits than USPS has, so that a lying shape is refused before memory is asked for.
const MAX_DIGITS: u64 = 100_000;

/// Digits in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digits {
    /// `[count, 16, 16]`, white on black.
    pub pixels: Vec<u8>,
    /// `[count]`, 0 to 9.
    pub labels: Vec<u8>,
}

impl Digits {
    /// Reads `GROUP/data`, floats `[n, 256]` in `[0, 1]`, and `GROUP/target`, integers `[n]`.
    pub fn parse(file: Vec<u8>, group: &str) -> Result<Self, String> {
        let file = File::from_bytes(file).map_err(|e| format!("not an HDF5 file: {e}"))?;
        let open = |name: &str| {
            let path = format!("{group}/{name}");
            let array = file
                .dataset(&path)
                .map_err(|e| format!("no `{path}`: {e}"))?;
            let shape = array.shape().map_err(|e| format!("`{path}`: {e}"))?;
            Ok::<_, String>((path, array, shape))
        };
        let (path, array, shape) = open("data")?;
        let pixels = (SIDE * SIDE) as u64;
        let count = match shape[..] {
            [count, width] if width == pixels && count <= MAX_DIGITS => count,
            _ => {
                return Err(format!(
                    "`{path}`: expected floats [n, {pixels}], found {shape:?}"
                ));
            }
        };
        let values = array.read_f32().map_err(|e| format!("`{path}`: {e}"))?;
        if values.len() as u64 != count * pixels {
            let found = values.len();
            return Err(format!(
                "`{path}`: expected {shape:?}, found {found} values"
            ));
        }
        let byte = |(index, &value): (usize, &f32)| {
            // Rounds to the nearest of 256 levels; NaN is in no range.
            let digit = index / (SIDE * SIDE);
            let inside = (0.0..=1.0).contains(&value);
            inside
                .then(|| (value * 255.0).round() as u8)
                .ok_or_else(|| format!("`{path}`: digit {digit} has {value}, expected 0 to 1"))
        };
        let pixels = values
            .iter()
            .enumerate()
            .map(byte)
            .collect::<Result<_, _>>()?;

        let (path, array, shape) = open("target")?;
        if shape != [count] {
            return Err(format!(
                "`{path}`: expected [{count}] labels for the images, found {shape:?}"
            ));
        }
        let labels = array.read_i64().map_err(|e| format!("`{path}`: {e}"))?;
        if labels.len() as u64 != count {
            let found = labels.len();
            return Err(format!(
                "`{path}`: expected {shape:?}, found {found} values"
            ));
        }
        let label = |(index, &label): (usize, &i64)| {
            let digit = u8::try_from(label).ok().filter(|digit| *digit < 10);
            digit.ok_or_else(|| format!("`{path}`: label {index} is {label}, expected 0 to 9"))
        };
        let labels = labels
            .iter()
            .enumerate()
            .map(label)
            .collect::<Result<_, _>>()?;
        Ok(Self { pixels, labels })
    }
}
