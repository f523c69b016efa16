//! Everything public, in one binary.

/// Same seed, same bits: threads, cuts, seeds, severities.
mod determinism;
/// Messages and hints for input that is wrong.
mod errors;
/// Against images made by the recipe itself.
mod oracle;
/// Clouds of points and meshes.
mod points;
