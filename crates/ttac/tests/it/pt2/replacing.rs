//! Files with other weights in them.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::Path;

use burn::tensor::TensorData;
use tempfile::TempDir;
use ttac::graph::pt2::{self, Report, replace_weights};
use ttac::graph::{Program, Values};
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use super::draft::{Draft, floats, meta, payload};
use crate::files::assert_refused;
use crate::fixture::note;
use crate::real::at_hand;

type Weights = BTreeMap<String, TensorData>;

/// The floating-point tensors of a program, changed by a function, by key.
fn weights(program: &Program, change: impl Fn(f32) -> f32) -> Weights {
    let tensors = program.tensors.values();
    tensors
        .filter_map(|tensor| match &tensor.values {
            Values::F32(values) => {
                let values: Vec<f32> = values.iter().map(|&value| change(value)).collect();
                Some((
                    tensor.key.clone(),
                    TensorData::new(values, tensor.shape.clone()),
                ))
            }
            _ => None,
        })
        .collect()
}

/// All records of a file in their order; asserts that they are stored where PyTorch can map them into memory.
fn records(path: &Path) -> Vec<(String, Vec<u8>)> {
    let config = Config {
        archive_offset: ArchiveOffset::Known(0),
    };
    let bytes = std::fs::read(path).unwrap();
    let mut zip = ZipArchive::with_config(config, Cursor::new(bytes)).unwrap();
    let read = (0..zip.len()).map(|index| {
        let mut record = zip.by_index(index).unwrap();
        assert_eq!(record.compression(), CompressionMethod::Stored);
        assert_eq!(record.data_start().unwrap() % 64, 0, "{:?}", record.name());
        let mut bytes = Vec::new();
        record.read_to_end(&mut bytes).unwrap();
        (record.name().unwrap().into_owned(), bytes)
    });
    read.collect()
}

/// Writes a draft and replaces its weights; returns the result and the folder, in which `new.pt2` is the copy.
fn replaced(draft: &Draft, weights: &Weights) -> (ttac::Result<Report>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("net.pt2");
    std::fs::write(&original, draft.bytes()).unwrap();
    let report = replace_weights(&original, weights, &folder.path().join("new.pt2"));
    (report, folder)
}

fn small(weight: [f32; 6], bias: [f32; 2]) -> Weights {
    let weight = TensorData::new(weight.to_vec(), [2, 3]);
    let bias = TensorData::new(bias.to_vec(), [2]);
    [
        ("fc.weight".to_owned(), weight),
        ("fc.bias".to_owned(), bias),
    ]
    .into()
}

const NEW: [f32; 6] = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0];

#[test]
fn the_same_weights_leave_every_record_as_it_was() {
    for name in [
        "graph/resnet8_optA.pt2",
        "graph/convnext.pt2",
        "graph/vit_torchvision.pt2",
        "cifar100/resnet20.pt2",
    ] {
        let Some(path) = at_hand(name) else {
            note(&format!("skipped: needs `{name}`"));
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("copy.pt2");
        let program = pt2::read(&path).unwrap();
        let report = replace_weights(&path, &weights(&program, |value| value), &out).unwrap();
        assert_eq!(records(&path), records(&out), "{name}");
        assert_eq!(
            report.replaced.len() + report.kept.len(),
            program.tensors.len()
        );
        assert!(
            report
                .kept
                .iter()
                .all(|key| key.ends_with("num_batches_tracked"))
        );
    }
}

#[test]
fn new_weights_are_read_again_and_nothing_else_changes() {
    let Some(path) = at_hand("graph/resnet8_optA.pt2") else {
        note("skipped: needs `graph/resnet8_optA.pt2`");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("copy.pt2");
    let program = pt2::read(&path).unwrap();
    let change = |value: f32| value * 1.5 - 0.25;
    replace_weights(&path, &weights(&program, change), &out).unwrap();
    let again = pt2::read(&out).unwrap();
    assert_eq!(program.calls, again.calls);
    assert_eq!(weights(&again, |value| value), weights(&program, change));
    for ((name, old), (_, new)) in records(&path).into_iter().zip(records(&out)) {
        let is_weight = name.contains("/data/weights/weight_");
        assert!(old == new || is_weight, "{name}");
    }
    // The counters of the norms are integers and stay.
    let (counter, copied) = (
        &program.tensors["b_bn1_num_batches_tracked"],
        &again.tensors["b_bn1_num_batches_tracked"],
    );
    assert_eq!(counter, copied);
}

#[test]
fn a_small_file_reports_what_became_of_its_tensors() {
    let mut draft = Draft::new();
    draft.method = CompressionMethod::Deflated;
    let (report, folder) = replaced(&draft, &small(NEW, [1.0, 2.0]));
    let report = report.unwrap();
    assert_eq!(
        (report.replaced, report.kept),
        (
            vec!["fc.bias".into(), "fc.weight".into()],
            vec!["steps".into()]
        )
    );
    let new = folder.path().join("new.pt2");
    records(&new);
    let program = pt2::read(&new).unwrap();
    assert_eq!(
        program.tensors["p_fc_weight"].values,
        Values::F32(NEW.to_vec())
    );
    assert_eq!(program.tensors["b_steps"].values, Values::I64(vec![7]));
}

#[test]
fn a_file_may_be_replaced_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.pt2");
    std::fs::write(&path, Draft::new().bytes()).unwrap();
    replace_weights(&path, &small(NEW, [1.0, 2.0]), &path).unwrap();
    let program = pt2::read(&path).unwrap();
    assert_eq!(
        program.tensors["p_fc_bias"].values,
        Values::F32(vec![1.0, 2.0])
    );
}

#[test]
fn strides_and_types_are_those_of_the_original() {
    let draft = Draft::new()
        .weight(
            "fc.weight",
            payload("weight_0", true, &meta(7, &[2, 3], &[1, 2], 1)),
        )
        .record(
            "data/weights/weight_0",
            floats(&[9.0, 1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
        )
        .weight(
            "fc.bias",
            payload("weight_1", true, &meta(6, &[2], &[1], 0)),
        )
        .record("data/weights/weight_1", vec![0; 4]);
    // A third lies between two numbers of half precision, of which 0x3555 is nearer.
    let (report, folder) = replaced(&draft, &small(NEW, [1.0 / 3.0, -2.0]));
    report.unwrap();
    let written: BTreeMap<_, _> = records(&folder.path().join("new.pt2"))
        .into_iter()
        .collect();
    assert_eq!(
        written["net/data/weights/weight_0"],
        floats(&[9.0, 6.0, 3.0, 5.0, 2.0, 4.0, 1.0])
    );
    assert_eq!(written["net/data/weights/weight_1"], [0x55, 0x35, 0, 0xc0]);
}

#[test]
fn double_precision_is_kept_where_nothing_changes() {
    let doubles = |values: [f64; 2]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let draft = Draft::new()
        .weight(
            "fc.bias",
            payload("weight_1", true, &meta(8, &[2], &[1], 0)),
        )
        .record("data/weights/weight_1", doubles([0.1, 0.2]));
    let (report, folder) = replaced(&draft, &small(NEW, [0.1, 0.5]));
    report.unwrap();
    let written: BTreeMap<_, _> = records(&folder.path().join("new.pt2"))
        .into_iter()
        .collect();
    assert_eq!(written["net/data/weights/weight_1"], doubles([0.1, 0.5]));
}

#[test]
fn weights_that_do_not_fit_are_listed() {
    let mut wrong = small(NEW, [1.0, 2.0]);
    wrong.remove("fc.weight");
    wrong.insert("fc.bias".to_owned(), TensorData::new(vec![1.0_f32; 3], [3]));
    wrong.insert("head".to_owned(), TensorData::new(vec![1.0_f32], [1]));
    let (result, folder) = replaced(&Draft::new(), &wrong);
    let list = "`head` is not in the file; `fc.bias` has the shape [3], the file [2]; `fc.weight` is missing";
    assert_refused(folder.path(), result, list);
    assert!(!folder.path().join("new.pt2").exists());
    let large = small(NEW, [70_000.0, 0.0]);
    let half = Draft::new().weight(
        "fc.bias",
        payload("weight_1", true, &meta(6, &[2], &[1], 0)),
    );
    let (result, folder) = replaced(&half, &large);
    assert_refused(
        folder.path(),
        result,
        "`fc.bias` holds 70000, too large for F16, the type of the file",
    );
    assert!(!folder.path().join("new.pt2").exists());
}

#[test]
fn tied_weights_are_written_once() {
    let twin = payload("weight_0", true, &meta(7, &[2, 3], &[3, 1], 0));
    let draft = Draft::new().weight("twin.weight", twin);
    let (report, folder) = replaced(&draft, &small(NEW, [1.0, 2.0]));
    assert_eq!(
        report.unwrap().replaced,
        ["fc.bias", "fc.weight", "twin.weight"]
    );
    let program = pt2::read(&folder.path().join("new.pt2")).unwrap();
    assert_eq!(program.tensors["p_fc_weight"].also, ["twin.weight"]);
    assert_eq!(
        program.tensors["p_fc_weight"].values,
        Values::F32(NEW.to_vec())
    );
    let mut torn = small(NEW, [1.0, 2.0]);
    torn.insert(
        "twin.weight".to_owned(),
        TensorData::new(vec![0.0_f32; 6], [2, 3]),
    );
    let (result, folder) = replaced(&draft, &torn);
    assert_refused(
        folder.path(),
        result,
        "`fc.weight` shares memory with another tensor of the file that was given other values",
    );
}

#[test]
fn older_containers_are_refused_with_a_hint() {
    for name in [
        "graph/resnet8_optA.flat27.pt2",
        "graph/resnet8_optA.pickled28.pt2",
    ] {
        let Some(path) = at_hand(name) else {
            note(&format!("skipped: needs `{name}`"));
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let result = replace_weights(&path, &Weights::new(), &folder.path().join("new.pt2"));
        assert_refused(
            folder.path(),
            result,
            "hint: export the network again with PyTorch 2.9 or newer",
        );
    }
}
