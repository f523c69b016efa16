//! Files as other programs write them, and messages about them.

use std::path::Path;

use ttac::Result;
use ttac::input::InputContract;

/// A `.npy` file as NumPy writes it.
pub fn npy(dtype: &str, fortran: bool, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let lengths: Vec<String> = shape.iter().map(|length| format!("{length},")).collect();
    let order = if fortran { "True" } else { "False" };
    let mut text = format!(
        "{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': ({}), }}",
        lengths.join(" ")
    );
    while !(text.len() + 11).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(data);
    file
}

/// The contract of a network for RGB images.
pub fn contract([height, width]: [usize; 2], mean: [f32; 3], std: [f32; 3]) -> InputContract {
    InputContract::Images {
        height,
        width,
        mean,
        std,
    }
}

/// The error of something that has to fail, with its hint; the folder is called `ROOT`.
pub fn message<T>(root: &Path, result: Result<T>) -> String {
    let error = result.err().expect("it has to fail");
    let text = match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    };
    text.replace(&root.display().to_string(), "ROOT")
}

/// The same without the hint.
pub fn problem<T>(root: &Path, result: Result<T>) -> String {
    let text = message(root, result);
    match text.split_once("\nhint: ") {
        Some((problem, _)) => problem.to_owned(),
        None => text,
    }
}

/// Asserts that something fails, and that its message says this.
pub fn assert_refused<T>(root: &Path, result: Result<T>, expected: &str) {
    let text = message(root, result);
    assert!(text.contains(expected), "{text}");
}

/// Asserts that something fails, and that its message starts like this.
pub fn assert_refused_with<T>(root: &Path, result: Result<T>, start: &str) {
    let text = message(root, result);
    assert!(text.starts_with(start), "{text}");
}
