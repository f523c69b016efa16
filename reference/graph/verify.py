"""Writes the file that `ttac import NET.pt2 --verify FILE` compares our program with. For a network of your own:

    import verify                                    # with reference/graph on the path
    verify.write("net.reference.safetensors", model, x)     # and, for features, classifier="fc"

`x` is `[images, 3, height, width]`, as the network gets it. README.md says what each tensor is. From the command line
the file is made again from the weights of a `.pt2`, or compared with one that is there:

    reference/graph/verify NET.pt2 FILE --write     # inputs are drawn
    reference/graph/verify NET.pt2 FILE             # inputs are those of FILE; prints the largest differences
"""

import argparse
import copy
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

# A gradient this small beside the largest of all is a zero with rounding on top, such as that of a bias before a
# batch norm: the fixtures have nothing between 5e-16 and 3e-6.
ZERO = 1e-9


def passes(net, mode, x, labels, classifier=None):
    """Logits, features, loss and gradients of `net`, which is in double precision and in the wanted mode."""
    kept = {}
    if classifier:
        net.get_submodule(classifier).register_forward_pre_hook(lambda _, inputs: kept.update(features=inputs[0]))
    kept["logits"] = net(x.double())
    kept["loss"] = F.cross_entropy(kept["logits"], labels).reshape(1)
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(kept["loss"], list(named.values()), allow_unused=True)
    kept |= {f"grad.{name}": g for name, g in zip(named, found) if g is not None}
    return {f"{mode}.{key}": value.detach().float().contiguous() for key, value in kept.items()}


def running(net):
    return {name: b for name, b in net.named_buffers() if name.endswith(("running_mean", "running_var"))}


def write(path, model, x, labels=None, classifier=None):
    """The whole file: `eval.*`, and `batch.*` where there are batch norms."""
    net = copy.deepcopy(model).double().eval()
    if labels is None:
        with torch.no_grad():
            labels = torch.arange(len(x)) * 7 % net(x.double()).shape[1]
    tensors = {"x": x.float().contiguous(), "labels": labels} | passes(net, "eval", x, labels, classifier)
    net = copy.deepcopy(model).double().eval()
    norms = [m for m in net.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if norms:
        for norm in norms:
            norm.train()  # nothing else: dropout and stochastic depth stay off
        tensors |= passes(net, "batch", x, labels, classifier)
        tensors |= {f"batch.after.{name}": b.float().contiguous() for name, b in running(net).items()}
    save_file(tensors, path)


# ---- The same from a .pt2, whose batch norms are operations and not modules ----------------------


def of_image(graph):
    """The nodes that depend on the images; a batch norm on a weight alone is standardisation, no layer."""
    reached = set()
    for node in graph.nodes:
        if (node.op == "placeholder") or any(n in reached for n in node.all_input_nodes):
            reached.add(node)
    return reached


def from_export(program, x, labels, mode):
    """As `passes`, with the last linear operation as classifier; None in batch mode without batch norms."""
    net = copy.deepcopy(program.module()).double()
    reached = of_image(net.graph)
    norms = [n for n in net.graph.nodes if n.target is torch.ops.aten.batch_norm.default and n in reached]
    if mode == "batch":
        if not norms:
            return {}
        for node in norms:
            node.args = (*node.args[:5], True, *node.args[6:])
    linears = [n for n in net.graph.nodes if n.target is torch.ops.aten.linear.default]
    output = net.graph.output_node()
    logits = output.args[0][0]
    last = logits
    while last.target in (torch.ops.aten.flatten.using_ints, torch.ops.aten.view.default):
        last = last.args[0]
    features = {}
    if last in linears:
        with net.graph.inserting_before(output):
            net.graph.call_function(lambda value: features.update(value=value), (last.args[0],))
    net.recompile()
    tensors = passes(net, mode, x, labels)
    if features:
        tensors[f"{mode}.features"] = features["value"].detach().float().contiguous()
    if mode == "batch":
        tensors |= {f"batch.after.{name}": b.float().contiguous() for name, b in running(net).items()}
    return tensors


def compare(found, expected):
    """Prints the largest difference of every group, relative to the largest magnitude of the tensor in question."""
    scale = {m: max([v.abs().max().item() for k, v in expected.items() if k.startswith(f"{m}.grad.")], default=0.0) for m in ("eval", "batch")}
    groups, wrong = {}, []
    for key, value in expected.items():
        mode, _, rest = key.partition(".")
        if mode not in ("eval", "batch"):
            continue
        if key not in found:
            wrong.append(f"{key} is not found")
            continue
        size = value.abs().max().item()
        if rest.startswith("grad.") and size < ZERO * scale[mode]:
            size = scale[mode]
        difference = (found[key] - value).abs().max().item() / size
        group = f"{mode}.{rest.split('.')[0]}"
        groups[group] = max(groups.get(group, (0.0, key)), (difference, key))
    wrong += [f"{key} is not expected" for key in found if key not in expected]
    for group, (difference, key) in sorted(groups.items()):
        print(f"{group:16} {difference:.1e}  {key}")
    for line in wrong:
        print(line)
    return not wrong and all(difference <= 1e-6 for difference, _ in groups.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="NET.pt2")
    parser.add_argument("file")
    parser.add_argument("--write", action="store_true", help="write FILE instead of comparing with it")
    parser.add_argument("--images", type=int, default=3)
    args = parser.parse_args()
    program = torch.export.load(args.program)
    if args.write:
        shape = next(n.meta["val"].shape for n in reversed(program.graph.nodes) if n.op == "placeholder")
        x = torch.randn(args.images, *map(int, shape[1:]), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            labels = torch.arange(args.images) * 7 % program.module()(x).shape[1]
    else:
        expected = load_file(args.file)
        x, labels = expected["x"], expected["labels"]
    found = from_export(program, x, labels, "eval") | from_export(program, x, labels, "batch")
    if args.write:
        save_file({"x": x, "labels": labels} | found, args.file)
    else:
        # One unit in the last place of f32, which is what rounding a double a little off can change.
        sys.exit(0 if compare(found, expected) else 1)


if __name__ == "__main__":
    main()
