"""The fifteen corruptions of ModelNet40-C, written a second time, and the fixture of the Rust parity test.

    python corruptions.py ../../crates/ttac-corrupt/tests/fixtures/points.npy

The array is [15 corruptions, 5 severities, 33, 3] of `float32`: a row with the number of points of the result, then 32
of them, spread evenly. Needs numpy alone. Random numbers come from SplitMix64, which the Rust test contains too. The
surface that a camera sees is found by casting a ray through every pixel, not by filling triangles as Rust does.
"""

import sys

import numpy as np

NAMES = (
    "uniform gaussian background impulse upsampling rotation shear cutout density density_inc distortion "
    "distortion_rbf distortion_rbf_inv occlusion lidar"
).split()


class Replay:
    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed

    def unit(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def uniform(self, low, high, shape=()):
        drawn = [low + (high - low) * self.unit() for _ in range(int(np.prod(shape)))]
        return np.array(drawn).reshape(shape)

    def normal(self, shape):
        return np.array([sum(self.unit() for _ in range(12)) - 6 for _ in range(int(np.prod(shape)))]).reshape(shape)

    def below(self, limit):
        return int(self.unit() * limit)

    def sign(self):
        return -1.0 if self.unit() < 0.5 else 1.0

    def choose(self, limit, count):
        numbers = list(range(limit))
        for place in range(count):
            other = place + self.below(limit - place)
            numbers[place], numbers[other] = numbers[other], numbers[place]
        return numbers[:count]


def norm(p):
    low, high = p.min(0), p.max(0)
    return (p - (low + high) / 2) * (2 / (high - low).max())


def rx(a):
    return np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])


def ry(a):
    return np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])


def rz(a):
    return np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])


def nearest(p, count, draws):
    d = p - p[draws.below(len(p))]
    return np.argsort(d[:, 0] ** 2 + d[:, 1] ** 2 + d[:, 2] ** 2, kind="stable")[:count]


def bernstein(t):
    return np.stack([c * t**i * (1 - t) ** (4 - i) for i, c in enumerate((1, 4, 6, 4, 1))], 1)


def radial(p, c, kernel, draws):
    grid = np.linspace(-1, 1, 5)
    controls = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), -1).reshape(-1, 3)
    moved = controls.copy()
    for q in moved:
        a, g = draws.uniform(-np.pi, np.pi), draws.uniform(-np.pi, np.pi)
        q += c * np.array([np.cos(a) * np.sin(g), np.sin(a) * np.sin(g), np.cos(g)])

    def basis(x):
        squares = ((x[:, None] - controls[None]) ** 2).sum(-1)
        return np.hstack([kernel(squares), np.ones((len(x), 1)), x])

    rows = basis(controls)
    system = np.zeros((129, 129))
    system[:125] = rows
    system[125:, :125] = rows[:, 125:].T
    weights = np.linalg.solve(system, np.vstack([moved, np.zeros((4, 3))]))
    return basis(p) @ weights


def cast(vertices, faces, rotation, position):
    """World points that the rays through the pixels meet first, row by row (Moeller and Trumbore)."""
    columns, rows = np.meshgrid(np.arange(1080), np.arange(720))
    rays = np.stack([(columns - 539.5) / 365, (rows - 359.5) / 365, np.ones(columns.shape)], -1)
    rays = rays.reshape(-1, 3) @ rotation.T  # depth 1 along the camera's axis
    depth = np.full(len(rays), np.inf)
    for a, b, c in vertices[faces]:
        along, across, to = b - a, c - a, position - a
        p = np.cross(rays, across)
        determinant = p @ along
        with np.errstate(divide="ignore", invalid="ignore"):
            u = (p @ to) / determinant
            q = np.cross(to, along)
            v = (rays @ q) / determinant
            t = (across @ q) / determinant
        hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0)
        depth = np.where(hit, np.minimum(depth, t), depth)
    seen = np.isfinite(depth)
    return position + rays[seen] * depth[seen, None]


def look(mesh, azimuth, tilt, distance, draws):
    rotation = rz(azimuth) @ rx(tilt)
    position = -distance * rotation[:, 2]
    seen = cast(norm(mesh[0]), mesh[1], rotation, position)
    if len(seen) < 1024:
        return seen[[draws.below(len(seen)) for _ in range(1024)]], position
    return seen[draws.choose(len(seen), 1024)], position


def upright(p):
    return p @ rx(-np.pi / 2) @ ry(0.0) @ rz(np.pi)


def lidar(p, position, draws):
    p = p - position
    flat = np.hypot(p[:, 0], p[:, 1])
    radius, polar, around = np.hypot(flat, p[:, 2]), np.arctan2(flat, p[:, 2]), np.arctan2(p[:, 1], p[:, 0])
    step, cur, rings = np.pi / 180, polar.min(), []
    while cur < polar.max():
        members = (polar >= cur + step / 4) & (polar < cur + 3 * step / 4)
        r, f, centre = radius[members], around[members], cur + step / 2
        rings.append(np.stack([r * np.sin(centre) * np.cos(f), r * np.sin(centre) * np.sin(f), r * np.cos(centre)], 1))
        cur += step
    rings = np.concatenate(rings) + position
    return rings[[draws.below(len(rings)) for _ in range(768)]]


def corrupt(name, severity, cloud, mesh, draws):
    """`cloud` has 2,048 points; all corruptions but density_inc start from the first 1,024."""
    s = severity - 1
    p = cloud[:1024].copy()
    n = len(p)
    if name == "uniform":
        c = (0.01, 0.02, 0.03, 0.04, 0.05)[s]
        return norm(p + draws.uniform(-c, c, p.shape))
    if name == "gaussian":
        return np.clip(p + (0.01, 0.015, 0.02, 0.025, 0.03)[s] * draws.normal(p.shape), -1, 1)
    if name == "background":
        return norm(np.vstack([p, draws.uniform(-1, 1, (n // (45, 40, 35, 30, 20)[s], 3))]))
    if name == "impulse":
        for i in draws.choose(n, n // (30, 25, 20, 15, 10)[s]):
            p[i] += 0.1 * np.array([draws.sign() for _ in range(3)])
        return norm(p)
    if name == "upsampling":
        chosen = draws.choose(n, n // (5, 4, 3, 2, 1)[s])
        return norm(np.vstack([p, p[chosen] + draws.uniform(-0.05, 0.05, (len(chosen), 3))]))
    if name == "rotation":
        c = (2.5, 5, 7.5, 10, 15)[s]
        for turn in (rx, ry, rz):
            p = p @ turn(np.radians(draws.uniform(c - 2.5, c + 2.5) * draws.sign()))
        return norm(p)
    if name == "shear":
        c = (0.05, 0.1, 0.15, 0.2, 0.25)[s]
        b, d, e, f = (draws.uniform(c - 0.05, c + 0.05) * draws.sign() for _ in range(4))
        return norm(p @ np.array([[1, 0, b], [d, 1, e], [f, 0, 1]], dtype=float))
    if name == "cutout":
        for _ in range((2, 3, 5, 7, 10)[s]):
            p = np.delete(p, nearest(p, 30, draws), 0)
        return p
    if name == "density":
        for _ in range(severity):
            place = nearest(p, 100, draws)
            p = np.delete(p, place[draws.choose(100, 75)], 0)
        return p
    if name == "density_inc":
        p, dense = cloud.copy(), []
        for _ in range(severity):
            place = nearest(p, 100, draws)
            dense.append(p[place])
            p = np.delete(p, place, 0)
        rest = [draws.below(len(p)) for _ in range(1024 - 100 * severity)]
        return np.vstack([*dense, p[rest]])
    if name == "distortion":
        c = (0.1, 0.2, 0.3, 0.4, 0.5)[s]
        pull = 2 * draws.uniform(-c, c, (5, 5, 5, 3))
        u, v, w = (bernstein((p[:, axis] + 1) / 2) for axis in range(3))
        return norm(p + np.einsum("ni,nj,nk,ijkd->nd", u, v, w, pull))
    if name in ("distortion_rbf", "distortion_rbf_inv"):
        power = 0.5 if name == "distortion_rbf" else -0.5
        return norm(radial(p, (0.025, 0.05, 0.075, 0.1, 0.125)[s], lambda r2: (r2 + 0.25) ** power, draws))
    middle = 2 * np.pi * severity / 5
    if name == "occlusion":
        tilt = draws.uniform(2 * np.pi / 3, 5 * np.pi / 6)
        azimuth = draws.uniform(middle - np.pi / 5, middle + np.pi / 5)
        return norm(upright(look(mesh, azimuth, tilt, 3, draws)[0]))
    azimuth = draws.uniform(middle - np.pi / 5, middle + np.pi / 5)
    seen, position = look(mesh, azimuth, 5 * np.pi / 8, 5, draws)
    return upright(lidar(seen, position, draws))


def ellipsoid():
    draws, points = Replay(7), []
    for _ in range(2048):
        p = draws.uniform(-1, 1, 3)
        points.append(p / np.sqrt(p[0] * p[0] + p[1] * p[1] + p[2] * p[2]) * np.array([0.95, 0.6, 0.8]))
    return np.array(points).astype(np.float32).astype(float)


def house():
    x0, x1, y0, y1, z0, z1 = -0.9, 0.7, -0.5, 0.4, -0.6, 0.2
    base = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    vertices = [(x, y, z) for z in (z0, z1) for x, y in base] + [(-0.2, 0.1, 0.8)]
    faces = [(0, 1, 2), (0, 2, 3), (0, 1, 5), (0, 5, 4), (1, 2, 6), (1, 6, 5), (2, 3, 7), (2, 7, 6), (3, 0, 4), (3, 4, 7)]
    faces += [(4, 5, 8), (5, 6, 8), (6, 7, 8), (7, 4, 8)]
    return np.array(vertices, dtype=np.float32).astype(float), np.array(faces)


def main():
    cloud, mesh = ellipsoid(), house()
    everything = np.zeros((15, 5, 33, 3), dtype=np.float32)
    for index, name in enumerate(NAMES):
        for severity in range(1, 6):
            result = corrupt(name, severity, cloud, mesh, Replay(100 * index + severity))
            everything[index, severity - 1, 0] = len(result)
            everything[index, severity - 1, 1:] = result[[i * len(result) // 32 for i in range(32)]]
        print(name, len(result), result.min(0), result.max(0), file=sys.stderr, flush=True)
    np.save(sys.argv[1], everything)


if __name__ == "__main__":
    main()
