//! What is wrong with a file, before it is known which file it is.

/// The result of anything that reads a part of the file.
pub(super) type Result<T> = std::result::Result<T, Fault>;

/// A problem in words, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// What is wrong, with the name of the part at fault.
    pub(super) problem: String,
    /// What to try.
    pub(super) hint: Option<String>,
}

/// The hint for everything that PyTorch would not write.
pub(super) const DAMAGED: &str =
    "it is damaged or was cut short: export it again with `torch.export.save`, or fetch it again";

/// The hint for everything that holds no graph.
pub(super) const EXPORT: &str = "a graph is what `torch.export.save(torch.export.export(model.eval(), (example,), \
     dynamic_shapes=({0: torch.export.Dim.AUTO},)), path)` writes, with an example batch of at least two images";

impl Fault {
    /// Makes a fault with advice.
    pub(super) fn new(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            hint: Some(hint.into()),
        }
    }

    /// Makes the fault of a file that PyTorch did not write like this.
    pub(super) fn damaged(problem: impl Into<String>) -> Self {
        Self::new(problem, DAMAGED)
    }
}
