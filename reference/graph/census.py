"""Exports the networks of `zoo.py`, and checks what our program makes of them.

    reference/graph/census OUT [NAME...]                # writes OUT/NAME.pt2, OUT/NAME.reference.safetensors
    reference/graph/census OUT [NAME...] --check TTAC   # imports them with the program TTAC, prints a table

A name may be the beginning of several. What is there already is not made again. Every network has a process of its
own with a time limit. OUT/census.json says what was exported, OUT/check.json what was imported.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def export(out, name):
    """One network, in this process. The files appear whole or not at all."""
    import torch
    from safetensors.torch import save_file

    import zoo

    torch.set_num_threads(int(os.environ.get("CENSUS_THREADS", "1")))
    start = time.perf_counter()
    net, x = zoo.make(name)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    seconds = time.perf_counter() - start
    unfinished = out / f"{name}.unfinished.pt2"
    torch.export.save(program, unfinished)
    operations = collections.Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
    dynamic = not isinstance(next(iter(reversed(program.graph.nodes))).args[0][0].meta["val"].shape[0], int)
    with torch.no_grad():
        single = net(x)
        try:
            logits, precision = net.double()(x.double()), "float64"
            logits = logits.float()
        except RuntimeError as error:
            print(f"float64: {error}", file=sys.stderr)
            logits, precision = single, "float32"
    about = {
        "shape": list(x.shape[1:]), "outputs": logits.shape[1], "parameters": sum(p.numel() for p in net.parameters()),
        "nodes": sum(operations.values()), "operations": dict(operations.most_common()), "dynamic_batch": dynamic,
        "precision": precision, "largest_logit": logits.abs().max().item(),
        "float32_difference": ((single - logits).abs().max() / logits.abs().max()).item(),
        "export_seconds": round(seconds, 1),
    }
    reference = out / f"{name}.reference.safetensors"
    save_file({"x": x.contiguous(), "eval.logits": logits.contiguous()}, reference, {"about": json.dumps(about)})
    unfinished.rename(out / f"{name}.pt2")
    print(json.dumps(about))


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def run(command, limit):
    """Standard output, and what was said on standard error if the command failed."""
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return "", f"not done after {limit} s"
    return result.stdout, (result.stderr or f"exit status {result.returncode}") if result.returncode else None


def export_all(out, names, limit, again):
    report = out / "census.json"
    found = json.loads(report.read_text()) if report.exists() else {}
    for number, name in enumerate(names, 1):
        whole = (out / f"{name}.pt2").exists() and "error" not in found.get(name, {"error": ""})
        if whole or (name in found and "error" in found[name] and not again):
            continue
        start = time.perf_counter()
        output, error = run([sys.executable, __file__, str(out), "--one", name], limit)
        error = error and last_line(error)
        found[name] = {"error": error} if error else json.loads(last_line(output))
        report.write_text(json.dumps(found, indent=1))
        said = error or f"{found[name]['nodes']} nodes"
        print(f"{number:3}/{len(names)} {name}: {said}, {time.perf_counter() - start:.0f} s", flush=True)


def check(out, names, program, limit):
    """Imports each export with our program and compares the logits. Prints a Markdown table."""
    found = {}
    print("| network | imported | largest relative difference | PyTorch's own in float32 | reason |")
    print("|---|---|---|---|---|")
    exported = json.loads((out / "census.json").read_text())
    for name in names:
        about = exported.get(name, {"error": "not exported"})
        if "error" in about:
            print(f"| {name} | - | | | not exported: {about['error']} |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [program, "import", str(out / f"{name}.pt2"), "--normalise", "none"]
            command += ["--out", f"{folder}/m.safetensors", "--verify", str(out / f"{name}.reference.safetensors"), "--json"]
            start = time.perf_counter()
            output, error = run(command, limit)
        entry = found[name] = {"seconds": round(time.perf_counter() - start, 1), "error": error}
        # A difference beyond our program's own bound is an error with an answer.
        entry["answer"] = json.loads(output) if output.strip() else None
        entry["difference"] = difference(entry["answer"])
        shown = "" if entry["difference"] is None else f"{entry['difference']:.1e}"
        reason = " ".join((error or "").rpartition("error: ")[2].split())[:300].replace("|", "\\|")
        print(f"| {name} | {'no' if error else 'yes'} | {shown} | {about['float32_difference']:.1e} | {reason} |", flush=True)
        (out / "check.json").write_text(json.dumps(found, indent=1))
    imported = [entry for entry in found.values() if not entry["error"]]
    # An answer without a number is as bad as a wrong one.
    known = [entry["difference"] for entry in imported if entry["difference"] is not None]
    within = sum(d <= 1e-4 for d in known)
    print(f"\n{len(imported)} of {len(names)} imported", end="")
    print(f", {within} within 1e-4, largest difference {max(known):.1e}" if known else "")
    return within == len(names)


def difference(answer):
    """The largest number under a key that speaks of a difference, wherever our program's answer has it."""
    if isinstance(answer, dict):
        own = [v for k, v in answer.items() if "difference" in k and type(v) in (int, float)]
        answer = list(answer.values())
    elif isinstance(answer, list):
        own = []
    else:
        return None
    return max([*own, *(d for d in map(difference, answer) if d is not None)], default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all 82, or those that start so: timm. cifar.wrn")
    parser.add_argument("--check", metavar="TTAC", help="path of our program")
    parser.add_argument("--limit", type=int, default=1200, help="seconds for each network")
    parser.add_argument("--again", action="store_true", help="try once more what could not be exported")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        export(args.out, args.one)
        return
    import zoo

    names = [name for name in zoo.NAMES if not args.names or name.startswith(tuple(args.names))]
    if args.check:
        sys.exit(0 if check(args.out, names, args.check, args.limit) else 1)
    export_all(args.out, names, args.limit, args.again)


if __name__ == "__main__":
    main()
