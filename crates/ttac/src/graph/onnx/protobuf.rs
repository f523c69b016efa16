//! The wire format of protocol buffers, as far as ONNX needs it: a message is a list of fields, each a number and a value.
//!
//! Nothing is allocated by a length that the input only claims: every length is checked against the bytes that are there, and
//! values borrow from them.

/// What went wrong, in words.
pub type Result<T> = std::result::Result<T, String>;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An integer, a truth value or the number of a variant.
    Varint(u64),
    /// Eight bytes, little-endian.
    Fixed64([u8; 8]),
    /// A text, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes, little-endian.
    Fixed32([u8; 4]),
}

/// Iterates over the fields of a message: their numbers and values.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Starts at the beginning of a message.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let length = usize::try_from(count).ok();
        match length.and_then(|length| self.rest.split_at_checked(length)) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(format!(
                "a field of {count} bytes begins {} bytes before the end: the file is cut or damaged",
                self.rest.len()
            )),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("as many bytes as were asked for"))
    }

    fn field(&mut self) -> Result<(u32, Value<'a>)> {
        let tag = varint(&mut self.rest)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&number| number > 0);
        let number = number.ok_or_else(|| format!("{} is no number of a field", tag >> 3))?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(self.array()?),
            2 => {
                let length = varint(&mut self.rest)?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(self.array()?),
            other => return Err(format!("field {number} has the unknown wire type {other}")),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Reads an integer of seven bits per byte, the lowest first, and moves behind it.
fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Err("an integer ends too soon: the file is cut or damaged".to_owned());
        };
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    Err("an integer of more than ten bytes".to_owned())
}

impl<'a> Value<'a> {
    /// Returns the bytes of a text, a message or packed numbers.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            other => Err(format!("expected bytes, found {other:?}")),
        }
    }

    /// Returns a text.
    pub fn text(self) -> Result<String> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned)
            .map_err(|_| "a text is not UTF-8".to_owned())
    }

    /// Returns an integer; negative ones are written as their two's complement.
    pub fn integer(self) -> Result<i64> {
        match self {
            Self::Varint(value) => Ok(value as i64),
            other => Err(format!("expected an integer, found {other:?}")),
        }
    }

    /// Returns a number of single precision.
    pub fn float(self) -> Result<f32> {
        match self {
            Self::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            other => Err(format!("expected a float, found {other:?}")),
        }
    }

    /// Adds the integers of a repeated field, which are packed or stand alone.
    pub fn integers(self, into: &mut Vec<i64>) -> Result<()> {
        let Self::Bytes(mut bytes) = self else {
            into.push(self.integer()?);
            return Ok(());
        };
        while !bytes.is_empty() {
            into.push(varint(&mut bytes)? as i64);
        }
        Ok(())
    }

    /// Adds the floats of a repeated field, which are packed or stand alone.
    pub fn floats(self, into: &mut Vec<f32>) -> Result<()> {
        let Self::Bytes(bytes) = self else {
            into.push(self.float()?);
            return Ok(());
        };
        let (numbers, []) = bytes.as_chunks() else {
            return Err(format!("{} bytes of packed floats", bytes.len()));
        };
        into.extend(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        Ok(())
    }

    /// Adds the doubles of a repeated field, which are packed or stand alone.
    pub fn doubles(self, into: &mut Vec<f64>) -> Result<()> {
        let bytes = match self {
            Self::Fixed64(ref bytes) => bytes.as_slice(),
            other => other.bytes()?,
        };
        let (numbers, []) = bytes.as_chunks() else {
            return Err(format!("{} bytes of packed doubles", bytes.len()));
        };
        into.extend(numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)));
        Ok(())
    }
}

/// Writes the fields of a message.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Returns what was written.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 128 {
            self.bytes.push(value as u8 | 128);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Writes an integer.
    pub fn integer(&mut self, number: u32, value: i64) {
        self.varint(u64::from(number) << 3);
        self.varint(value as u64);
    }

    /// Writes a number of single precision.
    pub fn float(&mut self, number: u32, value: f32) {
        self.varint(u64::from(number) << 3 | 5);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Writes bytes.
    pub fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a text, unless it is empty.
    pub fn text(&mut self, number: u32, text: &str) {
        if !text.is_empty() {
            self.bytes(number, text.as_bytes());
        }
    }

    /// Writes a message that `fill` writes.
    pub fn message(&mut self, number: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(number, &inner.bytes);
    }
}
