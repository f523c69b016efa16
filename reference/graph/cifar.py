"""Networks of the CIFAR world as people publish them, each with what makes its graph unlike the others.

The normalisation of the input is part of some of them, as in robustness benchmarks: those expect pixels from 0 to 1.
"""

import torch
import torch.nn.functional as F
from torch import nn

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


def conv3(cin, cout, stride=1, padding=1):
    return nn.Conv2d(cin, cout, 3, stride, padding, bias=False)


class Normalise(nn.Module):
    """Subtracts the mean and divides by the deviation of CIFAR-10, held in buffers `[1, 3, 1, 1]`."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(DEVIATION).view(1, 3, 1, 1))

    def forward(self, x):
        return (x - self.mean) / self.std


class WideBlock(nn.Module):
    """Norm, activation, convolution, twice; where channels change, the shortcut reads the activated input."""

    def __init__(self, cin, cout, stride, activation, padded):
        super().__init__()
        padding = 0 if padded else 1
        self.activation, self.padded, self.same = activation, padded, cin == cout
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), conv3(cin, cout, stride, padding)
        self.bn2, self.conv2 = nn.BatchNorm2d(cout), conv3(cout, cout, 1, padding)
        self.shortcut = None if self.same else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def pad(self, x):
        return F.pad(x, (1, 1, 1, 1)) if self.padded else x

    def forward(self, x):
        activated = self.activation(self.bn1(x))
        out = self.activation(self.bn2(self.conv1(self.pad(activated))))
        out = self.conv2(self.pad(out))
        return out + (x if self.same else self.shortcut(activated))


class WideResNet(nn.Module):
    """Zagoruyko and Komodakis. `padded`: zeros by `F.pad` and convolutions without any of their own."""

    def __init__(self, depth, widen, activation=F.relu, padded=False, normalise=False, classes=10):
        super().__init__()
        count = (depth - 4) // 6
        assert depth == 6 * count + 4
        self.activation, self.padded = activation, padded
        self.normalise = Normalise() if normalise else nn.Identity()
        self.conv1 = conv3(3, 16, 1, 0 if padded else 1)
        cin = 16
        for stage in range(3):
            cout, blocks = widen * 16 << stage, []
            for j in range(count):
                stride = 2 if stage > 0 and j == 0 else 1
                blocks.append(WideBlock(cin, cout, stride, activation, padded))
                cin = cout
            self.add_module(f"block{stage + 1}", nn.Sequential(*blocks))
        self.bn1, self.fc = nn.BatchNorm2d(cin), nn.Linear(cin, classes)
        self.features = cin

    def forward(self, x):
        x = self.normalise(x)
        x = self.conv1(F.pad(x, (1, 1, 1, 1)) if self.padded else x)
        x = self.activation(self.bn1(self.block3(self.block2(self.block1(x)))))
        return self.fc(F.avg_pool2d(x, 8).view(-1, self.features))


class GroupedBlock(nn.Module):
    """1x1, grouped 3x3, 1x1."""

    def __init__(self, cin, groups, width, cout, stride):
        super().__init__()
        inner = groups * width
        self.conv_reduce, self.bn_reduce = nn.Conv2d(cin, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand, self.bn_expand = nn.Conv2d(inner, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if cin != cout or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn_reduce(self.conv_reduce(x)), inplace=True)
        out = F.relu(self.bn(self.conv_conv(out)), inplace=True)
        out = self.bn_expand(self.conv_expand(out))
        return F.relu(self.shortcut(x) + out, inplace=True)


class ResNeXt29(nn.Module):
    """Xie et al. for CIFAR: three stages of three blocks. The group's width doubles in each stage."""

    def __init__(self, groups=32, width=4, classes=10, normalise=False):
        super().__init__()
        self.normalise = Normalise() if normalise else nn.Identity()
        self.conv_1_3x3, self.bn_1 = conv3(3, 64), nn.BatchNorm2d(64)
        cin = 64
        for stage in range(3):
            blocks, cout = [], 256 << stage
            for j in range(3):
                stride = 2 if stage > 0 and j == 0 else 1
                blocks.append(GroupedBlock(cin, groups, width << stage, cout, stride))
                cin = cout
            self.add_module(f"stage_{stage + 1}", nn.Sequential(*blocks))
        self.classifier = nn.Linear(cin, classes)

    def forward(self, x):
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalise(x))), inplace=True)
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


class PreActBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), conv3(cin, cout, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(cout), conv3(cout, cout)
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False))

    def forward(self, x):
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        return self.conv2(F.relu(self.bn2(out))) + shortcut


class PreActResNet18(nn.Module):
    """He et al., identity mappings, with the normalisation inside."""

    def __init__(self, classes=10):
        super().__init__()
        self.normalise = Normalise()
        self.conv1 = conv3(3, 64)
        cin = 64
        for stage in range(4):
            cout = 64 << stage
            blocks = [PreActBlock(cin, cout, 2 if stage > 0 else 1), PreActBlock(cout, cout, 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            cin = cout
        self.bn, self.linear = nn.BatchNorm2d(cin), nn.Linear(cin, classes)

    def forward(self, x):
        x = self.conv1(self.normalise(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = F.avg_pool2d(F.relu(self.bn(x)), 4)
        return self.linear(x.view(x.size(0), -1))


class OptionABlock(nn.Module):
    """The shortcut takes every second pixel and zero channels on both sides."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.stride, self.side = stride, (cout - cin) // 2
        self.conv1, self.bn1 = conv3(cin, cout, stride), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = conv3(cout, cout), nn.BatchNorm2d(cout)

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.side, self.side))
        return F.relu(out + x)


class ResNet20(nn.Module):
    """He et al. for CIFAR, option A."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1, self.bn1 = conv3(3, 16), nn.BatchNorm2d(16)
        cin = 16
        for stage in range(3):
            cout, blocks = 16 << stage, []
            for j in range(3):
                blocks.append(OptionABlock(cin, cout, 2 if stage > 0 and j == 0 else 1))
                cin = cout
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.linear = nn.Linear(cin, classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(F.avg_pool2d(x, x.size()[3]).view(x.size(0), -1))


CIFAR = {
    "resnet20_option_a": ResNet20,
    "wrn_40_2": lambda: WideResNet(40, 2),
    "preactresnet18_normalised": PreActResNet18,
    "resnext29_32x4d": lambda: ResNeXt29(normalise=True),
    "wrn_28_10": lambda: WideResNet(28, 10),
    "wrn_28_10_silu_pad": lambda: WideResNet(28, 10, F.silu, padded=True, normalise=True),
}
