"""Test-time training: a trained classifier meets images unlike its own, and learns from them without labels.

    import ttac

    model, anchors = ttac.shapes10()                             # or Model.from_torch, Anchors.collect
    session = ttac.Session(model, anchors, method="ttac")
    answer = session.observe(images)                             # uint8, [n, height, width, 3]
    answer.classes, answer.probabilities, answer.warnings

`Model` brings a network, `Anchors` say what its features look like on source images, and a `Session` answers a stream and
learns from it. The engine is written in Rust; it needs NumPy alone, and PyTorch only where a network of PyTorch comes in
or goes out. `ttac.torch` has an `nn.Module` for loops that exist already.
"""

from ttac._bench import bench
from ttac._engine import (
    Anchors,
    Answer,
    Gate,
    Learned,
    Model,
    Session,
    __version__,
    corrupt,
    corruptions,
    keep_freed_memory,
    load_data,
    methods,
)
from ttac._evaluate import Evaluation, evaluate
from ttac._shipped import shapes10

__all__ = [
    "Anchors",
    "Answer",
    "Evaluation",
    "Gate",
    "Learned",
    "Model",
    "Session",
    "__version__",
    "bench",
    "corrupt",
    "corruptions",
    "evaluate",
    "keep_freed_memory",
    "load_data",
    "methods",
    "shapes10",
]
