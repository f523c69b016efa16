//! The service as its clients and operators see it.

/// Learning, lanes, modes, guards, labels: the engine without any transport.
mod engine;

/// Engines on the shipped network, and pictures for them.
mod world;
