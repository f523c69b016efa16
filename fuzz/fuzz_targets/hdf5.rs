//! `usps.h5`.
#![no_main]

#[path = "../../crates/ttac/src/data/usps/digits.rs"]
mod digits;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(digits) = digits::Digits::parse(bytes.to_vec(), "test") {
        let pixels = digits.labels.len() * digits::SIDE * digits::SIDE;
        assert_eq!(digits.pixels.len(), pixels);
        assert!(digits.labels.iter().all(|&label| label < 10));
    }
});
