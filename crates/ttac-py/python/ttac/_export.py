"""Networks of PyTorch, on their way into the engine. Only this module and `ttac.torch` import PyTorch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

# A wrong padding, norm or order of axes is off by a hundred times as much at least, and single precision by a tenth of it at most.
BOUND = 1e-4

_ADVICE = """\
hint: what to try, in this order
  - `torch.export.export(net.eval(), (example,))` in a Python of its own, which shows the line of the network at fault
  - branches on values of tensors, prints and `.item()` in `forward` have to go
  - a wrapper whose `forward` takes one tensor `[n, 3, height, width]` and returns the scores `[n, classes]`
  - `Model.from_export` with an ONNX file, or `Model.from_state_dict` for a known architecture"""


def _check(net: Any, example: Any) -> None:
    import torch

    if not isinstance(net, torch.nn.Module):
        raise TypeError(f"net: expected a `torch.nn.Module`, found `{type(net).__name__}`")
    if not isinstance(example, torch.Tensor):
        raise TypeError(f"example: expected a tensor `[n, 3, height, width]`, found `{type(example).__name__}`")
    shape = list(example.shape)
    if example.dim() != 4 or shape[1] != 3:
        raise ValueError(f"example: expected [n, 3, height, width], found {shape}")
    if shape[0] < 2:
        raise ValueError(f"example: expected at least two inputs, found {shape[0]}; `torch.export` takes one alone for a fixed size of batch")
    if example.dtype != torch.float32:
        raise TypeError(f"example: expected float32, found {example.dtype}")
    places = {tensor.device.type for tensor in (*net.parameters(), *net.buffers(), example)}
    if places != {"cpu"}:
        raise ValueError(f"net and example: expected both on the CPU, found {', '.join(sorted(places))}; call `.cpu()` first")


class _Evaluating:
    """Puts a network into eval mode, and every module back into its own mode at the end."""

    def __init__(self, net: Any) -> None:
        self.modes = [(module, module.training) for module in net.modules()]
        self.net = net

    def __enter__(self) -> None:
        self.net.eval()

    def __exit__(self, *_: object) -> None:
        for module, training in self.modes:
            module.training = training


def save(net: Any, example: Any, folder: str) -> str:
    """Writes what `torch.export` makes of a network into a folder, and returns the path."""
    import torch

    _check(net, example)
    path = os.path.join(folder, f"{type(net).__name__}.pt2")
    try:
        with _Evaluating(net), torch.no_grad():
            program = torch.export.export(net, (example.detach(),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
            torch.export.save(program, path)
    except Exception as error:
        raise ValueError(f"torch.export cannot take `{type(net).__name__}`: {type(error).__name__}: {error}\n{_ADVICE}") from error
    return path


def compare(model: Any, net: Any, example: Any) -> None:
    """Raises an error if the engine's scores of the example are not PyTorch's."""
    import torch

    with _Evaluating(net), torch.no_grad():
        expected = net(example)
    expected = expected.detach().float().numpy()
    found = model.logits(np.ascontiguousarray(example.detach().numpy()))
    if expected.shape != found.shape:
        raise ValueError(f"scores of the example: expected the shape {expected.shape} of PyTorch, found {found.shape}")
    difference = float(np.abs(found - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
    if not difference <= BOUND:
        raise ValueError(
            f"scores of the example: expected those of PyTorch within {BOUND:.0e} of the largest, found a difference of {difference:.1e}\n"
            "hint: `check=False` takes the network all the same; a network that draws random numbers in eval mode cannot agree"
        )
