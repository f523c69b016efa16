"""Identities that the parts of `methods.py` must satisfy, most of them listed in docs/methods.md."""

import math
from types import SimpleNamespace

import torch
from torch.distributions import MultivariateNormal, kl_divergence

import formula
import methods


def draw(name, *shape):
    return formula.values(name, shape, 2.0).double()


def gaussian(name, size):
    root = draw(name, size, size)
    return draw(name + ".mean", size), root @ root.T + 0.3 * torch.eye(size, dtype=torch.float64)


def running_moments():
    """Any split in batches gives the moments of the whole; the first update wipes the start; clipping forgets."""
    rows, start = draw("rows", 30, 4), gaussian("start", 4)
    for split in ([30], [7, 1, 22], [1] * 30):
        running = methods.RunningGaussian(*start, clip=1000)
        for part in rows.split(split):
            running.update(part)
        torch.testing.assert_close(running.mean, rows.mean(0))
        torch.testing.assert_close(running.covariance, torch.cov(rows.T, correction=0))
    weights = draw("weights", 30).abs()
    running = methods.RunningGaussian(*start, clip=1000)
    for part, weight in zip(rows.split(10), weights.split(10)):
        running.update(part, weight)
    torch.testing.assert_close(running.covariance, torch.cov(rows.T, correction=0, aweights=weights))

    running = methods.RunningGaussian(*start, clip=8)
    running.update(rows[:16])
    before = running.mean - 1
    for _ in range(3):
        running.update(torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(running.mean - 1, before * (1 - 2 / 8) ** 3)


def divergences():
    """Against PyTorch's own KL, and the closed form of the gradient (docs/methods.md, Divergence and its gradient)."""
    source, start, rows = gaussian("source", 5), gaussian("target", 5), draw("rows", 6, 5).requires_grad_()
    p, q = MultivariateNormal(*source), MultivariateNormal(*start)
    both = kl_divergence(p, q) + kl_divergence(q, p)
    torch.testing.assert_close(methods.divergence(source, start), both)
    torch.testing.assert_close(methods.divergence(source, start, "source-to-target"), kl_divergence(p, q))
    torch.testing.assert_close(methods.divergence(source, source).item(), 0.0)

    running = methods.RunningGaussian(*start, clip=20)
    running.count = 40.0
    template = 0.1 * torch.eye(5, dtype=torch.float64)
    mean, covariance = running.update(rows)
    target = mean, covariance + template
    inverse_s, inverse_t = source[1].inverse(), target[1].detach().inverse()
    d = (mean - source[0]).detach()
    pull = torch.outer(inverse_t @ d, inverse_t @ d)
    closed = {
        "both": ((inverse_s + inverse_t) @ d, 0.5 * (inverse_s - inverse_t @ source[1] @ inverse_t - pull)),
        "source-to-target": (inverse_t @ d, 0.5 * (inverse_t - inverse_t @ source[1] @ inverse_t - pull)),
    }
    for direction, (g, slope) in closed.items():
        value = methods.divergence(source, target, direction)
        (found,) = torch.autograd.grad(value, rows, retain_graph=True)
        expected = (g + 2 * (rows - mean).detach() @ slope) / 20
        torch.testing.assert_close(found, expected)


def filter_rules():
    """A first visit passes; a drop beyond the threshold costs the trust for the next four epochs."""
    c = SimpleNamespace(temporal_threshold=-0.001, posterior_weight=0.9, confidence_threshold=0.9)

    def judge(samples, confidence):
        posterior = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64)
        return samples.judge(torch.tensor([0]), posterior)[0].item()

    for drop, kept in ((0.0009, True), (0.0011, False)):
        samples = methods.Filter(1, 2, c, methods.Record(), torch.float64)
        assert judge(samples, 0.95)
        assert judge(samples, 0.95 - drop) == kept
        assert math.isclose(samples.average[0, 0].item(), 0.1 * 0.95 + 0.9 * (0.95 - drop))
        later = []
        for _ in range(5):
            samples.recover()
            later.append(judge(samples, 0.96))
        assert later == ([True] * 5 if kept else [False] * 4 + [True])


def ring():
    """Used only when full, read before it is written."""
    rows = draw("rows", 12, 3)
    buffer = methods.Ring(8)
    for part, size in zip(rows.split(4), (4, 4, 12)):
        assert len(buffer.joined(part)) == size
        buffer.push(part)
    torch.testing.assert_close(buffer.rows, torch.cat([rows[8:], rows[4:8]]))


def main():
    running_moments()
    divergences()
    filter_rules()
    ring()


if __name__ == "__main__":
    main()
