"""Writes what Pillow makes of a few pictures, by the calls that torchvision 0.29 makes of it.

The file holds the pictures, `[height, width, 3]` of `uint8`, and for every case a result of the same shape. Its
metadata says for every case which picture it is of and what was done to it. Rust has to give the same bytes.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from PIL import __version__ as pillow_version
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "crates/ttac/tests/fixtures/augment"
PADDING = 4


def pictures():
    """Ramps with a flat and a grey part, noise of every colour, noise of few colours, a picture that is not square."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[0:32, 0:32]
    ramps = np.stack([x * 8, y * 8, (x * 7 + y * 3) % 256], axis=-1)
    ramps[:8, :8] = (20, 200, 30)
    ramps[24:, :8] = (x * 8)[24:, :8, None]
    noise = generator.integers(0, 256, (32, 32, 3))
    corners = generator.choice([0, 1, 51, 85, 102, 153, 170, 204, 254, 255], (32, 32, 3))
    tall = generator.integers(0, 256, (33, 20, 3))
    every = {"ramps": ramps, "noise": noise, "corners": corners, "tall": tall}
    return {name: picture.astype(np.uint8) for name, picture in every.items()}


def crop(image, kind, values):
    width, height = image.size
    if kind == "padded":
        top, left = values
        padded = ImageOps.expand(image, border=PADDING, fill=0)
        return padded.crop((left, top, left + width, top + height))
    top, left, part_height, part_width = values
    part = image.crop((left, top, left + part_width, top + part_height))
    return part.resize((width, height), Image.BILINEAR)


def adjust(image, kind, value):
    if kind == "brightness":
        return ImageEnhance.Brightness(image).enhance(value)
    if kind == "contrast":
        return ImageEnhance.Contrast(image).enhance(value)
    if kind == "saturation":
        return ImageEnhance.Color(image).enhance(value)
    if kind == "hue":
        hue, saturation, brightness = image.convert("HSV").split()
        # This will wrap around, as desired.
        turned = np.array(hue, dtype=np.uint8) + np.int32(value * 255).astype(np.uint8)
        return Image.merge("HSV", (Image.fromarray(turned), saturation, brightness)).convert("RGB")
    if kind == "grey":
        return image.convert("L").convert("RGB")
    raise ValueError(kind)


def operate(image, kind, value, sampling):
    """One change of RandAugment (nearest pixel, black beyond the edge) or AugMix (blended pixels, grey beyond)."""
    if kind == "auto-contrast":
        return ImageOps.autocontrast(image)
    if kind == "equalise":
        return ImageOps.equalize(image)
    if kind == "posterise":
        return ImageOps.posterize(image, value)
    if kind == "solarise":
        return ImageOps.solarize(image, value)
    if kind == "sharpness":
        return ImageEnhance.Sharpness(image).enhance(value)
    found = {
        "nearest": {"resample": Image.NEAREST},
        "bilinear": {"resample": Image.BILINEAR, "fillcolor": (128, 128, 128)},
    }[sampling]
    if kind == "rotate":
        return image.rotate(value, **found)
    matrix = {
        "shear-rows": lambda: (1, value, 0, 0, 1, 0),
        "shear-columns": lambda: (1, 0, 0, value, 1, 0),
        "translate": lambda: (1, 0, value[1], 0, 1, value[0]),
    }[kind]()
    return image.transform(image.size, Image.AFFINE, matrix, **found)


def reflected(image, top, left):
    """`RandomCrop(size, padding=4, padding_mode="reflect")` of torchvision."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)), mode="reflect")
    return padded[top : top + height, left : left + width]


def strong(image, case):
    if case["crop"]:
        image = reflected(image, *case["crop"])
    image = Image.fromarray(np.ascontiguousarray(image))
    for kind, value in case["operations"]:
        image = operate(image, kind, value, case["sampling"])
    if case["square"]:
        (top, bottom), (left, right) = case["square"]
        ImageDraw.Draw(image).rectangle((left, top, right, bottom), (127, 127, 127))
    return np.asarray(image)


def strong_cases():
    def case(picture, operations=(), sampling="nearest", crop=None, square=None):
        return {
            "picture": picture,
            "operations": list(operations),
            "sampling": sampling,
            "crop": crop,
            "square": square,
        }

    every = ("ramps", "noise", "corners", "tall")
    for picture in every:
        for kind in ("auto-contrast", "equalise"):
            yield case(picture, [(kind, 0)])
    for bits in (4, 6, 8):
        yield case("noise", [("posterise", bits)])
    for threshold in (26, 128, 256):
        yield case("ramps", [("solarise", threshold)])
    for factor in (0.14, 0.95):
        yield case("noise", [("sharpness", float(np.float32(factor)))])
    for sampling in ("nearest", "bilinear"):
        for picture in ("noise", "tall"):
            moves = [("rotate", 3.0), ("rotate", -27.0), ("rotate", 1.0), ("shear-rows", 0.27), ("shear-columns", -0.03)]
            moves += [("shear-rows", -0.12), ("translate", (0, 8)), ("translate", (-3, 0)), ("translate", (2, -1))]
            for move in moves:
                yield case(picture, [move], sampling)
    for offsets in [(0, 0), (8, 3), (4, 4), (2, 8)]:
        yield case("tall", crop=offsets)
    for square in [((0, 7), (0, 16)), ((20, 32), (28, 32)), ((5, 21), (9, 25))]:
        yield case("ramps", square=square)
    yield case("corners", [("equalise", 0), ("rotate", 12.0)], crop=(7, 1), square=((3, 19), (0, 11)))


def vary(image, case):
    image = Image.fromarray(image)
    if case["crop"]:
        image = crop(image, *case["crop"])
    if case["flip"]:
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    for kind, value in case["colour"]:
        image = adjust(image, kind, value)
    return np.asarray(image)


def case(picture, crop=None, flip=False, colour=()):
    # The factors of PyTorch and of Rust are in single precision.
    colour = [(kind, float(np.float32(value))) for kind, value in colour]
    return {"picture": picture, "crop": crop, "flip": flip, "colour": colour}


def cases():
    yield case("ramps", flip=True)
    for offsets in [(0, 0), (8, 3), (4, 4), (2, 8)]:
        yield case("ramps", crop=("padded", offsets))
    yield case("tall", crop=("padded", (1, 6)), flip=True)
    for part in [(0, 0, 32, 32), (5, 3, 14, 15), (0, 11, 32, 21), (9, 0, 17, 32), (31, 31, 1, 1), (2, 1, 29, 30)]:
        yield case("noise", crop=("resized", part))
    for part in [(0, 0, 33, 20), (4, 2, 25, 18), (30, 7, 2, 13)]:
        yield case("tall", crop=("resized", part))
    for kind in ("brightness", "contrast", "saturation"):
        for picture, factor in [("ramps", 0.6), ("noise", 1.4), ("corners", 0.9271)]:
            yield case(picture, colour=[(kind, factor)])
    for picture, turn in [("ramps", 0.1), ("noise", -0.1), ("corners", 0.0), ("corners", 0.0471), ("noise", 0.5)]:
        yield case(picture, colour=[("hue", turn)])
    yield case("noise", colour=[("grey", 0)])
    generator = np.random.default_rng(1)
    for picture in ("ramps", "noise", "corners", "tall") * 2:
        height, width = (33, 20) if picture == "tall" else (32, 32)
        part_height, part_width = generator.integers(14, height + 1), generator.integers(14, width + 1)
        top = generator.integers(0, height - part_height + 1)
        left = generator.integers(0, width - part_width + 1)
        colour = [(kind, generator.uniform(0.6, 1.4)) for kind in ("brightness", "contrast", "saturation")]
        colour.append(("hue", generator.uniform(-0.1, 0.1)))
        colour = [colour[index] for index in generator.permutation(4)]
        if generator.random() < 0.3:
            colour.append(("grey", 0))
        part = tuple(int(value) for value in (top, left, part_height, part_width))
        yield case(picture, ("resized", part), bool(generator.random() < 0.5), colour)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    tensors = pictures()
    every = list(cases())
    for index, each in enumerate(every):
        tensors[f"case-{index:02}"] = np.ascontiguousarray(vary(tensors[each["picture"]], each))
    about = {"made_by": f"Pillow {pillow_version}, NumPy {np.__version__}", "cases": every}
    save_file(tensors, OUT / "data.safetensors", metadata={"about": json.dumps(about, sort_keys=True)})

    tensors = pictures()
    every = list(strong_cases())
    for index, each in enumerate(every):
        tensors[f"case-{index:02}"] = np.ascontiguousarray(strong(tensors[each["picture"]], each))
    about["cases"] = every
    save_file(tensors, OUT / "strong.safetensors", metadata={"about": json.dumps(about, sort_keys=True)})


if __name__ == "__main__":
    main()
