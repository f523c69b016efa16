"""The two lowest rungs: single operations, and residual blocks.

Each function fills a `Fixture`. Activations go in and out as NHWC; weights keep PyTorch's order.
The fixture's type is float64 for the reference, float32 to see what single precision costs.
"""

import torch
import torch.nn.functional as F

import formula
import nets


class Fixture:
    """Result tensors, and a record of every input that was drawn by formula."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.tensors, self.inputs, self.cases = {}, {}, {}

    def draw(self, name, shape, scale=3.0, offset=0.0):
        """A leaf, row-major in `shape`."""
        self.inputs[name] = {"shape": list(shape), "scale": scale, "offset": offset}
        return formula.values(name, shape, scale, offset).to(self.dtype).requires_grad_()

    def draw_image(self, name, shape, scale=3.0):
        """A leaf of NCHW `shape`, indexed as NHWC."""
        n, c, h, w = shape
        self.inputs[name] = {"shape": [n, h, w, c], "scale": scale, "offset": 0.0}
        return formula.images(name, shape, scale).to(self.dtype).requires_grad_()

    def draw_parameter(self, name, shape):
        scale, offset = formula.scale_and_offset(name, shape)
        return self.draw(name, shape, scale, offset)

    def put(self, name, value):
        self.tensors[name] = value.detach()

    def put_activation(self, name, value):
        self.put(name, value.permute(0, 2, 3, 1) if value.dim() == 4 else value)

    def put_backward(self, case, y, leaves, dy=None):
        """Stores `y` and, for the upstream gradient `dy`, the gradient of each leaf."""
        self.put_activation(f"{case}.y", y)
        gradients = torch.autograd.grad(y, list(leaves.values()), dy)
        for name, gradient in zip(leaves, gradients):
            put = self.put if name == "dw" else self.put_activation
            put(f"{case}.{name}", gradient)

    def upstream(self, case, y):
        draw = self.draw_image if y.dim() == 4 else self.draw
        return draw(f"{case}.dy", tuple(y.shape), scale=1.0).detach()


def conv(f):
    small = [(3, 5, 7, 5, k, s, p) for k in (1, 3, 5) for s in (1, 2) for p in sorted({0, k // 2})]
    small += [(3, 5, 7, 5, 7, s, 3) for s in (1, 2)]
    even = [(8, 16, 8, 8, k, s, p) for k in (1, 3) for s in (1, 2) for p in sorted({0, k // 2})]
    even += [(8, 16, 8, 8, k, 2, k // 2) for k in (5, 7)]
    even += [(3, 5, 8, 8, 7, s, p) for s in (1, 2) for p in (0, 3)]
    for cin, cout, h, w, kernel, stride, padding in small + even:
        case = f"c{cin}-{cout}_{h}x{w}_k{kernel}_s{stride}_p{padding}"
        f.cases[case] = {"kernel": kernel, "stride": stride, "padding": padding}
        x = f.draw_image(f"{case}.x", (2, cin, h, w))
        weight = f.draw(f"{case}.w", (cout, cin, kernel, kernel), (24 / (cin * kernel * kernel)) ** 0.5)
        y = F.conv2d(x, weight, stride=stride, padding=padding)
        f.put_backward(case, y, {"dx": x, "dw": weight}, f.upstream(case, y))


def batch_norm(f):
    for case in ("plain", "residual", "relu", "residual-relu"):
        shape = (4, 6, 5, 3)
        x = f.draw_image(f"{case}.x", shape)
        residual = f.draw_image(f"{case}.residual", shape) if "residual" in case else None
        names = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, var = (f.draw_parameter(f"{case}.{name}", (6,)) for name in names)
        dy = f.upstream(case, x)
        leaves = {"dx": x, "dweight": weight, "dbias": bias}
        if residual is not None:
            leaves["dresidual"] = residual
        for mode in ("train", "eval"):
            buffers = mean.detach().clone(), var.detach().clone()
            y = F.batch_norm(x, *buffers, weight, bias, mode == "train", 0.1, 1e-5)
            y = y if residual is None else y + residual
            y = F.relu(y) if "relu" in case else y
            f.put_backward(f"{case}.{mode}", y, leaves, dy)
            if mode == "train":
                f.put(f"{case}.train.running_mean", buffers[0])
                f.put(f"{case}.train.running_var", buffers[1])


def group_norm(f):
    for channels, groups, size in ((8, 8, (5, 3)), (16, 8, (4, 4)), (6, 3, (7, 5)), (6, 1, (1, 1))):
        for relu in (False, True):
            case = f"c{channels}_g{groups}_{size[0]}x{size[1]}" + ("_relu" if relu else "")
            f.cases[case] = {"groups": groups, "relu": relu, "eps": 1e-5}
            x = f.draw_image(f"{case}.x", (2, channels, *size))
            weight = f.draw_parameter(f"{case}.weight", (channels,))
            bias = f.draw_parameter(f"{case}.bias", (channels,))
            y = F.group_norm(x, groups, weight, bias)
            y = F.relu(y) if relu else y
            f.put_backward(case, y, {"dx": x, "dweight": weight, "dbias": bias}, f.upstream(case, y))


def layer_norm(f):
    for case, shape, eps in (("rows", (6, 10), 1e-5), ("tokens", (2, 5, 12), 1e-5), ("tokens-1e-6", (2, 5, 12), 1e-6)):
        f.cases[case] = {"eps": eps}
        x = f.draw(f"{case}.x", shape)
        weight = f.draw_parameter(f"{case}.weight", shape[-1:])
        bias = f.draw_parameter(f"{case}.bias", shape[-1:])
        y = F.layer_norm(x, shape[-1:], weight, bias, eps)
        f.put_backward(case, y, {"dx": x, "dweight": weight, "dbias": bias}, f.upstream(case, y))


def linear(f):
    for case in ("plain", "gelu", "residual", "gelu-residual"):
        x = f.draw(f"{case}.x", (7, 12), 6.0)
        weight, bias = f.draw_parameter(f"{case}.weight", (20, 12)), f.draw_parameter(f"{case}.bias", (20,))
        leaves = {"dx": x, "dw": weight, "dbias": bias}
        y = F.linear(F.gelu(x) if "gelu" in case else x, weight, bias)
        if "residual" in case:
            leaves["dresidual"] = f.draw(f"{case}.residual", (7, 20))
            y = y + leaves["dresidual"]
        f.put_backward(case, y, leaves, f.upstream(case, y))


def attention(f):
    """Rows of all tokens in, rows of the asking tokens out. The last case has several blocks of queries."""
    for batch, tokens, heads, width, queries in ((2, 5, 2, 4, 5), (2, 17, 3, 8, 17), (3, 17, 2, 20, 1), (1, 130, 1, 16, 130)):
        case = f"b{batch}_t{tokens}_h{heads}_d{width}_q{queries}"
        f.cases[case] = {"batch": batch, "heads": heads, "queries": queries}
        x = f.draw(f"{case}.x", (batch * tokens, 3 * heads * width))
        q, k, v = x.view(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        y = torch.softmax(q[:, :, :queries] @ k.transpose(2, 3) / width**0.5, -1) @ v
        y = y.transpose(1, 2).reshape(batch * queries, heads * width)
        f.put_backward(case, y, {"dx": x}, f.upstream(case, y))


def transformer_block(f):
    """A whole block, and its first token alone."""
    for case, queries in (("all", 17), ("first", 1)):
        f.cases[case] = {"batch": 2, "queries": queries}
        x = f.draw(f"{case}.x", (2 * 17, 24))
        block = formula.fill(nets.TransformerBlock(24, 3, 40), prefix=f"{case}.").to(f.dtype)
        y = block(x.view(2, 17, 24))[:, :queries].reshape(2 * queries, 24)
        f.put_backward(case, y, {"dx": x}, f.upstream(case, y))


def pool(f):
    kinds = {
        "global-average": nets.pool,
        "average-2x2": lambda x: F.avg_pool2d(x, 2),
        "max-3x3": lambda x: F.max_pool2d(x, 3, 2, 1),
        "option-a": lambda x: nets.option_a(x, 8, 2),
    }
    for kind, apply in kinds.items():
        for height, width in ((8, 8), (7, 5)):
            case = f"{kind}_{height}x{width}"
            x = f.draw_image(f"{case}.x", (2, 4, height, width))
            y = apply(x)
            f.put_backward(case, y, {"dx": x}, f.upstream(case, y))


def cross_entropy(f):
    for case, scale in (("plain", 3.0), ("steep", 200.0)):
        x = f.draw(f"{case}.x", (6, 10), scale)
        f.put_backward(case, F.cross_entropy(x, formula.labels(6, 10)), {"dx": x})


def optimiser(f, case, make):
    """Five steps on three parameters, with gradients by formula."""
    shapes = {"p0": (5,), "p1": (3, 4), "p2": (2, 3, 3, 3)}
    parameters = {name: f.draw(name, shape, 1.0) for name, shape in shapes.items()}
    optimizer = make(parameters.values())
    for step in range(5):
        for name, parameter in parameters.items():
            parameter.grad = f.draw(f"grad.{step}.{name}", shapes[name], 1.0).detach()
        optimizer.step()
        for name, parameter in parameters.items():
            f.put(f"{case}.{step}.{name}", parameter.clone())


def sgd(f):
    for case, decay in (("plain", 0.0), ("decay", 5e-4)):
        f.cases[case] = {"lr": 0.1, "momentum": 0.9, "weight_decay": decay, "nesterov": False}
        optimiser(f, case, lambda p: torch.optim.SGD(p, **f.cases[case]))


def adam(f):
    f.cases["plain"] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}
    optimiser(f, "plain", lambda p: torch.optim.Adam(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8))


def blocks(f):
    builders = {
        "option-a": (lambda: nets.OptionABlock(4, 8, 2), 4),
        "bottleneck": (lambda: nets.Bottleneck(8, 4, 2, "shortcut"), 8),
        "bottleneck-identity": (lambda: nets.Bottleneck(16, 4, 1, "shortcut"), 16),
        "pre-activation-group": (lambda: nets.PreActivation(8, 16, 2, "group"), 8),
        "pre-activation-batch": (lambda: nets.PreActivation(8, 16, 2, "batch"), 8),
        "wide": (lambda: nets.Wide(4, 8, 2), 4),
        "wide-identity": (lambda: nets.Wide(8, 8, 1), 8),
        "downsample": (lambda: nets.Basic(4, 8, 2, "downsample"), 4),
    }
    for case, (build, cin) in builders.items():
        x = f.draw_image(f"{case}.x", (2, cin, 6, 6))
        for mode in ("eval", "train"):
            block = formula.fill(build(), prefix=f"{case}.").to(f.dtype).train(mode == "train")
            y = block(x)
            f.put_backward(f"{case}.{mode}", y, {"dx": x}, f.upstream(case, y))


FIXTURES = {
    "op-conv": conv,
    "op-batch-norm": batch_norm,
    "op-group-norm": group_norm,
    "op-layer-norm": layer_norm,
    "op-linear": linear,
    "op-attention": attention,
    "op-pool": pool,
    "op-cross-entropy": cross_entropy,
    "op-sgd": sgd,
    "op-adam": adam,
    "blocks": blocks,
    "block-transformer": transformer_block,
}
