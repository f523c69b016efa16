//! Everything public, tested as a user would use it.

/// Reading fixtures, computing inputs by formula, comparing.
mod fixture;

/// Files as other programs write them, and messages about them.
mod files;

/// Rung 1 of the parity ladder: single ops against PyTorch in double precision.
mod ops;

/// Rung 2: residual blocks.
mod blocks;

/// Rungs 3 to 6: logits, gradients by name and ten optimiser steps of every architecture at tiny
/// width; logits at full size.
mod networks;

/// Checkpoints: round trips, imports, and every way a file can be wrong.
mod checkpoints;

/// Samples as types, data sets in memory, and the input contract in files.
mod samples;

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

/// TTAC++ and MEMO: varied copies, and what they do not change.
mod strong;

/// Streams: every sample once, proportions as asked, the same plan for the same seed.
mod streams;

/// Augmentations: the same bits for the same draw, Pillow's arithmetic.
mod augment;

/// Training: the same bits with and without interruption, and every way a run can go wrong.
mod train;

/// What several machines share.
mod many_machines;

/// Losses and joint training against PyTorch.
mod objectives;

/// Every method's first ten batches against PyTorch.
mod method_parity;

/// ETA, EATA and RDumb beside their fixtures: batches without a step, resets, penalties, and what the loss is divided by.
mod eta;

/// SAR beside its fixture: coasting, the way back, what stays of the last stage.
mod sar;

/// `DeYO` beside its fixture: one patch, batches without a step, what is refused.
mod deyo;

/// CoTTA beside its fixture: restores, the teacher, who answers.
mod cotta;

/// RoTTA, PeTTA, NOTE and TRIBE beside their fixtures: when they learn, who answers, what is refused.
mod memories;

/// LAME beside its fixtures: nothing is learned, one sample, what is refused.
mod lame;

/// ROID and CMF beside their fixtures: parts switched off, what goes back, short batches, what is refused.
mod roid;

/// The small world that tests of methods and sessions live in.
mod world;

/// Sessions: bad input changes nothing, saved states go on with the same bits, guards work.
mod sessions;

/// Doing no harm: re-based norms compute the same, a closed gate changes nothing, states go on with the same bits.
mod no_harm;

/// Specifications, grids and cards: the same experiment again, with the same bits.
mod experiments;

/// What every method promises: no look ahead, a way back, the same bits.
mod methods;

/// Tables, comparisons and the page: numbers of the records, every figure, nothing from outside.
mod report;

/// Documents: the list of architectures is the code's, every path and link leads somewhere.
mod documents;

/// ONNX files: fixtures, round trips, and every way a file can be wrong.
mod onnx;

/// Small ONNX files, made byte by byte.
mod onnx_bytes;

/// Networks as PyTorch exports them: what is read, and every way a file can be wrong.
mod pt2;

/// A graph computed in the plainest way, in double precision.
mod interpret;

/// Imported networks: PyTorch's numbers, the same bits however they are computed.
mod graphs;
/// Programs of `PyTorch` as graphs: the same numbers, and what is refused.
mod lowering;

/// Imported networks beside those written by hand, to the bit.
mod graph_twins;

/// Every method on imported networks.
mod graph_sessions;

/// Imported networks in checkpoints: round trips, and headers from strangers.
mod graph_checkpoints;

/// Real weights on real images, where both are at hand.
mod real;
