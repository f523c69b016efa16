//! Everything public, tested as a user would use it.

/// Reading fixtures, computing inputs by formula, comparing.
mod fixture;

/// Rung 1 of the parity ladder: single ops against PyTorch in double precision.
mod ops;

/// Rung 2: residual blocks.
mod blocks;

/// Rungs 3 to 6: logits, gradients by name and ten optimiser steps of every architecture at tiny
/// width; logits at full size.
mod networks;

/// Checkpoints: round trips, imports, and every way a file can be wrong.
mod checkpoints;

/// Data readers, and every way a folder can be wrong.
mod data;

/// Real weights on real images, where both are at hand.
mod real;
