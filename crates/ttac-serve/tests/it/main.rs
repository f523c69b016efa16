//! The service as its clients and operators see it.

/// Learning, lanes, modes, guards, labels: the engine without any transport.
mod engine;

/// A service that answers by a formula, for the tests of transports.
mod formula;

/// Requests and replies as bytes, without any transport.
mod oip;

/// Engines on the shipped network, and pictures for them.
mod world;
