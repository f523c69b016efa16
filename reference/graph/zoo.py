"""The networks of the census: made by name, with random weights that leave no operation without an effect."""

import zlib

import timm
import torch
import torchvision
from torch import nn

import cifar

TORCHVISION = """
resnet18 mobilenet_v2 squeezenet1_1 shufflenet_v2_x1_0 resnet50 mobilenet_v3_small efficientnet_b0 mnasnet1_0
regnet_y_400mf googlenet densenet121 resnext50_32x4d convnext_tiny vit_b_16 swin_t inception_v3 wide_resnet50_2
efficientnet_v2_s swin_v2_t maxvit_t alexnet vgg16_bn
""".split()

TIMM = """
efficientnet_lite0 vit_tiny_patch16_224 mobilenetv3_large_100 mobilenetv4_conv_small deit_tiny_patch16_224
deit_tiny_distilled_patch16_224 convnext_atto convnextv2_atto resnet26d regnetx_004 ghostnet_100 mobileone_s0
repvgg_a0 tf_efficientnetv2_b0 seresnet50 ecaresnet26t skresnet18 resnest14d mobilevit_xxs mobilevitv2_050
poolformer_s12 mixer_s32_224 gmlp_s16_224 resmlp_12_224 pit_ti_224 visformer_tiny levit_128s efficientformer_l1
efficientvit_b0 efficientvit_m0 edgenext_xx_small xcit_nano_12_p16_224 cait_xxs24_224 fastvit_t8 repvit_m0_9
dla34 dpn68b hrnet_w18_small cspdarknet53 res2net50_26w_4s ese_vovnet19b_dw xception41 resnetv2_50
resnetv2_50x1_bit resnet50_gn eca_nfnet_l0 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256
coatnet_nano_rw_224 volo_d1_224 convmixer_1024_20_ks9_p14 eva02_tiny_patch14_224 vit_small_patch14_dinov2
beit_base_patch16_224
""".split()

# The small and common ones of each package come first, so that a census that is still running is of use.
NAMES = [
    *(f"cifar.{name}" for name in cifar.CIFAR),
    *(f"torchvision.{name}" for name in TORCHVISION[:14]),
    *(f"timm.{name}" for name in TIMM[:34]),
    *(f"torchvision.{name}" for name in TORCHVISION[14:]),
    *(f"timm.{name}" for name in TIMM[34:]),
]


def generator(name):
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def plain(name):
    """The network as its package makes it, and its input shape `[3, height, width]`."""
    package, _, short = name.partition(".")
    torch.manual_seed(zlib.crc32(name.encode()))
    if package == "cifar":
        return cifar.CIFAR[short](), (3, 32, 32)
    if package == "torchvision":
        options = {"aux_logits": True, "init_weights": True} if short in ("googlenet", "inception_v3") else {}
        side = 299 if short == "inception_v3" else 256 if short == "swin_v2_t" else 224
        return torchvision.models.get_model(short, weights=None, **options), (3, side, side)
    net = timm.create_model(short, pretrained=False)
    return net, tuple(net.default_cfg["input_size"])


@torch.no_grad()
def stir(net, draw):
    """Draws anew what packages initialise to one constant, as an import that ignores it would go unnoticed.

    These are biases, norms, class tokens, layer scales of 1e-6, zeros that switch residual branches off and heads of
    zeros.
    """
    norms = {id(module.weight) for module in net.modules() if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None}
    for parameter in net.parameters():
        constant = parameter.flatten()[0].item()
        if not (parameter == constant).all():
            continue
        noise = torch.randn(parameter.shape, generator=draw)
        matrix = parameter.squeeze().dim() >= 2
        if id(parameter) in norms or 0.2 <= abs(constant):
            value = (constant or 1.0) * (1 + 0.1 * noise)
        elif constant != 0 or parameter.numel() == 1:
            value = 0.3 + 0.05 * noise
        elif matrix:
            value = noise / parameter.shape[-1] ** 0.5
        else:
            value = 0.1 * noise
        parameter.copy_(value)


@torch.no_grad()
def settle(net, x, draw):
    """Gives batch norms running statistics near those of `x`, and random: the values then keep their size.

    Means are off by a tenth of a deviation, variances by up to a third. A channel's variance is at least a tenth of
    the layer's mean one, since a norm that divides by almost nothing would magnify rounding.
    """
    layers = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
        layer.train()
    if layers:
        net(x)
    for layer, momentum in zip(layers, momenta):
        layer.eval()
        layer.momentum = momentum
        variance = layer.running_var
        variance = variance.maximum(0.1 * variance.mean()) * (2 / 3 + 5 / 6 * torch.rand(variance.shape, generator=draw))
        layer.running_mean += 0.1 * variance.sqrt() * torch.randn(variance.shape, generator=draw)
        layer.running_var.copy_(variance)


def make(name):
    """The network in eval mode with random weights and statistics, and two random images."""
    draw = generator(name)
    net, shape = plain(name)
    net.eval()
    stir(net, draw)
    settle(net, torch.randn(8, *shape, generator=draw), draw)
    return net, torch.randn(2, *shape, generator=draw)


# Those whose speed is compared, by the names that reference/speed uses.
TIMED = {
    "mobilenet_v2": "torchvision.mobilenet_v2",
    "efficientnet_lite0": "timm.efficientnet_lite0",
    "resnext29_32x4d": "cifar.resnext29_32x4d",
    "convnext_tiny": "torchvision.convnext_tiny",
    "vit_tiny_patch16_224": "timm.vit_tiny_patch16_224",
}
