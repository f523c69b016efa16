//! What can go wrong, in words that help.

use std::path::{Path, PathBuf};

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
        data: &'static str,
        /// Its folder, or the file at fault.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to try.
        hint: Option<String>,
    },

    /// A name that is no data set.
    #[error("unknown data set `{found}`")]
    UnknownData {
        /// The name given.
        found: String,
        /// The most similar known name, if one is similar.
        nearest: Option<&'static str>,
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

    /// A value outside its range.
    #[error("invalid {what}: {problem}")]
    Invalid {
        /// The name of the value.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
}

impl Error {
    /// For `map_err`: a failed system call on a path.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// Advice, where there is some.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownArchitecture { nearest, .. } => Some(match nearest {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!(
                    "the known ones are `{}`",
                    crate::backbone::Architecture::NAMES
                        .map(|(name, _)| name)
                        .join("`, `")
                ),
            }),
            Self::UnknownData { nearest, .. } => Some(match nearest {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!(
                    "the known ones are `{}`",
                    crate::data::DATA_NAMES.join("`, `")
                ),
            }),
            Self::Format { hint, .. } | Self::Data { hint, .. } => hint.clone(),
            Self::Weights { report, .. } => report.hint(),
            Self::Diverged { .. } => Some(
                "start again with a smaller learning rate; what was saved before this step is untouched"
                    .to_owned(),
            ),
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Some("choose a place you may write to".to_owned())
            }
            _ => None,
        }
    }
}

/// The known word most like an unknown one, if any is alike at all.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known
        .into_iter()
        .map(|word| (strsim::jaro_winkler(unknown, word), word));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.75).then_some(best.1)
}
