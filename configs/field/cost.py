"""Compares what each method takes with the sum of its own forward and backward passes.

Run it on a machine that does nothing else, in the folder with `resnet20.safetensors` and `anchors.safetensors`:

    python3 configs/field/cost.py --ttac ttac --config configs/field/cost.toml --out results/field/cost

It runs `ttac bench` on the grid, times single passes by `ttac speed`, and prints a table. Cells that are there are
not run again: remove the folder to measure anew.
"""

import argparse
import json
import pathlib
import subprocess

# Passes over each arriving image under predict-first: forward passes, backward passes of scales and shifts, backward
# passes of all weights. The open gate of `recommended` asks the source for every eighth image. A memory of 64 is passed once for 64
# images, but PeTTA's once for each batch.
PASSES = {
    "test": (1, 0, 0),
    "bn": (1, 0, 0),
    "lame": (1, 0, 0),
    "t3a": (1, 0, 0),
    "tent": (1, 1, 0),
    "rpl": (1, 1, 0),
    "eta": (1, 1, 0),
    "eata": (1, 1, 0),
    "poem": (1, 1, 0),
    "deyo": (2, 1, 0),
    "sar": (2, 2, 0),
    "roid": (1.5, 1.5, 0),
    "cmf": (1.5, 1.5, 0),
    "note": (2, 1, 0),
    "rotta": (3, 1, 0),
    "petta": (5, 2, 0),
    "tribe": (4, 2, 0),
    "rmt": (3, 0, 2),
    "cotta": (35, 0, 1),
    "memo": (33, 0, 32),
    "shot": (2, 0, 1),
    "tfa": (2, 0, 1),
    "ttac": (2, 0, 1),
    "ttac+shot": (2, 0, 1),
    "ttac++": (3, 0, 2),
}


def program(arguments):
    """Returns what the command prints."""
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttac", default="ttac")
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--repeats", default="7")
    options = parser.parse_args()
    program([options.ttac, "bench", options.config, "--out", options.out])
    seconds = {}
    for batch in ("64", "200"):
        for work in ("eval", "norm", "train"):
            command = [options.ttac, "speed", "--arch", "resnet20-cifar", "--work", work]
            command += ["--batch-size", batch, "--repeats", options.repeats, "--json"]
            timed = json.loads(program(command))
            seconds[batch, work] = timed["minimum_seconds"] / int(batch)
            print(f"{work}, batches of {batch}: {1e3 * seconds[batch, work]:.3f} ms per image")
    print("\n| method | batch | ms per image | passes | ms of its passes | ratio |\n| --- | --- | --- | --- | --- | --- |")
    for path in sorted(pathlib.Path(options.out).glob("*.json")):
        cell = json.loads(path.read_text())
        record, batch = cell["record"], cell["axes"]["batch-size"]
        taken = (record["learning_seconds"] + record["predicting_seconds"]) / record["samples"]
        card = record["card"]
        forwards, affine, whole = PASSES[card["method"]]
        if card["method"] == "petta":
            forwards, affine = 1 + 4 * 64 / int(batch), 2 * 64 / int(batch)
        if record.get("gate"):
            forwards += 0.25
        forward = seconds[batch, "eval"]
        sum_of_passes = forwards * forward
        sum_of_passes += affine * (seconds[batch, "norm"] - forward)
        sum_of_passes += whole * (seconds[batch, "train"] - forward)
        passes = f"{forwards:g}F + {affine + whole:g}B" + (" of all weights" if whole else "")
        print(
            f"| {cell['row']} | {batch} | {1e3 * taken:.3f} | {passes} | {1e3 * sum_of_passes:.3f} | {taken / sum_of_passes:.2f} |"
        )


if __name__ == "__main__":
    main()
