"""Times PyTorch on one network: prints seconds and peak memory as JSON.

Arguments: net batch work layout repeats, with work train, norm or eval and layout default or tuned.
"""

import json
import re
import sys
import time
import types
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

import nets  # noqa: E402

NETS = {
    "resnet20-cifar": lambda: nets.ResNetCifar(depth=20, width=16, classes=10),
    "resnet26-wide": lambda: nets.ResNetCifar(depth=26, width=32, classes=10),
    "resnet50-cifar": lambda: nets.ContrastiveResNet(block="bottleneck", blocks=[3, 4, 6, 3], classes=10),
    "wrn-40-2": lambda: nets.WideResNet(depth=40, widen=2, classes=10),
}


def resident(field):
    """Megabytes of this process in memory, now (VmRSS) or at most (VmHWM)."""
    return int(re.search(field + r":\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024


def main():
    start_megabytes = resident("VmRSS")
    name, batch, work, layout, repeats = sys.argv[1:6]
    # In place, as a tuned program would: every ReLU here follows a norm or a sum that nobody else reads.
    nets.F = types.SimpleNamespace(**(vars(F) | {"relu": F.relu_}))
    batch, repeats = int(batch), int(repeats)
    torch.set_num_threads(int(sys.argv[6]) if len(sys.argv) > 6 else torch.get_num_threads())
    torch.manual_seed(0)
    net = NETS[name]()
    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    x = torch.rand(batch, 3, 32, 32) * 2 - 1
    if layout == "tuned":
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) * 7 % 10
    if work == "norm":
        for module in net.modules():
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(isinstance(module, torch.nn.BatchNorm2d))
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

    net.train(work != "eval")
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
