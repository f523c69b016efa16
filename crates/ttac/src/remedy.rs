//! What would help against an error, as data.

use std::fmt;

/// What would help against an [`Error`](crate::Error).
///
/// Its text says so in the words of this library. A program that has a command or a setting for it can match on the
/// value and name that instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// The files of a data set have to be put where they were looked for.
    BringData,
    /// A damaged file of a data set has to be brought again.
    BringDataAgain,
    /// A sample that cannot be read has to be mended or removed, or all such samples left out.
    LeaveOutUnreadable,
    /// Pictures have to lie in a folder for every class.
    ClassFolders,
    /// The corruption needs its photographs.
    FrostPhotographs,
    /// Weights of another program have to be imported.
    ImportWeights,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::BringData => "put the files of the data set into this folder, or name another",
            Self::BringDataAgain => {
                "the file is damaged or of another data set: put the right one in its place"
            }
            Self::LeaveOutUnreadable => {
                "mend or remove the file, or leave out files that cannot be read"
            }
            Self::ClassFolders => {
                "name the folder that holds a folder for every class; only adaptation takes pictures without classes"
            }
            Self::FrostPhotographs => {
                "say where the photographs lie, or ask for `frost-like`, which draws its ice"
            }
            Self::ImportWeights => "weights of other programs have to be imported",
        };
        f.write_str(text)
    }
}
