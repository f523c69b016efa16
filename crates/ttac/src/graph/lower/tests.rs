//! Lowering of small programs that are written by hand: one for each form that the exported networks at hand do not have.

use super::*;
use crate::graph::dims::describe;
use crate::graph::op::{Function, Op, Reduction};
use crate::graph::program::{Argument, ElementType, Integer, Size, Stored, Values};
use crate::graph::{TensorKind, VERSION};

/// A program in the making.
struct Sketch(Program);

fn tensor(name: &str) -> Argument {
    Argument::Tensor(name.to_owned())
}

fn integer(number: i64) -> Argument {
    Argument::Integer(Integer::Number(number))
}

fn integers(numbers: &[i64]) -> Argument {
    Argument::Integers(numbers.iter().map(|&n| Integer::Number(n)).collect())
}

impl Sketch {
    /// Begins with images `[2, 3, 4, 4]`, of any number or of just two.
    fn new(symbolic: bool) -> Self {
        let size = |example, symbolic| Size { example, symbolic };
        let image = vec![
            size(2, symbolic),
            size(3, false),
            size(4, false),
            size(4, false),
        ];
        let mut program = Program {
            input: "x".to_owned(),
            ..Program::default()
        };
        program.shapes.insert("x".to_owned(), image);
        Self(program)
    }

    fn stored(mut self, name: &str, shape: &[usize], role: Role) -> Self {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|v| v as f32 + 1.0).collect();
        let stored = Stored {
            key: name.replace("p_", "layer."),
            also: Vec::new(),
            role,
            shape: shape.to_vec(),
            values: Values::F32(values),
            element: ElementType::F32,
        };
        self.0.tensors.insert(name.to_owned(), stored);
        self
    }

    fn weight(self, name: &str, shape: &[usize]) -> Self {
        self.stored(name, shape, Role::Parameter)
    }

    fn call(mut self, target: &str, arguments: &[(&str, Argument)], results: &[&str]) -> Self {
        let arguments = arguments.iter().cloned();
        self.0.calls.push(Call {
            target: target.to_owned(),
            arguments: arguments.map(|(name, a)| (name.to_owned(), a)).collect(),
            results: results.iter().map(|&name| name.to_owned()).collect(),
            at: "layer".to_owned(),
        });
        self.0.output = results[0].to_owned();
        self
    }

    /// Ends with the mean of each channel of `x` and a linear layer to five classes.
    fn ended(self, x: &str, channels: usize) -> Self {
        self.weight("p_weight", &[5, channels])
            .call(
                "aten.mean.dim",
                &[("self", tensor(x)), ("dim", integers(&[-1, -2]))],
                &["mean"],
            )
            .call(
                "aten.linear.default",
                &[("input", tensor("mean")), ("weight", tensor("p_weight"))],
                &["out"],
            )
    }

    fn lower(&self) -> Result<Lowered> {
        lower(&self.0, None)
    }

    fn ops(&self) -> Vec<Op> {
        let graph = self.lower().unwrap().graph;
        graph.nodes.into_iter().map(|node| node.op).collect()
    }

    fn refusal(&self) -> (String, String) {
        let error = self.lower().unwrap_err();
        (error.to_string(), error.hint().unwrap_or_default())
    }
}

const X: &str = "x";

#[test]
fn a_small_network_has_features_and_a_head() {
    let lowered = Sketch::new(true).ended(X, 3).lower().unwrap();
    let graph = &lowered.graph;
    assert_eq!(graph.version, VERSION);
    assert_eq!(describe(graph.shape(graph.features)), "[b, 3]");
    assert_eq!(graph.head.len(), 1);
    assert_eq!(graph.tensor(graph.head[0].weight).name, "layer.weight");
    assert_eq!(graph.tensor(graph.head[0].weight).kind, TensorKind::Weight);
}

#[test]
fn norms_without_scale_and_shift_get_constants() {
    let sketch = Sketch::new(true)
        .stored("b_mean", &[3], Role::Buffer)
        .stored("b_var", &[3], Role::Buffer)
        .call(
            "aten.batch_norm.default",
            &[
                ("input", tensor(X)),
                ("weight", Argument::None),
                ("running_mean", tensor("b_mean")),
                ("running_var", tensor("b_var")),
                ("training", Argument::Bool(false)),
                ("momentum", Argument::Float(0.0)),
            ],
            &["y"],
        )
        .ended("y", 3);
    let lowered = sketch.lower().unwrap();
    let constants = ["graph.constant.0", "graph.constant.1"];
    let values = constants.map(|name| lowered.tensors[name].try_to_vec::<f32>().unwrap());
    assert_eq!(values, [vec![1.0; 3], vec![0.0; 3]]);
    let momentum = Op::BatchNorm {
        epsilon: 1e-5,
        momentum: 0.1,
    };
    assert_eq!(lowered.graph.nodes[0].op, momentum);
    assert!(lowered.notes[0].contains("momentum"), "{:?}", lowered.notes);
}

/// A batch norm in training mode on this tensor.
fn training_norm(sketch: Sketch, of: &str) -> Sketch {
    let arguments = [
        ("input", tensor(of)),
        ("training", Argument::Bool(true)),
        ("eps", Argument::Float(1e-3)),
    ];
    sketch.call("aten.batch_norm.default", &arguments, &["y"])
}

#[test]
fn the_statistics_of_a_weight_are_standardisation_and_those_of_images_are_refused() {
    let sketch = Sketch::new(true).weight("p_kernel", &[4, 3, 1, 1]);
    let view = [
        ("self", tensor("p_kernel")),
        ("shape", integers(&[1, 4, -1])),
    ];
    let sketch = sketch.call("aten.reshape.default", &view, &["flat"]);
    let sketch = training_norm(sketch, "flat");
    let back = [("self", tensor("y")), ("other", tensor("p_kernel"))];
    let sketch = sketch.call("aten.reshape_as.default", &back, &["kernel"]);
    let conv = [("input", tensor(X)), ("weight", tensor("kernel"))];
    let sketch = sketch
        .call("aten.conv2d.default", &conv, &["z"])
        .ended("z", 4);
    assert!(sketch.ops().contains(&Op::Standardise { epsilon: 1e-3 }));

    let (problem, hint) = training_norm(Sketch::new(true), X).ended("y", 3).refusal();
    assert!(problem.contains("`layer`"), "{problem}");
    assert!(hint.contains("model.eval()"), "{hint}");
}

#[test]
fn dropout_is_kept_in_eval_mode_and_refused_in_training() {
    let dropout = |p: f64, train: bool| {
        let arguments = [
            ("input", tensor(X)),
            ("p", Argument::Float(p)),
            ("train", Argument::Bool(train)),
        ];
        Sketch::new(true)
            .call("aten.dropout_.default", &arguments, &["y"])
            .ended("y", 3)
    };
    let kept = Op::Dropout { probability: 0.25 };
    assert!(dropout(0.25, false).ops().contains(&kept));
    assert_eq!(dropout(0.0, true).ops().len(), 2);
    assert!(dropout(0.25, true).refusal().1.contains("model.eval()"));
}

#[test]
fn zeros_move_into_a_convolution_and_never_into_a_pool() {
    let pad = [
        ("self", tensor(X)),
        ("pad", integers(&[0, 1, 2, 3])),
        ("mode", Argument::Text("constant".to_owned())),
    ];
    let sketch = || Sketch::new(true).call("aten.pad.default", &pad, &["padded"]);
    let conv = [
        ("input", tensor("padded")),
        ("weight", tensor("p_kernel")),
        ("padding", Argument::Text("same".to_owned())),
    ];
    let conv = sketch()
        .weight("p_kernel", &[4, 3, 2, 4])
        .call("aten.conv2d.padding", &conv, &["y"])
        .ended("y", 4);
    // An even span pads one more behind: rows 0 and 1, columns 1 and 2, beside what the pad adds.
    let padding = [[2, 4], [1, 3]];
    let found = conv.ops();
    assert!(
        matches!(&found[0], Op::Conv2d { padding: p, .. } if *p == padding),
        "{found:?}"
    );
    let pool = [("self", tensor("padded")), ("kernel_size", integers(&[2]))];
    let pool = sketch().call("aten.max_pool2d.default", &pool, &["y"]);
    let found = pool.ended("y", 3).ops();
    assert!(matches!(found[0], Op::Pad { .. }), "{found:?}");
}

#[test]
fn shares_at_the_end_are_left_out() {
    let sketch = Sketch::new(true).ended(X, 3);
    let arguments = [("self", tensor("out")), ("dim", integer(1))];
    let sketch = sketch.call("aten.log_softmax.int", &arguments, &["shares"]);
    let lowered = sketch.lower().unwrap();
    assert_eq!(lowered.graph.nodes.len(), 2);
    assert!(lowered.notes.iter().any(|note| note.contains("softmax")));
}

#[test]
fn a_convolution_of_one_pixel_is_a_classifier() {
    let pool = [("self", tensor(X)), ("output_size", integers(&[1, 1]))];
    let conv = [("input", tensor("pooled")), ("weight", tensor("p_weight"))];
    let flat = [("self", tensor("scores")), ("start_dim", integer(1))];
    let lowered = Sketch::new(true)
        .weight("p_weight", &[5, 3, 1, 1])
        .call("aten.adaptive_avg_pool2d.default", &pool, &["pooled"])
        .call("aten.conv2d.default", &conv, &["scores"])
        .call("aten.flatten.using_ints", &flat, &["out"])
        .lower()
        .unwrap();
    assert_eq!(lowered.graph.head.len(), 1);
    assert_eq!(lowered.graph.num_features(), 3);
}

#[test]
fn the_mean_of_two_heads_reads_joined_features() {
    let mean = [("self", tensor(X)), ("dim", integers(&[2, 3]))];
    let head = |weight| [("input", tensor("mean")), ("weight", tensor(weight))];
    let other = [("input", tensor("other")), ("weight", tensor("p_b"))];
    let sum = [("self", tensor("a")), ("other", tensor("b"))];
    let half = [("self", tensor("sum")), ("other", integer(2))];
    let lowered = Sketch::new(true)
        .weight("p_a", &[5, 3])
        .weight("p_b", &[5, 3])
        .call("aten.mean.dim", &mean, &["mean"])
        .call("aten.linear.default", &head("p_a"), &["a"])
        .call("aten.tanh.default", &[("self", tensor("mean"))], &["other"])
        .call("aten.linear.default", &other, &["b"])
        .call("aten.add.Tensor", &sum, &["sum"])
        .call("aten.div.Tensor", &half, &["out"])
        .lower()
        .unwrap();
    assert_eq!(lowered.graph.head.len(), 2);
    assert_eq!(lowered.graph.num_features(), 6);
}

#[test]
fn what_mixes_images_is_refused() {
    let mean = [("self", tensor(X)), ("dim", integers(&[0]))];
    let sketch = Sketch::new(true).call("aten.mean.dim", &mean, &["y"]);
    assert!(sketch.refusal().0.contains("mix images"));
    let flat = [("self", tensor(X)), ("size", integers(&[3, -1]))];
    let sketch = Sketch::new(true).call("aten.view.default", &flat, &["y"]);
    assert!(sketch.refusal().0.contains("mix"));
}

#[test]
fn unknown_functions_are_listed_and_named() {
    let arguments = [("self", tensor(X))];
    let sketch = Sketch::new(true)
        .call("aten.fft_fft2.default", &arguments, &["y"])
        .call("aten.fft_fft2.default", &arguments, &["z"])
        .ended("z", 3);
    let missing = ("aten.fft_fft2.default".to_owned(), 2, "layer".to_owned());
    assert_eq!(survey(&sketch.0), [missing]);
    assert!(sketch.refusal().0.contains("aten.fft_fft2.default"));
    let sketch = Sketch::new(true).call("higher_order.wrap_with_autocast", &[], &["y"]);
    assert!(sketch.refusal().1.contains("autocast"));
}

#[test]
fn a_mask_filled_in_place_is_folded_and_stands_for_minus_infinity() {
    let size = [("size", integers(&[4, 4]))];
    let row = [
        ("self", tensor("mask")),
        ("dim", integer(1)),
        ("start", integer(2)),
    ];
    let fill = [
        ("self", tensor("part")),
        ("value", Argument::Float(f64::NEG_INFINITY)),
    ];
    let add = [("self", tensor(X)), ("other", tensor("mask"))];
    let soft = [("self", tensor("sum")), ("dim", integer(-1))];
    let lowered = Sketch::new(true)
        .call("aten.zeros.default", &size, &["mask"])
        .call("aten.slice.Tensor", &row, &["part"])
        .call("aten.fill_.Scalar", &fill, &["filled"])
        .call("aten.add.Tensor", &add, &["sum"])
        .call("aten.softmax.int", &soft, &["shares"])
        .ended("shares", 3)
        .lower()
        .unwrap();
    let mask = lowered.tensors["graph.constant.0"]
        .try_to_vec::<f32>()
        .unwrap();
    assert_eq!(mask[..4], [0.0, 0.0, -1e30, -1e30]);
}

#[test]
fn a_slice_of_a_weight_changed_in_place_is_put_back() {
    let cut = [
        ("self", tensor("own")),
        ("start", integer(1)),
        ("end", integer(2)),
    ];
    let add = [("self", tensor("mean")), ("other", tensor("own"))];
    let mean = [("self", tensor(X)), ("dim", integers(&[2, 3]))];
    let ops = Sketch::new(true)
        .weight("p_shift", &[3])
        .call(
            "aten.clone.default",
            &[("self", tensor("p_shift"))],
            &["own"],
        )
        .call("aten.slice.Tensor", &cut, &["part"])
        .call(
            "aten.zero_.default",
            &[("self", tensor("part"))],
            &["zeroed"],
        )
        .call("aten.mean.dim", &mean, &["mean"])
        .call("aten.add.Tensor", &add, &["out"])
        .ops();
    assert!(ops.contains(&Op::Concat { axis: 0 }), "{ops:?}");
}

#[test]
fn einsum_is_a_product_of_ordered_axes() {
    let names = [X, X].map(|name| Some(name.to_owned()));
    let arguments = [
        ("equation", Argument::Text("bchw, bcvw -> bhvc".to_owned())),
        ("tensors", Argument::Tensors(names.to_vec())),
    ];
    let ops = Sketch::new(true)
        .call("aten.einsum.default", &arguments, &["y"])
        .ended("y", 4)
        .ops();
    assert!(ops.contains(&Op::MatMul), "{ops:?}");
    assert!(
        ops.contains(&Op::Permute {
            axes: vec![0, 2, 3, 1]
        }),
        "{ops:?}"
    );
}

#[test]
fn a_token_expanded_to_the_examples_batch_is_one_for_each_image() {
    for symbolic in [true, false] {
        let batch = if symbolic {
            Integer::Symbol("b".to_owned())
        } else {
            Integer::Number(2)
        };
        let sizes = vec![batch, Integer::Number(-1), Integer::Number(-1)];
        let flat = [("self", tensor(X)), ("start_dim", integer(2))];
        let wide = [
            ("self", tensor("p_token")),
            ("size", Argument::Integers(sizes)),
        ];
        let names = ["token", "flat"].map(|name| Some(name.to_owned()));
        let join = [
            ("tensors", Argument::Tensors(names.to_vec())),
            ("dim", integer(1)),
        ];
        let mean = [("self", tensor("all")), ("dim", integers(&[2]))];
        let size = [("self", tensor(X)), ("dim", integer(0))];
        let lowered = Sketch::new(symbolic)
            .weight("p_token", &[1, 1, 16])
            .call("aten.sym_size.int", &size, &["b"])
            .call("aten.flatten.using_ints", &flat, &["flat"])
            .call("aten.expand.default", &wide, &["token"])
            .call("aten.cat.default", &join, &["all"])
            .call("aten.mean.dim", &mean, &["out"])
            .lower()
            .unwrap();
        assert_eq!(
            describe(lowered.graph.shape(lowered.graph.output)),
            "[b, 4]"
        );
    }
}

#[test]
fn scalars_and_factors_of_sums_are_kept() {
    let arguments = [
        ("self", tensor(X)),
        ("other", Argument::Float(0.1)),
        ("alpha", integer(3)),
    ];
    let sketch = Sketch::new(true).call("aten.sub.Tensor", &arguments, &["y"]);
    let graph = sketch.ended("y", 3).lower().unwrap().graph;
    // What is known is rounded to single precision, as PyTorch computes it.
    let expected = f64::from((0.1 * 3.0) as f32);
    assert_eq!(graph.nodes[0].inputs[1], Operand::Scalar(expected));
    let arguments = [("self", tensor(X)), ("other", Argument::Float(0.1))];
    let sketch = Sketch::new(true).call("aten.mul.Tensor", &arguments, &["y"]);
    let graph = sketch.ended("y", 3).lower().unwrap().graph;
    assert_eq!(graph.nodes[0].inputs[1], Operand::Scalar(0.1));
}

#[test]
fn adaptive_pools_of_equal_windows_are_pools() {
    let pooled = |size: i64| {
        let arguments = [
            ("self", tensor(X)),
            ("output_size", integers(&[size, size])),
        ];
        Sketch::new(true)
            .call("aten.adaptive_avg_pool2d.default", &arguments, &["y"])
            .ended("y", 3)
    };
    assert!(matches!(pooled(2).ops()[0], Op::AveragePool { .. }));
    assert!(matches!(
        pooled(4).ops()[0],
        Op::Reduce {
            how: Reduction::Mean,
            ..
        }
    ));
    assert_eq!(pooled(8).ops()[0], Op::Resize { size: [8, 8] });
    assert!(pooled(3).refusal().0.contains("unequal"));
}

#[test]
fn clips_without_a_bound_are_relu_or_finite() {
    let clamp = |name: &str, bound: f64| {
        let arguments = [("self", tensor(X)), (name, Argument::Float(bound))];
        Sketch::new(true)
            .call("aten.clamp.default", &arguments, &["y"])
            .ended("y", 3)
            .ops()
            .remove(0)
    };
    assert_eq!(clamp("min", 0.0), Op::Apply(Function::Relu));
    let Op::Apply(Function::Clip { min, max }) = clamp("max", 6.0) else {
        panic!("no clip");
    };
    assert!(min.is_finite() && max == 6.0);
}
