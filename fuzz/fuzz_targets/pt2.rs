//! `.pt2` files, without the `torch.save` files inside those of PyTorch up to 2.8, which Burn reads.
#![no_main]

#[path = "../../crates/ttac/src/graph"]
mod graph {
    // The rest of the library uses more of these modules than this target does.
    #[allow(dead_code)]
    pub mod program;

    #[allow(dead_code)]
    pub mod pt2 {
        mod calls;
        mod container;
        mod fault;
        mod half;
        mod parse;
        mod schema;
        mod signature;
        mod storage;
        mod tensors;

        use super::program::Program;

        pub fn read(bytes: &[u8]) -> Option<Program> {
            let mut container = container::Container::open(std::io::Cursor::new(bytes)).ok()?;
            let unpickle = |_: &[u8], name: &str| Err(fault::Fault::damaged(name));
            parse::parse(&mut container, &unpickle).ok()
        }
    }
}

use graph::program::Values;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(program) = graph::pt2::read(bytes) {
        assert_eq!(program.shapes.get(&program.input).map_or(4, Vec::len), 4);
        for tensor in program.tensors.values() {
            let length = match &tensor.values {
                Values::F32(values) => values.len(),
                Values::I64(values) => values.len(),
                Values::Bool(values) => values.len(),
            };
            assert_eq!(length, tensor.shape.iter().product::<usize>());
        }
    }
});
