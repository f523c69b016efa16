"""Grids of experiments, as tables."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ttac._engine import run_grid


def bench(
    grid: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    **shared: Any,
) -> Any:
    """Runs a grid of experiments, and returns a table with a row for every cell: a DataFrame if pandas is installed, else a list of dictionaries.

    A grid is the path of a TOML file as `ttac bench` takes it, a dictionary of the same form, or keyword arguments: `rows` are
    the methods to compare, everything else is shared, and a list in place of a value is an axis.

        ttac.bench(model="m.safetensors", data="shapes10", corruption=["snow", "fog"], severity=5,
                   no_queue=True, rows=[{"method": "test"}, {"method": "tent"}])

    With `out`, cells are kept in this folder, and those that are there already are not run again.
    """
    if grid is not None and (rows is not None or shared):
        raise TypeError("bench: expected a grid or keyword arguments, found both")
    if grid is None:
        if not shared and not rows:
            raise TypeError("bench: expected a grid or keyword arguments, found neither")
        grid = {"grid": _spelled(shared), "row": [_spelled(row) for row in rows or []]}
    cells = run_grid(dict(grid) if isinstance(grid, Mapping) else pathlib.Path(grid).read_text(encoding="utf-8"), out)
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return cells
    return pandas.DataFrame(cells)


def _spelled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options are spelled with hyphens, which names in Python cannot have."""
    return {name.replace("_", "-"): value for name, value in options.items()}
