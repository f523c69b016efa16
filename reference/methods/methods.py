"""The test-time methods, one function each, written from docs/methods.md (its sections are named in the docstrings).

A method gets a case: the network, the batches, the constants `c` by name, the source's anchors. It writes what
happens into the case's record: the logits that count as the prediction, the loss terms before each step, the
decisions, and how far each decision was from going the other way.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import objectives


class Record:
    """Series by name, the smallest distance of each kind of decision to its threshold, and state at the end."""

    def __init__(self):
        self.series, self.margins, self.state = {}, {}, {}

    def add(self, **values):
        for name, value in values.items():
            value = torch.as_tensor(value).detach()
            if name in ("logits", "logits_after"):
                self.margin("prediction", top_two_gap(value))
            self.series.setdefault(name, []).append(value.clone())

    def loss(self, **terms):
        """Notes the terms and their sum, and answers the sum."""
        total = sum(terms.values())
        for name, value in (terms | {"total": total}).items():
            self.add(**{f"loss.{name}": value})
        return total

    def margin(self, name, distances):
        if distances.numel():
            smallest = distances.abs().min().item()
            self.margins[name] = min(self.margins.get(name, math.inf), smallest)


# ---- Parts -----------------------------------------------------------------------------------------


def classifier(net):
    return net.linear if hasattr(net, "linear") else net.fc


def classify(net, images):
    return classifier(net)(net.features(images))


def feature_parameters(net):
    """Everything up to the pooled features: neither classifier nor projection head."""
    return [p for key, p in net.named_parameters() if not key.startswith(("linear.", "fc.", "head."))]


def norms(net):
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]


@torch.no_grad()
def predict(net, images):
    """Eval mode: running statistics."""
    return classify(net.eval(), images)


def sgd(parameters, c):
    return torch.optim.SGD(parameters, lr=c.learning_rate, momentum=c.momentum)


def step(optimiser, loss):
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def top_two_gap(scores):
    first, second = scores.topk(2, -1).values.unbind(-1)
    return first - second


def entropy(logits):
    """Natural logarithm, one value per row."""
    log_probability = F.log_softmax(logits, 1)
    return -(log_probability.exp() * log_probability).sum(1)


def opinion_entropy(logits):
    """COME: entropy with a share for doubt; the length of the logits has no gradient."""
    length = logits.norm(dim=1, keepdim=True)
    evidence = (logits / length * length.detach()).exp()
    classes = logits.shape[1]
    total = evidence.sum(1, keepdim=True) + classes
    shares = torch.cat([evidence / total, classes / total], 1) + 1e-7
    return -(shares * shares.log()).sum(1)


def information_maximisation(logits):
    """Information maximisation: certain on each sample, diverse on average."""
    average = F.softmax(logits, 1).mean(0)
    return entropy(logits).mean() + (average * (average + 1e-5).log()).sum()


def confident(logits, threshold, record):
    """Which rows are accepted by the posterior of this very forward, and their classes."""
    posterior = F.softmax(logits.detach(), 1)
    confidence, label = posterior.max(1)
    accepted = confidence > threshold
    record.margin("confidence", confidence - threshold)
    record.margin("pseudo_label", top_two_gap(posterior))
    record.add(accepted=accepted, pseudo_label=label)
    return accepted, label


class RunningGaussian:
    """Running Gaussians: step size 1/n, from `clip` samples on 1/clip; never more than 1/b (the guard)."""

    def __init__(self, mean, covariance, clip):
        self.mean, self.covariance, self.clip, self.count = mean, covariance, clip, 0.0
        self.clipped = self.guarded = False

    def update(self, features, weights=None):
        """The new moments, as functions of `features`; a detached copy stays."""
        weights = torch.ones_like(features[:, 0]) if weights is None else weights
        mass = weights.sum()
        self.count = self.count + mass
        size = 1 / self.clip if self.count > self.clip else 1 / self.count
        self.clipped |= bool(self.count > self.clip)
        self.guarded |= bool(size * mass > 1 + 1e-6)
        size = min(size, 1 / mass)
        deviation = features - self.mean
        weighted = weights[:, None] * deviation
        delta = size * weighted.sum(0)
        mean = self.mean + delta
        covariance = self.covariance + size * (weighted.T @ deviation - mass * self.covariance)
        covariance = covariance - torch.outer(delta, delta)
        self.mean, self.covariance = mean.detach(), covariance.detach()
        return mean, covariance


def divergence(source, target, direction="both"):
    """KL of two Gaussians (mean, covariance): both ways, summed, or only source || target."""
    (mean_s, covariance_s), (mean_t, covariance_t) = source, target
    size, d = len(mean_s), mean_t - mean_s
    lower_s, lower_t = torch.linalg.cholesky(covariance_s), torch.linalg.cholesky(covariance_t)

    def half(lower, other):
        """tr(S^-1 other) + d' S^-1 d"""
        solved = torch.cholesky_solve(torch.cat([other, d[:, None]], 1), lower)
        return solved[:, :size].trace() + d @ solved[:, size]

    if direction == "both":
        return 0.5 * (half(lower_t, covariance_s) + half(lower_s, covariance_t)) - size
    log_ratio = lower_t.diagonal().log().sum() - lower_s.diagonal().log().sum()
    return 0.5 * (half(lower_t, covariance_s) - size) + log_ratio


class Clusters:
    """Anchors of the source and running Gaussians of the target: one per class, and one for all."""

    def __init__(self, case, template_on_first_covariance):
        c, a = case.c, case.anchors
        self.c, size = c, len(a["mean"])
        eye = torch.eye(size, dtype=a["mean"].dtype)
        self.template = a["covariance"].max() / c.template_divisor * eye
        self.source = a["mean"], a["covariance"] + self.template
        self.source_classes = [(m, v + self.template) for m, v in zip(a["class_mean"], a["class_covariance"])]
        first = self.template if template_on_first_covariance else 0.0
        first = [(m, v + first) for m, v in zip(a["class_mean"], a["class_covariance"])]
        self.classes = [RunningGaussian(m, v, c.class_clip) for m, v in first]
        self.all = RunningGaussian(torch.zeros_like(a["mean"]), torch.zeros_like(eye), c.global_clip)

    def global_loss(self, features):
        """Moves the global Gaussian; `loss_scale` times the divergence, or the squared distance of the moments."""
        mean, covariance = self.all.update(features)
        if self.c.global_loss == "squared-distance":
            distance = (mean - self.source[0]).square().sum()
            distance = distance + (covariance + self.template - self.source[1]).square().sum()
            return self.c.loss_scale * distance
        target = mean, covariance + self.template
        return self.c.loss_scale * divergence(self.source, target, self.c.divergence)

    def class_divergences(self, features, weights, active):
        """Moves the Gaussians of the classes that have weight; the divergence of those for which `active(k)`.

        `weights` is [classes, batch]: 0 or 1 for pseudo-labels, responsibilities for soft assignment.
        """
        found = []
        for k, running in enumerate(self.classes):
            chosen = weights[k] > 0
            value = features.new_zeros(())
            if chosen.any():
                mean, covariance = running.update(features[chosen], weights[k, chosen])
                if active(k):
                    target = mean, covariance + self.template
                    value = divergence(self.source_classes[k], target, self.c.divergence)
            found.append(value)
        return torch.stack(found)

    def responsibilities(self, features):
        """Soft assignment: posterior of each class's running Gaussian, equal priors; [classes, batch]."""
        with torch.no_grad():
            rows = []
            for running in self.classes:
                lower = torch.linalg.cholesky(running.covariance + self.template)
                solved = torch.linalg.solve_triangular(lower, (features - running.mean).T, upper=False)
                rows.append(-0.5 * solved.square().sum(0) - lower.diagonal().log().sum())
            return torch.stack(rows).softmax(0)

    def write_state(self, record):
        record.state |= {
            "class_count": torch.stack([torch.as_tensor(g.count) for g in self.classes]),
            "class_mean": torch.stack([g.mean for g in self.classes]),
            "class_covariance": torch.stack([g.covariance for g in self.classes]),
            "global_count": torch.as_tensor(self.all.count),
            "global_mean": self.all.mean,
            "global_covariance": self.all.covariance,
        }


def one_row_per_class(accepted, label, classes, dtype):
    """Pseudo-labels as weights: [classes, batch]."""
    return (F.one_hot(label, classes) * accepted[:, None]).T.to(dtype)


# ---- Without a loss --------------------------------------------------------------------------------


def test(case):
    """TEST: the source network as it is."""
    for images in case.batches:
        case.record.add(logits=predict(case.net, images))


def bn_batch(case):
    """BN, batch: each batch is normalised by its own statistics; the running ones move, unused."""
    for images in case.batches:
        with torch.no_grad():
            case.record.add(logits=classify(case.net.train(), images))


def bn_queue(case):
    """BN, running, as in the TTAC paper: train-mode forwards over the queue, then running statistics."""
    for arriving, images in enumerate(case.batches):
        for order in case.orders[arriving]:
            for chosen in minibatches(order, case.c):
                with torch.no_grad():
                    case.net.train().features(case.images[chosen])
        case.record.add(logits=predict(case.net, images))


def t3a(case):
    """T3A: no gradient; per class the supports of lowest entropy, seeded by the classifier's rows."""
    layer, keep, record = classifier(case.net), case.c.supports_per_class, case.record

    def judged(features):
        logits = layer(features)
        record.margin("pseudo_label", top_two_gap(logits.softmax(1)))
        return features, logits.argmax(1), entropy(logits)

    with torch.no_grad():
        supports = judged(layer.weight)
        record.state["first_label"] = supports[1]
        for images in case.batches:
            features = case.net.eval().features(images)
            new = judged(features)
            supports = [torch.cat(pair) for pair in zip(supports, new)]
            kept, prototypes = [], []
            for k in range(case.classes):
                members = (supports[1] == k).nonzero()[:, 0]
                ranked = members[supports[2][members].argsort()]
                if len(ranked) > keep:
                    ends = supports[2][ranked[keep - 1 : keep + 1]]
                    record.margin("entropy_cut", ends[1] - ends[0])
                kept.append(ranked[:keep])
                prototypes.append(F.normalize(F.normalize(supports[0][kept[-1]], dim=1).sum(0), dim=0))
            supports = [part[torch.cat(kept)] for part in supports]
            record.add(logits=features @ torch.stack(prototypes).T, pseudo_label=new[1], entropy=new[2])
            record.add(support_count=torch.tensor([len(members) for members in kept]))


# ---- Entropy ---------------------------------------------------------------------------------------


def adam(parameters, c):
    return torch.optim.Adam(parameters, lr=c.learning_rate, betas=(c.beta_1, c.beta_2), eps=c.epsilon)


def affine(case):
    """The norms' weights and biases. Norms use batch statistics from here on; running ones do not move."""
    for norm in norms(case.net):
        norm.momentum = 0.0
    case.net.train()
    return [p for norm in norms(case.net) for p in (norm.weight, norm.bias)]


def affine_adam(case):
    return adam(affine(case), case.c)


def tent(case):
    """TENT: entropy, norm weights and biases, batch statistics always; running ones do not move. COME is TENT on opinions."""
    optimiser = affine_adam(case)
    measure = opinion_entropy if getattr(case.c, "uncertainty", "entropy") == "opinion" else entropy
    for images in case.batches:
        logits = classify(case.net, images)
        step(optimiser, case.record.loss(entropy=measure(logits).mean()))
        with torch.no_grad():
            case.record.add(logits=logits, logits_after=classify(case.net, images))


def rpl(case):
    """RPL: generalised cross-entropy against the prediction's own class, norm weights and biases, batch statistics always."""
    c, optimiser = case.c, affine_adam(case)
    for images in case.batches:
        logits = classify(case.net, images)
        posterior = F.softmax(logits, 1)
        case.record.margin("pseudo_label", top_two_gap(posterior.detach()))
        own = posterior.gather(1, posterior.detach().argmax(1, keepdim=True))
        step(optimiser, case.record.loss(pseudo_label=((1 - own**c.q) / c.q).mean()))
        with torch.no_grad():
            case.record.add(logits=logits, logits_after=classify(case.net, images))


def poem(case):
    """POEM: entropies matched to those of the source, by the bet that they are others. `case.entropies` are sorted.

    The share of a source entropy is its place among all of them, from 0 to 1, and linear in between.
    """
    c, record, trained = case.c, case.record, affine(case)
    optimiser, source = sgd(trained, c), case.entropies
    places = torch.linspace(0, 1, len(source), dtype=source.dtype)

    def interpolated(x, xs, ys):
        right = torch.searchsorted(xs, x).clamp(1, len(xs) - 1)
        part = ((x - xs[right - 1]) / (xs[right] - xs[right - 1])).clamp(0, 1)
        return ys[right - 1] + part * (ys[right] - ys[right - 1])

    bet, squares, wealth, samples = 0.0, 0.0, 1.0, 0
    for images in case.batches:
        logits = classify(case.net, images)
        uncertainty = entropy(logits)
        targets, shares = [], []
        for own in uncertainty.detach():
            share = interpolated(own, source, places)
            corrected = bet * share**2 / 2 + (1 - bet / 2) * share
            targets.append(own if bet == 0 else interpolated(corrected, places, source))
            shares.append(share)
            excess = share.item() - 0.5
            gain = 1 + bet * excess
            wealth = min(wealth * gain, 1e200)
            g = excess / gain
            record.margin("bet", torch.tensor(abs(bet) - c.highest_bet))
            if not (abs(bet) > c.highest_bet and g * bet > 0):
                squares += g * g
                bet += c.bet_rate * g / math.sqrt(squares)
        samples += len(images)
        if samples >= c.first_samples:
            loss = record.loss(entropy=0.5 * (uncertainty - torch.stack(targets)).square().mean())
            step(optimiser, loss)
        else:
            record.loss(entropy=logits.new_zeros(()))
        record.add(bet=torch.tensor(bet, dtype=source.dtype), share=torch.stack(shares))
        with torch.no_grad():
            record.add(logits=logits, logits_after=classify(case.net, images))


def eta(case):
    """ETA: TENT on samples that are certain and unlike the average prediction, the surer the heavier.

    With a penalty it is EATA: important parameters are held near the source. With a period it is RDumb: everything goes back to
    the source before the first batch of each period.
    """
    c, record, trained, average = case.c, case.record, affine(case), None
    optimiser, source = adam(trained, c), [p.detach().clone() for p in trained]
    bound = c.entropy_margin * math.log(case.classes)
    penalty_weight, period = getattr(c, "penalty_weight", 0.0), getattr(c, "reset_period", math.inf)
    if penalty_weight:
        names = {id(p): key for key, p in case.net.named_parameters()}
        importance = [case.importance[names[id(p)]] for p in trained]
    for arriving, images in enumerate(case.batches):
        if arriving and arriving % period == 0:
            with torch.no_grad():
                for p, s in zip(trained, source):
                    p.copy_(s)
            optimiser, average = adam(trained, c), None
        logits = classify(case.net, images)
        uncertainty, posterior = entropy(logits), F.softmax(logits.detach(), 1)
        certain = uncertainty.detach() < bound
        record.margin("entropy", uncertainty.detach() - bound)
        accepted = certain
        if average is not None:
            similarity = F.cosine_similarity(average[None], posterior).abs()
            record.margin("similarity", (similarity - c.similarity_threshold)[certain])
            accepted = certain & (similarity < c.similarity_threshold)
        record.add(certain=certain, accepted=accepted, pseudo_label=posterior.argmax(1))
        if accepted.any():
            weight = (bound - uncertainty.detach()).exp()
            terms = {"entropy": (weight * uncertainty)[accepted].mean()}
            if penalty_weight:
                parts = zip(importance, trained, source)
                terms["penalty"] = penalty_weight * sum((f * (p - s).square()).sum() for f, p, s in parts)
            step(optimiser, record.loss(**terms))
            mean = posterior[accepted].mean(0)
            average = mean if average is None else (1 - c.average_share) * average + c.average_share * mean
        else:
            zero = logits.new_zeros(())
            record.loss(**({"entropy": zero} | ({"penalty": zero} if penalty_weight else {})))
        with torch.no_grad():
            record.add(logits=logits, logits_after=classify(case.net, images))
    record.state["average"] = average


def importance(case, images, size):
    """Fisher information of the affine parameters, by key: squared gradients of the mean loss of source batches against the network's
    own predictions, averaged over the batches. Batch statistics."""
    trained, found, batches = affine(case), {}, images.split(size)
    names = {id(p): key for key, p in case.net.named_parameters()}
    for batch in batches:
        logits = classify(case.net, batch)
        case.record.margin("pseudo_label", top_two_gap(logits.detach()))
        slopes = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), trained)
        for p, slope in zip(trained, slopes):
            found[names[id(p)]] = found.get(names[id(p)], 0.0) + slope.square() / len(batches)
    return found


def sar(case):
    """SAR: entropy of certain samples, by the gradient a little way up the slope; back to the source when entropies get too small."""
    c, record, trained = case.c, case.record, affine(case)
    optimiser, source, average = sgd(trained, c), [p.detach().clone() for p in trained], None
    bound = c.entropy_margin * math.log(case.classes)
    for images in case.batches:
        logits = classify(case.net, images)
        uncertainty = entropy(logits)
        certain = uncertainty.detach() < bound
        record.margin("entropy", uncertainty.detach() - bound)
        assert certain.any()
        slopes = torch.autograd.grad(uncertainty[certain].mean(), trained)
        length = sum(slope.square().sum() for slope in slopes).sqrt()
        here = [p.detach().clone() for p in trained]
        with torch.no_grad():
            for p, slope in zip(trained, slopes):
                p += c.radius * slope / (length + 1e-12)
        uphill = entropy(classify(case.net, images))
        still = certain & (uphill.detach() < bound)
        record.margin("entropy", (uphill.detach() - bound)[certain])
        loss = record.loss(entropy=uphill[still].mean())
        optimiser.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, h in zip(trained, here):
                p.copy_(h)
        optimiser.step()
        loss = loss.item()
        average = loss if average is None else (1 - c.average_share) * average + c.average_share * loss
        record.margin("recovery", torch.tensor(average - c.recovery_entropy))
        recovered = average < c.recovery_entropy
        if recovered:
            with torch.no_grad():
                for p, s in zip(trained, source):
                    p.copy_(s)
            optimiser, average = sgd(trained, c), None
        record.add(accepted=still, pseudo_label=logits.argmax(1), recovered=torch.tensor(recovered))
        with torch.no_grad():
            record.add(logits=logits, logits_after=classify(case.net, images))


def deyo(case):
    """DeYO: entropy of certain samples whose probability falls when their patches are shuffled; the shuffled images are given."""
    c, record, optimiser = case.c, case.record, affine_adam(case)
    largest = math.log(case.classes)
    for images, shuffled in zip(case.batches, case.varied.split(len(case.batches[0]))):
        logits = classify(case.net, images)
        uncertainty, posterior = entropy(logits), F.softmax(logits.detach(), 1)
        certain = uncertainty.detach() < c.entropy_margin * largest
        record.margin("entropy", uncertainty.detach() - c.entropy_margin * largest)
        confidence, label = posterior.max(1)
        with torch.no_grad():
            after = F.softmax(classify(case.net, shuffled[certain]), 1)
        fall = torch.zeros_like(confidence)
        fall[certain] = confidence[certain] - after.gather(1, label[certain, None])[:, 0]
        record.margin("fall", (fall - c.fall_threshold)[certain])
        accepted = certain & (fall > c.fall_threshold)
        assert accepted.any()
        weight = (c.weight_margin * largest - uncertainty.detach()).exp() + fall.exp()
        step(optimiser, record.loss(entropy=(weight * uncertainty)[accepted].mean()))
        record.add(certain=certain, accepted=accepted, pseudo_label=label)
        with torch.no_grad():
            record.add(logits=logits, logits_after=classify(case.net, images))


def cotta(case):
    """CoTTA without random restores; the varied copies of each batch are given. The classifier is trained too."""
    c, net, record = case.c, case.net, case.record
    affine(case)
    optimiser = sgd(net.parameters(), c)
    teacher, source = copy.deepcopy(net), copy.deepcopy(net)
    for arriving, images in enumerate(case.batches):
        rows = slice(arriving * len(images), (arriving + 1) * len(images))
        with torch.no_grad():
            confidence = F.softmax(classify(source, images), 1).max(1).values.mean()
            record.margin("confidence", confidence - c.confidence_threshold)
            confident = bool(confidence >= c.confidence_threshold)
            answers = [classify(teacher, view[rows]) for view in case.views]
            lesson = classify(teacher, images) if confident else sum(answers) / len(answers)
        step(optimiser, record.loss(agreement=cross_entropy_between(classify(net, images), lesson).mean()))
        with torch.no_grad():
            for t, p in zip(teacher.parameters(), net.parameters()):
                t.copy_((1 - c.teacher_share) * t + c.teacher_share * p)
            accepted = torch.full((len(images),), confident)
            record.add(accepted=accepted, pseudo_label=lesson.argmax(1), logits=lesson)
            record.add(logits_after=classify(teacher, images))


def rmt(case):
    """RMT without source images; the varied copy of each batch is given, and so are the projector's first weights.

    Class means are the anchors'. All passes have batch statistics; the classifier is trained too.
    """
    c, net, record = case.c, case.net, case.record
    affine(case)
    teacher = copy.deepcopy(net)
    weight_1, bias_1, weight_2, bias_2 = projector = [p.clone().requires_grad_() for p in case.projector]
    optimiser = sgd([*net.parameters(), *projector], c)
    means = F.normalize(case.anchors["class_mean"], dim=1)

    def symmetric(a, b):
        return (cross_entropy_between(a, b) + cross_entropy_between(b, a)) / 2

    def project(features):
        return F.normalize(F.relu(features @ weight_1.T + bias_1) @ weight_2.T + bias_2, dim=1)

    for images, copies in zip(case.batches, case.varied.split(len(case.batches[0]))):
        count = len(images)
        with torch.no_grad():
            lesson = classify(teacher, images)
        features, varied = net.features(images), net.features(copies)
        logits = classifier(net)(features)
        agreement = (symmetric(logits, lesson) + symmetric(classifier(net)(varied), lesson)).mean() / 2
        cosine = F.normalize(features.detach(), dim=1) @ means.T
        record.margin("nearest", top_two_gap(cosine))
        nearest = cosine.argmax(1)
        unit = project(torch.cat([case.anchors["class_mean"][nearest], features, varied]))
        similarity = unit @ unit.T / c.temperature
        itself = torch.eye(3 * count, dtype=torch.bool)
        share = similarity - similarity.masked_fill(itself, -math.inf).logsumexp(1, keepdim=True)
        positive = torch.eye(count, dtype=torch.bool).repeat(3, 3) & ~itself
        contrastive = -(share * positive).sum(1).div(2).mean()
        step(optimiser, record.loss(agreement=agreement, contrastive=contrastive))
        with torch.no_grad():
            for t, p in zip(teacher.parameters(), net.parameters()):
                t.copy_((1 - c.teacher_share) * t + c.teacher_share * p)
            record.add(nearest=nearest, logits=logits + lesson)
            record.add(logits_after=classify(net, images) + classify(teacher, images))


def lame(case):
    """LAME: predictions of the source network that agree with those of similar samples of the batch."""
    c, record = case.c, case.record
    for images in case.batches:
        with torch.no_grad():
            features = case.net.eval().features(images)
            p = F.softmax(classifier(case.net)(features), 1)
            distance = torch.cdist(*[F.normalize(features, dim=1)] * 2, compute_mode="donot_use_mm_for_euclid_dist")
            ranked, order = distance.sort(1)
            if c.affinity == "rbf":
                width = ranked[:, c.neighbours - 1].mean()
                affinity = (-distance.square() / (2 * width**2)).exp()
            else:
                record.margin("neighbour", ranked[:, c.neighbours + 1] - ranked[:, c.neighbours])
                near = order[:, 1 : c.neighbours + 1]
                affinity = torch.zeros_like(distance).scatter_(1, near, 1.0)
            y, before = p, math.inf
            for iteration in range(100):
                pull = affinity @ y
                y = ((p + 1e-10).log() + pull).softmax(1)
                energy = (y * (y.clamp(min=1e-20).log() - (p + 1e-10).log() - pull)).sum().item()
                if iteration > 1 and abs(energy - before) <= 1e-8 * abs(before):
                    break
                before = energy
            record.add(logits=y.log(), moved=(y.argmax(1) != p.argmax(1)))


def scaled(values):
    """To 0 to 1; zeros where all are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def cross_entropy_between(a, b):
    """Of the prediction with logits a against the one with logits b, one value per row."""
    return -(F.softmax(b, 1) * F.log_softmax(a, 1)).sum(1)


def prior_corrected(logits):
    """Output correction of ROID: logits times the smoothed shares of the classes in the batch."""
    shares = F.softmax(logits, 1).mean(0)
    smoothing = max(1 / len(logits), 1 / logits.shape[1]) / shares.max()
    return logits * (shares + smoothing) / (1 + smoothing * logits.shape[1])


def roid(case):
    """ROID, and CMF where there are constants of its filter; the varied copy of each batch is given."""
    c, net, record = case.c, case.net, case.record
    optimiser = affine_adam(case)
    trained = [p for group in optimiser.param_groups for p in group["params"]]
    source = [p.detach().clone() for p in trained]
    hidden, variance = [p.clone() for p in source], 0.0
    average = torch.full((case.classes,), 1 / case.classes, dtype=case.images.dtype)
    for images, copies in zip(case.batches, case.varied.split(len(case.batches[0]))):
        logits = classify(net, images)
        posterior = F.softmax(logits.detach(), 1)
        diversity = scaled(1 - F.cosine_similarity(average[None], posterior))
        certainty = scaled(-entropy(logits.detach()))
        kept = diversity >= diversity.mean()
        record.margin("diversity", diversity - diversity.mean())
        weight = (c.sharpness * diversity * certainty).exp()[kept]
        average = (1 - c.average_share) * average + c.average_share * posterior.mean(0)
        chosen, varied = logits[kept], classify(net, copies[kept])
        q = F.softmax(chosen, 1).clamp(max=0.99)
        record.margin("clip", posterior - 0.99)
        ratio = -(q * (q / (1 - q) + 1e-5).log()).sum(1)
        agreement = (cross_entropy_between(varied, chosen) + cross_entropy_between(chosen, varied)) / 2
        terms = {"likelihood_ratio": ratio, "consistency": agreement}
        step(optimiser, record.loss(**{name: (weight * term).sum() / len(images) for name, term in terms.items()}))
        with torch.no_grad():
            goal = source
            if hasattr(c, "filter_noise"):
                noise = c.filter_noise * sum(p.numel() for p in trained) / c.filter_reference_parameters
                variance = (1 - c.filter_source_share) ** 2 * variance + noise
                memory = max((1 - noise) / (variance + 1 - noise), c.filter_least_memory)
                memory = 1.0 if memory >= 0.9999 else memory
                variance = memory * variance
                for h, p, s in zip(hidden, trained, source):
                    h.copy_(memory * ((1 - c.filter_source_share) * h + c.filter_source_share * s) + (1 - memory) * p)
                goal = hidden
            for p, g in zip(trained, goal):
                p.copy_((1 - c.source_share) * p + c.source_share * g)
            record.add(accepted=kept, pseudo_label=posterior.argmax(1), logits=prior_corrected(logits))
            record.add(logits_after=prior_corrected(classify(net, images)))
    record.state["average"] = average


def memo(case):
    """MEMO, one image at a time: the entropy of the mean probability over given copies, one step, then the image by the moved network.

    Everything goes back to the source before each image; eval mode, all parameters.
    """
    c, record, source, furthest = case.c, case.record, copy.deepcopy(case.net.state_dict()), 0.0
    for image, copies in zip(case.batches, case.copies):
        case.net.load_state_dict(source)
        net = case.net.eval()
        before = predict(net, image)[0]
        optimiser = sgd(net.parameters(), c)
        logs = F.log_softmax(classify(net, copies), 1)
        average = logs.logsumexp(0) - math.log(len(copies))
        step(optimiser, record.loss(entropy=-(average.exp() * average).sum()))
        record.add(logits=predict(net, image)[0])
        furthest = max(furthest, (record.series["logits"][-1] - before).abs().max().item())
    record.state["moves"] = furthest > 0.1


def shot(case):
    """SHOT, without a queue: information maximisation plus cross-entropy on confident samples."""
    c, record = case.c, case.record
    optimiser = sgd(feature_parameters(case.net), c)
    for images in case.batches:
        logits = classify(case.net.train(), images)
        accepted, label = confident(logits, c.confidence_threshold, record)
        pseudo = F.cross_entropy(logits[accepted], label[accepted]) if accepted.any() else logits.new_zeros(())
        terms = {
            "information_maximisation": information_maximisation(logits),
            "pseudo_label": c.pseudo_label_weight * pseudo,
        }
        step(optimiser, record.loss(**terms))
        record.add(logits=predict(case.net, images))


# ---- Feature alignment: TFA, TTT++ -------------------------------------------------------------------


class Ring:
    """Past outputs without gradient; they count only once the ring has been filled."""

    def __init__(self, length):
        self.length, self.rows, self.next, self.full = length, None, 0, False

    def joined(self, outputs):
        return torch.cat([outputs, self.rows]) if self.full else outputs

    def push(self, outputs):
        if self.rows is None:
            self.rows = torch.zeros(self.length, outputs.shape[1], dtype=outputs.dtype)
        self.rows = self.rows.clone()
        self.rows[self.next : self.next + len(outputs)] = outputs.detach()
        self.next = (self.next + len(outputs)) % self.length
        self.full |= self.next == 0


def alignment(outputs, ring, anchors, sigma):
    """TFA and TTT++: squared distances of mean and covariance, each in its natural scale. The ring moves after."""
    joined = ring.joined(outputs)
    ring.push(outputs)
    size = outputs.shape[1]
    coral = (anchors["covariance"] - torch.cov(joined.T)).square().sum() / (4 * size**2)
    mean = (anchors["mean"] - joined.mean(0)).square().sum() / size
    return {
        "covariance": sigma / anchors["covariance_scale"] * coral,
        "mean": 0.5 * sigma / anchors["mean_scale"] * mean,
    }


def tfa(case):
    """TFA, one step per arriving batch."""
    c = case.c
    optimiser, ring = sgd(feature_parameters(case.net), c), Ring(c.ring_length)
    for images in case.batches:
        features = case.net.train().features(images)
        step(optimiser, case.record.loss(**alignment(features, ring, case.alignment["features"], c.feature_sigma)))
        case.record.add(logits=predict(case.net, images))


def ttt_plus_plus(case):
    """TTT++, one step per arriving batch; the head is frozen.

    Order of the train-mode forwards, each of which moves the running statistics: views, images for the features,
    images once more for the projections.
    """
    c, net = case.c, case.net
    optimiser = sgd(feature_parameters(net), c)
    rings = {"features": Ring(c.ring_length), "projections": Ring(c.ring_length)}
    for arriving, images in enumerate(case.batches):
        net.train()
        rows = slice(arriving * len(images), (arriving + 1) * len(images))
        views = torch.cat([case.views[0][rows], case.views[1][rows]])
        projections = net.head(net.features(views))
        terms = {"contrastive": objectives.contrastive(projections, c.temperature, c.base_temperature)}
        features = net.features(images)
        found = alignment(features, rings["features"], case.alignment["features"], c.feature_sigma)
        terms |= {f"feature_{name}": value for name, value in found.items()}
        if c.align_projections:
            projections = net.head(net.features(images))
            found = alignment(projections, rings["projections"], case.alignment["projections"], c.projection_sigma)
            terms |= {f"projection_{name}": value for name, value in found.items()}
        step(optimiser, case.record.loss(**terms))
        case.record.add(logits=predict(net, images))


# ---- Anchored clustering without a queue ---------------------------------------------------------------


def ttac(case):
    """TTAC without a queue, one step per arriving batch; with switches for the ablations and TTAC+SHOT."""
    c, net, record = case.c, case.net, case.record
    optimiser, clusters = sgd(feature_parameters(net), c), Clusters(case, template_on_first_covariance=False)

    def active(k):
        return clusters.classes[k].count >= c.class_gate_count

    for images in case.batches:
        features = net.train().features(images)
        logits = classifier(net)(features)
        if c.assignment == "soft":
            weights = clusters.responsibilities(features)
            record.add(responsibilities=weights.T)
        else:
            accepted, label = confident(logits, c.confidence_threshold, record)
            weights = one_row_per_class(accepted, label, case.classes, features.dtype)
        found = clusters.class_divergences(features, weights, active)
        if c.assignment == "soft":
            counts = torch.stack([g.count for g in clusters.classes])
            record.margin("soft_gate", counts - c.class_gate_count)
        record.add(class_divergence=found)
        terms = {"class": c.loss_scale * found.sum() / case.classes, "global": clusters.global_loss(features)}
        if c.information_maximisation_weight > 0:
            information = information_maximisation(logits)
            terms["information_maximisation"] = c.information_maximisation_weight * information
        step(optimiser, record.loss(**terms))
        record.add(logits=predict(net, images))
    note_clusters(clusters, record)


def ttac_plus_plus(case):
    """TTAC++ without a queue: TTAC on the weakly varied images, and their confident classes for the strongly varied copies.

    Joint: one train-mode pass of both, whose scores give the labels. Apart: labels by an eval pass after the train-mode pass of the
    weak images, and the copies in a pass with batch statistics of their own, which moves no running ones.
    """
    c, net, record = case.c, case.net, case.record
    optimiser, clusters = sgd(feature_parameters(net), c), Clusters(case, template_on_first_covariance=False)
    for arriving, images in enumerate(case.batches):
        rows = slice(arriving * len(images), (arriving + 1) * len(images))
        weak, strong = case.views[0][rows], case.views[1][rows]
        if c.joint:
            features, copies = net.train().features(torch.cat([weak, strong])).chunk(2)
            posterior = F.softmax(classifier(net)(features).detach(), 1)
        else:
            features = net.train().features(weak)
            posterior = predict(net, weak).softmax(1)
            for norm in norms(net):
                norm.momentum = 0.0
            copies = net.train().features(strong)
            for norm in norms(net):
                norm.momentum = 0.1
        confidence, label = posterior.max(1)
        mask = confidence >= c.strong_threshold
        record.margin("strong", confidence - c.strong_threshold)
        record.margin("strong_label", top_two_gap(posterior))
        record.add(strong_accepted=mask)
        own = F.cross_entropy(classifier(net)(copies), label, reduction="none")
        terms = {"strong": c.strong_weight * (mask * own).mean()}
        accepted, label = confident(classifier(net)(features), c.confidence_threshold, record)
        weights = one_row_per_class(accepted, label, case.classes, features.dtype)
        found = clusters.class_divergences(features, weights, lambda k: clusters.classes[k].count >= c.class_gate_count)
        record.add(class_divergence=found)
        terms["class"] = c.loss_scale * found.sum() / case.classes
        terms["global"] = clusters.global_loss(features)
        step(optimiser, record.loss(**terms))
        record.add(logits=predict(net, images))
    note_clusters(clusters, record)


def ttac_source_free(case):
    """Source-free TTAC: prototypes from the classifier, covariances tau*I, class loss only."""
    c, net, record = case.c, case.net, case.record
    optimiser = sgd(feature_parameters(net), c)
    rows = classifier(net).weight.detach()
    zero_mean, zero_covariance = torch.zeros_like(rows[0]), torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype)
    classes = [RunningGaussian(zero_mean, zero_covariance, c.class_clip) for _ in rows]
    everything = RunningGaussian(zero_mean, zero_covariance, c.global_clip)
    for images in case.batches:
        features = net.train().features(images)
        accepted, label = confident(classifier(net)(features), c.confidence_threshold, record)
        everything.update(features.detach())
        template = everything.covariance.max() / c.template_divisor * torch.eye(len(zero_mean), dtype=rows.dtype)
        found = []
        for k, running in enumerate(classes):
            chosen, value = accepted & (label == k), features.new_zeros(())
            if chosen.any():
                mean, covariance = running.update(features[chosen])
                if running.count >= c.class_gate_count:
                    prototype = rows[k] * running.mean.norm() / rows[k].norm()
                    value = divergence((prototype, template), (mean, covariance + template))
            found.append(value)
        found = torch.stack(found)
        record.add(class_divergence=found, template=template[0, 0])
        loss = record.loss(**{"class": c.loss_scale * found.sum() / len(rows)})
        if loss.requires_grad:  # No class has passed the gate yet: no loss, no step.
            step(optimiser, loss)
        record.add(logits=predict(net, images))
    record.state["class_count"] = torch.stack([torch.as_tensor(g.count) for g in classes])
    record.state["clipped"] = any(g.clipped for g in classes) and everything.clipped


def self_training(case):
    """Ablation switches, both parts off, without a queue: cross-entropy on confident samples."""
    c, net, record = case.c, case.net, case.record
    optimiser = sgd(feature_parameters(net), c)
    for images in case.batches:
        logits = classify(net.train(), images)
        accepted, label = confident(logits, c.confidence_threshold, record)
        loss = 2 * c.loss_scale * F.cross_entropy(logits[accepted], label[accepted])
        step(optimiser, record.loss(self_training=loss))
        record.add(logits=predict(net, images))


def note_clusters(clusters, record):
    clusters.write_state(record)
    gaussians = [*clusters.classes, clusters.all]
    record.state["clipped"] = any(g.clipped for g in clusters.classes) and clusters.all.clipped
    record.state["guarded"] = any(g.guarded for g in gaussians)


# ---- Anchored clustering with a queue --------------------------------------------------------------------


def minibatches(order, c):
    """Whole minibatches of stream indices."""
    count = len(order) // c.minibatch_size
    return [torch.tensor(order[i * c.minibatch_size : (i + 1) * c.minibatch_size]) for i in range(count)]


class Filter:
    """Pseudo-label filter: posteriors averaged per sample, and a trust that falls to 0 when the confidence drops.

    Trust counts from 0 to 5; only 5 is usable.
    """

    FULL = 5

    def __init__(self, samples, classes, c, record, dtype):
        self.c, self.record = c, record
        self.average = torch.zeros(samples, classes, dtype=dtype)
        self.trust = torch.full((samples,), self.FULL)

    def recover(self):
        self.trust = (self.trust + 1).clamp(max=self.FULL)

    def judge(self, chosen, posterior):
        """Which samples are accepted, and their classes by averaged posterior."""
        c, record = self.c, self.record
        old = self.average[chosen]
        confidence, label = posterior.max(1)
        before = old.gather(1, label[:, None])[:, 0]
        steady = confidence > before + c.temporal_threshold
        seen = before > 0
        record.margin("temporal", (confidence - before - c.temporal_threshold)[seen])
        record.margin("pseudo_label", top_two_gap(posterior))
        self.trust[chosen[~steady]] = 0
        new = torch.where(old == 0, posterior, (1 - c.posterior_weight) * old + c.posterior_weight * posterior)
        self.average[chosen] = new
        averaged, pseudo_label = new.max(1)
        record.margin("confidence", averaged - c.confidence_threshold)
        record.margin("pseudo_label", top_two_gap(new))
        trusted = self.trust[chosen] == self.FULL
        accepted = trusted & (averaged > c.confidence_threshold)
        record.add(steady=steady, trusted=trusted, accepted=accepted, pseudo_label=pseudo_label, confidence=averaged)
        return accepted, pseudo_label


def ttac_queue(case):
    """TTAC with a queue; with views the contrastive loss too (head trained); with both parts off self-training."""
    c, net, record = case.c, case.net, case.record
    parameters = feature_parameters(net) + (list(net.head.parameters()) if case.views else [])
    optimiser, clusters = sgd(parameters, c), Clusters(case, template_on_first_covariance=True)
    samples = Filter(len(case.images), case.classes, c, record, case.images.dtype)

    def contrastive(chosen):
        views = torch.cat([view[chosen] for view in case.views])
        return objectives.contrastive(net.head(net.train().features(views)), c.temperature, c.base_temperature)

    for arriving, images in enumerate(case.batches):
        if case.views:  # Epoch 0 moves the running statistics and nothing else.
            for chosen in minibatches(case.contrastive_orders[arriving][0], c):
                with torch.no_grad():
                    record.add(warm_up=contrastive(chosen))
        for epoch, order in enumerate(case.orders[arriving], start=1):
            samples.recover()
            class_loss = epoch > c.epochs_per_batch // 2
            for position, chosen in enumerate(minibatches(order, c)):
                terms = {}
                if case.views:
                    others = minibatches(case.contrastive_orders[arriving][epoch], c)[position]
                    terms["contrastive"] = contrastive(others)
                features = net.train().features(case.images[chosen])
                posterior = predict(net, case.images[chosen]).softmax(1)
                accepted, label = samples.judge(chosen, posterior)
                if c.self_training:
                    logits = classifier(net)(features)
                    assert accepted.any()
                    pseudo = F.cross_entropy(logits[accepted], label[accepted])
                    terms["self_training"] = 2 * c.loss_scale * pseudo
                else:
                    weights = one_row_per_class(accepted, label, case.classes, features.dtype)
                    found = clusters.class_divergences(features, weights, lambda k: class_loss)
                    record.add(class_divergence=found, epoch=epoch)
                    terms["class"] = c.loss_scale * found.sum() / case.classes
                    terms["global"] = clusters.global_loss(features)
                step(optimiser, record.loss(**terms))
        record.add(logits=predict(net, images))
    if not c.self_training:
        note_clusters(clusters, record)
    record.state |= {"posterior_average": samples.average, "trust": samples.trust}


# ---- Rotation ------------------------------------------------------------------------------------------


def ttt_r(case):
    """TTT-R, online: one step on turned copies of each image, then the image itself."""
    c, net = case.c, case.net
    branch = [p for key, p in net.named_parameters() if not key.startswith(("layer3.", "bn.", "fc."))]
    optimiser = sgd(branch, c)
    for images, copies, quarters in zip(case.batches, case.copies, case.quarters):
        turned = torch.stack([objectives.turn(copy[None], q)[0] for copy, q in zip(copies, quarters)])
        logits = objectives.rotation_logits(net.train(), turned)
        step(optimiser, case.record.loss(rotation=F.cross_entropy(logits, torch.tensor(quarters))))
        with torch.no_grad():
            case.record.add(logits=net.eval()(images)[0], rotation_logits=logits)
