//! Tensors of requests: a name, a shape, and values in one of several notations.

use super::invalid;
use crate::api::Refusal;

/// A tensor of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its type, as `UINT8`.
    pub datatype: String,
    /// How many values there are in each direction.
    pub shape: Vec<u64>,
    /// Whether its texts are bytes in base64.
    pub base64: bool,
    /// The values.
    pub values: Values,
}

/// The values of a tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// As they lie in memory, little-endian; each text after its length as `u32`.
    Raw(Vec<u8>),
    /// Numbers of JSON.
    Numbers(Vec<f32>),
    /// Texts of JSON, or bytes of gRPC.
    Texts(Vec<Vec<u8>>),
}

impl Tensor {
    /// Refuses a tensor of another type.
    pub fn check_datatype(&self, expected: &str) -> Result<(), Refusal> {
        if self.datatype == expected {
            return Ok(());
        }
        Err(self.wrong(&format!(
            "expected datatype {expected}, found {}",
            self.datatype
        )))
    }

    /// Returns the shape if it has these lengths, of which `None` stands for any, and is not beyond `most` values in all.
    pub fn check_shape(
        &self,
        expected: &[Option<usize>],
        most: usize,
    ) -> Result<Vec<usize>, Refusal> {
        let matches = |(expected, found): (&Option<usize>, &u64)| {
            *found > 0 && expected.is_none_or(|expected| expected as u64 == *found)
        };
        if expected.len() != self.shape.len() || !expected.iter().zip(&self.shape).all(matches) {
            let written = expected
                .iter()
                .map(|length| length.map_or("n".to_owned(), |n| n.to_string()));
            let written = written.collect::<Vec<_>>().join(",");
            return Err(self.wrong(&format!(
                "expected shape [{written}], found {:?}",
                self.shape
            )));
        }
        let product = self
            .shape
            .iter()
            .try_fold(1_u64, |all, &each| all.checked_mul(each));
        match product {
            Some(values) if values <= most as u64 => {
                Ok(self.shape.iter().map(|&length| length as usize).collect())
            }
            _ => Err(self.wrong(&format!(
                "expected at most {most} values, found shape {:?}",
                self.shape
            ))),
        }
    }

    /// Takes the values of a `UINT8` tensor.
    pub fn into_bytes(self, count: usize) -> Result<Vec<u8>, Refusal> {
        let bytes = match &self.values {
            Values::Raw(bytes) => bytes.clone(),
            Values::Numbers(numbers) => {
                let wrong = numbers
                    .iter()
                    .position(|&number| number != f32::from(number as u8));
                if let Some(at) = wrong {
                    return Err(self.wrong(&format!(
                        "expected whole numbers from 0 to 255, found {} at place {at}",
                        numbers[at]
                    )));
                }
                numbers.iter().map(|&number| number as u8).collect()
            }
            Values::Texts(_) => return Err(self.wrong("expected numbers, found texts")),
        };
        self.check_count(bytes.len(), count, "bytes")?;
        Ok(bytes)
    }

    /// Takes the values of an `FP32` tensor.
    pub fn into_floats(self, count: usize) -> Result<Vec<f32>, Refusal> {
        match &self.values {
            Values::Raw(bytes) => {
                self.check_count(bytes.len(), 4 * count, "bytes")?;
                let values = bytes.as_chunks::<4>().0.iter();
                Ok(values.map(|bytes| f32::from_le_bytes(*bytes)).collect())
            }
            Values::Numbers(numbers) => {
                self.check_count(numbers.len(), count, "numbers")?;
                Ok(numbers.clone())
            }
            Values::Texts(_) => Err(self.wrong("expected numbers, found texts")),
        }
    }

    /// Takes the values of a `BYTES` tensor.
    pub fn into_texts(self, count: usize) -> Result<Vec<Vec<u8>>, Refusal> {
        let texts = match &self.values {
            Values::Raw(bytes) => texts_of(bytes, count).map_err(|problem| self.wrong(&problem))?,
            Values::Numbers(_) => {
                return Err(self.wrong("expected texts, found numbers"));
            }
            Values::Texts(texts) => texts.clone(),
        };
        self.check_count(texts.len(), count, "texts")?;
        Ok(texts)
    }

    /// Says what is wrong with this tensor.
    pub fn wrong(&self, problem: &str) -> Refusal {
        invalid(format!("input `{}`: {problem}", self.name))
    }

    fn check_count(&self, found: usize, expected: usize, what: &str) -> Result<(), Refusal> {
        if found == expected {
            return Ok(());
        }
        Err(self.wrong(&format!(
            "shape {:?} needs {expected} {what}, found {found}",
            self.shape
        )))
    }
}

/// Takes texts apart that each follow their length as `u32`; more than `most` are refused.
pub fn texts_of(mut bytes: &[u8], most: usize) -> Result<Vec<Vec<u8>>, String> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        if texts.len() == most {
            return Err(format!("expected {most} texts, found more"));
        }
        let cut = || format!("text {} ends before its length says", texts.len());
        let (length, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (text, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        texts.push(text.to_vec());
        bytes = rest;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[u64], values: Values) -> Tensor {
        Tensor {
            name: "x".to_owned(),
            datatype: "UINT8".to_owned(),
            shape: shape.to_vec(),
            base64: false,
            values,
        }
    }

    #[test]
    fn shapes_are_checked_before_they_are_multiplied() {
        let any = [None, None];
        let ok = tensor(&[2, 3], Values::Raw(vec![0; 6]));
        assert_eq!(ok.check_shape(&any, 6).unwrap(), [2, 3]);
        for shape in [
            &[2, 4][..],
            &[u64::MAX, 2],
            &[1 << 33, 1 << 33],
            &[2],
            &[0, 3],
        ] {
            assert!(
                tensor(shape, Values::Raw(vec![]))
                    .check_shape(&any, 6)
                    .is_err(),
                "{shape:?}"
            );
        }
        let error = ok.check_shape(&[None, Some(4)], 9).unwrap_err().to_string();
        assert_eq!(error, "input `x`: expected shape [n,4], found [2, 3]");
    }

    #[test]
    fn bytes_are_whole_numbers() {
        let bytes = |numbers: &[f32]| tensor(&[2], Values::Numbers(numbers.to_vec())).into_bytes(2);
        assert_eq!(bytes(&[0.0, 255.0]).unwrap(), [0, 255]);
        for wrong in [[0.5, 1.0], [1.0, 256.0], [-1.0, 0.0], [f32::NAN, 0.0]] {
            assert!(bytes(&wrong).is_err(), "{wrong:?}");
        }
        assert!(
            bytes(&[1.0])
                .unwrap_err()
                .to_string()
                .ends_with("needs 2 bytes, found 1")
        );
    }

    #[test]
    fn texts_follow_their_lengths() {
        assert_eq!(
            texts_of(b"\x01\0\0\0a\0\0\0\0", 2).unwrap(),
            [b"a".to_vec(), vec![]]
        );
        for wrong in [&b"\x02\0\0\0a"[..], b"\x01\0\0", b"\xff\xff\xff\xffa"] {
            assert!(texts_of(wrong, 2).unwrap_err().contains("text 0 ends"));
        }
        assert!(texts_of(&[0; 12], 2).is_err());
    }
}
