"""Writes the objectives' fixtures. With arguments, only those whose names start with one of them."""

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "parity"))

import formula
import generate as parity
import nets
import objectives
import ops

parity.FIXTURES = HERE.parents[1] / "crates/ttac/tests/fixtures/objectives"

RATE, MOMENTUM, DECAY, STEPS = 0.02, 0.9, 1e-4, 5
BATCH, CLASSES, SIZE = 4, 10, 16
SIMCLR = parity.TINY["resnet18-cifar"][1]
ROTATION = parity.ROTATION | {"norm": "group", "shared": 2}
ROTATION_BATCH = parity.ROTATION | {"norm": "batch", "shared": 3}


# ---- Single losses: value and gradient -----------------------------------------------------------


def label_smoothing(f):
    kinds = {"all": objectives.smoothed_over_all, "others": objectives.smoothed_over_others}
    labels = formula.labels(6, CLASSES)
    for kind, smoothing, scale in (("all", 0.1, 3.0), ("all", 0.1, 200.0), ("others", 0.1, 3.0), ("others", 0.2, 3.0)):
        case = f"{kind}-{smoothing}" + ("-steep" if scale > 3 else "")
        f.cases[case] = {"smoothing": smoothing, "spread_over": kind, "labels": labels.tolist()}
        x = f.draw(f"{case}.x", (6, CLASSES), scale)
        y = kinds[kind](x, labels, smoothing)
        if kind == "all":
            torch.testing.assert_close(y, F.cross_entropy(x, labels, label_smoothing=smoothing))
        f.put_backward(case, y, {"dx": x})


def nt_xent(f):
    for case, pairs, temperature in (("plain", 6, 0.5), ("cold", 6, 0.1), ("two-pairs", 2, 0.5)):
        f.cases[case] = {"pairs": pairs, "temperature": temperature, "base_temperature": 0.07}
        x = f.draw(f"{case}.x", (2 * pairs, 16), 3.0)
        y = objectives.contrastive(x, temperature)
        f.put_backward(case, y, {"dx": x})
    # Identical views of orthogonal embeddings have a closed form (docs/methods.md, Identities that the tests check).
    same = torch.eye(6, 16, dtype=f.dtype).repeat(2, 1)
    torch.testing.assert_close(objectives.contrastive(same).item(), 0.5 / 0.07 * math.log(1 + 10 * math.exp(-2)))


LOSSES = {"label-smoothing": label_smoothing, "nt-xent": nt_xent}


# ---- Networks --------------------------------------------------------------------------------------


def input_note(*names):
    shape = [BATCH, SIZE, SIZE, 3]
    return {name: {"shape": shape, "scale": 3.0, "offset": 0.0} for name in names}


def image(name, dtype):
    return formula.images(name, (BATCH, 3, SIZE, SIZE)).to(dtype)


def rotation_gradients(config):
    def run(dtype):
        net = parity.build(nets.ResNetRotation, config, dtype, True)
        turned, turns = objectives.four_turns(image("input", dtype))
        logits = objectives.rotation_logits(net, turned)
        loss = F.cross_entropy(logits, turns)
        named = dict(net.named_parameters())
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        out = {"logits": logits, "loss": loss}
        return out | {f"grad.{key}": g for key, g in zip(named, found) if g is not None}

    about = {"architecture": "resnet26-" + config["norm"], "config": config, "inputs": input_note("input")}
    return run, about | {"mode": "train", "turns": [i // BATCH for i in range(4 * BATCH)]}


def train(net, loss_of):
    """Five steps on the same inputs; the losses are those before each step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    losses = {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        total, terms = loss_of(net)
        total.backward()
        optimizer.step()
        for name, value in (terms | {"total": total}).items():
            losses.setdefault(f"losses.{name}", []).append(value.detach())
    out = {key: torch.stack(values) for key, values in losses.items()}
    state = net.state_dict().items()
    return out | {f"after.{key}": value for key, value in state if not key.endswith("num_batches_tracked")}


SGD = {"lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "steps": STEPS}


def train_simclr():
    labels = formula.labels(BATCH, CLASSES)

    def run(dtype):
        net = parity.build(nets.ContrastiveResNet, SIMCLR, dtype, True)
        first, second = image("view1", dtype), image("view2", dtype)
        return train(net, lambda net: objectives.joint_contrastive(net, first, second, labels))

    about = {"architecture": "resnet18-cifar", "config": SIMCLR, "inputs": input_note("view1", "view2")}
    weights = {"class": 0.9, "contrastive": 0.1, "temperature": 0.5, "base_temperature": 0.07}
    return run, about | {"labels": labels.tolist(), "sgd": SGD, "loss": weights}


def train_rotation(config=ROTATION):
    labels = formula.labels(BATCH, CLASSES)

    def run(dtype):
        net = parity.build(nets.ResNetRotation, config, dtype, True)
        return train(net, lambda net: objectives.joint_rotation(net, image("input", dtype), labels))

    about = {"architecture": "resnet26-" + config["norm"], "config": config, "inputs": input_note("input")}
    return run, about | {"labels": labels.tolist(), "sgd": SGD, "loss": {"class": 1.0, "rotation": 1.0}}


NETWORKS = {
    "rotation-layer2": lambda: rotation_gradients(ROTATION),
    "rotation-layer3": lambda: rotation_gradients(ROTATION_BATCH),
    "train-simclr": train_simclr,
    "train-rotation": train_rotation,
}


def network_fixture(name):
    run, about = NETWORKS[name]()
    expected, actual = run(torch.float64), run(torch.float32)
    single = {}
    for key, value in expected.items():
        group = key.split(".")[0]
        single[group] = max(single.get(group, 0.0), parity.difference(actual[key], value))
    return expected, about | {"f32": {group: parity.rounded(value) for group, value in single.items()}}


def main():
    torch.set_num_threads(1)
    ops.FIXTURES |= LOSSES
    wanted = tuple(sys.argv[1:]) or ("",)
    for make, names in ((parity.low_rung, LOSSES), (network_fixture, NETWORKS)):
        for name in names:
            if not name.startswith(wanted):
                continue
            tensors, about = make(name)
            size = parity.write(name, tensors, about)
            print(f"{name:24} {size:8} bytes, float32 differs by", about["f32"], flush=True)


if __name__ == "__main__":
    main()
