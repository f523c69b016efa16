//! What can go wrong with a service, before and after its ports open.

use std::error::Error as _;
use std::path::{Path, PathBuf};

/// The result of anything that touches configurations, models or stored streams.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error names what was expected, what was found and where; [`hint`](Error::hint) says what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be served.
    #[error("invalid configuration{}:\n{}", of(path.as_deref()), list(problems))]
    Config {
        /// The file, if it is one.
        path: Option<PathBuf>,
        /// Everything that is wrong with it.
        problems: Vec<String>,
    },
    /// A state folder that another process serves from.
    #[error("the state folder `{}` is in use by another process", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A stored stream of another model, anchors or configuration.
    #[error("the stream in `{}` belongs to another {what}: expected {expected}, found {found}", path.display())]
    Foreign {
        /// The stream's folder.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the configuration asks for.
        expected: String,
        /// What the stream was stored with.
        found: String,
    },
    /// A file of a stored stream that is not what was written.
    #[error("`{}` is damaged at byte {at}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A file or folder that cannot be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A port that cannot be opened.
    #[error("cannot open the port `{name}` at {address}: {source}")]
    Listen {
        /// Which port.
        name: &'static str,
        /// Where it was to be.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Threads that the system does not give.
    #[error("cannot start {what}")]
    Threads {
        /// Which ones.
        what: &'static str,
        /// What the system said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What the library says.
    #[error(transparent)]
    Library(#[from] ttac::Error),
}

impl Error {
    /// Makes an error of a failed system call on a path, for `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// Returns advice in words, where there is some.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::InUse { .. } => Some(
                "stop the other service, or give this one a folder of its own by `folder` in `[state]`"
                    .to_owned(),
            ),
            Self::Foreign { .. } => Some(
                "serve the model that the stream was stored with, or another `folder` in `[state]`"
                    .to_owned(),
            ),
            Self::Damaged { .. } => Some(
                "`ttac state` lists what is whole; roll the stream back, or delete it".to_owned(),
            ),
            Self::Listen { name, .. } => Some(format!(
                "another program has the port; give another by `{name}` in `[listen]` or `--{name}`, 0 for any that is free"
            )),
            Self::Library(error) => error.hint(),
            _ => None,
        }
    }
}

/// Writes an error with everything that caused it, for lists of problems and for clients.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Writes an error of this crate with its causes.
pub(crate) fn in_full(error: &Error) -> String {
    match error {
        // It is transparent, so its source is what it says already.
        Error::Library(error) => with_causes(error),
        error => match error.source() {
            Some(source) => format!("{error}: {}", with_causes(source)),
            None => error.to_string(),
        },
    }
}

fn of(path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| format!(" `{}`", path.display()))
}

fn list(problems: &[String]) -> String {
    let lines = problems.iter().map(|problem| format!("- {problem}"));
    lines.collect::<Vec<_>>().join("\n")
}
