"""Times the recipe's operations: microseconds per image and corruption, one process, severity 5 unless told.

    python time_recipe.py --side 32 --images 100 --frost DIR [--severity 5] [--only snow,fog]
"""

import argparse
import os
import pathlib
import time

import cv2
import numpy as np

from recipe import NAMES, NumpyDraws, corrupt


def photographs(folder):
    names = ["frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"]
    return [cv2.imread(str(pathlib.Path(folder) / name))[..., ::-1].copy() for name in names]


def pictures(side, count):
    """Smooth random pictures with the spectrum of photographs, roughly."""
    state = np.random.RandomState(0)
    coarse = state.randint(0, 256, (count, 8, 8, 3)).astype(np.uint8)
    return [cv2.resize(picture, (side, side), interpolation=cv2.INTER_CUBIC) for picture in coarse]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--frost", default=os.environ.get("TTAC_FROST"))
    parser.add_argument("--only", default=",".join(NAMES))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    photos = photographs(options.frost) if options.frost else None
    images = pictures(options.side, options.images)
    for name in options.only.split(","):
        if name == "frost" and photos is None:
            continue
        draws = NumpyDraws(1)
        corrupt(name, options.severity, images[0], draws, photos)
        # Glass blur takes so long that a few images are enough.
        sample = images[: max(2, len(images) // 10)] if name == "glass_blur" else images
        start = time.perf_counter()
        for image in sample:
            corrupt(name, options.severity, image, draws, photos)
        elapsed = (time.perf_counter() - start) / len(sample)
        print(f"{name:18} {elapsed * 1e6:10.0f} us/image {1 / elapsed:10.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
