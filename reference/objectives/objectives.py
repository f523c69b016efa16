"""The losses that source training and test-time training share, each as a plain function."""

import torch
import torch.nn.functional as F


def smoothed_over_all(logits, labels, smoothing):
    """Cross-entropy against `1 - s` on the label plus `s / K` on every class, the label included."""
    classes = logits.shape[1]
    target = F.one_hot(labels, classes).to(logits.dtype) * (1 - smoothing) + smoothing / classes
    return -(target * F.log_softmax(logits, 1)).sum(1).mean()


def smoothed_over_others(logits, labels, smoothing):
    """Cross-entropy against `1 - s` on the label and `s / (K - 1)` on each other class (DGCNN)."""
    classes = logits.shape[1]
    own = F.one_hot(labels, classes).to(logits.dtype)
    target = own * (1 - smoothing) + (1 - own) * smoothing / (classes - 1)
    return -(target * F.log_softmax(logits, 1)).sum(1).mean()


def contrastive(projections, temperature=0.5, base_temperature=0.07):
    """NT-Xent of `[first views; second views]` before normalisation, times `temperature / base_temperature`.

    The positive of a row is the other view of its image; the denominator runs over all rows but the row itself.
    """
    count = projections.shape[0]
    unit = F.normalize(projections, dim=1)
    similarity = unit @ unit.T / temperature
    itself = torch.eye(count, dtype=torch.bool)
    log_probability = F.log_softmax(similarity.masked_fill(itself, float("-inf")), 1)
    row = torch.arange(count)
    return -(temperature / base_temperature) * log_probability[row, (row + count // 2) % count].mean()


def turn(images, quarters):
    """NCHW images turned counter-clockwise: `turned[i, j] = image[j, W - 1 - i]` for one quarter."""
    return torch.rot90(images, quarters, (2, 3))


def four_turns(images):
    """All images upright, then all by one quarter, two, three; and the labels 0 to 3 that go with them."""
    stacked = torch.cat([turn(images, quarters) for quarters in range(4)])
    return stacked, torch.arange(4).repeat_interleave(len(images))


def joint_contrastive(net, first, second, labels):
    """Source training of TTT++ and TTAC: both views go through one train-mode forward, stacked."""
    features = net.features(torch.cat([first, second]))
    one, two = net.fc(features).chunk(2)
    terms = {
        "class": F.cross_entropy(one, labels) + F.cross_entropy(two, labels),
        "contrastive": contrastive(net.head(features)),
    }
    return 0.9 * terms["class"] + 0.1 * terms["contrastive"], terms


def rotation_logits(net, images):
    (logits,) = net.extras(images).values()
    return logits


def joint_rotation(net, images, labels):
    """Source training of TTT-R: classes of the upright images, and the turns of all four copies."""
    turned, turns = four_turns(images)
    terms = {
        "class": F.cross_entropy(net(images), labels),
        "rotation": F.cross_entropy(rotation_logits(net, turned), turns),
    }
    return terms["class"] + terms["rotation"], terms
