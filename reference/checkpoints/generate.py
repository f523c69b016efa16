"""Writes small PyTorch files in every layout the importer reads, and one it must refuse.

The network is the tiny `resnet-cifar` of the parity fixtures, with its values by formula.
"""

import os
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "reference/parity"))

import formula  # noqa: E402
import nets  # noqa: E402

OUT = ROOT / "crates/ttac/tests/fixtures/checkpoints"


class Hostile:
    """Unpickling this runs a command."""

    def __reduce__(self):
        return os.system, ("touch a-pickle-ran-this",)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    state = formula.fill(nets.ResNetCifar(depth=8, width=4, classes=10)).state_dict()
    parallel = {f"module.{key}": value for key, value in state.items()}
    torch.save(state, OUT / "zip.pt")
    nested = {"epoch": 3, "state_dict": parallel, "best": 0.5}
    torch.save(nested, OUT / "legacy.th", _use_new_zipfile_serialization=False)
    torch.save({"weights": state, "extra": Hostile()}, OUT / "hostile.pt")


if __name__ == "__main__":
    main()
