//! Networks of any architecture, as another framework exports them.
//!
//! | file | what |
//! |---|---|
//! | [`Program`] | what a file of another framework says, before it is understood |
//! | [`pt2`] | programs that `torch.export.save` wrote |
//! | [`onnx`] | programs that `torch.onnx.export` wrote, and graphs for other runtimes |
//! | [`Graph`], [`Op`] | the network as data, as a checkpoint carries it |
//! | [`infer`] | the shape of a result |
//! | [`lower`] | from the one to the other |

mod check;
mod dims;
mod ir;
mod lower;
pub mod onnx;
mod op;
mod program;
pub mod pt2;
pub(crate) mod run;
mod shape;
mod window;

pub use dims::{broadcast, describe, elements};
pub use ir::{
    Dim, Graph, HeadLayer, Node, Operand, TensorId, TensorInfo, TensorKind, VERSION, ValueId,
};
pub use lower::{Lowered, SUPPORTED, lower, survey};
pub use op::{Function, Op, Pool, Reduction};
pub use program::{Argument, Call, ElementType, Integer, Program, Role, Size, Stored, Values};
pub use shape::{Form, MOST_AXES, infer};

use std::path::Path;

use crate::Result;

/// Tells by the ending of a file whether it should hold a network, and not weights alone.
pub fn is_program(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| {
        ["pt2", "onnx"]
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// Reads a network that another framework exported, by the ending of its file.
pub fn read(path: &Path) -> Result<Program> {
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        Some(ending) if ending.eq_ignore_ascii_case("onnx") => onnx::read(path),
        _ => pt2::read(path),
    }
}
