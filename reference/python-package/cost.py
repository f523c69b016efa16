"""What Python costs: seconds per observed batch in the command and in the package, in turn.

    reference/python-package/measure OUT cost [--batches 12] [--rounds 5] [--method ttac]

ResNet-20 on batches of 256 images of 32 x 32 pixels, without labels. The command's seconds are those of its log, learning and predicting;
Python's are taken around `Session.observe`, with everything that arrays and answers cost.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

BATCH = 256


def in_python(folder, method, batches, keep):
    """Prints the seconds of every batch, and those of them outside of the engine's learning and predicting."""
    import ttac

    if keep:
        ttac.keep_freed_memory()
    model = ttac.Model.load(folder / "model.safetensors")
    session = ttac.Session(model, ttac.Anchors.load(folder / "anchors.safetensors"), method)
    images = np.load(folder / "images.npy")
    seconds, outside = [], []
    for index in range(batches):
        batch = images[index * BATCH : (index + 1) * BATCH]
        start = time.perf_counter()
        answer = session.observe(batch)
        seconds.append(time.perf_counter() - start)
        outside.append(seconds[-1] - answer.learning_seconds - answer.predicting_seconds)
    print(json.dumps([seconds, outside]))


def by_command(folder, method, batches):
    """The seconds of every batch."""
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    run = [os.environ["TTAC_COMMAND"], "adapt", "--model", folder / "model.safetensors", "--anchors", folder / "anchors.safetensors"]
    run += ["--data", "image-folder", "--root", folder / "images", "--method", method, "--no-queue", "--batch-size", str(BATCH), "--log", log]
    subprocess.run(run, check=True, capture_output=True)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(records) == batches
    return [record["learning_seconds"] + record["predicting_seconds"] for record in records]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", default="ttac")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        in_python(pathlib.Path(options.child[0]), options.method, options.batches, options.child[1] == "keep")
        return
    root = pathlib.Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in ("model.safetensors", "anchors.safetensors"):
            (folder / name).symlink_to(root / "assets/cifar10-resnet20" / name)
        draw = np.random.default_rng(0)
        coarse = draw.integers(0, 256, (options.batches * BATCH, 8, 8, 3), dtype=np.uint8)
        images = coarse.repeat(4, 1).repeat(4, 2)
        np.save(folder / "images.npy", images)
        (folder / "images").mkdir()
        for index, image in enumerate(images):
            Image.fromarray(image).save(folder / "images" / f"{index:06}.png")
        found = {"command": [], "python": [], "python, memory kept": []}
        outside = []
        for _ in range(options.rounds):
            found["command"].append(by_command(folder, options.method, options.batches))
            for name, keep in (("python", "plain"), ("python, memory kept", "keep")):
                run = [sys.executable, __file__, "--child", folder, keep, "--method", options.method, "--batches", str(options.batches)]
                done = subprocess.run(run, check=True, capture_output=True, text=True)
                seconds, besides = json.loads(done.stdout)
                found[name].append(seconds)
                outside.extend(besides[1:])
    # The first batch of a process makes tables and takes its memory from the system.
    best = {name: min(second for round in rounds for second in round[1:]) for name, rounds in found.items()}
    middle = {name: statistics.median(second for round in rounds for second in round[1:]) for name, rounds in found.items()}
    print(f"{options.method}, ResNet-20, batches of {BATCH}, {options.rounds} rounds of {options.batches} batches in turn")
    for name in found:
        print(
            f"{name:20} least {1000 * best[name]:7.1f} ms ({best[name] / best['command']:.3f} of the command's), "
            f"median {1000 * middle[name]:7.1f} ms ({middle[name] / middle['command']:.3f})"
        )
    share = 100 * statistics.median(outside) / middle["python"]
    print(f"of Python's, outside of learning and predicting: median {1000 * statistics.median(outside):.2f} ms, {share:.2f} %")


if __name__ == "__main__":
    main()
