"""Methods with a teacher that has norm statistics of its own, or with a memory: TRIBE, RoTTA, PeTTA, NOTE.

Written from docs/methods.md, as `methods.py` is; what a case and its record are is explained there.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import methods

# ---- Norms that keep their statistics ----------------------------------------------------------------


class RobustNorm(nn.BatchNorm2d):
    """In train mode the statistics move by a share towards those of the batch, and the layer uses the new ones."""

    def forward(self, x):
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean = (1 - self.share) * mean + self.share * x.mean((0, 2, 3))
            variance = (1 - self.share) * variance + self.share * x.var((0, 2, 3), correction=0)
            self.running_mean, self.running_var = mean.detach(), variance.detach()
        return normalise(self, x, mean, variance)


class BalancedNorm(nn.BatchNorm2d):
    """In train mode the statistics of each class move by its own images; the layer uses those of equally frequent classes."""

    def forward(self, x):
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = self.moved(x)
            self.running_mean, self.running_var = mean.detach(), variance.detach()
        return normalise(self, x, mean, variance)

    def moved(self, x):
        means, variances = list(self.means), list(self.variances)
        steps, spreads, parts = [], [], []
        for k in self.labels.unique().tolist():
            own = x[self.labels == k]
            a = min(self.share, 1 / len(own))
            offset = own - means[k][:, None, None]
            d = a * offset.mean((2, 3)).sum(0)
            q = offset.square().mean((2, 3)).sum(0)
            steps.append(d)
            spreads.append(a * q - d.square())
            parts.append(a * len(own))
            variances[k] = variances[k] + (1 - self.common) * (a * (q - len(own) * variances[k]) - d.square())
            means[k] = means[k] + (1 - self.common) * d
        means, variances = torch.stack(means), torch.stack(variances)
        means = means + self.common * torch.stack(steps).mean(0)
        part = sum(parts) / len(parts)
        variances = variances + self.common * (torch.stack(spreads).mean(0) - part * variances)
        self.means, self.variances = means.detach(), variances.detach()
        return means.mean(0), variances.mean(0) + means.var(0)


def normalise(norm, x, mean, variance):
    x = (x - mean[:, None, None]) / (variance + norm.eps).sqrt()[:, None, None]
    return x * norm.weight[:, None, None] + norm.bias[:, None, None]


def robust(case):
    for norm in methods.norms(case.net):
        norm.__class__, norm.share = RobustNorm, case.c.norm_share
    return affine(case.net)


def balanced(case):
    for norm in methods.norms(case.net):
        norm.__class__, norm.share, norm.common = BalancedNorm, case.c.norm_share, case.c.common_part
        norm.means = norm.running_mean.repeat(case.classes, 1)
        norm.variances = norm.running_var.repeat(case.classes, 1)
    return affine(case.net)


def affine(net):
    return [p for norm in methods.norms(net) for p in (norm.weight, norm.bias)]


def symmetric_cross_entropy(a, b):
    return 0.5 * (methods.cross_entropy_between(a, b) + methods.cross_entropy_between(b, a))


def follow(teacher, net, share):
    """The teacher's trained parameters go a share of the way to the student's."""
    with torch.no_grad():
        for t, p in zip(affine(teacher), affine(net)):
            t.copy_((1 - share) * t + share * p)


def answers_of(net, images):
    """Features and logits with stored statistics, without gradients."""
    with torch.no_grad():
        features = net.eval().features(images)
        return features, methods.classifier(net)(features)


def without_gradients(net, images):
    with torch.no_grad():
        return methods.classify(net.train(), images)


# ---- TRIBE ---------------------------------------------------------------------------------------------


def tribe(case):
    """TRIBE: student and teacher have one set of affine parameters and two of statistics; the source has its own of both."""
    c, record = case.c, case.record
    trained = balanced(case)
    optimiser = methods.adam(trained, c)
    source, student = copy.deepcopy(case.net), copy.deepcopy(case.net)
    # The network of the case is the teacher; the student takes its parameters.
    for own, shared in zip(methods.norms(student), methods.norms(case.net)):
        own.weight, own.bias = shared.weight, shared.bias
    for arriving, images in enumerate(case.batches):
        varied = case.varied[arriving * len(images) : (arriving + 1) * len(images)]
        _, before = answers_of(case.net, images)
        label = before.argmax(1)
        record.margin("pseudo_label", methods.top_two_gap(before))
        for net in (case.net, student, source):
            for norm in methods.norms(net):
                norm.labels = label
        teacher = methods.classify(case.net.train(), images)
        logits = methods.classify(student.train(), varied)
        anchor = without_gradients(source, images)
        uncertainty, bound = methods.entropy(teacher.detach()), c.entropy_margin * math.log(case.classes)
        record.margin("entropy", uncertainty - bound)
        record.margin("pseudo_label", methods.top_two_gap(teacher.detach()))
        accepted = uncertainty < bound
        assert accepted.any()
        terms = {
            "self_training": F.cross_entropy(logits[accepted], teacher[accepted].argmax(1)),
            "anchor": c.anchor_weight * (teacher - anchor)[accepted].square().mean(),
        }
        methods.step(optimiser, record.loss(**terms))
        record.add(logits=before, accepted=accepted, pseudo_label=label)
    record.state["crowded"] = any(n > 1 / c.norm_share for batch in record.series["pseudo_label"] for n in batch.bincount())


# ---- Memories --------------------------------------------------------------------------------------------


class TimelyMemory:
    """CSTU: classes have equal shares of the room; what is old or uncertain leaves first."""

    def __init__(self, case):
        self.c, self.classes, self.record = case.c, case.classes, case.record
        self.items = [[] for _ in range(case.classes)]
        self.refused = self.replaced = 0

    def score(self, age, uncertainty):
        timely = 1 / (1 + math.exp(-age / self.c.capacity))
        return self.c.timeliness_weight * timely + self.c.uncertainty_weight * uncertainty / math.log(self.classes)

    def offer(self, sample, label, uncertainty):
        if self.has_room(label, uncertainty):
            self.items[label].append([sample, uncertainty, 0])
        for items in self.items:
            for item in items:
                item[2] += 1

    def has_room(self, label, uncertainty):
        sizes = [len(items) for items in self.items]
        rivals = [label]
        if sizes[label] < self.c.capacity / self.classes:
            if sum(sizes) < self.c.capacity:
                return True
            rivals = [k for k, size in enumerate(sizes) if size == max(sizes)]
        scores = [(self.score(age, u), k, i) for k in rivals for i, (_, u, age) in enumerate(self.items[k])]
        ranked = sorted(scores, reverse=True)
        (worst, k, i), own = ranked[0], self.score(0, uncertainty)
        self.record.margin("memory", torch.tensor([worst - own] + [worst - s for s, *_ in ranked[1:2]]))
        if worst <= own:
            self.refused += 1
            return False
        self.replaced += 1
        self.items[k].pop(i)
        return True

    def chosen(self):
        """The samples' numbers in the stream, and their ages as parts of the capacity."""
        items = [item for items in self.items for item in items]
        ages = torch.tensor([age / self.c.capacity for *_, age in items], dtype=torch.float64)
        return torch.tensor([sample for sample, *_ in items]), ages

    def note(self):
        """What happened, for the demands on a fixture."""
        self.record.state |= {"refused": self.refused > 0, "replaced": self.replaced > 0}


def offers(case, memory, arriving, logits):
    """Offers the samples of an arriving batch one by one; yields after each."""
    posterior = F.softmax(logits, 1)
    uncertainty = -(posterior * (posterior + 1e-6).log()).sum(1)
    case.record.margin("pseudo_label", methods.top_two_gap(posterior))
    for row, (label, u) in enumerate(zip(posterior.argmax(1).tolist(), uncertainty.tolist())):
        memory.offer(arriving * len(logits) + row, label, u)
        yield


def note_memory(case, memory):
    """Which samples of the stream are in the memory."""
    inside = torch.zeros(len(case.images), dtype=torch.bool)
    inside[memory.chosen()[0]] = True
    case.record.add(inside=inside)


def rotta(case):
    """RoTTA: the teacher answers; every few samples the student learns its answers on the memory."""
    c, record = case.c, case.record
    trained, memory, seen = robust(case), TimelyMemory(case), 0
    optimiser, teacher = methods.adam(trained, c), copy.deepcopy(case.net)
    for arriving, images in enumerate(case.batches):
        _, before = answers_of(teacher, images)
        loss = torch.zeros((), dtype=images.dtype)
        for _ in offers(case, memory, arriving, before):
            seen += 1
            if seen % c.update_every:
                continue
            chosen, ages = memory.chosen()
            lesson = without_gradients(teacher, case.images[chosen])
            logits = methods.classify(case.net.train(), case.varied[chosen])
            weight = ((-ages).exp() / (1 + (-ages).exp())).to(images.dtype)
            loss = (weight * methods.cross_entropy_between(logits, lesson)).mean()
            methods.step(optimiser, loss)
            follow(teacher, case.net, c.teacher_share)
        record.loss(agreement=loss)
        record.add(logits=before)
        note_memory(case, memory)
    memory.note()


def petta(case):
    """PeTTA: RoTTA with a step for every batch, held near the source the more its features have drifted."""
    c, record = case.c, case.record
    trained, memory = robust(case), TimelyMemory(case)
    optimiser, teacher, source = methods.adam(trained, c), copy.deepcopy(case.net), copy.deepcopy(case.net)
    start = [p.detach().clone() for p in trained]
    means = case.anchors["class_mean"]
    variances = case.anchors["class_covariance"].diagonal(dim1=1, dim2=2)
    centres = means.clone()
    for arriving, images in enumerate(case.batches):
        features, before = answers_of(teacher, images)
        for _ in offers(case, memory, arriving, before):
            pass
        chosen, _ = memory.chosen()
        lesson = without_gradients(teacher, case.images[chosen])
        anchor = without_gradients(source, case.images[chosen])
        logits = methods.classify(case.net.train(), case.images[chosen])
        varied = methods.classify(case.net.train(), case.varied[chosen])
        label = before.argmax(1)
        came = label.unique()
        distance = (centres[came] - means[came]).square() / (variances[came] + 1e-6)
        drift = (1 - (-distance.mean()).exp()).item()
        for k in came.tolist():
            mean = features[label == k].mean(0)
            centres[k] = (1 - c.centre_share) * centres[k] + c.centre_share * mean
        both = symmetric_cross_entropy(logits, lesson) + symmetric_cross_entropy(varied, lesson)
        held = torch.stack([F.cosine_similarity(p, s, dim=0) for p, s in zip(trained, start)]).mean()
        terms = {
            "agreement": both.mean() / 2,
            "anchor": c.anchor_weight * methods.cross_entropy_between(varied, anchor).mean(),
            "parameters": -c.parameter_weight * drift * held,
        }
        methods.step(optimiser, record.loss(**terms))
        follow(teacher, case.net, c.teacher_share * (1 - drift))
        record.add(logits=before, drift=torch.tensor(drift, dtype=images.dtype))
        note_memory(case, memory)
    memory.note()


def note(case):
    """NOTE with the network's own norms and a memory that is never full, so that nothing has to be drawn."""
    c, record, seen, memory = case.c, case.record, 0, []
    for norm in methods.norms(case.net):
        norm.momentum = c.momentum
    optimiser = methods.adam(affine(case.net), c)
    for arriving, images in enumerate(case.batches):
        _, before = answers_of(case.net, images)
        record.margin("pseudo_label", methods.top_two_gap(before))
        loss = torch.zeros((), dtype=images.dtype)
        for row in range(len(images)):
            memory.append(arriving * len(images) + row)
            seen += 1
            if seen % c.update_every == 0:
                posterior = F.softmax(methods.classify(case.net.train(), case.images[memory]), 1)
                loss = -(posterior * (posterior + 1e-6).log()).mean()
                methods.step(optimiser, loss)
        record.loss(entropy=loss)
        record.add(logits=before)
