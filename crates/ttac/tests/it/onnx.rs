//! ONNX files: what is read from them, what is written can be read, and every way a file can be wrong is described.
//!
//! The fixtures are `graph/*.onnx` below `$TTAC_DATA` or the folder `../shared/data`; where they are absent, that is said and
//! passed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use ttac::graph::{
    Argument, Graph, Integer, Lowered, Op, Operand, Program, Role, TensorKind, Values, lower, onnx,
    pt2,
};

use crate::fixture::note;
use crate::interpret::run;
use crate::lowering::{difference, reference};
use crate::onnx_bytes::{Model, flag, floats, info, integers, longs, node, outside, small};
use crate::real::at_hand;

/// The networks whose exporter destroyed nothing.
const WHOLE: [&str; 15] = [
    "convnext",
    "efficientnet",
    "inception_like",
    "inplace",
    "mobilenet_v2",
    "mobilenet_v3",
    "preact",
    "resnet",
    "resnet8_optA",
    "resnet_gn",
    "resnext29",
    "squeeze_like",
    "vit_timm",
    "vit_torchvision",
    "wrn_10_1",
];

fn fixtures() -> Option<PathBuf> {
    let folder = at_hand("graph");
    if folder.is_none() {
        note("skipped: needs `graph/*.onnx`");
    }
    folder
}

fn read(path: &Path) -> Program {
    onnx::read(path).unwrap_or_else(|error| panic!("{error}"))
}

fn lowered(program: &Program, name: &str) -> Lowered {
    lower(program, None).unwrap_or_else(|error| panic!("{name}: {error}, {:?}", error.hint()))
}

/// Counts the operations of a graph by name.
fn census(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for node in &graph.nodes {
        *counts.entry(node.op.name()).or_default() += 1;
    }
    counts
}

/// Lists the names of a graph's tensors of one kind.
fn names(graph: &Graph, kind: TensorKind) -> BTreeSet<&str> {
    let tensors = graph.tensors.iter().filter(|info| info.kind == kind);
    tensors.map(|info| info.name.as_str()).collect()
}

/// The same network by two exporters: the same layers, and the same names in the same parts.
#[test]
fn fixtures_are_what_their_pt2_is() {
    let Some(folder) = fixtures() else { return };
    for name in WHOLE {
        let ours = lowered(&read(&folder.join(format!("{name}.onnx"))), name);
        let theirs = pt2::read(&folder.join(format!("{name}.pt2"))).unwrap();
        let theirs = lowered(&theirs, name);
        for kind in [TensorKind::Affine, TensorKind::Running, TensorKind::Weight] {
            let found = names(&ours.graph, kind);
            assert_eq!(found, names(&theirs.graph, kind), "{name}, {kind:?}");
        }
        let (found, expected) = (census(&ours.graph), census(&theirs.graph));
        let layers = ["conv2d", "batch-norm", "layer-norm", "group-norm", "linear"];
        for layer in layers.into_iter().chain(["attention", "gelu", "silu"]) {
            assert_eq!(found.get(layer), expected.get(layer), "{name}, {layer}");
        }
        for (tensor, data) in &theirs.tensors {
            if let Some(found) = ours.tensors.get(tensor) {
                let same = found.as_bytes() == data.as_bytes();
                assert!(
                    same || tensor.starts_with("graph.constant"),
                    "{name}, `{tensor}`"
                );
            }
        }
        let ends = |graph: &Graph| (graph.num_features(), graph.num_classes(), graph.head.len());
        assert_eq!(ends(&ours.graph), ends(&theirs.graph), "{name}");
        assert_eq!(ours.normalises_inside, theirs.normalises_inside, "{name}");
    }
}

/// Networks compute what PyTorch computed in double precision. Files hold scales of attention and the root in GELU in single
/// precision, each wrong by up to 6e-8 of itself, and networks have a few of them in a row; folded norms round every weight.
const SINGLE_PRECISION: f64 = 1e-6;

fn agrees(graph: &Lowered, name: &str, file: &str) {
    assert_eq!(graph.graph.problems(), Vec::<String>::new(), "{file}");
    let x = reference(name, "x").unwrap();
    let values = run(graph, x);
    let expected = reference(name, "eval.logits").unwrap();
    let found = difference(&values[&graph.graph.output], &expected);
    assert!(
        found <= SINGLE_PRECISION,
        "{file}: logits differ by {found:e}"
    );
}

#[test]
fn logits_are_those_of_pytorch() {
    let Some(folder) = fixtures() else { return };
    for name in WHOLE {
        let file = format!("{name}.onnx");
        agrees(&lowered(&read(&folder.join(&file)), name), name, &file);
    }
    for file in ["resnet8_optA.dynamo.onnx", "resnet8_optA.folded.onnx"] {
        agrees(
            &lowered(&read(&folder.join(file)), file),
            "resnet8_optA",
            file,
        );
    }
}

/// Batch norms of different exporters have the same numbers: 0.1 and 1e-5, not what single precision makes of them.
#[test]
fn momenta_and_epsilons_are_those_of_the_module() {
    let Some(folder) = fixtures() else { return };
    let program = read(&folder.join("resnet.onnx"));
    let mut norms = program.calls.iter();
    let norm = norms.find(|call| call.target == "aten.batch_norm.default");
    let norm = norm.unwrap();
    assert_eq!(norm.argument("momentum"), Some(&Argument::Float(0.1)));
    assert_eq!(norm.argument("eps"), Some(&Argument::Float(1e-5)));
    assert_eq!(norm.at, "bn1");
}

#[test]
fn folded_norms_are_noted() {
    let Some(folder) = fixtures() else { return };
    let folded = read(&folder.join("resnet8_optA.folded.onnx"));
    let [note] = folded.notes.as_slice() else {
        panic!("{:?}", folded.notes);
    };
    for part in [
        "folded",
        "`bn`, `tent`",
        "torch.export.save",
        "optimize=False",
    ] {
        assert!(note.contains(part), "{note}");
    }
    for kept in [
        "resnet8_optA.onnx",
        "resnet8_optA.dynamo.onnx",
        "convnext.onnx",
    ] {
        assert_eq!(
            read(&folder.join(kept)).notes,
            Vec::<String>::new(),
            "{kept}"
        );
    }
}

/// All three exporters of the same network.
#[test]
fn exporters_agree() {
    let Some(folder) = fixtures() else { return };
    let plain = lowered(&read(&folder.join("resnet8_optA.onnx")), "plain");
    let dynamo = lowered(&read(&folder.join("resnet8_optA.dynamo.onnx")), "dynamo");
    assert_eq!(census(&plain.graph), census(&dynamo.graph));
    assert_eq!(plain.graph.values, dynamo.graph.values);
    let folded = lowered(&read(&folder.join("resnet8_optA.folded.onnx")), "folded");
    assert_eq!(census(&folded.graph).get("batch-norm"), None);
    assert_eq!(
        census(&folded.graph)["conv2d"],
        census(&plain.graph)["conv2d"]
    );
}

/// An operand that does not depend on how values are counted: what makes it, at which place.
fn describe(graph: &Graph, operand: Operand, order: &BTreeMap<u32, usize>) -> String {
    match operand {
        Operand::Value(value) => format!("node {:?}", order.get(&value.0)),
        Operand::Tensor(tensor) => match graph.tensor(tensor).kind {
            TensorKind::Constant => format!("constant {:?}", graph.tensor(tensor).shape),
            _ => graph.tensor(tensor).name.clone(),
        },
        Operand::Scalar(number) => format!("{number:.6e}"),
    }
}

fn listing(graph: &Graph) -> Vec<String> {
    let mut order = BTreeMap::new();
    let mut lines = Vec::new();
    for (number, node) in graph.nodes.iter().enumerate() {
        let inputs = node
            .inputs
            .iter()
            .map(|&input| describe(graph, input, &order));
        let mut inputs: Vec<String> = inputs.collect();
        // The order of what is added or multiplied has no meaning, and the reader puts weights second.
        if matches!(node.op, Op::Add | Op::Mul) {
            inputs.sort_unstable();
        }
        lines.push(format!(
            "{} {inputs:?} {:?}",
            node.op.name(),
            graph.shape(node.output)
        ));
        order.insert(node.output.0, number);
    }
    lines
}

/// A graph that is written, read and lowered again is the same graph.
#[test]
fn round_trips_keep_the_graph() {
    let Some(folder) = fixtures() else { return };
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("again.onnx");
    for name in WHOLE {
        let program = pt2::read(&folder.join(format!("{name}.pt2"))).unwrap();
        let first = lowered(&program, name);
        onnx::write(&first.graph, &first.tensors, &out, "ttac").unwrap();
        let second = lowered(&read(&out), name);
        agrees(&second, name, "what was written");
        assert_eq!(listing(&second.graph), listing(&first.graph), "{name}");
        for kind in [TensorKind::Affine, TensorKind::Running, TensorKind::Weight] {
            let expected = names(&first.graph, kind);
            assert_eq!(names(&second.graph, kind), expected, "{name}, {kind:?}");
        }
        for (tensor, data) in &second.tensors {
            if let Some(expected) = first.tensors.get(tensor) {
                let same = data.as_bytes() == expected.as_bytes();
                assert!(
                    same || tensor.starts_with("graph.constant"),
                    "{name}, `{tensor}`"
                );
            }
        }
    }
}

#[test]
fn a_written_file_needs_its_tensors() {
    let first = lowered(&onnx::read_bytes(&small().bytes()).unwrap(), "small");
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("net.onnx");
    let mut tensors = first.tensors.clone();
    tensors.remove("fc.weight");
    let error = onnx::write(&first.graph, &tensors, &out, "ttac").unwrap_err();
    assert!(error.to_string().contains("tensor `fc.weight`"), "{error}");
    assert!(!out.exists());
}

/// Reads bytes that are to be refused, and returns the message with its hint.
fn refusal(bytes: &[u8]) -> String {
    match onnx::read_bytes(bytes) {
        Ok(_) => panic!("was read"),
        Err(error) => format!("{error}; {}", error.hint().unwrap_or_default()),
    }
}

#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let message = refusal(bytes);
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn other_files_are_refused() {
    refused(b"", &["no graph", "torch.onnx.export"]);
    refused(b"PK\x03\x04rest", &["zip archive", ".pt2"]);
    refused(b"# a text", &["copy or download the file again"]);
    let mut old = small();
    old.opset = 9;
    refused(
        &old.bytes(),
        &["opset is 9, expected 11 to 21", "opset_version=18"],
    );
}

#[test]
fn cut_files_are_refused() {
    let whole = small().bytes();
    assert!(onnx::read_bytes(&whole).is_ok());
    // The last field is the version of the operators: without it there is nothing wrong but that.
    for length in 0..whole.len() {
        let message = refusal(&whole[..length]);
        let known = [
            "cut or damaged",
            "no graph",
            "its opset is none",
            "its opset is 0",
        ];
        assert!(
            known.iter().any(|part| message.contains(part)),
            "{length}: {message}"
        );
    }
}

fn with(change: impl FnOnce(&mut Model)) -> Vec<u8> {
    let mut model = small();
    change(&mut model);
    model.bytes()
}

#[test]
fn inputs_and_outputs_are_counted() {
    let two = with(|model| model.inputs.push(info("mask", &[0, 4])));
    refused(&two, &["2 inputs (`x`, `mask`), expected one", "`forward`"]);
    let two = with(|model| model.outputs.push(info("flat", &[0, 4])));
    refused(&two, &["2 outputs (`scores`, `flat`), expected one"]);
    let rows = with(|model| model.inputs = vec![info("x", &[0, 8])]);
    refused(&rows, &["input `x` has 2 axes, expected 4"]);
    let open = with(|model| model.inputs = vec![info("x", &[0, 3, 0, 0])]);
    refused(
        &open,
        &["Named(\"batch\")", "only the batch may be dynamic"],
    );
    let lost = with(|model| model.outputs = vec![info("nothing", &[0, 5])]);
    refused(&lost, &["nothing makes the output `nothing`"]);
}

#[test]
fn operations_are_refused_by_name() {
    let last = |model: &mut Model, new: Vec<u8>| {
        model.nodes.insert(1, new);
    };
    let cases = [
        ("NonMaxSuppression", "is not supported", "`.pt2`"),
        ("If", "chooses while it runs", "torch.export"),
        ("QuantizeLinear", "quantised", "before it is quantised"),
        ("Equal", "depend on the images", "`.pt2`"),
    ];
    for (op, problem, hint) in cases {
        let bytes = with(|model| last(model, node(op, &["y"], &["odd"], &[])));
        let place = format!("node `the_{op}` ({op})");
        refused(&bytes, &[&place, problem, hint]);
    }
    let foreign = with(|model| {
        let mut fused = node("FusedConv", &["y"], &["odd"], &[]);
        fused.extend(crate::onnx_bytes::bytes(7, "com.microsoft"));
        last(model, fused);
    });
    refused(
        &foreign,
        &["`FusedConv` of `com.microsoft`", "without optimising"],
    );
    let unmade = with(|model| last(model, node("Relu", &["later"], &["odd"], &[])));
    refused(&unmade, &["it reads `later`, which nothing makes"]);
    let twice = with(|model| last(model, node("Relu", &["y"], &["y"], &[])));
    refused(&twice, &["`y` is made twice"]);
}

#[test]
fn sizes_are_bounded() {
    let huge = with(|model| {
        let shape = &[1 << 40, 1 << 40];
        model.tensors.push(outside("huge", shape, "w.bin", 0, 8));
    });
    refused(&huge, &["tensor `huge`", "too large"]);
    let filled = with(|model| {
        model.tensors.push(longs("shape", &[1 << 30, 1 << 30]));
        let fill = node("ConstantOfShape", &["shape"], &["odd"], &[]);
        model.nodes.insert(0, fill);
    });
    refused(&filled, &["the_ConstantOfShape", "is larger than"]);
    let short = with(|model| {
        model.tensors[0] = floats("conv.weight", &[4, 3, 3, 2], |_| 0.0);
        // Eight bytes of the shape's first size are one.
        model.tensors[1] = [
            floats("conv.bias", &[4], |_| 0.0),
            crate::onnx_bytes::integer(1, 2),
        ]
        .concat();
    });
    refused(&short, &["tensor `conv.bias`", "needs 32 bytes, found 16"]);
    let mixing = with(|model| {
        model.tensors.push(longs("shape", &[2, 64]));
        model.nodes[2] = node("Reshape", &["mean", "shape"], &["flat"], &[]);
    });
    refused(
        &mixing,
        &[
            "the_Reshape",
            "[b, 4, 1, 1] cannot become [2, 64]",
            "dynamic batch",
        ],
    );
}

#[test]
fn values_outside_the_file_stay_in_its_folder() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("nets");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("net.onnx");
    let read = |location: &str, offset: u64, length: u64| {
        let bytes = with(|model| {
            model.tensors[3] = outside("fc.bias", &[5], location, offset, length);
        });
        std::fs::write(&path, bytes).unwrap();
        onnx::read(&path)
    };
    let values: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    std::fs::write(folder.join("net.onnx.data"), &values).unwrap();
    std::fs::write(place.path().join("secret"), &values).unwrap();
    let program = read("net.onnx.data", 4, 20).unwrap();
    let expected = Values::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(program.tensors["fc.bias"].values, expected);

    let absolute = place.path().join("secret");
    let absolute = absolute.to_str().unwrap();
    for location in ["../secret", "a/../../secret", absolute, ""] {
        let error = read(location, 0, 20).unwrap_err().to_string();
        let known = ["out of the network's folder", "without a name"];
        assert!(known.iter().any(|part| error.contains(part)), "{error}");
    }
    let cases = [
        (
            8,
            20,
            "its 20 bytes begin at byte 8 of `net.onnx.data`, which has 24",
        ),
        (u64::MAX, 20, "which has 24"),
        (
            0,
            16,
            "it needs 20 bytes, and `net.onnx.data` has 16 for it",
        ),
    ];
    for (offset, length, expected) in cases {
        let error = read("net.onnx.data", offset, length).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.to_string().contains("tensor `fc.bias`"), "{error}");
    }
    let error = read("absent.data", 0, 20).unwrap_err();
    assert!(error.hint().unwrap().contains("keep both"), "{error}");
}

/// Exporters merge equal tensors: here the bias of a norm is its running mean, and the scale of another.
#[test]
fn merged_tensors_are_copied_for_each_part() {
    let norm =
        |inputs: [&str; 5], output: &str| node("BatchNormalization", &inputs, &[output], &[]);
    let bytes = with(|model| {
        model.tensors.push(floats("bn.weight", &[4], |_| 1.0));
        model.tensors.push(floats("bn.bias", &[4], |_| 0.0));
        let first = ["y", "bn.weight", "bn.bias", "bn.bias", "bn.weight"];
        model.nodes.insert(1, norm(first, "n"));
        model.nodes[2] = node("GlobalAveragePool", &["n"], &["mean"], &[]);
    });
    let program = onnx::read_bytes(&bytes).unwrap();
    let roles = |key: &str| {
        let mut tensors = program.tensors.values();
        tensors
            .find(|stored| stored.key == key)
            .map(|stored| stored.role)
    };
    assert_eq!(roles("bn.weight"), Some(Role::Parameter));
    assert_eq!(roles("bn.bias"), Some(Role::Parameter));
    assert_eq!(roles("bn.running_mean"), Some(Role::Buffer));
    assert_eq!(roles("bn.running_var"), Some(Role::Buffer));
}

/// A file for exactly one image, whose shapes are written out, becomes one for any number.
#[test]
fn one_image_becomes_many() {
    let fixed = with(|model| {
        model.inputs = vec![info("x", &[1, 3, 8, 8])];
        model.tensors.push(longs("shape", &[1, -1]));
        model.nodes[2] = node("Reshape", &["mean", "shape"], &["flat"], &[]);
    });
    let program = onnx::read_bytes(&fixed).unwrap();
    let mut calls = program.calls.iter();
    let reshape = calls
        .find(|call| call.target == "aten.reshape.default")
        .unwrap();
    let Some(Argument::Integers(sizes)) = reshape.argument("shape") else {
        panic!("{reshape:?}");
    };
    assert!(
        matches!(sizes.as_slice(), [Integer::Symbol(_), Integer::Number(4)]),
        "{sizes:?}"
    );
    let fixed = lowered(&program, "fixed");
    let free = lowered(&onnx::read_bytes(&small().bytes()).unwrap(), "free");
    assert_eq!(listing(&fixed.graph), listing(&free.graph));
}

/// Padding that differs by side, as TensorFlow's `same` makes it, is an operation of its own.
#[test]
fn padding_by_side_is_kept() {
    let bytes = with(|model| {
        let attributes = [
            integers("pads", &[0, 0, 1, 1]),
            integers("strides", &[2, 2]),
        ];
        let inputs = ["x", "conv.weight", "conv.bias"];
        model.nodes[0] = node("Conv", &inputs, &["y"], &attributes);
    });
    let program = onnx::read_bytes(&bytes).unwrap();
    let mut calls = program.calls.iter();
    let pad = calls.find(|call| call.target == "aten.constant_pad_nd.default");
    let expected = [0, 1, 0, 1].map(Integer::Number).to_vec();
    assert_eq!(
        pad.unwrap().argument("pad"),
        Some(&Argument::Integers(expected))
    );
}

/// A linear layer whose weight was transposed by folding: its values are turned back under a key of their own.
#[test]
fn folded_transpositions_are_undone() {
    let bytes = with(|model| {
        model.tensors[2] = floats("onnx::MatMul_7", &[4, 5], |i| i as f32);
        let product = node("MatMul", &["flat", "onnx::MatMul_7"], &["product"], &[]);
        model.nodes[3] = product;
        model
            .nodes
            .push(node("Add", &["fc.bias", "product"], &["scores"], &[]));
    });
    let program = onnx::read_bytes(&bytes).unwrap();
    let call = program.calls.last().unwrap();
    assert_eq!(call.target, "aten.linear.default");
    assert_eq!(
        call.argument("bias"),
        Some(&Argument::Tensor("fc.bias".to_owned()))
    );
    let stored = &program.tensors["onnx::MatMul_7.transposed"];
    assert_eq!(
        (stored.shape.as_slice(), stored.role),
        ([5, 4].as_slice(), Role::Parameter)
    );
    let Values::F32(values) = &stored.values else {
        panic!("{stored:?}");
    };
    assert_eq!(values[..4], [0.0, 5.0, 10.0, 15.0]);
    assert!(!program.tensors.contains_key("onnx::MatMul_7"));
}

/// Versions below 17 write a layer norm out; it is found again.
#[test]
fn a_layer_norm_that_is_written_out_is_one() {
    let bytes = with(|model| {
        model.opset = 13;
        let scalar = |name: &str, value: f32| floats(name, &[], move |_| value);
        model.tensors.extend([
            floats("ln.weight", &[4], |_| 1.0),
            floats("ln.bias", &[4], |_| 0.0),
            scalar("two", 2.0),
            scalar("epsilon", 1e-6),
        ]);
        let last = [integers("axes", &[-1])];
        let chain = [
            node("ReduceMean", &["flat"], &["m"], &last),
            node("Sub", &["flat", "m"], &["d"], &[]),
            node("Pow", &["d", "two"], &["p"], &[]),
            node("ReduceMean", &["p"], &["v"], &last),
            node("Add", &["v", "epsilon"], &["a"], &[]),
            node("Sqrt", &["a"], &["s"], &[]),
            node("Div", &["d", "s"], &["q"], &[]),
            node("Mul", &["q", "ln.weight"], &["w"], &[]),
            node("Add", &["w", "ln.bias"], &["normal"], &[]),
        ];
        let last = model.nodes.pop().unwrap();
        model.nodes.extend(chain);
        drop(last);
        let inputs = ["normal", "fc.weight", "fc.bias"];
        model
            .nodes
            .push(node("Gemm", &inputs, &["scores"], &[flag("transB", 1)]));
    });
    let program = onnx::read_bytes(&bytes).unwrap();
    let norm = &program.calls[program.calls.len() - 2];
    assert_eq!(norm.target, "aten.layer_norm.default");
    assert_eq!(norm.argument("eps"), Some(&Argument::Float(1e-6)));
    let graph = lowered(&program, "norm").graph;
    assert_eq!(census(&graph)["layer-norm"], 1);
    assert_eq!(census(&graph).get("power"), None);
}

proptest! {
    /// Whatever the bytes are, they are read or described.
    #[test]
    fn damaged_files_never_panic(changes in prop::collection::vec((0usize..4096, any::<u8>()), 1..8)) {
        let mut bytes = small().bytes();
        for (place, value) in changes {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        if let Ok(program) = onnx::read_bytes(&bytes) {
            let _ = lower(&program, None);
        }
    }
}
