//! The graph in a checkpoint's header: whatever the JSON says, checking it ends, and does not panic.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/ttac/src/graph/check.rs"]
mod check;
#[path = "../../crates/ttac/src/graph/ir.rs"]
mod ir;
#[path = "../../crates/ttac/src/graph/op.rs"]
mod op;
#[path = "../../crates/ttac/src/graph/program.rs"]
mod program;
#[path = "../../crates/ttac/src/graph/shape.rs"]
mod shape;
#[path = "../../crates/ttac/src/graph/dims.rs"]
mod dims;
#[path = "../../crates/ttac/src/graph/window.rs"]
mod window;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(graph) = serde_json::from_slice::<ir::Graph>(bytes)
        && graph.problems().is_empty()
    {
        let written = serde_json::to_vec(&graph).expect("a graph is plain JSON");
        let again: ir::Graph = serde_json::from_slice(&written).expect("what was written can be read");
        assert_eq!(again, graph);
        assert!(graph.num_features() > 0 && graph.num_classes() > 0);
    }
});
