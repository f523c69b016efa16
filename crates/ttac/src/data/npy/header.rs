//! The header of a `.npy` file, and nothing else: bytes in, a description out.
//!
//! Checked by hand because headers come from anywhere: sizes are multiplied with care, nothing is
//! allocated on a header's word, and what is not a plain array of one number type is refused.

/// The longest header NumPy itself accepts.
pub const MAX_TEXT: usize = 10_000;

/// Bytes to read from the start of a file to be sure of its header.
pub const MAX_HEADER: usize = 12 + MAX_TEXT;

/// What a `.npy` file says of its array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number type in NumPy's letters, e.g. `|u1` or `<i8`.
    pub dtype: String,
    /// Whether the first index runs fastest.
    pub fortran_order: bool,
    /// Lengths along the axes, slowest first.
    pub shape: Vec<u64>,
    /// Where the numbers begin in the file.
    pub data_start: u64,
}

impl Header {
    /// Reads the header at the start of `bytes`, which may end anywhere behind it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let rest = bytes
            .strip_prefix(b"\x93NUMPY")
            .ok_or("it does not begin with `\\x93NUMPY`")?;
        let ([major, minor], rest) = rest.split_first_chunk().ok_or("it ends in its header")?;
        let (length, rest) = match (major, minor) {
            (1, 0) => {
                let (length, rest) = rest.split_first_chunk().ok_or("it ends in its header")?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            (2 | 3, 0) => {
                let (length, rest) = rest.split_first_chunk().ok_or("it ends in its header")?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            _ => {
                return Err(format!(
                    "expected version 1.0 to 3.0, found {major}.{minor}"
                ));
            }
        };
        if length > MAX_TEXT {
            return Err(format!(
                "expected a header of at most {MAX_TEXT} bytes, found {length}"
            ));
        }
        let text = rest.get(..length).ok_or("it ends in its header")?;
        let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
        let start = bytes.len() - rest.len() + length;
        parse_dictionary(text, start as u64)
    }

    /// How many numbers, unless there are more than a `u64` can count.
    pub fn count(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |a, &b| a.checked_mul(b))
    }
}

/// `{'descr': '|u1', 'fortran_order': False, 'shape': (50000, 32, 32, 3), }`
fn parse_dictionary(text: &str, data_start: u64) -> Result<Header, String> {
    let mut scanner = Scanner(text);
    let (mut dtype, mut fortran_order, mut shape) = (None, None, None);
    scanner.expect('{')?;
    while !scanner.take('}') {
        let key = scanner.string()?;
        scanner.expect(':')?;
        let repeated = match key {
            "descr" => dtype.replace(scanner.string()?.to_owned()).is_some(),
            "fortran_order" => fortran_order.replace(scanner.boolean()?).is_some(),
            "shape" => shape.replace(scanner.tuple()?).is_some(),
            _ => return Err(format!("its header has an unknown key `{key}`")),
        };
        if repeated {
            return Err(format!("its header has two keys `{key}`"));
        }
        if !scanner.take(',') {
            scanner.expect('}')?;
            break;
        }
    }
    if !scanner.rest().is_empty() {
        return Err("its header goes on behind the dictionary".to_owned());
    }
    Ok(Header {
        dtype: dtype.ok_or("its header has no `descr`")?,
        fortran_order: fortran_order.ok_or("its header has no `fortran_order`")?,
        shape: shape.ok_or("its header has no `shape`")?,
        data_start,
    })
}

/// What is left to read.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn rest(&mut self) -> &'a str {
        self.0 = self.0.trim_ascii_start();
        self.0
    }

    fn take(&mut self, token: char) -> bool {
        let rest = self.rest().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: char) -> Result<(), String> {
        if self.take(token) {
            return Ok(());
        }
        let found = self.rest().chars().next();
        let found = found.map_or("its end".to_owned(), |c| format!("`{}`", c.escape_debug()));
        Err(format!("expected `{token}` in its header, found {found}"))
    }

    fn string(&mut self) -> Result<&'a str, String> {
        if self.rest().starts_with('[') {
            return Err("expected one number type, found a structured type".to_owned());
        }
        let quote = if self.take('"') {
            '"'
        } else {
            self.expect('\'')?;
            '\''
        };
        let (text, rest) = self
            .0
            .split_once(quote)
            .ok_or("its header ends in a name")?;
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest().strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("expected `True` or `False` for `fortran_order`".to_owned())
    }

    /// `(50000, 32)`, `(7,)`, `()`, or with Python 2's `7L`.
    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        let mut lengths = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            let text = self.rest();
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            let length = text[..digits].parse();
            lengths.push(length.map_err(|_| "`shape` has a length that is no number")?);
            self.0 = &text[digits..];
            self.take('L');
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(lengths)
    }
}

/// Integers of any width and byte order as `i64`; `None` for other types and for numbers too large.
pub fn integers(dtype: &str, bytes: &[u8]) -> Option<Vec<i64>> {
    let (order, kind) = dtype.split_at_checked(1)?;
    let (letter, width) = kind.split_at_checked(1)?;
    let width: usize = width.parse().ok()?;
    if !matches!((letter, width), ("u" | "i", 1 | 2 | 4 | 8)) {
        return None;
    }
    let big = match order {
        ">" => true,
        "<" | "=" => false,
        "|" if width == 1 => false,
        _ => return None,
    };
    let read = |chunk: &[u8]| {
        let byte = |k: usize| chunk[if big { width - 1 - k } else { k }];
        let bits = (0..width).fold(0_u64, |bits, k| bits | u64::from(byte(k)) << (8 * k));
        let unused = 64 - 8 * width as u32;
        match letter {
            "i" => Some((bits << unused).cast_signed() >> unused),
            _ => i64::try_from(bits).ok(),
        }
    };
    bytes.chunks_exact(width).map(read).collect()
}
