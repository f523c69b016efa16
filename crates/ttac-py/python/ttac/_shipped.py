"""The small network that comes with the package."""

from __future__ import annotations

import pathlib

from ttac._engine import Anchors, Model


def shapes10() -> tuple[Model, Anchors]:
    """The model and the anchors of `ttac demo`: a small network that tells ten shapes apart.

    `load_data("shapes10")` draws its images.
    """
    folder = pathlib.Path(__file__).parent / "shapes10"
    return Model.load(folder / "model.safetensors"), Anchors.load(folder / "anchors.safetensors")
