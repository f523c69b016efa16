//! What a service says while it runs: on standard error, as text or as JSON, and never a pixel.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{LogFormat, LogLevel};

/// Writes what happens from now on to standard error, once a process.
pub fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // What libraries say of each connection is no use to an operator.
    let of_others = level.min(LevelFilter::WARN);
    let filter = Targets::new()
        .with_target("ttac", level)
        .with_target("ttac_serve", level)
        .with_default(of_others);
    let text = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    // A second one in a process changes nothing, and costs nothing.
    let _ = match format {
        LogFormat::Text => registry.with(text).try_init(),
        LogFormat::Json => registry
            .with(
                text.json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            )
            .try_init(),
    };
}
