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

/// The other CIFAR sets, and every way an array can be wrong.
mod data_cifar;

/// MNIST, Fashion-MNIST and USPS under one contract, and every way their files can be wrong.
mod data_digits;

/// Class folders of pictures, and sets by name.
mod data_folder;

/// The embedded images: balanced, the same bits everywhere, every class a different shape.
mod shapes10;

/// Clouds: the embedded solids, readers of `ModelNet`, and every way a cloud can be wrong.
mod clouds;

/// Streams: every sample once, proportions as asked, the same plan for the same seed.
mod streams;

/// Augmentations: the same bits for the same draw, Pillow's arithmetic.
mod augment;

/// Training: the same bits with and without interruption, and every way a run can go wrong.
mod train;

/// Losses and joint training against PyTorch.
mod objectives;

/// Every method's first ten batches against PyTorch.
mod method_parity;

/// What every method promises: no look ahead, a way back, the same bits.
mod methods;

/// Tables, comparisons and the page: numbers of the records, every figure, nothing from outside.
mod report;

/// Real weights on real images, where both are at hand.
mod real;
