//! Programs that `torch.export.save` wrote, PyTorch's files with the ending `.pt2`.
//!
//! Such a file is a zip file with the graph as JSON and the weights as raw bytes or, up to PyTorch 2.8, as `torch.save` files. Nothing
//! in it is ever executed, the user's example input is never read, and no number in it is believed before it is checked.

mod calls;
mod container;
mod fault;
mod half;
mod parse;
mod pickled;
mod replace;
mod schema;
mod signature;
mod storage;
mod tensors;

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use super::Program;
use crate::{Error, Result};
use container::Container;
use fault::Fault;

pub use replace::{Report, replace_weights};

/// What a file was expected to be, in messages.
const EXPECTED: &str = "a network that `torch.export.save` wrote";

/// Reads a network that `torch.export.save` wrote.
///
/// Calls keep PyTorch's names, without `torch.ops.`. Tensors have the graph's names (`p_conv1_weight`) with those of the
/// `state_dict` (`conv1.weight`) as [`key`](super::Stored::key); those for which the graph has no name are there as
/// `state_dict:NAME`. Tied weights are one tensor under the first of their names, to which all calls are rewritten.
///
/// The network must have one input of rank 4 and one output. Whether its calls are understood is not asked here.
pub fn read(path: &Path) -> Result<Program> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    read_from(BufReader::new(file), path)
}

/// Reads the bytes of a network that `torch.export.save` wrote, as [`read`] does; the path is for messages alone.
pub fn read_bytes(bytes: &[u8], path: &Path) -> Result<Program> {
    read_from(Cursor::new(bytes), path)
}

fn read_from<R: Read + Seek>(reader: R, path: &Path) -> Result<Program> {
    let program =
        Container::open(reader).and_then(|mut found| parse::parse(&mut found, &pickled::unpickle));
    program.map_err(|fault| refuse(fault, path))
}

/// Makes the error of a fault in a file.
fn refuse(fault: Fault, path: &Path) -> Error {
    Error::Format {
        path: path.to_owned(),
        expected: EXPECTED,
        problem: fault.problem,
        hint: fault.hint,
    }
}
