//! Bodies of HTTP: compressed or not, JSON with tensors behind it.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};

use super::invalid;
use crate::api::Refusal;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not at all.
    Identity,
    /// As `gzip` writes it.
    Gzip,
    /// As `zlib` writes it, which HTTP calls `deflate`.
    Deflate,
}

impl Encoding {
    /// Reads the header `Content-Encoding`.
    pub fn of_body(header: Option<&str>) -> Result<Self, Refusal> {
        match header.map(str::trim) {
            None | Some("" | "identity") => Ok(Self::Identity),
            Some("gzip" | "x-gzip") => Ok(Self::Gzip),
            Some("deflate") => Ok(Self::Deflate),
            Some(other) => Err(invalid(format!(
                "content encoding: expected `gzip`, `deflate` or none, found `{other}`"
            ))),
        }
    }

    /// Chooses one that the header `Accept-Encoding` allows.
    pub fn accepted(header: Option<&str>) -> Self {
        let allows = |name: &str| {
            let mut parts = header.unwrap_or_default().split(',');
            parts.any(|part| {
                let (coding, weight) = part.split_once(';').unwrap_or((part, ""));
                let refused = weight.trim().strip_prefix("q=").is_some_and(|weight| {
                    weight
                        .trim()
                        .parse::<f32>()
                        .is_ok_and(|weight| weight <= 0.0)
                });
                coding.trim() == name && !refused
            })
        };
        if allows("gzip") {
            Self::Gzip
        } else if allows("deflate") {
            Self::Deflate
        } else {
            Self::Identity
        }
    }

    /// Returns the name in headers, if there is something to say.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Deflate => Some("deflate"),
        }
    }
}

/// Why a body cannot be decompressed.
#[derive(Debug, PartialEq, Eq)]
pub enum TooMuch {
    /// It would be larger than what is allowed.
    Large,
    /// It is damaged.
    Damaged(Refusal),
}

/// Decompresses a body, of which at most `limit` bytes may come.
pub fn decompress(encoding: Encoding, body: Vec<u8>, limit: usize) -> Result<Vec<u8>, TooMuch> {
    let mut whole = Vec::new();
    let room = limit as u64 + 1;
    let read = match encoding {
        Encoding::Identity => {
            whole = body;
            Ok(0)
        }
        Encoding::Gzip => GzDecoder::new(body.as_slice())
            .take(room)
            .read_to_end(&mut whole),
        Encoding::Deflate => ZlibDecoder::new(body.as_slice())
            .take(room)
            .read_to_end(&mut whole),
    };
    match read {
        Err(error) => {
            let name = encoding.name().unwrap_or_default();
            Err(TooMuch::Damaged(invalid(format!(
                "the body is no whole `{name}`: {error}"
            ))))
        }
        Ok(_) if whole.len() > limit => Err(TooMuch::Large),
        Ok(_) => Ok(whole),
    }
}

/// Compresses a body.
pub fn compress(encoding: Encoding, body: Vec<u8>) -> Vec<u8> {
    // Writing into memory does not fail; if it did, the body as it is would be an answer too, but with another header.
    let level = Compression::fast();
    match encoding {
        Encoding::Identity => body,
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            let written = encoder.write_all(&body).and_then(|()| encoder.finish());
            written.expect("memory takes any number of bytes")
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            let written = encoder.write_all(&body).and_then(|()| encoder.finish());
            written.expect("memory takes any number of bytes")
        }
    }
}

/// Splits a body into JSON and the tensors behind it, by the header `Inference-Header-Content-Length`. Without the header all is JSON;
/// zero says that all is one tensor.
pub fn split<'a>(header: Option<&str>, body: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Refusal> {
    let Some(header) = header else {
        return Ok((body, &[]));
    };
    let length: usize = header.trim().parse().map_err(|_| {
        invalid(format!(
            "`Inference-Header-Content-Length`: expected a number of bytes, found `{header}`"
        ))
    })?;
    body.split_at_checked(length).ok_or_else(|| {
        invalid(format!(
            "`Inference-Header-Content-Length` says {length} bytes of JSON, and the body has {}",
            body.len()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_back() {
        for encoding in [Encoding::Identity, Encoding::Gzip, Encoding::Deflate] {
            let small = compress(encoding, vec![7; 1000]);
            assert_eq!(decompress(encoding, small.clone(), 1000), Ok(vec![7; 1000]));
            assert_eq!(decompress(encoding, small, 999), Err(TooMuch::Large));
        }
        let half = compress(Encoding::Gzip, vec![7; 1000])[..20].to_vec();
        assert!(matches!(
            decompress(Encoding::Gzip, half, 1000),
            Err(TooMuch::Damaged(_))
        ));
    }

    #[test]
    fn the_coding_is_one_that_is_accepted() {
        for (header, expected) in [
            (None, Encoding::Identity),
            (Some("br"), Encoding::Identity),
            (Some("deflate, gzip"), Encoding::Gzip),
            (Some("gzip;q=0, deflate;q=0.5"), Encoding::Deflate),
        ] {
            assert_eq!(Encoding::accepted(header), expected, "{header:?}");
        }
        let error = Encoding::of_body(Some("br")).unwrap_err().to_string();
        assert!(error.contains("found `br`"), "{error}");
    }

    #[test]
    fn the_header_says_where_the_tensors_begin() {
        assert_eq!(split(None, b"abc"), Ok((&b"abc"[..], &b""[..])));
        assert_eq!(split(Some("2"), b"abc"), Ok((&b"ab"[..], &b"c"[..])));
        assert_eq!(split(Some("0"), b"abc"), Ok((&b""[..], &b"abc"[..])));
        for wrong in ["4", "-1", "two", ""] {
            assert!(split(Some(wrong), b"abc").is_err(), "{wrong}");
        }
    }
}
