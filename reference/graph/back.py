"""Checks the way back: what our program wrote for PyTorch and for ONNX gives our program's logits there.

    reference/graph/back FILE.pt2 EXPECTED.safetensors [--state STATE.safetensors]
    reference/graph/back FILE.onnx EXPECTED.safetensors

EXPECTED holds `x` and `eval.logits`, as for `ttac import --verify`. STATE is the state_dict that our program exported:
the weights in the `.pt2` must be the same bytes. Prints JSON; fails where something is off.
"""

import argparse
import json
import sys

import numpy
import torch
from safetensors.torch import load_file


def pt2(path):
    program = torch.export.load(path)
    net = program.module()

    @torch.no_grad()
    def call(x):
        return net(torch.from_numpy(x)).numpy()

    return call, program.state_dict


def onnx(path):
    import onnx
    import onnxruntime

    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    weights = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
    return lambda x: session.run(None, {name: x})[0], weights


def relative(found, expected):
    """The largest difference over the largest magnitude; not a number stays one."""
    return float(numpy.abs(found - expected).max() / numpy.abs(expected).max())


def one_by_one(call, x, logits):
    """The largest difference when images come alone, or why they cannot."""
    try:
        return relative(numpy.concatenate([call(x[i : i + 1]) for i in range(len(x))]), logits)
    except Exception as error:  # a static export says no in its own words
        return str(error).strip().splitlines()[0]


def bits(tensor):
    """The bytes, in which not-a-number equals itself."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def other_bytes(found, expected):
    """Names that only one side has, or whose type, shape or bytes are others."""
    def same(a, b):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))

    both = found.keys() & expected.keys()
    return sorted((found.keys() ^ expected.keys()) | {name for name in both if not same(found[name], expected[name])})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("expected", metavar="EXPECTED.safetensors")
    parser.add_argument("--state", metavar="STATE.safetensors")
    # Both sides add in single precision, each in its order: one alone is off by up to 1.4e-5 in the census.
    parser.add_argument("--tolerance", type=float, default=3e-5, help="largest difference over largest logit")
    args = parser.parse_args()
    call, weights = (onnx if args.file.endswith(".onnx") else pt2)(args.file)
    expected = load_file(args.expected)
    x, logits = expected["x"].numpy(), expected["eval.logits"].numpy()
    found = {"difference": relative(call(x), logits), "one_by_one": one_by_one(call, x, logits)}
    right = found["difference"] <= args.tolerance
    if args.state:
        other = other_bytes(weights, load_file(args.state))
        found |= {"weights": len(weights), "weights_that_differ": other}
        right = right and not other
    print(json.dumps(found | {"right": right}))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
