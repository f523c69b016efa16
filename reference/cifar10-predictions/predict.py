"""PyTorch's predictions on the CIFAR-10 test set, for the two published networks the tests import."""

import argparse
import json
import sys
from pathlib import Path

import numpy
import safetensors
import torch
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
import nets  # noqa: E402

FIXTURES = Path(__file__).resolve().parents[2] / "crates/ttac/tests/fixtures/cifar10-predictions"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLOSEST = 50


def test_set(folder):
    """Labels and standardised NCHW images from `test_batch.bin`: a label byte, then 3 planes of 32x32."""
    records = numpy.fromfile(folder / "test_batch.bin", numpy.uint8).reshape(10000, 3073)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    return torch.from_numpy(records[:, 0]).long(), (images - mean) / std


def load(path, depth):
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    net = nets.ResNetCifar(depth)
    net.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return net.double().eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with test_batch.bin")
    parser.add_argument("resnet20", type=Path, help="resnet20-12fca82f.th")
    parser.add_argument("resnet32", type=Path, help="resnet32-d509ac18.th")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    labels, images = test_set(arguments.data)
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for depth in (20, 32):
        name = f"resnet{depth}"
        path = getattr(arguments, name)
        net = load(path, depth)
        with torch.no_grad():
            logits = torch.cat([net(batch.double()) for batch in images.split(100)])
        predicted = logits.argmax(1)
        top = logits.topk(2).values
        margin, index = (top[:, 0] - top[:, 1]).sort()
        wrong = int((predicted != labels).sum())
        about = {
            "architecture": f"{name}-cifar",
            "checkpoint": path.name,
            "wrong": wrong,
            "error_percent": wrong / 100,
            "mean": MEAN,
            "std": STD,
            "reference": "images standardised in float32, network in float64",
            "versions": {"torch": torch.__version__.split("+")[0], "numpy": numpy.__version__, "safetensors": safetensors.__version__},
        }
        tensors = {
            "predicted": predicted.numpy().astype(numpy.uint8),
            "margin": margin[:CLOSEST].numpy().astype(numpy.float32),
            "margin_index": index[:CLOSEST].numpy().astype(numpy.int32),
        }
        save_file(tensors, FIXTURES / f"{name}.safetensors", metadata={"about": json.dumps(about, sort_keys=True)})
        print(f"{name}: {wrong} of 10000 wrong, {wrong / 100:.2f} %; smallest margins", margin[:5].tolist())


if __name__ == "__main__":
    main()
