//! ONNX files: the messages, and that what was read can be written and read again.
#![no_main]

#[path = "../../crates/ttac/src/graph/onnx/message.rs"]
mod message;
#[path = "../../crates/ttac/src/graph/onnx/protobuf.rs"]
mod protobuf;

use libfuzzer_sys::fuzz_target;
use message::Model;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::decode(bytes) {
        let written = model.encode();
        let again = Model::decode(&written).expect("what was written can be read");
        assert_eq!(again.opsets, model.opsets);
        let nodes = |model: &Model<'_>| model.graph.as_ref().map(|graph| graph.nodes.len());
        assert_eq!(nodes(&again), nodes(&model));
    }
});
