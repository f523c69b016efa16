"""Compares the corruptions of `ttac` with those of the public recipe, on CIFAR-10.

The recipe's side of images and errors comes from a folder of arrays with `statistics.json` (`--oracle`): a thousand
test images that the recipe corrupted at severity 5, the first hundred of them at severities 3 and 1. Its side of the
times is `time_recipe.py`, run in turn with `cargo bench`, each on one thread.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STANDARD = (
    "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost fog brightness "
    "contrast elastic_transform pixelate jpeg_compression"
).split()
IMAGES = 1000
SEEDS = (0, 1, 2)


def statistics(images, clean):
    """Means and deviations per channel, mean absolute difference to clean, mean absolute horizontal gradient."""
    values = images.astype(np.float64)
    return [
        *values.mean((0, 1, 2)),
        *values.std((0, 1, 2)),
        np.abs(values - clean).mean(),
        np.abs(np.diff(values, axis=2)).mean(),
    ]


def corrupted(ttac, severity, folder):
    """Our arrays of all fifteen corruptions by name."""
    where = Path(folder) / str(severity)
    command = [ttac, "corrupt", "--data", "cifar10", "--subset", str(IMAGES), "--corruption", "all"]
    subprocess.run([*command, "--severity", str(severity), "--out", str(where)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {name: np.load(where / f"{name}.npy") for name in STANDARD}


def expected(entry):
    return [*entry["mean"], *entry["std"], entry["mean_abs_diff_to_clean"], entry["mean_abs_horizontal_gradient"]]


def images_table(ttac, oracle):
    everything = json.loads((oracle / "statistics.json").read_text())
    clean = np.load(oracle / "clean.npy").astype(np.float64)
    print("| corruption | severity 5: difference | worst statistic | severity 3 | | severity 1 | |")
    print("|---|---|---|---|---|---|---|")
    cells = {name: [] for name in STANDARD}
    with tempfile.TemporaryDirectory() as folder:
        for severity in (5, 3, 1):
            ours = corrupted(ttac, severity, folder)
            for name in STANDARD:
                recipe = np.load(oracle / f"severity{severity}" / f"{name}.npy").astype(np.float64)
                difference = np.abs(ours[name][: len(recipe)] - recipe).mean()
                entry = everything[name]["5" if severity == 5 else f"{severity}_first1000"]
                worst = max(abs(a - b) / b for a, b in zip(statistics(ours[name], clean), expected(entry)))
                cells[name] += [f"{difference:.4f}", f"{100 * worst:.2f} %"]
    for name in STANDARD:
        print(f"| {name} | " + " | ".join(cells[name]) + " |", flush=True)


def errors_table(ttac, oracle, model):
    everything = json.loads((oracle / "statistics.json").read_text())
    print("| corruption | ours, seeds 0, 1, 2 | mean | recipe | difference |")
    print("|---|---|---|---|---|")
    for name in STANDARD:
        errors = []
        for seed in SEEDS:
            command = [ttac, "eval", "--model", model, "--data", "cifar10", "--subset", str(IMAGES), "--corruption", name]
            command += ["--severity", "5", "--corruption-seed", str(seed), "--json"]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
            errors.append(json.loads(output)["error_percent"])
        mean = sum(errors) / len(errors)
        recipe = everything[name]["5"]["resnet20_error_percent"]
        shown = ", ".join(f"{error:.1f}" for error in errors)
        print(f"| {name} | {shown} | {mean:.2f} | {recipe:.1f} | {mean - recipe:+.2f} |", flush=True)


def recipe_times(side):
    images = "200" if side == 32 else "20"
    command = [sys.executable, str(HERE / "time_recipe.py"), "--side", str(side), "--images", images]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line.split()[0]: float(line.split()[1]) for line in output.splitlines()}


def our_times(side):
    command = ["cargo", "bench", "--locked", "-p", "ttac-corrupt", "--", "--threads", "1", "--side", str(side)]
    output = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = re.findall(r"^([a-z_]+) +([0-9.]+) +[0-9.]+$", output, re.MULTILINE)
    return {name: float(microseconds) for name, microseconds in found}


def speed_table(rounds):
    print("| corruption | 32 x 32: ours, us | recipe | ratio | 224 x 224: ours, us | recipe | ratio |")
    print("|---|---|---|---|---|---|---|")
    cells = {}
    for side in (32, 224):
        ours, recipe = {}, {}
        for _ in range(rounds):
            for best, times in ((ours, our_times(side)), (recipe, recipe_times(side))):
                for name, each in times.items():
                    best[name] = min(each, best.get(name, each))
        for name, each in recipe.items():
            mine = ours[name]
            cells.setdefault(name, []).extend([f"{mine:.1f}", f"{each:.0f}", f"{each / mine:.1f}x"])
    for name, row in cells.items():
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", type=Path, help="folder of images that the recipe corrupted, for the tables of images and errors")
    parser.add_argument("--model", help="the checkpoint whose errors are compared")
    parser.add_argument("--ttac", default="ttac", help="the program")
    parser.add_argument("--speed", action="store_true", help="time both sides")
    parser.add_argument("--rounds", type=int, default=3, help="of timing; the best counts")
    args = parser.parse_args()
    if not os.environ.get("TTAC_FROST"):
        sys.exit("set TTAC_FROST to the folder of the frost photographs: without them there is no frost to compare")
    if args.oracle:
        images_table(args.ttac, args.oracle)
        if args.model:
            print()
            errors_table(args.ttac, args.oracle, args.model)
    if args.speed:
        print()
        speed_table(args.rounds)


if __name__ == "__main__":
    main()
