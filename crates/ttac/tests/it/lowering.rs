//! Programs of PyTorch as graphs: the same numbers as PyTorch's, and what is refused.
//!
//! The networks are `graph/*.pt2` below `$TTAC_DATA` or the folder `../shared/data`; where they are absent, that is said and passed.

use std::path::PathBuf;

use safetensors::SafeTensors;
use ttac::graph::{Graph, Lowered, Program, TensorKind, lower, pt2, survey};

use crate::fixture::note;
use crate::interpret::{Numbers, run};
use crate::real::at_hand;

/// The networks that have to run.
const NETWORKS: [&str; 15] = [
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

fn folder() -> Option<PathBuf> {
    let folder = at_hand("graph");
    if folder.is_none() {
        note("skipped: needs the folder `graph` with exported networks");
    }
    folder
}

fn program(name: &str) -> Option<Program> {
    let path = folder()?.join(format!("{name}.pt2"));
    Some(pt2::read(&path).unwrap())
}

fn lowered(name: &str) -> Option<Lowered> {
    Some(lower(&program(name)?, None).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Reads a tensor of the reference of a network.
pub fn reference(name: &str, key: &str) -> Option<Numbers> {
    let path = folder()?.join(format!("{name}.reference.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(key).unwrap();
    assert_eq!(view.dtype(), safetensors::Dtype::F32, "{key}");
    let values = view.data().as_chunks::<4>().0.iter();
    let values = values.map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
    let values = values.collect();
    Some(Numbers::new(view.shape(), values))
}

/// The largest difference over the largest value.
pub fn difference(found: &Numbers, expected: &Numbers) -> f64 {
    assert_eq!(found.shape, expected.shape);
    let pairs = found.values.iter().zip(&expected.values);
    let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let largest = expected.values.iter().map(|v| v.abs()).fold(0.0, f64::max);
    most / largest
}

/// References come from double precision and are stored in single: half a unit in the last place is 6e-8. Single-precision
/// weights are exact in both, so that nothing else remains but the order of sums in double precision.
const ROUNDING: f64 = 1e-7;

fn agrees(graph: &str, name: &str) {
    let (Some(lowered), Some(x)) = (lowered(graph), reference(name, "x")) else {
        return;
    };
    assert_eq!(lowered.graph.problems(), Vec::<String>::new());
    let values = run(&lowered, x);
    for (value, key) in [
        (lowered.graph.output, "eval.logits"),
        (lowered.graph.features, "eval.features"),
    ] {
        if key == "eval.features" && lowered.graph.head.is_empty() {
            continue;
        }
        let expected = reference(name, key).unwrap();
        let found = difference(&values[&value], &expected);
        assert!(found <= ROUNDING, "{graph}: {key} differ by {found:e}");
    }
}

#[test]
fn logits_and_features_are_those_of_pytorch() {
    for name in NETWORKS {
        agrees(name, name);
    }
}

#[test]
fn decomposed_and_static_programs_give_the_same_numbers() {
    agrees("resnet8_optA.decomposed", "resnet8_optA");
    agrees("resnet8_optA.flat27", "resnet8_optA");
    agrees("resnet8_optA.pickled28", "resnet8_optA");
    agrees("vit_timm.static3", "vit_timm");
    agrees("vit_torchvision.static3", "vit_torchvision");
}

/// A graph without the names and paths that say where it came from.
fn anonymous(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        node.at.clear();
    }
    graph
}

#[test]
fn static_exports_are_the_graphs_of_dynamic_ones() {
    for name in ["vit_timm", "vit_torchvision"] {
        let fixed = lowered(&format!("{name}.static3"));
        let (Some(dynamic), Some(fixed)) = (lowered(name), fixed) else {
            return;
        };
        assert_eq!(anonymous(dynamic.graph), anonymous(fixed.graph), "{name}");
    }
}

#[test]
fn images_do_not_depend_on_their_batch() {
    for name in ["vit_torchvision", "vit_timm.static3", "resnet8_optA"] {
        let reference_of = name.split('.').next().unwrap();
        let (Some(lowered), Some(x)) = (lowered(name), reference(reference_of, "x")) else {
            return;
        };
        let all = &run(&lowered, x.clone())[&lowered.graph.output];
        let (pixels, classes) = (x.values.len() / x.shape[0], all.shape[1]);
        let shape = [&[1], &x.shape[1..]].concat();
        for image in 0..x.shape[0] {
            let alone = x.values[image * pixels..(image + 1) * pixels].to_vec();
            let alone = &run(&lowered, Numbers::new(&shape, alone))[&lowered.graph.output];
            // The same sums in the same order: the same bits.
            assert_eq!(
                alone.values,
                all.values[image * classes..(image + 1) * classes]
            );
        }
    }
}

#[test]
fn what_would_be_wrong_is_refused_with_advice() {
    let Some(alias) = program("alias_refuse") else {
        return;
    };
    let error = lower(&alias, None).unwrap_err();
    assert!(error.to_string().contains("in place"), "{error}");
    assert!(error.hint().unwrap().contains("in-place"), "{error}");
    let train = program("resnet8_optA.train").unwrap();
    let error = lower(&train, None).unwrap_err();
    assert!(error.to_string().contains("bn1"), "{error}");
    assert!(error.hint().unwrap().contains("model.eval()"), "{error}");
    assert!(survey(&train).is_empty());
}

#[test]
fn every_tensor_of_the_state_dict_is_kept_and_has_its_part() {
    let Some(resnet) = lowered("resnet8_optA") else {
        return;
    };
    let kind = |name: &str| {
        let info = resnet.graph.tensors.iter().find(|info| info.name == name);
        info.unwrap_or_else(|| panic!("{name}")).kind
    };
    assert_eq!(kind("conv1.weight"), TensorKind::Weight);
    assert_eq!(kind("bn1.weight"), TensorKind::Affine);
    assert_eq!(kind("bn1.bias"), TensorKind::Affine);
    assert_eq!(kind("bn1.running_mean"), TensorKind::Running);
    assert!(matches!(
        kind("bn1.num_batches_tracked"),
        TensorKind::Counter(_)
    ));
    let Some(program) = program("resnet8_optA") else {
        return;
    };
    assert_eq!(resnet.graph.tensors.len(), program.tensors.len());
    let counters = resnet
        .graph
        .tensors
        .iter()
        .filter(|info| matches!(info.kind, TensorKind::Counter(_)));
    assert_eq!(
        resnet.tensors.len() + counters.count(),
        program.tensors.len()
    );
}

#[test]
fn networks_that_normalise_inside_say_so() {
    for (name, expected) in [("preact", true), ("resnext29", true), ("resnet", false)] {
        let Some(lowered) = lowered(name) else { return };
        assert_eq!(lowered.normalises_inside, expected, "{name}");
    }
}

#[test]
fn features_can_be_named() {
    let Some(program) = program("mobilenet_v3") else {
        return;
    };
    // The pooled map before the two layers of the classifier, by the path of its module.
    let lowered = lower(&program, Some("avgpool")).unwrap();
    assert!(lowered.graph.head.is_empty());
    let pooled = lowered.graph.num_features();
    assert_eq!(lowered.graph.problems(), Vec::<String>::new());
    let usual = lower(&program, None).unwrap();
    assert_ne!(usual.graph.num_features(), pooled);
    let error = lower(&program, Some("avgpol")).unwrap_err();
    assert!(error.hint().unwrap().contains("avgpool"), "{error}");
}
