"""Tensors by formula: the Rust tests compute the same values, so no weights are stored."""

import math

import numpy as np
import torch

MASK = 0xFFFFFFFF


def seed(name):
    """FNV-1a, 32 bits, of the name's UTF-8 bytes."""
    h = 2166136261
    for byte in name.encode():
        h = ((h ^ byte) * 16777619) & MASK
    return h


def hash_uniform(name_seed, count):
    """The first `count` values of a stream: multiples of 2^-24 in [-0.5, 0.5), exact in f32."""
    h = np.arange(count, dtype=np.uint32)
    h *= np.uint32(2654435761)
    h += np.uint32((name_seed * 40503 + 12345) & MASK)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return (h >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)


def values(name, shape, scale, offset=0.0):
    """`offset + scale * u` in f32 arithmetic, row-major in `shape`."""
    u = hash_uniform(seed(name), math.prod(shape))
    return torch.from_numpy((np.float32(offset) + np.float32(scale) * u).reshape(shape))


def images(name, shape, scale=3.0):
    """An activation of NCHW `shape` whose values are indexed in NHWC order."""
    n, c, h, w = shape
    return values(name, (n, h, w, c), scale).permute(0, 3, 1, 2).contiguous()


def scale_and_offset(key, shape):
    """How a parameter or buffer is drawn, by the last part of its key and its rank."""
    last = key.rsplit(".", 1)[-1]
    if last == "weight" and len(shape) in (3, 4):
        return math.sqrt(24 / math.prod(shape[1:])), 0.0
    if last == "weight" and len(shape) == 2:
        return math.sqrt(12 / shape[1]), 0.0
    known = {"weight": (0.5, 1.0), "bias": (0.5, 0.0), "running_mean": (0.2, 0.0), "running_var": (0.5, 1.0)}
    known |= {"cls_token": (0.5, 0.0), "pos_embed": (0.5, 0.0)}
    return known[last]


def fill(module, prefix=""):
    """Overwrites every parameter and buffer of `module` with the formula's values."""
    state = {}
    for key, old in module.state_dict().items():
        if key.endswith("num_batches_tracked"):
            state[key] = old
        else:
            state[key] = values(prefix + key, tuple(old.shape), *scale_and_offset(key, old.shape))
    module.load_state_dict(state)
    return module


def labels(count, classes):
    return torch.arange(count) * 7 % classes
