//! A service around [`ttac::Session`]: requests are answered at once from published weights, and learned from beside them.
//!
//! The transports (REST, gRPC, administration) know the service only by the types in [`api`]; the [`api::Service`] behind them owns
//! models, streams, learning and state.

pub mod api;
