"""Whether a session grows: the resident memory of this process over many batches.

    reference/python-package/measure OUT memory [--batches 1000] [--size 256] [--method ttac]
"""

import argparse
import pathlib

import numpy as np

import ttac


def resident():
    status = pathlib.Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, default=1000)
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--method", default="ttac")
options = parser.parse_args()
folder = pathlib.Path(__file__).resolve().parents[2] / "assets/cifar10-resnet20"
session = ttac.Session(ttac.Model.load(folder / "model.safetensors"), ttac.Anchors.load(folder / "anchors.safetensors"), options.method)
draw = np.random.default_rng(0)
marks = {round(options.batches * share) for share in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1)}
for batch in range(1, options.batches + 1):
    answer = session.observe(draw.integers(0, 256, (options.size, 32, 32, 3), dtype=np.uint8))
    answer.probabilities, answer.learned.losses
    if batch in marks:
        print(f"{batch:6} batches {resident():7.1f} MB", flush=True)
