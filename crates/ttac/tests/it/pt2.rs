//! Files that `torch.export.save` wrote: what is read from them, and every way they can be wrong.
//!
//! The networks are `graph/*.pt2` below `$TTAC_DATA` or the folder `../shared/data`; where they are absent, that is said and passed.

/// A small file, made by hand.
mod draft;

/// What small files say, in every form.
mod reading;

/// Every way a file can be wrong.
mod refusals;

/// Files with other weights in them.
mod replacing;

use ttac::graph::pt2;
use ttac::graph::{Argument, ElementType, Integer, Program, Role, Stored, Values};

use crate::fixture::note;
use crate::real::at_hand;

/// What PyTorch's own reader counts in a file: nodes, tensors that they return, parameters, buffers; and the first two values
/// of the tensor whose key comes first.
type Counts = (&'static str, [usize; 4], &'static str, [f32; 2]);

const FILES: [Counts; 22] = [
    (
        "alias_refuse",
        [7, 7, 4, 0],
        "c1.bias",
        [0.005_221_984_3, 0.037_104_405],
    ),
    (
        "convnext",
        [45, 45, 43, 0],
        "classifier.0.bias",
        [-0.043_139_93, 0.230_117_51],
    ),
    (
        "efficientnet",
        [65, 65, 57, 39],
        "classifier.1.bias",
        [-0.015_057_804, -0.105_955_98],
    ),
    (
        "inception_like",
        [31, 32, 26, 18],
        "a.0.weight",
        [0.036_561_377, -0.076_258_23],
    ),
    (
        "inplace",
        [9, 9, 8, 3],
        "b1.bias",
        [0.161_481_48, 0.193_019_82],
    ),
    (
        "mobilenet_v2",
        [49, 49, 50, 48],
        "classifier.1.bias",
        [0.010_574_109, 0.264_613_96],
    ),
    (
        "mobilenet_v3",
        [60, 60, 55, 39],
        "classifier.0.bias",
        [-0.088_217_76, -0.203_888_37],
    ),
    (
        "preact",
        [32, 32, 25, 23],
        "bn.bias",
        [-0.083_235_73, -0.013_346_679],
    ),
    (
        "resnet",
        [43, 43, 41, 39],
        "bn1.bias",
        [-0.158_672_05, 0.004_640_023],
    ),
    (
        "resnet8_optA",
        [34, 34, 23, 21],
        "bn1.bias",
        [0.035_937_406, -0.083_727_29],
    ),
    (
        "resnet8_optA.decomposed",
        [35, 49, 23, 21],
        "bn1.bias",
        [0.035_937_406, -0.083_727_29],
    ),
    (
        "resnet8_optA.flat27",
        [34, 34, 23, 21],
        "bn1.bias",
        [0.035_937_406, -0.083_727_29],
    ),
    (
        "resnet8_optA.pickled28",
        [34, 34, 23, 21],
        "bn1.bias",
        [0.035_937_406, -0.083_727_29],
    ),
    (
        "resnet8_optA.train",
        [41, 41, 23, 21],
        "bn1.bias",
        [0.035_937_406, -0.083_727_29],
    ),
    (
        "resnet_gn",
        [55, 55, 53, 0],
        "bn1.bias",
        [0.013_323_98, 0.018_254_54],
    ),
    (
        "resnext29",
        [45, 45, 41, 41],
        "bn_1.bias",
        [0.156_491_4, 0.019_578_889],
    ),
    (
        "squeeze_like",
        [8, 8, 6, 0],
        "c1.bias",
        [0.137_494_86, -0.000_730_402_77],
    ),
    (
        "vit_timm",
        [52, 56, 36, 0],
        "blocks.0.attn.proj.bias",
        [0.037_705_448, 0.026_206_369],
    ),
    (
        "vit_timm.static3",
        [51, 55, 36, 0],
        "blocks.0.attn.proj.bias",
        [0.037_705_448, 0.026_206_369],
    ),
    (
        "vit_torchvision",
        [83, 83, 32, 0],
        "class_token",
        [-0.082_013_45, 0.039_563_116],
    ),
    (
        "vit_torchvision.static3",
        [80, 80, 32, 0],
        "class_token",
        [-0.082_013_45, 0.039_563_116],
    ),
    (
        "wrn_10_1",
        [29, 29, 25, 21],
        "block1.0.bn1.bias",
        [0.035_937_406, -0.083_727_29],
    ),
];

fn fixture(name: &str) -> Option<Program> {
    let Some(path) = at_hand(&format!("graph/{name}.pt2")) else {
        note(&format!("skipped: needs `graph/{name}.pt2`"));
        return None;
    };
    Some(pt2::read(&path).unwrap())
}

fn by_key<'a>(program: &'a Program, key: &str) -> &'a Stored {
    let mut tensors = program.tensors.values();
    tensors.find(|tensor| tensor.key == key).unwrap()
}

#[test]
fn every_network_is_read() {
    for (name, [calls, results, parameters, buffers], first, values) in FILES {
        let Some(program) = fixture(name) else { return };
        let with = |role| program.tensors.values().filter(|t| t.role == role).count();
        assert_eq!(program.calls.len(), calls, "{name}");
        let returned = program.calls.iter().map(|call| call.results.len());
        assert_eq!(returned.sum::<usize>(), results, "{name}");
        assert_eq!(with(Role::Parameter), parameters, "{name}");
        assert_eq!(with(Role::Buffer), buffers, "{name}");
        assert_eq!(with(Role::Constant), 0, "{name}");
        assert_eq!(
            program.tensors.values().map(|t| t.key.as_str()).min(),
            Some(first)
        );
        let Values::F32(found) = &by_key(&program, first).values else {
            panic!("{name}: no floats")
        };
        assert_eq!(found[..2], values, "{name}");
        let shapes = &program.shapes;
        assert_eq!(shapes[&program.input].len(), 4, "{name}");
        assert_eq!(
            shapes[&program.input][0].symbolic,
            !name.ends_with("static3"),
            "{name}"
        );
        assert!(shapes.contains_key(&program.output), "{name}");
        for tensor in program.tensors.values() {
            let length = match &tensor.values {
                Values::F32(values) => values.len(),
                Values::I64(values) => values.len(),
                Values::Bool(values) => values.len(),
            };
            assert_eq!(length, tensor.shape.iter().product::<usize>(), "{name}");
        }
    }
}

#[test]
fn older_containers_hold_the_same_program() {
    let Some(new) = fixture("resnet8_optA") else {
        return;
    };
    for name in ["resnet8_optA.flat27", "resnet8_optA.pickled28"] {
        let Some(old) = fixture(name) else { return };
        assert_eq!(old.calls, new.calls, "{name}");
        assert_eq!(old.tensors, new.tensors, "{name}");
        assert_eq!(old.shapes, new.shapes, "{name}");
        assert!(old.notes.is_empty(), "{name}: {:?}", old.notes);
    }
}

#[test]
fn calls_have_names_arguments_and_places() {
    let Some(program) = fixture("vit_timm") else {
        return;
    };
    let [size, convolution] = &program.calls[..2] else {
        panic!("no calls")
    };
    assert_eq!(
        (size.target.as_str(), size.at.as_str()),
        ("aten.sym_size.int", "")
    );
    assert_eq!(size.results, ["sym_size_int_1"]);
    assert_eq!(convolution.target, "aten.conv2d.default");
    assert_eq!(convolution.at, "patch_embed.proj");
    let weight = Argument::Tensor("p_patch_embed_proj_weight".to_owned());
    assert_eq!(convolution.argument("weight"), Some(&weight));
    let stride = Argument::Integers(vec![Integer::Number(8), Integer::Number(8)]);
    assert_eq!(convolution.argument("stride"), Some(&stride));
    assert_eq!(convolution.argument("groups"), None);
    let stored = &program.tensors["p_patch_embed_proj_weight"];
    assert_eq!(stored.key, "patch_embed.proj.weight");
    assert_eq!(
        (stored.role, stored.element),
        (Role::Parameter, ElementType::F32)
    );
    let expand = program
        .calls
        .iter()
        .find(|call| call.target == "aten.expand.default");
    let whole = Integer::Number(-1);
    let sizes = vec![
        Integer::Symbol("sym_size_int_1".to_owned()),
        whole.clone(),
        whole,
    ];
    assert_eq!(
        expand.unwrap().argument("size"),
        Some(&Argument::Integers(sizes))
    );
    let unbind = program
        .calls
        .iter()
        .find(|call| call.target == "aten.unbind.int");
    assert_eq!(unbind.unwrap().results.len(), 3);
}
