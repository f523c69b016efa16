//! What the system asks of the process.

use crate::{Error, Result};

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To end: SIGINT or SIGTERM.
    Stop,
    /// To read tokens and certificates again: SIGHUP.
    Reload,
}

/// The signals that were sent.
#[cfg(unix)]
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on.
    pub fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let of = |kind| {
            signal(kind).map_err(|error| Error::Threads {
                what: "listening for signals",
                source: Box::new(error),
            })
        };
        Ok(Self {
            interrupt: of(SignalKind::interrupt())?,
            terminate: of(SignalKind::terminate())?,
            hang_up: of(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }

    /// Waits for one that asks for the end.
    pub async fn stop(&mut self) {
        while self.next().await != Asked::Stop {}
    }
}

/// The signals that were sent; elsewhere there is Ctrl-C alone.
#[cfg(not(unix))]
pub struct Signals;

#[cfg(not(unix))]
impl Signals {
    /// Listens from now on.
    pub fn listen() -> Result<Self> {
        Ok(Self)
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Asked {
        let _ = tokio::signal::ctrl_c().await;
        Asked::Stop
    }

    /// Waits for one that asks for the end.
    pub async fn stop(&mut self) {
        self.next().await;
    }
}
