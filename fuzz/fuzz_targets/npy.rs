//! Headers of `.npy` files, and labels behind them.
#![no_main]

#[path = "../../crates/ttac/src/data/npy/header.rs"]
mod header;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(header::MAX_HEADER > header::MAX_TEXT);
    if let Ok(header) = header::Header::parse(bytes) {
        let data = &bytes[header.data_start as usize..];
        if let Some(labels) = header::integers(&header.dtype, data) {
            assert!(labels.len() <= data.len());
        }
        if let Some(count) = header.count() {
            assert!(header.shape.iter().all(|&length| length <= count) || count == 0);
        }
    }
});
