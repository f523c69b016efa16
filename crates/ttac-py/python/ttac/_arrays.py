"""Arrays of NumPy, PyTorch and other libraries, as the engine reads and writes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# The types of safetensors by the names of NumPy and PyTorch; NumPy has no bfloat16.
_TYPES = {
    "BOOL": ("bool_", "bool"),
    "U8": ("uint8", "uint8"),
    "I8": ("int8", "int8"),
    "I16": ("int16", "int16"),
    "I32": ("int32", "int32"),
    "I64": ("int64", "int64"),
    "F16": ("float16", "float16"),
    "BF16": (None, "bfloat16"),
    "F32": ("float32", "float32"),
    "F64": ("float64", "float64"),
}


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _view(value: Any) -> np.ndarray:
    """The values where they are: through DLPack, through `__array__`, or, for lists, in a new array."""
    if isinstance(value, np.ndarray):
        return value
    if _is_torch(value):
        if value.device.type != "cpu":
            raise ValueError(f"a tensor on `{value.device}`: expected one on the CPU; call `.cpu()` first")
        value = value.detach()
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            pass  # Types that NumPy lacks, other devices, older protocols: `__array__` copies or says why not.
    return np.asarray(value)


def pixels(images: Any) -> np.ndarray:
    """Images as contiguous uint8 `[n, height, width, 3]`; a copy is made only where the order in memory is another."""
    array = _view(images)
    if array.dtype != np.uint8:
        advice = ""
        if np.issubdtype(array.dtype, np.floating):
            advice = (
                "; pixels of 0 to 1 become bytes by `(255 * images).round().astype('uint8')`, and `ttac.torch.Adapter` takes normalised tensors"
            )
        raise TypeError(f"images: expected uint8, the bytes of RGB pixels, found {array.dtype}{advice}")
    shape = list(array.shape)
    if array.ndim != 4:
        advice = "; one image alone is `images[None]`" if array.ndim == 3 else ""
        raise ValueError(f"images: expected four axes, [n, height, width, 3], found {shape}{advice}")
    if shape[3] != 3:
        if shape[1] != 3:
            raise ValueError(f"images: expected three channels, [n, height, width, 3], found {shape}; grey images are repeated three times")
        if not _is_torch(images):
            raise ValueError(
                f"images: expected channels last, [n, height, width, 3], found {shape}; `images.transpose(0, 2, 3, 1)` has them there"
            )
        array = array.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(array)


def points(clouds: Any) -> np.ndarray:
    """Clouds as contiguous float32 `[n, points, 3]`."""
    array = _view(clouds)
    if not np.issubdtype(array.dtype, np.floating):
        raise TypeError(f"clouds: expected float32 coordinates, found {array.dtype}")
    if array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(f"clouds: expected [n, points, 3], found {list(array.shape)}")
    return np.ascontiguousarray(array, dtype=np.float32)


def labels(values: Any) -> list[int]:
    """True classes as numbers."""
    array = _view(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"labels: expected integers, [n], found {array.dtype} of shape {list(array.shape)}")
    if array.size and array.min() < 0:
        raise ValueError(f"labels: expected classes from zero on, found {array.min()}")
    numbers: list[int] = array.tolist()
    return numbers


def tensors(state_dict: Any) -> dict[str, np.ndarray]:
    """The float tensors of a `state_dict`, which may lie inside other dictionaries, as float32 by their keys.

    Counters and everything that is no tensor are left out, as PyTorch's training needs them and a network does not.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict: expected a dictionary of tensors, found `{type(state_dict).__name__}`; `net.state_dict()` makes one")
    found = {}
    for key, value in state_dict.items():
        if isinstance(value, Mapping):
            inner = tensors(value)
            found.update({f"{key}.{name}": array for name, array in inner.items()})
            continue
        if _is_torch(value):
            # PyTorch knows types that NumPy does not.
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() else value
        elif not hasattr(value, "__array__"):
            continue
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.floating):
            found[str(key)] = np.ascontiguousarray(array, dtype=np.float32)
    if not found:
        raise ValueError("state_dict: expected float tensors, found none")
    return found


def state_dict(listed: list[tuple[str, str, list[int], bytes]], numpy: bool) -> dict[str, Any]:
    """A `state_dict` of names, types, shapes and bytes: tensors of PyTorch, or arrays."""
    found: dict[str, Any] = {}
    if numpy:
        for name, kind, shape, data in listed:
            if _TYPES[kind][0] is None:
                raise TypeError(f"`{name}` is {kind}, a type that NumPy lacks; `state_dict()` makes tensors of PyTorch")
            # A copy, as bytes are not to be written to.
            found[name] = np.frombuffer(data, dtype=_TYPES[kind][0]).reshape(shape).copy()
        return found
    try:
        import torch
    except ImportError as error:
        raise ImportError("`state_dict()` makes tensors of PyTorch, which is not installed; `state_dict(numpy=True)` makes arrays") from error
    for name, kind, shape, data in listed:
        dtype = getattr(torch, _TYPES[kind][1])
        if data:
            found[name] = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
        else:
            found[name] = torch.empty(shape, dtype=dtype)
    return found
