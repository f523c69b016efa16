//! Imported networks beside the same networks written by hand: the same bits over ten steps, and on any number of threads.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use ttac::backbone::graph::GraphConfig;
use ttac::backbone::{Adaptable, Architecture, Backbone, Network, NormMode, load_tensors, tensors};
use ttac::graph::{Dim, Form, Graph, Op, Operand, infer};
use ttac::loss::cross_entropy;
use ttac::optim::OptimiserConfig;

use crate::fixture::{filled, labels, values};
use crate::graphs::{apart, graph_of, imported, largest};

/// Losses of ten steps, all tensors after them, and the scores of the network they lead to, to the bit.
type Run = (Vec<u32>, BTreeMap<String, Vec<u32>>, Vec<u32>);

fn bits(data: &TensorData) -> Vec<u32> {
    data.iter::<f32>().map(f32::to_bits).collect()
}

fn steps(network: &Network, count: usize, batch: usize, [height, width]: [usize; 2]) -> Run {
    let plain = Device::flex();
    let shape = [batch, height, width, 3];
    let x = TensorData::new(values("input", shape.iter().product(), 3.0, 0.0), shape);
    let x = Tensor::<4>::from_data(x, &plain);
    let mut trained = network.clone().trainable(Adaptable::All);
    let mut optimiser = OptimiserConfig::SGD.init();
    let mut losses = Vec::new();
    for _ in 0..count {
        let scores = trained.forward(Tensor::from_inner(x.clone()), NormMode::BatchUpdating);
        let loss = cross_entropy(scores, &labels(batch, network.num_classes()));
        losses.push(loss.clone().into_scalar::<f32>().to_bits());
        trained = optimiser.step(0.01, trained, &loss);
    }
    let after = tensors(&trained);
    let after = after.iter().map(|(name, data)| (name.clone(), bits(data)));
    let scores = trained.valid().forward(x, NormMode::Running);
    (losses, after.collect(), bits(&scores.to_data()))
}

/// Gives a network by hand and a graph the same weights, and compares all they do. `key_of` turns keys of the one into those of the
/// other. Scores with running statistics may differ by `rounding`, relative to the largest.
fn same_bits(by_hand: &Architecture, graph: Graph, rounding: f64, key_of: impl Fn(&str) -> String) {
    let device = Device::flex();
    let network = by_hand.blank(&device).unwrap();
    let names = network.clone();
    let network = filled(network, |path| names.published_key(path));
    let size = graph.image_size();
    let imported = Architecture::Graph(GraphConfig::new(graph))
        .blank(&device)
        .unwrap();
    let weights = tensors(&network).into_iter();
    let weights: BTreeMap<_, _> = weights.map(|(key, data)| (key_of(&key), data)).collect();
    assert!(weights.keys().eq(tensors(&imported).keys()));
    let imported = load_tensors(imported, &weights);

    for count in [0, 10] {
        let (losses, after, scores) = steps(&network, count, 4, size);
        let found = steps(&imported, count, 4, size);
        let after: BTreeMap<_, _> = after
            .into_iter()
            .map(|(key, one)| (key_of(&key), one))
            .collect();
        let what = format!("{}, {count} steps", by_hand.name());
        assert_eq!(found.0, losses, "{what}: losses");
        let differs = after.iter().filter(|(key, one)| found.1[*key] != **one);
        let differs: Vec<&String> = differs.map(|(key, _)| key).collect();
        assert!(differs.is_empty(), "{what}: {differs:?}");
        let [found, scores] = [found.2, scores].map(|bits| {
            let numbers: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            TensorData::from(numbers.as_slice())
        });
        let difference = apart(&found, &scores, largest(&scores));
        assert!(
            difference <= rounding,
            "{what}: scores differ by {difference:.1e}"
        );
    }
}

fn tiny(name: &str, fields: &[(&str, &str)]) -> Architecture {
    let start = Architecture::by_name(name, 10).unwrap();
    fields.iter().fold(start, |architecture, (field, value)| {
        architecture.with_field(field, value).unwrap()
    })
}

/// Gives every value the shape that its operation makes.
pub fn follow_shapes(graph: &mut Graph) -> Result<(), String> {
    for number in 0..graph.nodes.len() {
        let node = &graph.nodes[number];
        let shape = |operand: &Operand| match *operand {
            Operand::Value(value) => Ok(graph.values.get(value.0 as usize).cloned()),
            Operand::Tensor(tensor) => {
                let info = graph.tensors.get(tensor.0 as usize);
                let info = info.ok_or("no such tensor")?;
                Ok(Some(info.shape.iter().copied().map(Dim::fixed).collect()))
            }
            Operand::Scalar(_) => Ok(None),
        };
        let shapes: Result<Vec<Option<Vec<Dim>>>, String> = node.inputs.iter().map(shape).collect();
        let shapes = shapes?;
        let forms = shapes.iter();
        let forms = forms.map(|shape| shape.as_deref().map_or(Form::Scalar, Form::Shaped));
        let shape = infer(&node.op, &forms.collect::<Vec<_>>())?;
        let output = node.output.0 as usize;
        *graph.values.get_mut(output).ok_or("no such value")? = shape;
    }
    Ok(())
}

/// The graph with other numbers of channels: tensors change, shapes of values follow.
fn with_channels(mut graph: Graph, channels: impl Fn(usize) -> usize) -> Graph {
    for tensor in &mut graph.tensors {
        for size in tensor.shape.iter_mut().take(2) {
            *size = channels(*size);
        }
    }
    for node in &mut graph.nodes {
        if let Op::Reshape { shape } = &mut node.op {
            for dim in shape.iter_mut().filter(|dim| !dim.batch) {
                dim.size = channels(dim.size);
            }
        }
    }
    follow_shapes(&mut graph).unwrap();
    assert_eq!(graph.problems(), Vec::<String>::new());
    graph
}

/// The graph without the convolution and the norm in the shortcut of a block.
fn without_downsample(mut graph: Graph, block: &str) -> Graph {
    let prefix = format!("{block}.downsample.");
    let removed = |number: u32, of: &[u32]| of.iter().filter(|&&one| one < number).count() as u32;
    let names = graph.tensors.iter().zip(0..);
    let gone: Vec<u32> = names
        .filter(|(info, _)| info.name.starts_with(&prefix))
        .map(|(_, number)| number)
        .collect();
    let (shortcut, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut graph.nodes)
        .into_iter()
        .partition(|node| node.tensors().any(|tensor| gone.contains(&tensor.0)));
    let start = shortcut[0].values().next().unwrap();
    let values: Vec<u32> = shortcut.iter().map(|node| node.output.0).collect();
    let renumbered = |value: &mut ttac::graph::ValueId| {
        if values.contains(&value.0) {
            *value = start;
        }
        value.0 -= removed(value.0, &values);
    };
    graph.nodes = rest;
    for node in &mut graph.nodes {
        renumbered(&mut node.output);
        for operand in &mut node.inputs {
            match operand {
                Operand::Value(value) => renumbered(value),
                Operand::Tensor(tensor) => tensor.0 -= removed(tensor.0, &gone),
                Operand::Scalar(_) => {}
            }
        }
    }
    for value in [&mut graph.input, &mut graph.features, &mut graph.output] {
        renumbered(value);
    }
    for layer in &mut graph.head {
        for tensor in std::iter::once(&mut layer.weight).chain(&mut layer.bias) {
            tensor.0 -= removed(tensor.0, &gone);
        }
    }
    let mut number = 0..;
    graph
        .values
        .retain(|_| !values.contains(&number.next().unwrap()));
    graph.tensors.retain(|info| !info.name.starts_with(&prefix));
    graph
}

#[test]
fn torchvisions_resnet_has_the_bits_of_the_one_by_hand() {
    let Some(found) = imported("resnet") else {
        return;
    };
    let by_hand = tiny("resnet18", &[("blocks", "[1,1,1,1]"), ("width", "8")]);
    // The fixture is narrow everywhere but in its stem, so that its first shortcut has a convolution, which torchvision's networks
    // do not have; and its stages are not each twice as wide as the one before.
    let graph = without_downsample(graph_of(&found.architecture), "layer1.0");
    let graph = with_channels(graph, |size| match size {
        64 => 8,
        24 => 32,
        32 => 64,
        other => other,
    });
    same_bits(&by_hand, graph, 0.0, str::to_owned);
}

#[test]
fn a_resnet_for_small_images_has_the_bits_of_the_one_by_hand() {
    let Some(found) = imported("resnet8_optA") else {
        return;
    };
    let by_hand = tiny("resnet20-cifar", &[("depth", "8"), ("width", "8")]);
    same_bits(&by_hand, graph_of(&found.architecture), 0.0, |key| {
        let stages = ["layer1.0.", "layer2.0.", "layer3.0."];
        let stage = (0..3).find(|&stage| key.starts_with(stages[stage]));
        match stage {
            Some(stage) => key.replace(stages[stage], &format!("layers.{stage}.")),
            None => key.to_owned(),
        }
    });
}

#[test]
fn a_wide_resnet_has_the_bits_of_the_one_by_hand() {
    let Some(found) = imported("wrn_10_1") else {
        return;
    };
    let by_hand = tiny(
        "wrn-40-2",
        &[("depth", "10"), ("stem", "8"), ("widen", "1")],
    );
    let graph = graph_of(&found.architecture);
    // Ten steps give the same bits. Without gradients the graph folds the second norm of a block into the convolution before it, which
    // the network by hand does not: one rounding of each product more, in a few layers.
    same_bits(&by_hand, graph, 1e-6, |key| key.replace(".layer.", "."));
}

#[test]
fn threads_do_not_change_a_bit() {
    for name in ["mobilenet_v2", "vit_timm", "convnext"] {
        let Some(found) = imported(name) else { return };
        let size = graph_of(&found.architecture).image_size();
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.build().unwrap();
            pool.install(|| steps(&found.network, 2, 8, size))
        };
        let alone = with(1);
        for threads in [2, 3] {
            assert!(
                with(threads) == alone,
                "{name}: {threads} threads give other bits than one"
            );
        }
    }
}
