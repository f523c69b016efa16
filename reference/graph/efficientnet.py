"""PyTorch on a published network: EfficientNet-Lite0 with its real weights, on real pictures.

    reference/graph/efficientnet crops DATA                       # logits of the 24 crops against those on file
    reference/graph/efficientnet errors DATA [--arrays FILE.npy]  # error count on the 500 pictures
    reference/graph/efficientnet speed DATA                       # images per second, PyTorch and onnxruntime

DATA holds `efficientnet-lite0`, `imagenet-500` and `imagenet-500.classes.txt`. README.md says how the pixels here
differ from those of our program, and how both get the same ones.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms import v2

MEAN = torch.tensor([0.485, 0.456, 0.406])
DEVIATION = torch.tensor([0.229, 0.224, 0.225])
SIDE, CROP = 256, 224
# The allocator keeps its memory, as in reference/speed/compare.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000"}


def network(data):
    return torch.export.load(data / "efficientnet-lite0/efficientnet_lite0.pt2")


def normalised(pixels):
    """Bytes `[images, height, width, 3]` as the network's input `[images, 3, height, width]`."""
    return ((torch.from_numpy(pixels).float() / 255 - MEAN) / DEVIATION).permute(0, 3, 1, 2).contiguous()


def pictures(data):
    """Bytes of the middle of every picture, indices of the classes among the 1,000, and names `CLASS/FILE`."""
    lines = (data / "imagenet-500.classes.txt").read_text().splitlines()
    index = {line.split()[0]: number for number, line in enumerate(lines)}
    files = sorted(path for path in (data / "imagenet-500").glob("*/*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    cut = v2.Compose([v2.Resize(SIDE, v2.InterpolationMode.BILINEAR), v2.CenterCrop(CROP)])
    pixels = numpy.stack([numpy.asarray(cut(Image.open(path).convert("RGB"))) for path in files])
    labels = numpy.array([index[path.parent.name] for path in files])
    return pixels, labels, [f"{path.parent.name}/{path.name}" for path in files]


@torch.inference_mode()
def logits_of(net, x, batch=32):
    return torch.cat([net(part) for part in x.split(batch)])


def crops(args):
    """Compares with the stored logits and features; writes the file for `--verify` where asked."""
    folder = args.data / "efficientnet-lite0"
    x = normalised(numpy.load(folder / "crops-uint8-nhwc.npy"))
    program = network(args.data)
    single = logits_of(program.module(), x)
    exact = logits_of(program.module().double(), x.double()).float()
    stored = torch.from_numpy(numpy.load(folder / "logits.npy"))
    found = {"images": len(x), "largest_logit": exact.abs().max().item(), "stored_and_double": (stored - exact).abs().max().item(),
             "single_and_double": (single - exact).abs().max().item(), "same_class": int((stored.argmax(1) == exact.argmax(1)).sum())}
    if args.verify:
        features = torch.from_numpy(numpy.load(folder / "features.npy"))
        save_file({"x": x, "eval.logits": exact, "eval.features": features}, args.verify)
    print(json.dumps(found))


def errors(args):
    pixels, labels, names = pictures(args.data)
    if args.write_arrays:
        numpy.save(args.write_arrays, pixels)
    if args.write_folder:
        for image, name in zip(pixels, names):
            path = (args.write_folder / name).with_suffix(".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    found = {"images": len(labels)}
    if args.arrays:
        given = numpy.load(args.arrays)
        if given.shape != pixels.shape or given.dtype != numpy.uint8:
            raise SystemExit(f"expected bytes {list(pixels.shape)}, found {given.dtype} {list(given.shape)} in {args.arrays}")
        off = numpy.abs(given.astype(int) - pixels)
        found |= {"pixels_that_differ": float((off > 0).mean()), "largest_pixel_difference": int(off.max())}
        pixels = given
    logits = logits_of(network(args.data).module(), normalised(pixels))
    order = logits.argsort(1, descending=True)[:, :5].numpy()
    wrong = order[:, 0] != labels
    found |= {"errors": int(wrong.sum()), "errors_top_5": int((order != labels[:, None]).all(1).sum())}
    # Where the best two are this close, rounding may decide.
    best = logits.topk(2).values
    found["closest_decision"] = (best[:, 0] - best[:, 1]).min().item()
    if args.predictions:
        found |= against(args.predictions, order[:, 0], names)
    print(json.dumps(found))


def against(path, predicted, names):
    """Our program's predictions (columns `file`, `predicted`), picture by picture."""
    with open(path, newline="") as file:
        ours = {str(Path(row["file"]).with_suffix("")): int(row["predicted"]) for row in csv.DictReader(file)}
    names = [str(Path(name).with_suffix("")) for name in names]
    other = [name for name, theirs in zip(names, predicted) if ours.get(name) != theirs]
    return {"predictions_that_differ": len(other), "first_that_differ": other[:5]}


def speed(args):
    """All sides in turn, in one process: images per second, the best and the middle of all runs.

    `frozen` is PyTorch's own optimiser for inference, which folds norms into convolutions as onnxruntime does.
    """
    if not TUNED.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | TUNED)
    import onnxruntime

    torch.set_num_threads(args.threads)
    program = network(args.data)
    net = program.module().to(memory_format=torch.channels_last)
    x = torch.randn(args.batch, 3, CROP, CROP, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.onnx")
        torch.onnx.export(program, (x[:2],), path, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name, array = session.get_inputs()[0].name, x.numpy()
    rows = x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is old, and still the fastest here
            traced = torch.jit.trace(program.module(), x, check_trace=False)
            frozen = torch.jit.optimize_for_inference(torch.jit.freeze(traced.eval()))
        sides = {
            "torch": lambda: net(rows).numpy(),
            "frozen": lambda: frozen(x).numpy(),
            "onnxruntime": lambda: session.run(None, {name: array})[0],
        }
        warm = [call() for call in sides.values() for _ in range(3)]  # the frozen one is compiled in its first calls
        difference = float(max(numpy.abs(logits - warm[0]).max() for logits in warm))
        seconds = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side, call in sides.items():
                start = time.perf_counter()
                call()
                seconds[side].append(time.perf_counter() - start)
    found = {"batch": args.batch, "threads": args.threads, "largest_difference": difference}
    for side, values in seconds.items():
        found[side] = {"images_per_second": args.batch / min(values), "median": args.batch / sorted(values)[len(values) // 2]}
    print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for call in (crops, errors, speed):
        command = commands.add_parser(call.__name__, help=(call.__doc__ or "Error count on the 500 pictures.").strip())
        command.add_argument("data", type=Path)
        command.set_defaults(call=call)
        if call is crops:
            command.add_argument("--verify", metavar="FILE", help="write the file for `ttac import --verify`")
        elif call is errors:
            command.add_argument("--arrays", metavar="FILE.npy", help="the very pixels our program used: bytes [500, 224, 224, 3], sorted by class and file")
            command.add_argument("--write-arrays", metavar="FILE.npy", help="write the pixels used here so")
            command.add_argument("--write-folder", type=Path, metavar="DIR", help="write them as DIR/CLASS/FILE.png, which our program takes as they are")
            command.add_argument("--predictions", metavar="FILE.csv", help="our program's predictions, to compare one by one")
        else:
            command.add_argument("--batch", type=int, default=32)
            command.add_argument("--threads", type=int, default=2)
            command.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
