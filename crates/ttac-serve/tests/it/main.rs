//! The service as its clients and operators see it.

/// Streams, modes, labels, events and metrics for operators.
mod admin;

/// Rules, board and document against what there is.
mod board;

/// A service that is killed again and again.
mod crash;

/// Learning, lanes, modes, guards, labels: the engine without any transport.
mod engine;

/// A service that answers by a formula, for the tests of transports.
mod formula;

/// The protocol over gRPC.
mod grpc;

/// One-shot requests without sockets, for the tests of routers.
mod http;

/// Requests and replies as bytes, without any transport.
mod oip;

/// Real sockets: slow clients, ports in use, encryption, the end.
mod ports;

/// The protocol over HTTP.
mod rest;

/// Who may do what.
mod roles;

/// Restarts, damage, other networks: what is on disk.
mod state;

/// Engines on the shipped network, and pictures for them.
mod world;
