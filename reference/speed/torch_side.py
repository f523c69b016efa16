"""Times PyTorch on one network: prints seconds and peak memory as JSON.

Arguments: net batch work layout repeats, with work train, norm, eval or adapt:METHOD and layout default or tuned.
"""

import json
import re
import sys
import time
import types
from pathlib import Path

import torch
import torch.nn.functional as F

for folder in ("parity", "objectives", "methods"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

import methods  # noqa: E402
import nets  # noqa: E402

NETS = {
    "resnet20-cifar": lambda: nets.ResNetCifar(depth=20, width=16, classes=10),
    "resnet26-wide": lambda: nets.ResNetCifar(depth=26, width=32, classes=10),
    "resnet50-cifar": lambda: nets.ContrastiveResNet(block="bottleneck", blocks=[3, 4, 6, 3], classes=10),
    "wrn-40-2": lambda: nets.WideResNet(depth=40, widen=2, classes=10),
    "vit-tiny-4": lambda: nets.FULL["vit-tiny-4"][0](**nets.FULL["vit-tiny-4"][1]),
    "dgcnn": lambda: nets.Dgcnn(classes=10),
}


def make(name):
    """The network and the shape of its input."""
    if name in NETS:
        return NETS[name](), (3, *((1024, 1) if name == "dgcnn" else (32, 32)))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "graph"))
    import zoo  # needs packages that the others do not

    return zoo.plain(zoo.TIMED[name])


def without_noise(net):
    """No dropout and stochastic depth, which an export in eval mode does not have either."""
    for module in net.modules():
        if re.search("Dropout|DropPath|StochasticDepth", type(module).__name__):
            module.eval()


def edge_features_by_rows(x, k):
    """As `nets.edge_features`, in channels_last: whole rows are gathered, as in the authors' program, and not copied again."""
    batch, channels, points = x.shape
    first = torch.arange(batch).view(-1, 1, 1) * points
    index = (nets.nearest(x.detach(), k) + first).view(-1)
    rows = x.transpose(1, 2).reshape(batch * points, channels)
    near = rows[index].view(batch, points, k, channels)
    own = rows.view(batch, points, 1, channels).expand(-1, -1, k, -1)
    return torch.cat([near - own, own], 3).permute(0, 3, 1, 2)


def resident(field):
    """Megabytes of this process in memory, now (VmRSS) or at most (VmHWM)."""
    return int(re.search(field + r":\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024


def adapt(name, net, x, repeats):
    """Seconds of each arriving batch, after one that does not count: the methods of the fixtures, without a queue."""
    marks = []

    def arriving():
        for _ in range(repeats + 1):
            marks.append(time.perf_counter())
            yield x
        marks.append(time.perf_counter())

    size = methods.classifier(net).in_features
    constants = dict(learning_rate=1e-3, momentum=0.9, beta_1=0.9, beta_2=0.999, epsilon=1e-8, template_divisor=30.0)
    constants |= dict(class_clip=128.0, global_clip=1280.0, loss_scale=0.05, class_gate_count=16, assignment="hard")
    # All samples are accepted, so that every class has its part.
    constants |= dict(confidence_threshold=0.0, information_maximisation_weight=0.0, divergence="both", global_loss="divergence")
    eye = torch.eye(size)
    anchors = {"mean": torch.zeros(size), "covariance": eye, "class_mean": torch.randn(10, size), "class_covariance": eye.expand(10, -1, -1)}
    case = types.SimpleNamespace(net=net, batches=arriving(), c=types.SimpleNamespace(**constants), anchors=anchors, classes=10, record=methods.Record())
    if name == "tent":
        # Predict-first, as its original: one forward pass for both.
        affine = [p for norm in methods.norms(net.train()) for p in (norm.weight, norm.bias)]
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        for parameter in affine:
            parameter.requires_grad_(True)
        optimiser = torch.optim.Adam(affine, lr=1e-3)
        for images in arriving():
            logits = methods.classify(net, images)
            methods.step(optimiser, methods.entropy(logits).mean())
    else:
        {"test": methods.test, "bn": methods.bn_batch, "ttac": methods.ttac}[name](case)
    return [after - before for before, after in zip(marks[1:], marks[2:])]


def main():
    start_megabytes = resident("VmRSS")
    name, batch, work, layout, repeats = sys.argv[1:6]
    # In place, as a tuned program would: every ReLU here follows a norm or a sum that nobody else reads.
    nets.F = types.SimpleNamespace(**(vars(F) | {"relu": F.relu_, "leaky_relu": F.leaky_relu_}))
    batch, repeats = int(batch), int(repeats)
    torch.set_num_threads(int(sys.argv[6]) if len(sys.argv) > 6 else torch.get_num_threads())
    torch.manual_seed(0)
    net, shape = make(name)
    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    x = torch.rand(batch, *shape) * 2 - 1
    if layout == "tuned":
        nets.edge_features = edge_features_by_rows
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) * 7 % 10
    if work == "norm":
        for module in net.modules():
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.LayerNorm)))
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    @torch.no_grad()
    def forward():
        net(x)

    if work.startswith("adapt:"):
        seconds = adapt(work.removeprefix("adapt:"), net, x, repeats)
    else:
        net.train(work != "eval")
        if name not in NETS:
            without_noise(net)
        call = forward if work == "eval" else step
        call()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    peak = resident("VmHWM")
    seconds.sort()
    print(json.dumps({"minimum_seconds": seconds[0], "median_seconds": seconds[len(seconds) // 2], "start_megabytes": start_megabytes, "peak_megabytes": peak}))


if __name__ == "__main__":
    main()
