//! ONNX files: networks of other frameworks in, networks for other runtimes out.
//!
//! | file | what |
//! |---|---|
//! | `protobuf`, `message`, `tensor` | the format |
//! | [`read`] and `translate` | to calls of PyTorch's functions, by way of `fold`, which computes shapes, and `tidy` |
//! | [`write`](write()) | from a graph, by way of `operations` |

mod attributes;
mod calculate;
mod dispatch;
mod elementwise;
mod fold;
mod known;
mod layers;
mod message;
mod operations;
mod problem;
mod products;
mod protobuf;
mod read;
mod selecting;
mod shaping;
mod tensor;
mod tidy;
mod translate;
mod write;

pub use read::{read, read_bytes};
pub use write::write;
