//! A service around [`ttac::Session`]: requests are answered at once from published weights, and learned from beside them.
//!
//! The transports (REST, gRPC, administration) know the service only by the types in [`api`]; the [`api::Service`] behind them owns
//! models, streams, learning and state.

#![forbid(unsafe_code)]

pub mod api;
pub mod config;
pub mod engine;
pub mod oip;
pub mod state;

mod error;

pub use error::{Error, Result};
