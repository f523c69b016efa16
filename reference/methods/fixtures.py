"""Writes the methods' fixtures. With arguments, only those whose names start with one of them."""

import json
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import torch

HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent / "parity"), str(HERE.parent / "objectives")]

import checks
import formula
import generate as parity
import memories
import methods
import nets
import variations
import world

parity.FIXTURES = HERE.parents[1] / "crates/ttac/tests/fixtures/methods"

# No decision may hang on less than this, so that rounding cannot turn it.
SAFE = 1e-4
# How far weights are moved to see whether anything sits on an edge, relative to each: a few float32 roundings.
NUDGE, TRIALS = 1e-6, 10

# ---- The cases ---------------------------------------------------------------------------------------

SGD = {"learning_rate": 0.01, "momentum": 0.9}
ADAM = {"learning_rate": 1e-3, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
ETA = ADAM | {"entropy_margin": 0.4, "similarity_threshold": 0.4, "average_share": 0.1}
EATA = ETA | {"penalty_weight": 20.0, "importance_batch": 64}
SAR = {
    "learning_rate": 0.05,
    "momentum": 0.9,
    "entropy_margin": 0.4,
    "radius": 0.05,
    "recovery_entropy": 0.2,
    "average_share": 0.1,
}
RPL = ADAM | {"q": 0.8}
# A bet that moves fast, so that it gets beyond its bound within the 160 images.
POEM = SGD | {"bet_rate": 0.5, "highest_bet": 1.2, "first_samples": 40}
DEYO = ADAM | {"entropy_margin": 0.5, "weight_margin": 0.4, "fall_threshold": 0.05}
COTTA = SGD | {"confidence_threshold": 0.87, "teacher_share": 0.1}
# A teacher that follows faster and similarities that are less sharp, so that ten steps show both.
RMT = SGD | {"learning_rate": 0.003, "teacher_share": 0.1, "temperature": 0.5, "projection": 6}
ROID = ADAM | {"sharpness": 3.0, "average_share": 0.1, "source_share": 0.01}
# The small network has few parameters; a filter that is meant for many would never move.
CMF = ROID | {
    "source_share": 0.1,
    "filter_noise": 0.05,
    "filter_reference_parameters": 200.0,
    "filter_source_share": 0.05,
    "filter_least_memory": 0.89,
}
TRIBE = ADAM | {"norm_share": 0.02, "common_part": 0.0, "entropy_margin": 0.2, "anchor_weight": 0.5}
MEMORY = {"capacity": 20, "timeliness_weight": 1.0, "uncertainty_weight": 1.0}
ROTTA = ADAM | MEMORY | {"norm_share": 0.2, "update_every": 24, "teacher_share": 0.1}
PETTA = ADAM | MEMORY | {
    "norm_share": 0.1,
    "teacher_share": 0.1,
    "parameter_weight": 10.0,
    "anchor_weight": 1.0,
    "centre_share": 0.2,
}
NOTE = ADAM | {"capacity": 200, "update_every": 24, "momentum": 0.1}
SHOT = {"learning_rate": 1e-3, "momentum": 0.9, "confidence_threshold": 0.9, "pseudo_label_weight": 0.1}
TFA = SGD | {"ring_length": 32, "feature_sigma": 0.05, "alignment_anchor_batch": 32}
NT_XENT = {"temperature": 0.5, "base_temperature": 0.07}
TTT_PLUS_PLUS = TFA | NT_XENT | {"learning_rate": 1e-3}
CLUSTERS = SGD | {
    "loss_scale": 0.05,
    "template_divisor": 30,
    "global_clip": 64,
    "class_clip": 8,
    "confidence_threshold": 0.9,
    "divergence": "both",
    "global_loss": "divergence",
}
TTAC = CLUSTERS | {"class_gate_count": 4, "assignment": "filtered", "information_maximisation_weight": 0.0}
TTAC_PLUS_PLUS = TTAC | {"strong_weight": 1.0, "strong_threshold": 0.95}
ORDERS = {"queue_length": 64, "epochs_per_batch": 2, "minibatch_size": 16}
QUEUE = CLUSTERS | ORDERS | {
    "learning_rate": 0.003,
    "temporal_threshold": -0.01,
    "posterior_weight": 0.9,
    "self_training": False,
}
SOURCE_FREE = SGD | {
    "loss_scale": 0.002,
    "template_divisor": 30,
    "global_clip": 64,
    "class_clip": 8,
    "confidence_threshold": 0.9,
    "class_gate_count": 4,
}
SELF_TRAINING = SGD | {"loss_scale": 0.05, "confidence_threshold": 0.9}

CONTRASTIVE = QUEUE | NT_XENT | {"queue_length": 32, "learning_rate": 1e-4}

PLAIN, SIMCLR, ROTATION = "resnet-cifar", "resnet18-cifar", "resnet26-group"

# name: (method, network, constants, further settings). Where the plain stream puts a decision or a ReLU on an edge,
# another draw of the same stream is named.
CASES = {
    "test": (methods.test, PLAIN, {}, {}),
    "bn-batch": (methods.bn_batch, PLAIN, {}, {}),
    "bn-queue": (methods.bn_queue, PLAIN, ORDERS, {}),
    "tent": (methods.tent, PLAIN, ADAM, {}),
    "rpl": (methods.rpl, PLAIN, RPL, {}),
    "poem": (methods.poem, PLAIN, POEM, {"entropies": True}),
    "memo": (methods.memo, PLAIN, {"learning_rate": 0.05, "momentum": 0.0}, {"image_copies": 4}),
    "eta": (methods.eta, PLAIN, ETA, {"stream": "stream.11"}),
    "eata": (methods.eta, PLAIN, EATA, {"stream": "stream.11"}),
    "rdumb": (methods.eta, PLAIN, ETA | {"reset_period": 4}, {"stream": "stream.11"}),
    "sar": (methods.sar, PLAIN, SAR, {}),
    "come": (methods.tent, PLAIN, ADAM | {"uncertainty": "opinion"}, {}),
    "deyo": (methods.deyo, PLAIN, DEYO, {"varied": True}),
    "cotta": (methods.cotta, PLAIN, COTTA, {"views": True}),
    "rmt": (methods.rmt, PLAIN, RMT, {"varied": True, "stream": "stream.6"}),
    "lame": (methods.lame, PLAIN, {"affinity": "rbf", "neighbours": 5}, {}),
    "lame-nearest": (methods.lame, PLAIN, {"affinity": "nearest", "neighbours": 1}, {}),
    "roid": (methods.roid, PLAIN, ROID, {"varied": True}),
    "cmf": (methods.roid, PLAIN, CMF, {"varied": True}),
    "tribe": (memories.tribe, PLAIN, TRIBE, {"varied": True, "stream": "stream.1"}),
    "tribe-common": (memories.tribe, PLAIN, TRIBE | {"norm_share": 0.25, "common_part": 0.3}, {"varied": True}),
    "rotta": (memories.rotta, PLAIN, ROTTA, {"varied": True}),
    "petta": (memories.petta, PLAIN, PETTA, {"varied": True}),
    "note": (memories.note, PLAIN, NOTE, {}),
    "t3a": (methods.t3a, PLAIN, {"supports_per_class": 20}, {}),
    "shot": (methods.shot, PLAIN, SHOT, {}),
    "tfa": (methods.tfa, PLAIN, TFA, {}),
    "ttac": (methods.ttac, PLAIN, TTAC, {}),
    "ttac-plus-plus": (methods.ttac_plus_plus, PLAIN, TTAC_PLUS_PLUS | {"joint": True}, {"views": True}),
    "ttac-plus-plus-apart": (methods.ttac_plus_plus, PLAIN, TTAC_PLUS_PLUS | {"joint": False}, {"views": True}),
    "ttac-guard": (methods.ttac, PLAIN, TTAC | {"class_clip": 2}, {}),
    "ttac-shot": (methods.ttac, PLAIN, TTAC | {"information_maximisation_weight": 0.1}, {}),
    "ttac-one-directional": (methods.ttac, PLAIN, TTAC | {"divergence": "source-to-target"}, {}),
    "ttac-global-l2": (methods.ttac, PLAIN, TTAC | {"global_loss": "squared-distance"}, {}),
    "ttac-soft": (methods.ttac, PLAIN, TTAC | {"assignment": "soft", "class_clip": 16}, {"stream": "stream.1"}),
    "ttac-self-training": (methods.self_training, PLAIN, SELF_TRAINING, {}),
    "ttac-source-free": (methods.ttac_source_free, PLAIN, SOURCE_FREE, {}),
    "ttac-queue": (methods.ttac_queue, PLAIN, QUEUE | {"learning_rate": 1e-3}, {"stream": "stream.17"}),
    "ttac-queue-early": (
        methods.ttac_queue,
        PLAIN,
        QUEUE | {"epochs_per_batch": 4},
        {"batches": 3, "stream": "stream.2"},
    ),
    "ttac-queue-self-training": (methods.ttac_queue, PLAIN, QUEUE | {"self_training": True}, {"stream": "stream.6"}),
    "ttac-contrastive": (methods.ttac_queue, SIMCLR, CONTRASTIVE, {"views": True, "batches": 5, "stream": "stream.3"}),
    "ttt-plus-plus": (
        methods.ttt_plus_plus,
        SIMCLR,
        TTT_PLUS_PLUS | {"projection_sigma": 0.2, "align_projections": True},
        {"views": True, "stream": "stream.4"},
    ),
    "ttt-plus-plus-features": (
        methods.ttt_plus_plus,
        SIMCLR,
        TTT_PLUS_PLUS | {"align_projections": False},
        {"views": True, "stream": "stream.2"},
    ),
    "ttt-r": (methods.ttt_r, ROTATION, {"learning_rate": 1e-3, "momentum": 0.0}, {"copies": 8}),
}


# ---- Building a case ---------------------------------------------------------------------------------


def rotation_case(constants, further):
    """Ten single images, each with copies and the quarters by which they are turned."""
    config, size, images, copies = parity.ROTATION | {"norm": "group"}, 16, 10, further["copies"]
    net = parity.build(nets.ResNetRotation, config, torch.float64, False)
    inputs = {
        "stream": {"name": "stream", "shape": [images, size, size, 3], "scale": 3.0, "offset": 0.0},
        "copies": {"name": "copies", "shape": [images * copies, size, size, 3], "scale": 3.0, "offset": 0.0},
    }
    stream = formula.images("stream", (images, 3, size, size)).double()
    given = formula.images("copies", (images * copies, 3, size, size)).double()
    quarters = (formula.values("quarters", (images, copies), 4.0, 2.0)).floor().int().tolist()
    case = SimpleNamespace(net=net, images=stream, batches=stream.split(1), copies=given.split(copies))
    case.quarters, case.given, case.classes = quarters, {}, 10
    note = {"architecture": "resnet26-group", "network": config | {"shared": 2}, "inputs": inputs}
    return case, note | {"batches": images, "batch_size": 1, "copies": copies, "quarters": quarters}


def stream_case(method, architecture, constants, further):
    _, config, size, key, sharpness = world.NETWORKS[architecture]
    batches = further.get("batches", world.STREAM_COUNT // world.BATCH)
    count = batches * world.BATCH
    net, given = world.start(architecture)
    name = further.get("stream", "stream")
    images = world.pictures("stream", name, count, size).double()
    case = SimpleNamespace(net=net, images=images, batches=images.split(world.BATCH), classes=world.CLASSES)
    pattern = {"name": "pattern", "shape": [world.CLASSES, size, size, 3], "scale": world.PATTERN_SCALE, "offset": 0.0}
    inputs = {
        "pattern": pattern,
        "source": world.note("source", "source", world.SOURCE_COUNT, size),
        "stream": world.note("stream", name, count, size),
    }
    note = {"architecture": architecture, "network": config, "batches": batches, "batch_size": world.BATCH}
    note |= {"image": "pattern[7 i mod classes] + noise[i], one float32 addition", "classifier": key}
    note |= {"classifier_sharpness": sharpness}
    case.given = dict(given)

    case.anchors = {}
    if method in (methods.ttac, methods.ttac_queue, methods.ttac_plus_plus, methods.rmt, memories.petta):
        found = world.anchors(net, methods.classifier(net), size)
        case.given |= found
        case.anchors = {key.removeprefix("anchors."): value for key, value in found.items()}
    if method in (methods.tfa, methods.ttt_plus_plus):
        with torch.no_grad():
            features = net.eval().features(world.pictures("source", "source", world.SOURCE_COUNT, size).double())
            outputs = {"features": features}
            if constants.get("align_projections"):
                outputs["projections"] = net.head(features)
        batch = constants["alignment_anchor_batch"]
        case.alignment = {kind: world.alignment_anchors(rows, batch) for kind, rows in outputs.items()}
        for kind, values in case.alignment.items():
            case.given |= {f"anchors.{kind}.{key}": value for key, value in values.items()}

    if "projection" in constants:
        length, width = len(case.anchors["mean"]), constants["projection"]
        shapes = (width, length), (width,), (width, width), (width,)
        names = [f"projector.{number}" for number in range(len(shapes))]
        case.projector = [formula.values(own, shape, 0.7).double() for own, shape in zip(names, shapes)]
    if further.get("entropies"):
        with torch.no_grad():
            source = world.pictures("source", "source", world.SOURCE_COUNT, size).double()
            logits = methods.predict(net, source)
        case.entropies = world.float32(methods.entropy(logits).sort().values)
        case.given |= {"anchors.entropies": case.entropies}
    if further.get("image_copies"):
        # Ten single images, and the copies of all of them.
        copies = further["image_copies"]
        case.images = case.images[:batches]
        case.batches = case.images.split(1)
        case.copies = world.pictures("view1", "view1", batches * copies, size).double().split(copies)
        note |= {"batch_size": 1, "copies": copies}
        inputs["stream"] = world.note("stream", name, batches, size)
        inputs |= {"view1": world.note("view1", "view1", batches * copies, size)}
    case.views = None
    if further.get("views"):
        case.views = [world.pictures(view, view, count, size).double() for view in ("view1", "view2")]
        inputs |= {view: world.note(view, view, count, size) for view in ("view1", "view2")}
    if "penalty_weight" in constants:
        own = SimpleNamespace(net=deepcopy(net), record=methods.Record())
        source = world.pictures("source", "source", world.SOURCE_COUNT, size).double()
        found = methods.importance(own, source, constants["importance_batch"])
        case.importance = {key: world.float32(value) for key, value in found.items()}
        case.given |= {f"importance.{key}": value for key, value in case.importance.items()}
    if further.get("varied"):
        case.varied = world.pictures("view1", "view1", count, size).double()
        inputs |= {"view1": world.note("view1", "view1", count, size)}
    if "queue_length" in constants:
        shape = batches, constants["queue_length"], constants["minibatch_size"], constants["epochs_per_batch"]
        case.orders = note["orders"] = world.orders(*shape, "order", 1)
        if case.views:
            case.contrastive_orders = world.orders(*shape, "contrastive_order", 0)
            note["contrastive_orders"] = case.contrastive_orders
    return case, note | {"inputs": inputs}


def cast(value, dtype):
    """Every float64 tensor inside, in another precision."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: cast(inner, dtype) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [cast(inner, dtype) for inner in value]
    return value


def run(method, case, constants, dtype=torch.float64, memory=torch.contiguous_format, trial=0):
    """The method's tensors, record and flags. A trial moves each weight by up to `NUDGE` of itself."""
    own = SimpleNamespace(**{key: cast(value, dtype) for key, value in vars(case).items() if key != "net"})
    own.net, own.c, own.record = deepcopy(case.net).to(dtype), SimpleNamespace(**constants), methods.Record()
    own.net = own.net.to(memory_format=memory)
    if trial:
        generator = torch.Generator().manual_seed(trial)
        for p in own.net.parameters():
            p.data *= 1 + NUDGE * (2 * torch.rand(p.shape, generator=generator, dtype=dtype) - 1)
    method(own)
    out = {name: torch.stack(values) for name, values in own.record.series.items()}
    flags = {name: value for name, value in own.record.state.items() if isinstance(value, bool)}
    out |= {f"state.{name}": value for name, value in own.record.state.items() if name not in flags}
    # These leave the network as it was, or put it back.
    if method not in (methods.test, methods.t3a, methods.lame, methods.memo):
        state = own.net.state_dict()
        out |= {f"after.{key}": value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    return out, own.record, flags


# ---- Checks ---------------------------------------------------------------------------------------------


def decisions(tensors):
    return {key: value for key, value in tensors.items() if not value.is_floating_point()}


def share(mask):
    return round(mask.double().mean().item(), 3)


def exercised(name, method, case, constants, tensors, flags):
    """What the fixture puts to the test; fails where it should and does not."""
    seen = dict(flags)
    if "accepted" in tensors:
        accepted = tensors["accepted"]
        seen["accepted_share"] = share(accepted)
        assert 0.2 < seen["accepted_share"] < 0.9, name
        by_class = torch.bincount(tensors["pseudo_label"][accepted], minlength=case.classes)
        seen["accepted_by_class"] = by_class.tolist()
        assert (by_class > 0).sum() >= 4, name
    if method is methods.eta:
        certain, steps = tensors["certain"], accepted.any(1)
        seen["certain_share"] = share(certain)
        seen["redundant"] = int((certain & ~accepted).sum())
        seen["batches_without_a_step"] = int((~steps).sum())
        assert seen["certain_share"] < 0.9 and seen["redundant"] > 0, name
        assert not steps.all() and steps[-1], f"{name}: a batch must have no step, and a later one must have one"
    if method is methods.rmt:
        found = torch.bincount(tensors["nearest"].flatten(), minlength=case.classes)
        assert (found > 0).sum() >= 4, f"{name}: nearest means {found}"
    if method is methods.memo:
        assert flags["moves"], name
    if method is methods.poem:
        seen["highest_bet"] = round(tensors["bet"].abs().max().item(), 3)
        assert seen["highest_bet"] > constants["highest_bet"], f"{name}: the bet never got beyond its bound"
    if method is methods.ttac_plus_plus:
        seen["strong_share"] = share(tensors["strong_accepted"])
        assert 0.2 < seen["strong_share"] < 0.9, name
    if method is methods.sar:
        seen["recoveries"] = int(tensors["recovered"].sum())
        assert seen["recoveries"] > 0 and not tensors["recovered"][-1], name
    if method is memories.tribe:
        assert flags["crowded"] == (name == "tribe-common"), f"{name}: a batch with more images of a class than weigh in full"
    if method in (memories.rotta, memories.petta):
        assert flags["refused"] and flags["replaced"], f"{name}: the memory must refuse samples and replace others"
    if method is memories.petta:
        seen["drift"] = [parity.rounded(value) for value in tensors["drift"][[1, -1]].tolist()]
    if method is methods.lame:
        seen["moved"] = int(tensors["moved"].sum())
        assert seen["moved"] > 0, name
    if "class_divergence" in tensors:
        active = tensors["class_divergence"] > 0
        seen["steps_with_class_loss"] = int(active.any(1).sum())
        seen["steps"] = len(active)
        seen["classes_in_class_loss"] = int(active.any(0).sum())
        assert seen["steps_with_class_loss"] >= 3 and seen["classes_in_class_loss"] >= 4, name
        if method in (methods.ttac, methods.ttac_plus_plus, methods.ttac_source_free) and "accepted" in tensors:
            by_step = zip(tensors["accepted"], tensors["pseudo_label"])
            present = torch.stack([torch.bincount(l[a], minlength=case.classes) > 0 for a, l in by_step])
            seen["held_back_by_the_gate"] = int((present & ~active).sum())
            assert seen["held_back_by_the_gate"] > 0, name
    if "clipped" in flags and name != "ttac-queue-early":
        assert flags["clipped"], f"{name}: a clip was not reached"
    if "guarded" in flags:
        assert flags["guarded"] == (name == "ttac-guard"), f"{name}: guard {flags['guarded']}"
    if "steady" in tensors:
        seen["temporal_rejections"] = int((~tensors["steady"]).sum())
        distrusted = ~tensors["trusted"] & tensors["steady"]
        seen["rejected_by_trust_alone"] = int((distrusted & (tensors["confidence"] > 0.9)).sum())
        assert seen["temporal_rejections"] > 0, name
        if name in ("ttac-queue", "ttac-contrastive"):
            assert seen["rejected_by_trust_alone"] > 0, name
            back = recoveries(case, constants, tensors)
            seen["samples_trusted_again"] = back
            assert name != "ttac-queue" or back > 0, name
        if "epoch" in tensors:
            late = tensors["epoch"] > constants["epochs_per_batch"] // 2
            assert not (tensors["class_divergence"][~late] > 0).any(), name
    if method is methods.t3a:
        count = tensors["support_count"]
        seen["classes_cut"] = int((count[-1] == constants["supports_per_class"]).sum())
        seen["rows_of_their_own_class"] = int((tensors["state.first_label"] == torch.arange(case.classes)).sum())
        assert seen["classes_cut"] >= 2, name
    if method is methods.ttt_r:
        assert {q for row in case.quarters for q in row} == {0, 1, 2, 3}
    return seen


def recoveries(case, constants, tensors):
    """Samples which lost their trust and had it back at a later visit."""
    size = constants["minibatch_size"]
    visits = [order[i : i + size] for epochs in case.orders for order in epochs for i in range(0, len(order), size)]
    lost, back = set(), set()
    for chosen, steady, trusted in zip(visits, tensors["steady"], tensors["trusted"]):
        for sample, s, t in zip(chosen, steady.tolist(), trusted.tolist()):
            if not s:
                lost.add(sample)
            elif t and sample in lost:
                back.add(sample)
    return len(back)


def movement(case, tensors):
    """How far each parameter that was trained went, relative to its largest entry: what a test can see."""
    named = {f"after.{key}": value for key, value in case.net.named_parameters()}
    moved = {key: parity.difference(tensors[key], value) for key, value in named.items() if key in tensors}
    return {key: value for key, value in moved.items() if value > 0}


def worst(expected, others):
    """Largest relative difference by kind of result."""
    found = {}
    for actual in others:
        for key, value in expected.items():
            group = key.split(".")[0]
            if value.is_floating_point() and value.abs().max() > 0:
                found[group] = max(found.get(group, 0.0), parity.difference(actual[key], value))
    return {group: parity.rounded(value) for group, value in found.items()}


def fixture(name):
    method, architecture, constants, further = CASES[name]
    if method is methods.ttt_r:
        case, note = rotation_case(constants, further)
    else:
        case, note = stream_case(method, architecture, constants, further)
    expected, record, flags = run(method, case, constants)
    for kind, distance in record.margins.items():
        assert distance > SAFE, f"{name}: a {kind} decision has a margin of {distance:.1e}"
    seen = exercised(name, method, case, constants, expected, flags)

    # What single precision costs PyTorch, in two memory formats, and what a nudge of the weights does: where a ReLU
    # or a decision sits on an edge, one of these goes another way and the stream is not fit for a fixture.
    formats = torch.contiguous_format, torch.channels_last
    singles = [run(method, case, constants, torch.float32, memory=memory)[0] for memory in formats]
    trials = [run(method, case, constants, trial=trial)[0] for trial in range(1, TRIALS + 1)]
    for other in (*singles, *trials):
        for key, value in decisions(expected).items():
            assert torch.equal(other[key], value), f"{name}: rounding turns `{key}`"
    single, nudged = worst(expected, singles), worst(expected, trials)
    for kind, distances in (("float32", single), ("a nudge", nudged)):
        assert max(distances.values()) < SAFE, f"{name}: {kind} ends elsewhere, {distances}"

    moved = movement(case, expected)
    assert not moved or min(moved.values()) > SAFE, f"{name}: too small a movement to be seen, {moved}"
    about = {
        "f32": single,
        "nudged": nudged,
        "margins": {kind: parity.rounded(distance) for kind, distance in record.margins.items()},
        "exercised": seen,
        "movement": {"parameters": len(moved)},
    }
    if moved:
        about["movement"] |= {"smallest": parity.rounded(min(moved.values()))}
        about["movement"] |= {"largest": parity.rounded(max(moved.values()))}
    config = {"fixture": name, "method": method.__name__} | note | {"classes": case.classes, "constants": constants}
    return case.given | expected, about, config


def main():
    torch.set_num_threads(1)
    checks.main()
    wanted = tuple(sys.argv[1:]) or ("",)
    total = 0
    for name in CASES:
        if not name.startswith(wanted):
            continue
        tensors, about, config = fixture(name)
        size = parity.write(name, tensors, about)
        text = json.dumps(config, separators=(",", ":"), sort_keys=True)
        (parity.FIXTURES / name / "config.json").write_text(text + "\n")
        total += size + len(text)
        print(f"{name:24} {size:8} bytes", json.dumps(about), flush=True)
    if "batch-variation".startswith(wanted):
        tensors, config = variations.fixture()
        total += parity.write("batch-variation", tensors, {})
        text = json.dumps(config, separators=(",", ":"), sort_keys=True)
        (parity.FIXTURES / "batch-variation" / "config.json").write_text(text + "\n")
    print(f"{total} bytes")


if __name__ == "__main__":
    main()
