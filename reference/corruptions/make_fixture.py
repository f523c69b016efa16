"""Writes the fixture of the Rust parity test: the recipe on one drawn picture, fed by numbers that Rust can replay.

    python make_fixture.py ../../crates/ttac-corrupt/tests/fixtures/recipe.npy

The array is [2 sizes, corruptions, 5 severities, 16, 16, 3] of `uint8`: every second pixel at 32 x 32 and every
fourteenth at 224 x 224. The four noises and frost are left out: the former are drawn in another way in Rust and are
compared by their distribution, the latter needs its photographs. Made with the versions of requirements.txt.
"""

import sys

import numpy as np

from recipe import NAMES, ReplayDraws, corrupt

LEFT_OUT = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "frost")


def picture(side):
    """Ramps, a checked corner, a flat square and a white disk, in integers."""
    y, x = np.mgrid[0:side, 0:side]
    red = x * 255 // (side - 1)
    green = y * 255 // (side - 1)
    blue = (x * 7 + y * 3) * 32 // side % 256
    checked = (2 * x > side) & (2 * y < side) & ((x * 16 // side + y * 16 // side) % 2 == 0)
    flat = (4 * x < side) & (4 * y > 3 * side)
    disk = (8 * x - 3 * side) ** 2 + (8 * y - 4 * side) ** 2 < (2 * side) ** 2
    image = np.stack([red, green, blue], axis=-1)
    image[checked] = (20, 200, 30)
    image[flat] = (90, 90, 90)
    image[disk] = (255, 255, 255)
    return image.astype(np.uint8)


def main():
    sizes = []
    for side in (32, 224):
        image = picture(side)
        rows = []
        for index, name in enumerate(NAMES):
            if name in LEFT_OUT:
                continue
            row = []
            for severity in range(1, 6):
                draws = ReplayDraws(1000 * side + 10 * index + severity)
                step = side // 16
                row.append(corrupt(name, severity, image, draws)[step // 2 :: step, step // 2 :: step])
            rows.append(row)
            print(side, name, file=sys.stderr, flush=True)
        sizes.append(rows)
    np.save(sys.argv[1], np.array(sizes, dtype=np.uint8))


if __name__ == "__main__":
    main()
