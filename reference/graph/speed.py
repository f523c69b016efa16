"""Compares the speed of five imported networks with PyTorch: a training step, a forward pass, peak memory.

    reference/graph/speed OUT [--program TTAC] [arguments of reference/speed/compare]

Exports the networks to OUT/NAME.pt2 and imports them to OUT/NAME.safetensors, unless they are there, and lets
`reference/speed/compare` alternate between both sides. Batches of 32; torch's best setting is its side `tuned`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

COMPARE = Path(__file__).resolve().parents[1] / "speed/compare"


def export(path, name):
    import torch

    import zoo

    net, x = zoo.make(name)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    unfinished = path.with_suffix(".unfinished.pt2")
    torch.export.save(program, unfinished)
    unfinished.rename(path)


def main():
    import zoo

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--program", metavar="TTAC", help="our program")
    parser.add_argument("--export-only", action="store_true", help="write the .pt2 files and nothing else")
    parser.add_argument("--nets", nargs="+", choices=zoo.TIMED, default=list(zoo.TIMED))
    args, rest = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for net in args.nets:
        exported = args.out / f"{net}.pt2"
        if not exported.exists():
            export(exported, zoo.TIMED[net])
    if args.export_only:
        return
    if args.program is None:
        parser.error("--program is needed: target/release/ttac, built by `cargo build --release -p ttac-cli`")
    for net in args.nets:
        imported = args.out / f"{net}.safetensors"
        if not imported.exists():
            command = [args.program, "import", str(args.out / f"{net}.pt2"), "--normalise", "none", "--out", str(imported)]
            subprocess.run(command, check=True, stdout=sys.stderr)
    command = [str(COMPARE), "--models", str(args.out), "--program", args.program, "--nets", *args.nets]
    # What is given here comes first, so that it can be said otherwise.
    os.execv(COMPARE, [*command, "--work", "train", "eval", "--sides", "ours", "tuned", *rest])


if __name__ == "__main__":
    main()
