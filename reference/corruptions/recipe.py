"""The corruptions of CIFAR-10-C and ImageNet-C with the Python libraries their recipe uses, written anew.

`corrupt(name, severity, image, draws)` takes and returns an RGB `uint8` array. `draws` supplies the random numbers, so
that the same operations can be fed by numpy (timing) or by a small generator that the Rust tests replay (fixtures).
Frost takes its photographs as arrays: `corrupt(..., photographs=[...])`.
"""

import ctypes
import io

import cv2
import numpy as np
from PIL import Image
from scipy import ndimage
from skimage import color, filters, util

SMALL, LARGE = "small", "large"

# The constants of severities 1 to 5, for small and for large images.
PARAMETERS = {
    "gaussian_noise": {SMALL: (0.04, 0.06, 0.08, 0.09, 0.10), LARGE: (0.08, 0.12, 0.18, 0.26, 0.38)},
    "shot_noise": {SMALL: (500, 250, 100, 75, 50), LARGE: (60, 25, 12, 5, 3)},
    "impulse_noise": {SMALL: (0.01, 0.02, 0.03, 0.05, 0.07), LARGE: (0.03, 0.06, 0.09, 0.17, 0.27)},
    "defocus_blur": {SMALL: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
                     LARGE: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))},
    "glass_blur": {SMALL: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
                   LARGE: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))},
    "motion_blur": {SMALL: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
                    LARGE: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))},
    "zoom_blur": {SMALL: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
                  LARGE: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))},
    "snow": {SMALL: ((0.1, 0.2, 1, 0.6, 8, 3, 0.95),
                     (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
                     (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
                     (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
                     (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
             LARGE: ((0.1, 0.3, 3, 0.5, 10, 4, 0.8),
                     (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
                     (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
                     (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
                     (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55))},
    "frost": {SMALL: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
              LARGE: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))},
    "fog": {SMALL: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
            LARGE: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))},
    "brightness": {SMALL: (0.05, 0.1, 0.15, 0.2, 0.3), LARGE: (0.1, 0.2, 0.3, 0.4, 0.5)},
    "contrast": {SMALL: (0.75, 0.5, 0.4, 0.3, 0.15), LARGE: (0.4, 0.3, 0.2, 0.1, 0.05)},
    "elastic_transform": {SMALL: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
                          LARGE: ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))},
    "pixelate": {SMALL: (0.95, 0.9, 0.85, 0.75, 0.65), LARGE: (0.6, 0.5, 0.4, 0.3, 0.25)},
    "jpeg_compression": {SMALL: (80, 65, 58, 50, 40), LARGE: (25, 18, 15, 10, 7)},
    "speckle_noise": {SMALL: (0.06, 0.1, 0.12, 0.16, 0.2), LARGE: (0.15, 0.2, 0.35, 0.45, 0.6)},
    "gaussian_blur": {SMALL: (0.4, 0.6, 0.7, 0.8, 1), LARGE: (1, 2, 3, 4, 6)},
    "spatter": {SMALL: ((0.62, 0.1, 0.7, 0.7, 0.5, False),
                        (0.65, 0.1, 0.8, 0.7, 0.5, False),
                        (0.65, 0.3, 1, 0.69, 0.5, False),
                        (0.65, 0.1, 0.7, 0.69, 0.6, True),
                        (0.65, 0.1, 0.5, 0.68, 0.6, True)),
                LARGE: ((0.65, 0.3, 4, 0.69, 0.6, False),
                        (0.65, 0.3, 3, 0.68, 0.6, False),
                        (0.65, 0.3, 2, 0.68, 0.5, False),
                        (0.65, 0.3, 1, 0.65, 1.5, True),
                        (0.67, 0.4, 1, 0.65, 1.5, True))},
    "saturate": {SMALL: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
                 LARGE: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))},
}

NAMES = tuple(PARAMETERS)


class NumpyDraws:
    """Random numbers from numpy's legacy generator, which is what the recipe draws from."""

    def __init__(self, seed):
        self.state = np.random.RandomState(seed)

    def uniform(self, low, high, shape=None):
        return self.state.uniform(low, high, shape)

    def normal(self, mean, deviation, shape):
        return self.state.normal(mean, deviation, shape)

    def poisson(self, rate):
        return self.state.poisson(rate)

    def below(self, limit):
        return self.state.randint(limit)

    def shift(self, delta):
        return self.state.randint(-delta, delta, size=(2,))

    def seed(self):
        return self.state.randint(2**31 - 1)


class ReplayDraws:
    """SplitMix64, simple enough to be written twice. A normal is the sum of twelve uniforms less six."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed & self.MASK

    def word64(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return z ^ (z >> 31)

    def unit(self):
        return (self.word64() >> 11) * 2.0**-53

    def many(self, one, shape):
        if shape is None:
            return one()
        return np.array([one() for _ in range(int(np.prod(shape)))]).reshape(shape)

    def uniform(self, low, high, shape=None):
        return self.many(lambda: low + (high - low) * self.unit(), shape)

    def standard_normal(self):
        total = 0.0
        for _ in range(12):
            total += self.unit()
        return total - 6.0

    def normal(self, mean, deviation, shape):
        return self.many(lambda: mean + deviation * self.standard_normal(), shape)

    def below(self, limit):
        return int(self.unit() * limit)

    def shift(self, delta):
        word = self.word64() >> 32
        dx = ((word & 0xFFFF) * 2 * delta >> 16) - delta
        dy = ((word >> 16) * 2 * delta >> 16) - delta
        return dx, dy


def to_bytes(unit_scale):
    return np.uint8(np.clip(unit_scale, 0, 1) * 255)


def central_zoom(image, factor):
    side = image.shape[0]
    crop = int(np.ceil(side / factor))
    top = (side - crop) // 2
    grown = ndimage.zoom(image[top : top + crop, top : top + crop], (factor, factor, 1), order=1)
    trim = (grown.shape[0] - side) // 2
    return grown[trim : trim + side, trim : trim + side]


def magick_motion_blur(image, radius, sigma, angle):
    from wand.api import library
    from wand.image import Image as WandImage

    library.MagickMotionBlurImage.argtypes = (ctypes.c_void_p, ctypes.c_double, ctypes.c_double, ctypes.c_double)
    stored = io.BytesIO()
    Image.fromarray(image).save(stored, format="PNG")
    with WandImage(blob=stored.getvalue()) as picture:
        library.MagickMotionBlurImage(picture.wand, radius, sigma, angle)
        blurred = cv2.imdecode(np.frombuffer(picture.make_blob(), np.uint8), cv2.IMREAD_UNCHANGED)
    if image.ndim == 3:
        return blurred[..., ::-1] if blurred.ndim == 3 else np.repeat(blurred[..., None], 3, axis=2)
    return blurred


def plasma(side, decay, draws):
    height = np.zeros((side, side))
    cell, rough = side, 100.0

    def jitter(total):
        return total / 4 + rough * draws.uniform(-rough, rough, total.shape)

    while cell >= 2:
        half = cell // 2
        corner = height[0::cell, 0::cell]
        pairs = corner + np.roll(corner, -1, axis=0)
        height[half::cell, half::cell] = jitter(pairs + np.roll(pairs, -1, axis=1))
        centre, corner = height[half::cell, half::cell], height[0::cell, 0::cell]
        across = (centre + np.roll(centre, 1, axis=0)) + (corner + np.roll(corner, -1, axis=1))
        height[0::cell, half::cell] = jitter(across)
        down = (centre + np.roll(centre, 1, axis=1)) + (corner + np.roll(corner, -1, axis=0))
        height[half::cell, 0::cell] = jitter(down)
        cell, rough = half, rough / decay
    height -= height.min()
    return height / height.max()


def gaussian_noise(image, sigma, draws, _):
    x = image / 255.0
    return to_bytes(x + draws.normal(0, sigma, x.shape))


def shot_noise(image, rate, draws, _):
    return to_bytes(draws.poisson(image / 255.0 * rate) / rate)


def impulse_noise(image, amount, draws, _):
    return to_bytes(util.random_noise(image / 255.0, mode="s&p", amount=amount, rng=draws.seed()))


def speckle_noise(image, sigma, draws, _):
    x = image / 255.0
    return to_bytes(x + x * draws.normal(0, sigma, x.shape))


def gaussian_blur(image, sigma, _draws, _):
    return to_bytes(filters.gaussian(image / 255.0, sigma=sigma, channel_axis=-1))


def defocus_blur(image, parameters, _draws, _):
    radius, alias = parameters
    reach, aperture = (8, 3) if radius <= 8 else (radius, 5)
    offsets = np.arange(-reach, reach + 1)
    across, down = np.meshgrid(offsets, offsets)
    disk = np.array(across**2 + down**2 <= radius**2, dtype=np.float32)
    disk /= disk.sum()
    kernel = cv2.GaussianBlur(disk, (aperture, aperture), sigmaX=alias)
    x = image / 255.0
    return to_bytes(np.stack([cv2.filter2D(x[..., c], -1, kernel) for c in range(3)], axis=-1))


def glass_blur(image, parameters, draws, _):
    sigma, delta, iterations = parameters
    x = np.uint8(filters.gaussian(image / 255.0, sigma=sigma, channel_axis=-1) * 255)
    height, width = x.shape[:2]
    for _ in range(iterations):
        for row in range(height - delta, delta, -1):
            for column in range(width - delta, delta, -1):
                dx, dy = draws.shift(delta)
                # The recipe writes a swap of two array views here, which comes to this copy.
                x[row, column] = x[row + dy, column + dx]
    return to_bytes(filters.gaussian(x / 255.0, sigma=sigma, channel_axis=-1))


def motion_blur(image, parameters, draws, _):
    radius, sigma = parameters
    return magick_motion_blur(image, radius, sigma, draws.uniform(-45, 45))


def zoom_blur(image, parameters, _draws, _):
    factors = np.arange(1, *parameters)
    x = (image / 255.0).astype(np.float32)
    total = np.zeros_like(x)
    for factor in factors:
        total += central_zoom(x, factor)
    return to_bytes((x + total) / (len(factors) + 1))


def snow(image, parameters, draws, _):
    mean, deviation, zoom, threshold, radius, sigma, blend = parameters
    x = image.astype(np.float32) / 255.0
    layer = central_zoom(draws.normal(mean, deviation, x.shape[:2])[..., None], zoom)[..., 0]
    layer[layer < threshold] = 0
    layer = magick_motion_blur(to_bytes(layer), radius, sigma, draws.uniform(-135, -45)) / 255.0
    grey = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None]
    x = blend * x + (1 - blend) * np.maximum(x, grey * 1.5 + 0.5)
    return to_bytes(x + layer[..., None] + np.rot90(layer, 2)[..., None])


def frost(image, parameters, draws, photographs):
    keep, add = parameters
    height, width = image.shape[:2]
    photograph = photographs[draws.below(5)]
    if height < 100:
        photograph = cv2.resize(photograph, (0, 0), fx=0.2, fy=0.2)
    top, left = draws.below(photograph.shape[0] - height), draws.below(photograph.shape[1] - width)
    crop = photograph[top : top + height, left : left + width]
    return np.uint8(np.clip(keep * image + add * crop, 0, 255))


def fog(image, parameters, draws, _):
    amount, decay = parameters
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    x = image / 255.0
    brightest = x.max()
    x = x + amount * plasma(side, decay, draws)[:height, :width, None]
    return to_bytes(x * brightest / (brightest + amount))


def brightness(image, amount, _draws, _):
    hsv = color.rgb2hsv(image / 255.0)
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    return to_bytes(color.hsv2rgb(hsv))


def saturate(image, parameters, _draws, _):
    gain, offset = parameters
    hsv = color.rgb2hsv(image / 255.0)
    hsv[..., 1] = np.clip(hsv[..., 1] * gain + offset, 0, 1)
    return to_bytes(color.hsv2rgb(hsv))


def contrast(image, gain, _draws, _):
    x = image / 255.0
    mean = x.mean(axis=(0, 1), keepdims=True)
    return to_bytes((x - mean) * gain + mean)


def elastic_transform(image, parameters, draws, _):
    x = image.astype(np.float32) / 255.0
    height, width = x.shape[:2]
    unit = height if height < 100 else 244
    amplitude, sigma, affine = (unit * value for value in parameters)
    centre, reach = np.float32((height, width)) // 2, min(height, width) // 3
    source = np.float32([centre + reach, [centre[0] + reach, centre[1] - reach], centre - reach])
    target = source + draws.uniform(-affine, affine, source.shape).astype(np.float32)
    moved = cv2.warpAffine(x, cv2.getAffineTransform(source, target), (width, height), borderMode=cv2.BORDER_REFLECT_101)

    def displacement():
        noise = draws.uniform(-1, 1, (height, width))
        return (filters.gaussian(noise, sigma, mode="reflect", truncate=3) * amplitude).astype(np.float32)

    dx, dy = displacement(), displacement()
    columns, rows, channels = np.meshgrid(np.arange(width), np.arange(height), np.arange(3))
    where = [(rows + dy[..., None]).ravel(), (columns + dx[..., None]).ravel(), channels.ravel()]
    return to_bytes(ndimage.map_coordinates(moved, where, order=1, mode="reflect").reshape(x.shape))


def pixelate(image, factor, _draws, _):
    height, width = image.shape[:2]
    picture = Image.fromarray(image).resize((int(width * factor), int(height * factor)), Image.Resampling.BOX)
    return np.array(picture.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image, quality, _draws, _):
    stored = io.BytesIO()
    Image.fromarray(image).save(stored, "JPEG", quality=quality)
    return np.array(Image.open(stored))


def spatter(image, parameters, draws, _):
    mean, deviation, sigma, threshold, strength, mud = parameters
    x = image.astype(np.float32) / 255.0
    liquid = filters.gaussian(draws.normal(mean, deviation, x.shape[:2]), sigma=sigma)
    liquid[liquid < threshold] = 0
    if mud:
        mask = filters.gaussian((liquid > threshold).astype(np.float32), sigma=strength)
        mask[mask < 0.8] = 0
        mask = mask[..., None]
        return to_bytes(x * (1 - mask) + np.float32(np.array([63, 42, 20]) / 255.0) * mask)
    liquid = (liquid * 255).astype(np.uint8)
    away = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    away = cv2.blur(np.minimum(away, np.float32(20)), (3, 3)).astype(np.uint8)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = cv2.filter2D(cv2.equalizeHist(away), cv2.CV_8U, emboss)
    mask = liquid * cv2.blur(relief, (3, 3)).astype(np.float32)
    mask = mask / mask.max() * np.float32(strength)
    water = np.float32(np.array([175, 238, 238]) / 255.0)
    return to_bytes(x + mask[..., None] * water)


def corrupt(name, severity, image, draws, photographs=()):
    table = SMALL if min(image.shape[:2]) < 85 else LARGE
    return globals()[name](image, PARAMETERS[name][table][severity - 1], draws, photographs)
