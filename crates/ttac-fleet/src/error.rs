//! Errors of queues and stores.

use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What goes wrong between machines. Names of queues and stores are shown without their passwords.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address that cannot be understood.
    #[error("`{address}` is no {what}: expected {expected}")]
    Address {
        /// `queue` or `store`.
        what: &'static str,
        /// The address as it was given, without a password.
        address: String,
        /// The forms that are understood.
        expected: &'static str,
    },
    /// This program was built without what the address needs.
    #[error("`{address}` needs a program that is built with the feature `{feature}`")]
    NotBuilt {
        /// The address.
        address: String,
        /// The feature of Cargo.
        feature: &'static str,
    },
    /// Nobody answers. It may help to try again later.
    #[error("{what} does not answer: {problem}")]
    Away {
        /// The queue or the store.
        what: String,
        /// What was noticed.
        problem: String,
    },
    /// The credentials are not accepted.
    #[error("{what} refuses these credentials: {problem}")]
    Refused {
        /// The queue or the store.
        what: String,
        /// The answer.
        problem: String,
    },
    /// The queue, or the bucket of the store, is not there.
    #[error("{what} is not there: {problem}")]
    Absent {
        /// The queue or the store.
        what: String,
        /// The answer.
        problem: String,
    },
    /// Another answer that is no success.
    #[error("{what}: {problem}")]
    Failed {
        /// The queue or the store.
        what: String,
        /// The answer.
        problem: String,
    },
    /// A file of a store in a folder.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the same may succeed later, without anybody changing what was asked.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    /// Advises on what to try.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Away { what, .. } if what.starts_with("queue") => Some(
                "start the broker with JetStream, `nats-server -js -sd FOLDER`, and check host and port",
            ),
            Self::Away { .. } => Some(
                "`AWS_ENDPOINT` names a store that is not Amazon's, `AWS_ALLOW_HTTP=true` lets it be reached without TLS",
            ),
            Self::Refused { what, .. } if what.starts_with("queue") => Some(
                "credentials are a part of the address: `nats://USER:PASSWORD@HOST` or `nats://TOKEN@HOST`",
            ),
            Self::Refused { .. } => {
                Some("`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` hold the credentials")
            }
            Self::Absent { what, .. } if what.starts_with("store") => {
                Some("buckets are made by those who pay for them; create it, or give another")
            }
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}
