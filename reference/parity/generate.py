"""Writes the parity fixtures. With arguments, only those whose names start with one of them."""

import json
import sys
from pathlib import Path

import numpy
import safetensors
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

import formula
import nets
import ops

FIXTURES = Path(__file__).resolve().parents[2] / "crates/ttac/tests/fixtures/parity"

# One input and one rate for all tiny networks. Here the losses fall smoothly, and weights moved by a rounding
# error (24 random trials) end at the same place to 1e-5. With many other inputs and rates some ReLU changes
# sides on the way, and single precision then cannot follow all ten steps.
INPUT, BATCH, CLASSES = "input", 4, 10
RATE, MOMENTUM, STEPS = 0.02, 0.9, 10
# Where neighbours change on the way, single precision cannot follow either: they hardly move at this rate.
RATES = {nets.Dgcnn: 0.001}

# name: (class, configuration, input size)
PLAIN = {"blocks": [1, 1, 1, 1], "width": 4, "classes": CLASSES}
CONTRASTIVE = PLAIN | {"projection": 8}
ROTATION = {"depth": 8, "width": 8, "classes": CLASSES}
TINY = {
    "resnet-cifar": (nets.ResNetCifar, {"depth": 8, "width": 4, "classes": CLASSES}, 16),
    "resnet18-cifar": (nets.ContrastiveResNet, CONTRASTIVE | {"block": "basic"}, 16),
    "resnet50-cifar": (nets.ContrastiveResNet, CONTRASTIVE | {"block": "bottleneck"}, 16),
    "resnet26-group": (nets.ResNetRotation, ROTATION | {"norm": "group"}, 16),
    "resnet26-batch": (nets.ResNetRotation, ROTATION | {"norm": "batch"}, 16),
    "wrn": (nets.WideResNet, {"depth": 10, "widen": 2, "width": 4, "classes": CLASSES}, 16),
    "resnet18": (nets.ResNet, PLAIN | {"block": "basic"}, 64),
    "resnet50": (nets.ResNet, PLAIN | {"block": "bottleneck"}, 64),
    "vit": (nets.VisionTransformer, {"image_size": 16, "patch": 4, "width": 24, "depth": 2, "heads": 3, "mlp": 40, "classes": CLASSES}, 16),
    "dgcnn": (nets.Dgcnn, {"k": 6, "width": 8, "embedding": 32, "classes": CLASSES}, (40, 1)),
}


def build(kind, config, dtype, train):
    return formula.fill(kind(**config)).to(dtype).train(train)


def gradients(net, x, labels):
    """Gradients of the mean cross-entropy by name; parameters that play no part are left out."""
    named = dict(net.named_parameters())
    loss = F.cross_entropy(net(x), labels)
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {key: g for key, g in zip(named, found) if g is not None}


def is_norm(net, key):
    parent = net.get_submodule(key.rpartition(".")[0])
    return isinstance(parent, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.GroupNorm, torch.nn.LayerNorm))


def run(kind, config, x, labels):
    """Everything a tiny network's fixture holds, in the precision of `x`."""
    out = {}
    with torch.no_grad():
        for mode in ("eval", "train"):
            net = build(kind, config, x.dtype, mode == "train")
            out[f"features.{mode}"] = net.features(x)
            out[f"logits.{mode}"] = net(x)
        if kind is nets.ResNetRotation:
            for shared in (2, 3):
                out |= build(kind, config | {"shared": shared}, x.dtype, False).extras(x)
        elif kind is nets.ContrastiveResNet:
            out |= build(kind, config, x.dtype, False).extras(x)

    net = build(kind, config, x.dtype, True)
    trained = gradients(net, x, labels)
    # A bias before a batch norm has no gradient but rounding errors.
    out |= {f"grad.{key}": g for key, g in trained.items() if key not in getattr(kind, "CANCELLED", ())}
    net = build(kind, config, x.dtype, False)
    out |= {f"evalgrad.{key}": g for key, g in gradients(net, x, labels).items() if is_norm(net, key)}

    net = build(kind, config, x.dtype, True)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATES.get(kind, RATE), momentum=MOMENTUM)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    out["losses"] = torch.stack(losses)
    for key, value in net.state_dict().items():
        if key in trained or key.endswith(("running_mean", "running_var")) and not key.startswith("head."):
            out[f"after.{key}"] = value
    with torch.no_grad():
        out["logits.after"] = net.eval()(x)
    return out


def difference(actual, expected):
    """Largest difference over largest magnitude."""
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()


def rounded(value):
    return float(f"{value:.1e}")


def low_rung(name):
    """An operation or the blocks, with the largest difference of single precision by kind of result."""
    expected, actual = ops.Fixture(torch.float64), ops.Fixture(torch.float32)
    ops.FIXTURES[name](expected)
    ops.FIXTURES[name](actual)
    single = {}
    for key, value in expected.tensors.items():
        kind = key.rsplit(".", 1)[-1]
        single[kind] = max(single.get(kind, 0.0), difference(actual.tensors[key], value))
    about = {"inputs": expected.inputs, "cases": expected.cases}
    return expected.tensors, about | {"f32": {kind: rounded(value) for kind, value in single.items()}}


def tiny(name):
    kind, config, size = TINY[name]
    height, width = size if isinstance(size, tuple) else (size, size)
    x = formula.images(INPUT, (BATCH, 3, height, width))
    labels = formula.labels(BATCH, CLASSES)
    expected = run(kind, config, x.double(), labels)

    # What single precision costs PyTorch itself, in two memory formats: a yardstick for tolerances.
    groups = ("features", "logits", "projection", "rotation", "grad", "evalgrad", "losses", "after")
    single = dict.fromkeys(groups, 0.0)
    for memory in (torch.contiguous_format, torch.channels_last):
        actual = run(kind, config, x.contiguous(memory_format=memory), labels)
        for key, value in expected.items():
            group = "after" if key == "logits.after" else key.split(".")[0]
            single[group] = max(single[group], difference(actual[key], value))
    about = {
        "architecture": name,
        "config": config | ({"shared": [2, 3]} if kind is nets.ResNetRotation else {}),
        "input": {"name": INPUT, "shape": [BATCH, height, width, 3], "scale": 3.0, "offset": 0.0},
        "labels": labels.tolist(),
        "sgd": {"lr": RATES.get(kind, RATE), "momentum": MOMENTUM, "steps": STEPS, "weight_decay": 0.0},
        "f32": {group: rounded(value) for group, value in single.items() if value > 0},
    }
    return expected, about


def full(name):
    kind, config = nets.FULL[name]
    size = config.get("image_size", 32)
    sizes = {nets.ResNet: (224, 224, 1000), nets.Dgcnn: (1024, 1, 40)}
    height, width, classes = sizes.get(kind, (size, size, 1000 if size == 224 else 10))
    config = config | {"classes": classes}
    x = formula.images(INPUT, (2, 3, height, width))
    with torch.no_grad():
        expected = build(kind, config, torch.float64, False)(x.double())
        single = build(kind, config, torch.float32, False)(x)
    about = {
        "architecture": name,
        "config": config,
        "input": {"name": INPUT, "shape": [2, height, width, 3], "scale": 3.0, "offset": 0.0},
        "largest_logit": rounded(expected.abs().max().item()),
        "f32": {"logits": rounded(difference(single, expected))},
    }
    return {"logits": expected}, about


def write(name, tensors, about):
    about = {
        "fixture": name,
        "formula": "seed = FNV-1a of the name; see reference/parity/formula.py",
        "reference": "float64, rounded to float32",
        "versions": {"torch": torch.__version__.split("+")[0], "numpy": numpy.__version__, "safetensors": safetensors.__version__},
    } | about
    arrays = {}
    for key, value in tensors.items():
        array = numpy.ascontiguousarray(value.detach().numpy().astype(numpy.float32))
        assert numpy.isfinite(array).all(), f"{name}: {key} is not finite"
        arrays[key] = array
    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / "data.safetensors", metadata={"about": json.dumps(about, sort_keys=True)})
    return (folder / "data.safetensors").stat().st_size


def main():
    torch.set_num_threads(1)
    wanted = tuple(sys.argv[1:]) or ("",)
    makers = [("", low_rung, ops.FIXTURES), ("net-", tiny, TINY), ("full-", full, nets.FULL)]
    for prefix, make, names in makers:
        for name in names:
            if not (prefix + name).startswith(wanted):
                continue
            tensors, about = make(name)
            size = write(prefix + name, tensors, about)
            print(f"{prefix + name:24} {size:8} bytes, float32 differs by", about["f32"], flush=True)


if __name__ == "__main__":
    main()
