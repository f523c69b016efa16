//! IDX files, plain and compressed.
#![no_main]

#[path = "../../crates/ttac/src/data/idx/array.rs"]
mod array;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let small = |shape: &[u32]| shape.iter().all(|&length| length <= 1_000_000);
    if let Ok(array) = array::Array::read(bytes, "lengths up to a million", small) {
        let count: u64 = array.shape.iter().map(|&length| u64::from(length)).product();
        assert_eq!(array.bytes.len() as u64, count);
    }
});
