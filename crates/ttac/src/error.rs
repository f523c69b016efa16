//! What can go wrong, in words that help.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::Remedy;
use crate::checkpoint::LoadReport;

/// The result of anything that touches files, configurations or data.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error names what was expected, what was found and where; [`hint`](Error::hint) says what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried: `read`, `write`, `create`.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },

    /// A name that is no architecture.
    #[error("unknown architecture `{found}`")]
    UnknownArchitecture {
        /// The name given.
        found: String,
        /// The most similar known name, if one is similar.
        nearest: Option<&'static str>,
    },

    /// A configuration that describes no network.
    #[error("invalid architecture: {}", problems.join("; "))]
    InvalidArchitecture {
        /// Everything that is wrong with it.
        problems: Vec<String>,
    },

    /// A file that is not what its place in the command needs.
    #[error("`{}` is not {expected}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was expected, with its article: `a ttac checkpoint`.
        expected: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What to try.
        hint: Option<String>,
    },

    /// A file that was to be a checkpoint and is nothing this library wrote.
    #[error("`{}` is not a ttac checkpoint: {problem}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        problem: String,
    },

    /// Weights that do not fit the network.
    #[error("`{}` does not fit {architecture}\n{report}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The name of the architecture.
        architecture: String,
        /// Every key that is missing, unexpected, of another shape or not finite.
        report: Box<LoadReport>,
    },

    /// A data set that is absent, incomplete or another one.
    #[error("{data} in `{}`: {problem}", path.display())]
    Data {
        /// The data set's name.
        data: String,
        /// Its folder, or the file at fault.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What would help, where it is known.
        remedy: Option<Remedy>,
    },

    /// A name that is no data set.
    #[error("unknown data set `{found}`")]
    UnknownData {
        /// The name given.
        found: String,
        /// The most similar known name, if one is similar.
        nearest: Option<&'static str>,
    },

    /// A network of another framework that cannot become a graph.
    #[error("{op}{}: {problem}", if at.is_empty() { String::new() } else { format!(" in `{at}`") })]
    Graph {
        /// The path of the module, such as `layer1.0.conv1`; empty if it is unknown or the network as a whole is at fault.
        at: String,
        /// The function that is called there, such as `aten.conv2d.default`.
        op: String,
        /// What is wrong.
        problem: String,
        /// What to try.
        hint: Option<String>,
    },

    /// Two things that do not belong together.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What was compared.
        what: String,
        /// What one side needs.
        expected: String,
        /// What the other side has.
        found: String,
    },

    /// A loss that is not a number any more.
    #[error(
        "the loss became {loss} at step {step}, in epoch {epoch}, with learning rate {learning_rate}"
    )]
    Diverged {
        /// The step, from one.
        step: usize,
        /// The epoch, from one.
        epoch: usize,
        /// The loss.
        loss: f64,
        /// The learning rate of the step.
        learning_rate: f64,
    },

    /// A method that needs source statistics was given none.
    #[error("`{method}` needs source statistics, the anchors of this network, and was given none")]
    NoAnchors {
        /// The name of the method.
        method: String,
    },

    /// A method that learns with a self-supervised head was given a network without one.
    #[error("`{method}` needs {}, and this network has none", head.describe())]
    NoHead {
        /// The name of the method.
        method: String,
        /// The head it learns with.
        head: crate::method::Head,
    },

    /// A method was given a network without the layers it works with.
    #[error("`{method}` needs {}, and this network has none", layers.describe())]
    NoLayers {
        /// The name of the method.
        method: String,
        /// The layers it works with.
        layers: crate::method::Layers,
    },

    /// A stated bound was missed.
    #[error("{what} differ: expected {bound}, found {found}")]
    Missed {
        /// What was compared.
        what: String,
        /// The bound.
        bound: String,
        /// What was found instead.
        found: String,
    },

    /// Anchors without the moments that feature alignment compares.
    #[error(
        "the anchors have no alignment moments of the {layer}: they were made of too few samples"
    )]
    NoAlignment {
        /// The layer whose moments are missing, `features` or `projections`.
        layer: &'static str,
    },

    /// A guard stopped the adaptation.
    #[error("the guard stopped the adaptation at batch {batch}: {reason}")]
    Stopped {
        /// The batch, counted from zero.
        batch: usize,
        /// What the guard saw.
        reason: String,
    },

    /// A value outside its range.
    #[error("invalid {what}: {problem}")]
    Invalid {
        /// The name of the value.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },

    /// Something that is needed and was not given.
    #[error("invalid {what}: {problem}")]
    Needs {
        /// The name of the value that needs it.
        what: &'static str,
        /// What is needed.
        problem: String,
        /// How to get it.
        remedy: Remedy,
    },
}

impl Error {
    /// Makes an error of a failed system call on a path, for `map_err`.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// Makes the error of two things that do not fit together.
    pub(crate) fn mismatch(what: &str, expected: impl Display, found: impl Display) -> Self {
        Self::Mismatch {
            what: what.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Refuses a value if there are problems with it; the error lists them all.
    pub(crate) fn invalid_if_any(what: &'static str, problems: &[String]) -> Result<()> {
        if problems.is_empty() {
            return Ok(());
        }
        Err(Self::Invalid {
            what,
            problem: problems.join("; "),
        })
    }

    /// Returns what would help, where that is known: for programs that have a command or a setting for it.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Data { remedy, .. } => *remedy,
            Self::Needs { remedy, .. } => Some(*remedy),
            Self::Foreign { .. } => Some(Remedy::ImportWeights),
            _ => None,
        }
    }

    /// Returns advice in words, where there is some.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownArchitecture { nearest, .. } => Some(match nearest {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!(
                    "the known ones are `{}`",
                    crate::backbone::Architecture::names()
                        .collect::<Vec<_>>()
                        .join("`, `")
                ),
            }),
            Self::UnknownData { nearest, .. } => Some(match nearest {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("the known ones are `{}`", crate::data::data_names().join("`, `")),
            }),
            Self::Format { hint, .. } | Self::Graph { hint, .. } => hint.clone(),
            Self::Weights { report, .. } => report.advice().map(|advice| advice.to_string()),
            Self::Diverged { .. } => Some(
                "start again with a smaller learning rate; what was saved before this step is untouched"
                    .to_owned(),
            ),
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Some("choose a place you may write to".to_owned())
            }
            _ => self.remedy().map(|remedy| remedy.to_string()),
        }
    }
}

/// Advises on an unknown word: names the nearest known one, or all of them.
pub(crate) fn suggestion(unknown: &str, known: &[&str]) -> String {
    match nearest(unknown, known.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("the known ones are `{}`", known.join("`, `")),
    }
}

/// Finds the known word most like an unknown one, if any is alike at all.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known
        .into_iter()
        .map(|word| (strsim::jaro_winkler(unknown, word), word));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.75).then_some(best.1)
}
