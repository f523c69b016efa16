//! A service around [`ttac::Session`]: requests are answered at once from published weights, and learned from beside them.
//!
//! The transports (REST, gRPC, administration) know the service only by the types in [`api`]; the [`api::Service`] behind them owns
//! models, streams, learning and state.

#![forbid(unsafe_code)]

pub mod admin;
pub mod api;
pub mod config;
pub mod engine;
pub mod grpc;
pub mod oip;
pub mod rest;
pub mod state;
pub mod tokens;

mod calls;
mod error;
mod failure;
mod front;
mod inference;
mod metrics;
mod server;
mod signals;
mod tls;

pub use error::{Error, Result};
pub use failure::Failure;
pub use front::Front;
pub use server::{ConnectionLimits, Ended, Server, Stopper};
