"""One variation for all images of a batch, in the plainest operations (docs/methods.md, Batch augmentation)."""

import math

import torch
import torch.nn.functional as F

import formula

# Height and width differ, and one is odd. The second list has every part at once, in an unusual order.
SIZE = 12, 9
NEUTRAL = {"tones": [], "padding": "edge", "degrees": 0.0, "shift": [0, 0], "scale": 1.0, "blur": None, "flip": False}
VARIATIONS = {
    "brightness": NEUTRAL | {"tones": [["brightness", 1.35]]},
    "contrast": NEUTRAL | {"tones": [["contrast", 0.72]]},
    "saturation": NEUTRAL | {"tones": [["saturation", 1.45]]},
    "hue": NEUTRAL | {"tones": [["hue", -0.055]]},
    "gamma": NEUTRAL | {"tones": [["gamma", 0.75]]},
    "turned": NEUTRAL | {"degrees": 14.0, "shift": [1, -1], "scale": 0.92},
    "reflected": NEUTRAL | {"degrees": -11.0, "shift": [-1, 1], "scale": 0.95, "padding": "reflection"},
    "blurred": NEUTRAL | {"blur": 0.45, "degrees": 5.0},
    "flipped": NEUTRAL | {"flip": True},
    "all": {
        "tones": [["gamma", 1.2], ["hue", 0.04], ["contrast", 1.25], ["brightness", 0.7], ["saturation", 0.6]],
        "padding": "edge",
        "degrees": -14.5,
        "shift": [-1, 1],
        "scale": 1.08,
        "blur": 0.3,
        "flip": True,
    },
}


def mixed(factor, images, other):
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def grey(images):
    return (images * torch.tensor([0.2989, 0.587, 0.114], dtype=images.dtype)[:, None, None]).sum(1, keepdim=True)


def hue(images, turn):
    """To hue, saturation and value, and back."""
    red, green, blue = images.unbind(1)
    most, least = images.max(1).values, images.min(1).values
    span = most - least
    safe = torch.where(span == 0, 1.0, span)
    sixth = torch.where(
        red == most,
        (green - blue) / safe,
        torch.where(green == most, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = (sixth / 6 + turn) % 1.0 * 6
    saturation = torch.where(most == 0, 0.0, span / torch.where(most == 0, 1.0, most))
    whole = sixth.floor()
    rest = sixth - whole
    low, falling = most * (1 - saturation), most * (1 - saturation * rest)
    rising = most * (1 - saturation * (1 - rest))
    table = [
        (most, rising, low),
        (falling, most, low),
        (low, most, rising),
        (low, falling, most),
        (rising, low, most),
        (most, low, falling),
    ]
    stacked = torch.stack([torch.stack(row, 1) for row in table])
    place = (whole.long() % 6)[None, :, None].expand(1, -1, 3, -1, -1)
    return stacked.gather(0, place)[0]


TONES = {
    "brightness": lambda x, factor: mixed(factor, x, 0.0),
    "contrast": lambda x, factor: mixed(factor, x, grey(x).mean((1, 2, 3), keepdim=True)),
    "saturation": lambda x, factor: mixed(factor, x, grey(x)),
    "hue": hue,
    "gamma": lambda x, power: x.clamp(1e-8, 1) ** power,
}


def affine(images, degrees, shift, scale):
    """Turns about the centre, then shifts; bilinear, black outside."""
    _, _, height, width = images.shape
    angle = math.radians(degrees)
    y = torch.arange(height, dtype=images.dtype)[:, None] + 0.5 - height / 2 - shift[0]
    x = torch.arange(width, dtype=images.dtype)[None, :] + 0.5 - width / 2 - shift[1]
    column = (math.cos(angle) * x + math.sin(angle) * y) / scale
    row = (math.cos(angle) * y - math.sin(angle) * x) / scale
    grid = torch.stack([column / (width / 2), row / (height / 2)], -1).expand(len(images), -1, -1, -1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blur(images, deviation):
    taps = torch.exp(-0.5 * (torch.arange(-2, 3, dtype=images.dtype) / deviation) ** 2)
    taps = taps / taps.sum()
    kernel = torch.outer(taps, taps).expand(3, 1, 5, 5)
    return F.conv2d(F.pad(images, (2, 2, 2, 2), mode="reflect"), kernel, groups=3)


def vary(images, v):
    """Images [count, 3, height, width] with values from 0 to 1."""
    images = images.clamp(0, 1)
    for name, amount in v["tones"]:
        images = TONES[name](images, amount)
    _, _, height, width = images.shape
    down, right = height // 2, width // 2
    mode = {"edge": "replicate", "reflection": "reflect"}[v["padding"]]
    images = F.pad(images, (right, right, down, down), mode=mode)
    images = affine(images, v["degrees"], v["shift"], v["scale"])
    if v["blur"]:
        images = blur(images, v["blur"])
    images = images[:, :, down : down + height, right : right + width]
    if v["flip"]:
        images = images.flip(3)
    return images.clamp(0, 1)


def fixture():
    """Tensors and configuration: three images by formula, varied in each way."""
    height, width = SIZE
    shape = 3, height, width, 3
    images = formula.values("varied", shape, 1.0, 0.5).double().permute(0, 3, 1, 2)
    tensors = {name: vary(images, v).permute(0, 2, 3, 1).contiguous() for name, v in VARIATIONS.items()}
    inputs = {"images": {"name": "varied", "shape": shape, "scale": 1.0, "offset": 0.5}}
    return tensors, {"fixture": "batch-variation", "inputs": inputs, "variations": VARIATIONS}
