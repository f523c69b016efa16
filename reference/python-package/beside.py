"""The same TENT step in PyTorch programs and here, on the same network and images, in one run.

    reference/python-package/measure OUT beside [--batches 8] [--rounds 5]

- `tent` is the step of the original program, as mariodoebler's benchmark has it too: norms use the statistics of the batch, Adam moves their scales
  and shifts down the mean entropy, and the scores are those from before the step. It is written out here, as both programs want a
  graphics card.
- `torch-ttt` is the engine of torch-ttt 0.0.2 with one step and without its copy of the network; its network is put into train mode, since in eval
  mode its norms would use the source's statistics. Its scores are those of a second pass, after the step.
- `ttac` is `ttac.torch.Adapter` in place of each: predict-first and adapt-first.
"""

import argparse
import copy
import pathlib
import sys
import time

import numpy as np
import torch
from torch_ttt.engine.tent_engine import TentEngine

import ttac
import ttac.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "reference/parity"))
import nets  # noqa: E402

RATE = 1e-3
BATCH = 256


class Tent:
    def __init__(self, net):
        self.net = net.train().requires_grad_(False)
        norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.requires_grad_(True)
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = None
        self.optimizer = torch.optim.Adam([parameter for norm in norms for parameter in norm.parameters()], lr=RATE)

    def __call__(self, x):
        scores = self.net(x)
        entropy = -(scores.softmax(1) * scores.log_softmax(1)).sum(1)
        entropy.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return scores.detach()


def torch_ttt(net):
    engine = TentEngine(net, {"lr": RATE, "num_steps": 1, "copy_model": False}).eval()
    engine.model.train()
    return lambda x: engine(x)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = ttac.Model.load(ROOT / "assets/cifar10-resnet20/model.safetensors")
    mean, std = model.normalisation
    net = nets.ResNetCifar(depth=20, width=16, classes=10)
    net.load_state_dict(model.state_dict(), strict=True)
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (options.batches, BATCH, 8, 8, 3), dtype=np.uint8)
    pixels = torch.from_numpy(coarse.repeat(4, 2).repeat(4, 3)).permute(0, 1, 4, 2, 3).float() / 255
    stream = ((pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)).contiguous()

    def adapter(predict_first):
        settings = {"method": "tent", "preset": "released", "learning_rate": RATE, "predict_first": predict_first}
        return ttac.torch.Adapter(net, stream[0, :2], mean=mean, std=std, **settings)

    programs = {
        "tent": lambda: Tent(copy.deepcopy(net)),
        "ttac, predict-first": lambda: adapter(True),
        "torch-ttt": lambda: torch_ttt(copy.deepcopy(net)),
        "ttac, adapt-first": lambda: adapter(False),
    }
    seconds = {name: [] for name in programs}
    scores = {}
    for _ in range(options.rounds):
        running = {name: make() for name, make in programs.items()}
        found = {name: [] for name in programs}
        # Batch by batch in turn, so that a busy moment of the machine hits all of them.
        for batch in stream:
            for name, program in running.items():
                start = time.perf_counter()
                found[name].append(program(batch))
                seconds[name].append(time.perf_counter() - start)
        scores = {name: torch.stack(batches) for name, batches in found.items()}
    print(f"TENT, ResNet-20, batches of {BATCH}, {options.batches} batches, {options.rounds} rounds, {torch.get_num_threads()} threads in PyTorch")
    for ours, theirs in (("ttac, predict-first", "tent"), ("ttac, adapt-first", "torch-ttt")):
        first = (scores[ours][0] - scores[theirs][0]).abs().max() / scores[theirs][0].abs().max()
        last = (scores[ours][-1] - scores[theirs][-1]).abs().max() / scores[theirs][-1].abs().max()
        same = (scores[ours].argmax(-1) == scores[theirs].argmax(-1)).float().mean()
        ratio = min(seconds[ours]) / min(seconds[theirs])
        print(
            f"{theirs:10} least {1000 * min(seconds[theirs]):6.1f} ms; {ours} least {1000 * min(seconds[ours]):6.1f} ms, {ratio:.2f} of it; scores differ by "
            f"{first:.1e} of the largest in the first batch, {last:.1e} in the last; {100 * same:.2f} % of all predictions are equal"
        )


main()
