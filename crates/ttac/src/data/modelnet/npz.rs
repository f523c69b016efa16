//! Arrays of an `.npz` file, which is a zip archive of `.npy` files.

use std::io::Read;

use flate2::read::DeflateDecoder;

/// The bytes of one array's `.npy` file, unpacked as they are read.
pub(super) fn entry<'a>(archive: &'a [u8], name: &str) -> Result<Box<dyn Read + 'a>, String> {
    let short = || "it ends in its directory".to_owned();
    let number = |at: usize, bytes: usize| -> Result<usize, String> {
        let field = archive.get(at..at + bytes).ok_or_else(short)?;
        Ok(field
            .iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | usize::from(byte)))
    };
    // The end record is the last thing in the file but for a comment.
    let end = archive
        .windows(4)
        .rposition(|window| window == b"PK\x05\x06")
        .ok_or("not a zip archive: it has no directory")?;
    let (entries, mut at) = (number(end + 10, 2)?, number(end + 16, 4)?);
    let mut names = Vec::new();
    for _ in 0..entries {
        if number(at, 4)? != 0x0201_4b50 {
            return Err("its directory is damaged".to_owned());
        }
        let (method, packed) = (number(at + 10, 2)?, number(at + 20, 4)?);
        let (name_length, extra, comment) = (
            number(at + 28, 2)?,
            number(at + 30, 2)?,
            number(at + 32, 2)?,
        );
        let local = number(at + 42, 4)?;
        let found = archive
            .get(at + 46..at + 46 + name_length)
            .ok_or_else(short)?;
        let found = String::from_utf8_lossy(found).into_owned();
        if found == name {
            let start = local + 30 + number(local + 26, 2)? + number(local + 28, 2)?;
            let bytes = archive.get(start..start + packed).ok_or_else(short)?;
            return match method {
                0 => Ok(Box::new(bytes)),
                8 => Ok(Box::new(DeflateDecoder::new(bytes))),
                other => Err(format!(
                    "`{name}` is packed by method {other}, expected 0 or 8"
                )),
            };
        }
        names.push(found);
        at += 46 + name_length + extra + comment;
    }
    Err(format!("expected `{name}`, found `{}`", names.join("`, `")))
}
