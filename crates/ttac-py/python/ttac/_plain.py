"""Plain values of Python as JSON, which the engine reads."""

from __future__ import annotations

import json
import os
from typing import Any


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()  # NumPy's numbers and arrays.
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"expected a number, a word, a list or a dictionary, found `{type(value).__name__}`")


def to_json(value: Any) -> str:
    """The value as JSON. NaN and infinity, which JSON has no words for, are refused."""
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except ValueError as error:
        raise ValueError(f"expected finite numbers, found {value!r}") from error
