"""A small world by formula: classes that are patterns under noise, a network that tells them apart, its anchors."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parity"))

import formula
import nets

CLASSES = 5
SOURCE_COUNT, STREAM_COUNT, BATCH = 128, 160, 16
PATTERN_SCALE = 3.0
# name: (scale, offset) of the noise. The stream is noisier than the source, and brighter.
NOISE = {"source": (2.0, 0.0), "stream": (2.5, 0.3), "view1": (3.0, 0.3), "view2": (3.0, 0.3)}

# name: (class, configuration, image size, key of the classifier, sharpness of its logits)
NETWORKS = {
    "resnet-cifar": (nets.ResNetCifar, {"depth": 8, "width": 4, "classes": CLASSES}, 8, "linear", 1.0),
    "resnet18-cifar": (
        nets.ContrastiveResNet,
        {"block": "basic", "blocks": [1, 1, 1, 1], "width": 2, "classes": CLASSES, "projection": 8},
        16,
        "fc",
        1.2,
    ),
}


def class_of(count):
    """The class whose pattern an image has: `7 i mod 5`."""
    return formula.labels(count, CLASSES)


def pictures(kind, name, count, size):
    """float32 NCHW: the pattern of the image's class plus noise. `kind` fixes the noise, `name` the draw."""
    scale, offset = NOISE[kind]
    pattern = formula.values("pattern", (CLASSES, size, size, 3), PATTERN_SCALE)
    noise = formula.values(name, (count, size, size, 3), scale, offset)
    return (pattern[class_of(count)] + noise).permute(0, 3, 1, 2).contiguous()


def note(kind, name, count, size):
    scale, offset = NOISE[kind]
    return {"name": name, "shape": [count, size, size, 3], "scale": scale, "offset": offset}


def float32(values):
    """Rounded to what a fixture can hold, so that both sides start from the same numbers."""
    return values.float().double()


def start(architecture):
    """The network in float64 and the tensors which are not by formula.

    Convolutions, norm weights and heads are by formula. Running statistics are those of the source set, taken in
    one train-mode forward. The classifier is a linear discriminant of the source features, times its sharpness.
    """
    kind, config, size, classifier, sharpness = NETWORKS[architecture]
    net = formula.fill(kind(**config)).double()
    source = pictures("source", "source", SOURCE_COUNT, size).double()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = 1.0
        net.train().features(source)
        for norm in norms:
            norm.momentum = 0.1
            norm.running_mean.copy_(float32(norm.running_mean))
            norm.running_var.copy_(float32(norm.running_var))
        weight, bias = discriminant(net.eval().features(source), class_of(SOURCE_COUNT))
        layer = net.get_submodule(classifier)
        layer.weight.copy_(float32(sharpness * weight))
        layer.bias.copy_(float32(sharpness * bias))
    given = {key: value for key, value in net.state_dict().items() if key.endswith(("running_mean", "running_var"))}
    given |= {f"{classifier}.weight": layer.weight, f"{classifier}.bias": layer.bias}
    return net, {f"initial.{key}": value.detach().clone() for key, value in given.items()}


def discriminant(features, labels):
    """Linear discriminant analysis with a ridge of a tenth of the mean variance."""
    mean = features.mean(0)
    centres = torch.stack([features[labels == k].mean(0) for k in range(CLASSES)])
    inner = features - centres[labels]
    within = inner.T @ inner / len(features)
    within += 0.1 * within.diagonal().mean() * torch.eye(len(mean), dtype=features.dtype)
    weight = torch.linalg.solve(within, (centres - mean).T).T
    return weight, -0.5 * (weight * (centres + mean)).sum(1)


def moments(features):
    """Mean and biased covariance."""
    mean = features.mean(0)
    return mean, (features - mean).T @ (features - mean) / len(features)


@torch.no_grad()
def anchors(net, classify, size):
    """Source statistics (docs/methods.md): eval mode, classes by prediction, biased covariances."""
    features = net.eval().features(pictures("source", "source", SOURCE_COUNT, size).double())
    labels = classify(features).argmax(1)
    classes = [moments(features[labels == k]) for k in range(CLASSES)]
    mean, covariance = moments(features)
    found = {
        "mean": mean,
        "covariance": covariance,
        "class_mean": torch.stack([mean for mean, _ in classes]),
        "class_covariance": torch.stack([covariance for _, covariance in classes]),
        "class_count": torch.bincount(labels, minlength=CLASSES).double(),
    }
    return {f"anchors.{key}": float32(value) for key, value in found.items()}


@torch.no_grad()
def alignment_anchors(outputs, batch):
    """Alignment moments: the first batch is the reference of the natural scales, the rest gives the moments."""
    first, *later = outputs.split(batch)

    def unbiased(x):
        return x.mean(0), torch.cov(x.T)

    (mean, covariance), size = unbiased(first), outputs.shape[1]
    covariance_scale = torch.stack([(unbiased(x)[1] - covariance).square().sum() / (4 * size**2) for x in later]).mean()
    mean_scale = torch.stack([(unbiased(x)[0] - mean).square().mean() for x in later]).mean()
    mean, covariance = unbiased(torch.cat(later))
    found = {"mean": mean, "covariance": covariance, "covariance_scale": covariance_scale, "mean_scale": mean_scale}
    return {key: float32(value) for key, value in found.items()}


def orders(batches, queue_length, minibatch, epochs, purpose, first_epoch):
    """For each arriving batch and epoch, the queue's stream indices in the order in which they are visited."""
    out = []
    for arriving in range(batches):
        end = (arriving + 1) * BATCH
        queue = torch.arange(max(0, end - queue_length), end)
        count = min(epochs, len(queue) // minibatch + 1)
        shuffled = []
        for epoch in range(first_epoch, count + 1):
            keys = formula.values(f"{purpose}.{arriving}.{epoch}", (len(queue),), 1.0)
            shuffled.append(queue[keys.argsort()].tolist())
        out.append(shuffled)
    return out
