"""The architectures, written plainly, with the keys of the published checkpoints.

Every network has `features(x)` (pooled, one row per image) and `forward(x)` (class logits).
"""

import torch
import torch.nn.functional as F
from torch import nn


def conv(cin, cout, kernel, stride=1):
    return nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)


def pool(x):
    return x.mean((2, 3))


def group_norm(channels):
    return nn.GroupNorm(8, channels)


NORMS = {"batch": nn.BatchNorm2d, "group": group_norm}


def option_a(x, cout, stride):
    """Every second pixel, and zero channels on both sides."""
    side = (cout - x.shape[1]) // 2
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, side, side))


# ---- He et al. for CIFAR: resnet20 ... resnet110 ----------------------------------------------


class OptionABlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.cout, self.stride = cout, stride
        self.conv1, self.bn1 = conv(cin, cout, 3, stride), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = conv(cout, cout, 3), nn.BatchNorm2d(cout)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + option_a(x, self.cout, self.stride))


class ResNetCifar(nn.Module):
    def __init__(self, depth, width=16, classes=10):
        super().__init__()
        n = (depth - 2) // 6
        assert depth == 6 * n + 2
        self.conv1, self.bn1 = conv(3, width, 3), nn.BatchNorm2d(width)
        cin = width
        for stage in range(3):
            cout = width << stage
            strides = [1 if stage == 0 else 2] + [1] * (n - 1)
            blocks = [OptionABlock(cin if j == 0 else cout, cout, s) for j, s in enumerate(strides)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            cin = cout
        self.linear = nn.Linear(cin, classes)

    def features(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return pool(self.layer3(self.layer2(self.layer1(x))))

    def forward(self, x):
        return self.linear(self.features(x))


# ---- Post-activation blocks with a learned shortcut, shared by the next two families -----------


class Basic(nn.Module):
    expansion = 1

    def __init__(self, cin, planes, stride, shortcut):
        super().__init__()
        self.conv1, self.bn1 = conv(cin, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3), nn.BatchNorm2d(planes)
        add_shortcut(self, shortcut, cin, planes, stride)

    def body(self, x):
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, cin, planes, stride, shortcut):
        super().__init__()
        self.conv1, self.bn1 = conv(cin, planes, 1), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = conv(planes, 4 * planes, 1), nn.BatchNorm2d(4 * planes)
        add_shortcut(self, shortcut, cin, 4 * planes, stride)

    def body(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.bn3(self.conv3(F.relu(self.bn2(self.conv2(x)))))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


BLOCKS = {"basic": Basic, "bottleneck": Bottleneck}


def add_shortcut(block, name, cin, cout, stride):
    """Convolution and batch norm under `name` if the shape changes, otherwise nothing."""
    if stride == 1 and cin == cout:
        block.skip = lambda x: x
        return
    shortcut = nn.Sequential(conv(cin, cout, 1, stride), nn.BatchNorm2d(cout))
    block.add_module(name, shortcut)
    block.skip = shortcut.forward


def add_stages(net, block, width, blocks, shortcut):
    """`layer1` to `layer4`; answers the number of channels at the end."""
    cin = width
    for stage, count in enumerate(blocks):
        planes, layers = width << stage, []
        for j in range(count):
            stride = 2 if stage > 0 and j == 0 else 1
            layers.append(block(cin, planes, stride, shortcut))
            cin = planes * block.expansion
        net.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
    return cin


class ContrastiveResNet(nn.Module):
    """`resnet18-cifar` and `resnet50-cifar`: encoder, classifier `fc`, projection head `head`."""

    def __init__(self, block, blocks, width=64, classes=10, projection=128):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.conv1, self.encoder.bn1 = conv(3, width, 3), nn.BatchNorm2d(width)
        size = add_stages(self.encoder, BLOCKS[block], width, blocks, "shortcut")
        self.fc = nn.Linear(size, classes)
        self.head = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, projection))

    def features(self, x):
        e = self.encoder
        x = F.relu(e.bn1(e.conv1(x)))
        return pool(e.layer4(e.layer3(e.layer2(e.layer1(x)))))

    def forward(self, x):
        return self.fc(self.features(x))

    def extras(self, x):
        return {"projection": self.head(self.features(x))}


class ResNet(nn.Module):
    """`resnet18` and `resnet50` for large images, stride on the 3x3 convolution."""

    def __init__(self, block, blocks, width=64, classes=1000):
        super().__init__()
        self.conv1, self.bn1 = conv(3, width, 7, 2), nn.BatchNorm2d(width)
        size = add_stages(self, BLOCKS[block], width, blocks, "downsample")
        self.fc = nn.Linear(size, classes)

    def features(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return pool(self.layer4(self.layer3(self.layer2(self.layer1(x)))))

    def forward(self, x):
        return self.fc(self.features(x))


# ---- TTT-R's pre-activation resnet26 -------------------------------------------------------------


class PreActivation(nn.Module):
    def __init__(self, cin, cout, stride, norm):
        super().__init__()
        self.cin, self.cout, self.stride = cin, cout, stride
        self.bn1, self.conv1 = NORMS[norm](cin), conv(cin, cout, 3, stride)
        self.bn2, self.conv2 = NORMS[norm](cout), conv(cout, cout, 3)

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        if self.stride != 1 or self.cin != self.cout:
            x = F.avg_pool2d(x, self.stride)
            x = F.pad(x, (0, 0, 0, 0, 0, self.cout - self.cin))  # zeros after the real channels
        return out + x


def pre_activation_stage(width, stage, n, norm):
    cin, cout = width << max(stage - 1, 0), width << stage
    blocks = [PreActivation(cin, cout, 1 if stage == 0 else 2, norm)]
    blocks += [PreActivation(cout, cout, 1, norm) for _ in range(n - 1)]
    return nn.Sequential(*blocks)


class ResNetRotation(nn.Module):
    """`shared` is the last stage that the rotation head has in common with the classifier: 2 or 3."""

    def __init__(self, depth=26, width=16, classes=10, norm="group", shared=2):
        super().__init__()
        n = (depth - 2) // 6
        assert depth == 6 * n + 2
        self.shared = shared
        self.conv1 = conv(3, width, 3)
        for stage in range(3):
            self.add_module(f"layer{stage + 1}", pre_activation_stage(width, stage, n, norm))
        size = 4 * width
        self.bn, self.fc = NORMS[norm](size), nn.Linear(size, classes)
        if shared == 3:
            self.head = nn.Linear(size, 4)
        else:
            own = [pre_activation_stage(width, 2, n, norm), NORMS[norm](size), nn.ReLU()]
            own += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, 4)]
            self.head = nn.Sequential(*own)

    def stem(self, x):
        return self.layer2(self.layer1(self.conv1(x)))

    def features(self, x):
        return pool(F.relu(self.bn(self.layer3(self.stem(x)))))

    def forward(self, x):
        return self.fc(self.features(x))

    def extras(self, x):
        shared = self.stem(x) if self.shared == 2 else self.features(x)
        return {f"rotation.stage{self.shared}": self.head(shared)}


# ---- Wide residual networks ------------------------------------------------------------------------


class Wide(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), conv(cin, cout, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(cout), conv(cout, cout, 3)
        if cin != cout:
            self.convShortcut = conv(cin, cout, 1, stride)

    def forward(self, x):
        out = F.relu(self.bn1(x))
        # Where the width changes, the shortcut too starts from the activated input.
        x = self.convShortcut(out) if hasattr(self, "convShortcut") else x
        return self.conv2(F.relu(self.bn2(self.conv1(out)))) + x


class WideResNet(nn.Module):
    def __init__(self, depth, widen, width=16, classes=10):
        super().__init__()
        n = (depth - 4) // 6
        assert depth == 6 * n + 4
        self.conv1 = conv(3, width, 3)
        cin = width
        for stage in range(3):
            cout = (width << stage) * widen
            stride = 1 if stage == 0 else 2
            block = nn.Module()
            block.layer = nn.Sequential(Wide(cin, cout, stride), *[Wide(cout, cout, 1) for _ in range(n - 1)])
            block.forward = block.layer.forward
            self.add_module(f"block{stage + 1}", block)
            cin = cout
        self.bn1, self.fc = nn.BatchNorm2d(cin), nn.Linear(cin, classes)

    def features(self, x):
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return pool(F.relu(self.bn1(x)))

    def forward(self, x):
        return self.fc(self.features(x))


# ---- Vision transformers, timm's form --------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width))


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads, mlp):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width, mlp)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, patch, width):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    def __init__(self, image_size, patch, width, depth, heads, mlp=None, classes=10):
        super().__init__()
        tokens = (image_size // patch) ** 2 + 1
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, width))
        self.patch_embed = PatchEmbed(patch, width)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, mlp or 4 * width) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def features(self, x):
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.norm(self.blocks(x)[:, 0])

    def forward(self, x):
        return self.head(self.features(x))


# ---- By name ---------------------------------------------------------------------------------------

# ---- DGCNN for clouds of points ---------------------------------------------------------------


def leaky(x):
    return F.leaky_relu(x, 0.2)


def nearest(x, k):
    """Indices of the k nearest points of each, itself included: [batch, channels, points] to [batch, points, k]."""
    squares = (x * x).sum(1, keepdim=True)
    distance = squares.transpose(1, 2) - 2 * x.transpose(1, 2) @ x + squares
    return distance.topk(k, dim=-1, largest=False).indices


def edge_features(x, k):
    """(x_j - x_i, x_i) for the neighbours j of each i: [batch, 2 channels, points, k]."""
    batch, channels, points = x.shape
    index = nearest(x.detach(), k).reshape(batch, 1, points * k).expand(-1, channels, -1)
    near = x.gather(2, index).reshape(batch, channels, points, k)
    own = x.unsqueeze(3).expand(-1, -1, -1, k)
    return torch.cat([near - own, own], 1)


class Dgcnn(nn.Module):
    """Input [batch, 3, points, 1]. Dropout, which the published network has behind bn6 and bn7, is left out."""

    CANCELLED = ("linear2.bias",)

    def __init__(self, k=20, width=64, embedding=1024, classes=40):
        super().__init__()
        self.k = k
        w, e = width, embedding
        for layer, (cin, cout) in enumerate([(3, w), (w, w), (w, 2 * w), (2 * w, 4 * w)], 1):
            self.add_module(f"conv{layer}", nn.Sequential(conv(2 * cin, cout, 1)))
            self.add_module(f"bn{layer}", nn.BatchNorm2d(cout))
        self.conv5 = nn.Sequential(nn.Conv1d(8 * w, e, 1, bias=False))
        self.bn5 = nn.BatchNorm1d(e)
        self.linear1, self.bn6 = nn.Linear(2 * e, e // 2, bias=False), nn.BatchNorm1d(e // 2)
        self.linear2, self.bn7 = nn.Linear(e // 2, e // 4), nn.BatchNorm1d(e // 4)
        self.linear3 = nn.Linear(e // 4, classes)

    def features(self, x):
        x, levels = x.squeeze(3), []
        for layer in range(1, 5):
            edges = edge_features(x, self.k)
            convolved = self.get_submodule(f"conv{layer}")(edges)
            x = leaky(self.get_submodule(f"bn{layer}")(convolved)).max(3).values
            levels.append(x)
        x = leaky(self.bn5(self.conv5(torch.cat(levels, 1))))
        x = torch.cat([x.max(2).values, x.mean(2)], 1)
        x = leaky(self.bn6(self.linear1(x)))
        return leaky(self.bn7(self.linear2(x)))

    def forward(self, x):
        return self.linear3(self.features(x))


FULL = {f"resnet{d}-cifar": (ResNetCifar, {"depth": d}) for d in (20, 32, 44, 56, 110)}
FULL |= {
    "resnet18-cifar": (ContrastiveResNet, {"block": "basic", "blocks": [2, 2, 2, 2]}),
    "resnet50-cifar": (ContrastiveResNet, {"block": "bottleneck", "blocks": [3, 4, 6, 3]}),
    "resnet26": (ResNetRotation, {"depth": 26, "norm": "group"}),
    "wrn-28-10": (WideResNet, {"depth": 28, "widen": 10}),
    "wrn-40-2": (WideResNet, {"depth": 40, "widen": 2}),
    "resnet18": (ResNet, {"block": "basic", "blocks": [2, 2, 2, 2]}),
    "resnet50": (ResNet, {"block": "bottleneck", "blocks": [3, 4, 6, 3]}),
    "dgcnn": (Dgcnn, {}),
}
VIT = {"tiny": {"width": 192, "heads": 3}, "small": {"width": 384, "heads": 6}, "base": {"width": 768, "heads": 12}}
for size, names in (({"image_size": 32, "patch": 4}, ("tiny", "small")), ({"image_size": 224, "patch": 16}, ("tiny", "small", "base"))):
    FULL |= {f"vit-{name}-{size['patch']}": (VisionTransformer, size | {"depth": 12} | VIT[name]) for name in names}
