"""A drop-in `nn.Module` that learns from the batches it answers, for loops that exist already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttac._engine import Anchors, Answer, Model, Session

__all__ = ["Adapter"]

# How far a value may be from a byte, in bytes. Rounding in float32 is off by less than a thousandth.
_NEAR = 0.01


class Adapter(torch.nn.Module):
    """Answers like the network it is made of, and learns from every batch.

        net = ttac.torch.Adapter(net, torch.randn(2, 3, 32, 32), mean=MEAN, std=STD, method="tent")
        for images, _ in loader:
            scores = net(images)

    `forward` takes what the network took: tensors `[n, 3, height, width]` that were normalised by `mean` and `std`; or bytes. The
    engine works on bytes, so values that are none after the normalisation is undone are refused unless `quantise` is set,
    which takes the nearest. `forward` returns the scores of `Session.observe` on the CPU, without gradients: the session has
    its own. It learns in train mode and in eval mode; `predict` does not learn.

    `anchors` are needed by methods that say so, and further keyword arguments are those of `Session`. The network itself stays
    as it was until `write_back` gives it what was learned.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        example: torch.Tensor,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        normalise: str | None = None,
        classes: Sequence[str] | int | None = None,
        anchors: Anchors | None = None,
        method: str = "tent",
        quantise: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.net = net
        self.model = Model.from_torch(net, example, mean=mean, std=std, normalise=normalise, classes=classes)
        self.session = Session(self.model, anchors, method, **settings)
        self.quantise = quantise
        self.answer: Answer | None = None
        """The whole answer to the newest batch."""
        normalisation = self.model.normalisation
        assert normalisation is not None, "networks that `from_torch` takes look at images"
        self._mean, self._std = (torch.tensor(values).view(1, 3, 1, 1) for values in normalisation)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Learns from a batch, and returns its scores, `[n, classes]`."""
        self.answer = self.session.observe(self._bytes(images))
        return torch.from_numpy(self.answer.scores)

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the scores of a batch as they are now, and learns nothing."""
        return torch.from_numpy(self.session.predict(self._bytes(images)).scores)

    def reset(self) -> None:
        """Goes back to the network as it was."""
        self.session.reset()

    def write_back(self) -> torch.nn.Module:
        """Gives the network the weights as they are now, and returns it."""
        self.net.load_state_dict(self.session.state_dict())
        return self.net

    def _bytes(self, images: torch.Tensor) -> torch.Tensor:
        if not isinstance(images, torch.Tensor):
            raise TypeError(f"images: expected a tensor, found `{type(images).__name__}`")
        images = images.detach().cpu()
        if images.dtype == torch.uint8:
            return images
        if not images.is_floating_point() or images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images: expected floats or bytes, [n, 3, height, width], found {images.dtype} of shape {list(images.shape)}")
        pixels = 255 * (images.float() * self._std + self._mean)
        nearest = pixels.round()
        if not torch.isfinite(nearest).all():
            raise ValueError("images: expected finite values, found NaN or infinity")
        furthest = (pixels - nearest).abs().max().item() if pixels.numel() else 0.0
        outside = pixels.numel() and (nearest.min() < 0 or nearest.max() > 255)
        if outside or (furthest > _NEAR and not self.quantise):
            found = f"from {pixels.min():.1f} to {pixels.max():.1f}" if outside else f"off by {furthest:.2f}"
            raise ValueError(
                f"images: expected bytes of 0 to 255 after `mean` and `std` are undone, found values {found}; are they the ones that the images were "
                "normalised by? `quantise=True` takes the nearest byte of images that were resized or varied as floats"
            )
        # Channels come last in the engine; this is the one copy.
        return nearest.to(torch.uint8).permute(0, 2, 3, 1).contiguous()
