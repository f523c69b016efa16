//! Imported networks in checkpoints: what is written can be read, the `state_dict` is whole, and a header is checked like a file from
//! a stranger.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use ttac::backbone::graph::GraphConfig;
use ttac::backbone::{Adaptable, Architecture, Backbone, NormMode, load_tensors, tensors};
use ttac::checkpoint::{
    Augmentation, Checkpoint, FORMAT, Header, Objective, Provenance, export, fingerprint,
};
use ttac::graph::{ElementType, Graph, TensorInfo, TensorKind, elements};
use ttac::kernels::{Context, Implementation};

use crate::files::contract;
use crate::fixture::note;
use crate::graph_twins::follow_shapes;
use crate::graphs::{NETWORKS, graph_of, imported};

/// A fixture as a checkpoint, with its graph changed.
fn checkpoint(name: &str, change: impl FnOnce(&mut Graph)) -> Option<Checkpoint> {
    let found = imported(name)?;
    let mut graph = graph_of(&found.architecture);
    change(&mut graph);
    let size = graph.image_size();
    let architecture = Architecture::Graph(GraphConfig::new(graph));
    let blank = architecture.blank(&Device::flex()).unwrap();
    Some(Checkpoint {
        network: load_tensors(blank, &tensors(&found.network)),
        header: Header {
            format: FORMAT,
            architecture,
            classes: (0..10).map(|class| format!("class {class}")).collect(),
            input: contract(size, [0.5; 3], [0.25; 3]),
            augmentation: Augmentation::Unknown,
            objective: Objective::Plain,
            provenance: Provenance::default(),
        },
    })
}

#[test]
fn what_is_written_is_read_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for name in NETWORKS {
        let Some(written) = checkpoint(name, |_| {}) else {
            return;
        };
        written.save(&path).unwrap();
        let read = Checkpoint::load(&path, &Device::flex()).unwrap();
        assert_eq!(read.header, written.header, "{name}");
        let (found, expected) = (tensors(&read.network), tensors(&written.network));
        assert!(found.keys().eq(expected.keys()), "{name}");
        for (key, data) in &found {
            assert_eq!(data.as_bytes(), expected[key].as_bytes(), "{name}: {key}");
        }
        let identity = |one: &Checkpoint| fingerprint(&one.header.architecture, &one.network);
        assert_eq!(identity(&read), identity(&written), "{name}");
    }
}

#[test]
fn a_state_dict_has_counters_and_tied_and_unused_tensors() {
    let unused = TensorInfo {
        name: "auxiliary.weight".to_owned(),
        shape: vec![2, 3],
        kind: TensorKind::Unused,
        also: Vec::new(),
        element: ElementType::Bf16,
    };
    let made = checkpoint("resnet8_optA", |graph| {
        graph.tensors.push(unused);
        let tied = graph.tensors.iter_mut();
        let tied = tied.into_iter().find(|info| info.name == "linear.weight");
        tied.unwrap().also.push("embedding.weight".to_owned());
        for info in &mut graph.tensors {
            if info.name == "bn1.num_batches_tracked" {
                info.kind = TensorKind::Counter(1234);
            }
        }
    });
    let Some(made) = made else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    // Once more through a file, so that nothing comes from memory alone.
    made.save(&path).unwrap();
    let loaded = Checkpoint::load(&path, &Device::flex()).unwrap();
    export(&loaded, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let infos = graph_of(&made.header.architecture).tensors;
    let names = infos.iter().filter(|info| !info.is_written_in());
    let count: usize = names.map(|info| 1 + info.also.len()).sum();
    assert_eq!(file.names().len(), count);
    let counters = file.names().into_iter();
    let counters = counters.filter(|name| name.ends_with("num_batches_tracked"));
    assert_eq!(counters.count(), 7, "one for every norm");
    let tensor = |name: &str| file.tensor(name).unwrap();
    let counter = tensor("bn1.num_batches_tracked");
    assert_eq!((counter.dtype(), counter.shape().len()), (Dtype::I64, 0));
    assert_eq!(counter.data(), 1234_i64.to_le_bytes());
    assert_eq!(
        tensor("embedding.weight").data(),
        tensor("linear.weight").data()
    );
    assert_eq!(tensor("embedding.weight").shape(), [10, 32]);
    let unused = tensor("auxiliary.weight");
    assert_eq!((unused.dtype(), unused.shape()), (Dtype::BF16, &[2, 3][..]));
}

// ------------------------------------------------------------------------------------ headers from strangers

/// The bytes of a checkpoint with the description of its network changed.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (head, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut head: Value = serde_json::from_slice(head).unwrap();
    let text = head["__metadata__"]["ttac"].as_str().unwrap();
    let mut header: Value = serde_json::from_str(text).unwrap();
    change(&mut header);
    head["__metadata__"]["ttac"] = header.to_string().into();
    let head = serde_json::to_vec(&head).unwrap();
    [&(head.len() as u64).to_le_bytes(), &head[..], data].concat()
}

/// The error of a checkpoint with a changed graph.
fn refusal(path: &Path, bytes: &[u8], change: impl FnOnce(&mut Value)) -> String {
    let bytes = with_header(bytes, |header| change(&mut header["architecture"]["graph"]));
    std::fs::write(path, bytes).unwrap();
    let error = Checkpoint::load(path, &Device::flex());
    error
        .err()
        .map_or_else(|| "nothing".to_owned(), |error| error.to_string())
}

/// A change of a graph.
type Change = fn(&mut Value);

/// Changes of a graph, each with what is said about it.
const CASES: [(&str, Change); 21] = [
    ("version 2, expected 1", |graph| graph["version"] = json!(2)),
    ("unknown variant `conv9d`", |graph| {
        graph["nodes"][0]["op"] = json!("conv9d");
    }),
    ("unknown field `extra`", |graph| graph["extra"] = json!(1)),
    ("the input is no value", |graph| {
        graph["input"] = json!(4000);
    }),
    ("no value of the graph", |graph| {
        graph["features"] = json!(4000);
    }),
    ("which is none", |graph| {
        graph["nodes"][0]["inputs"][1]["t"] = json!(4000);
    }),
    ("which is not made before", |graph| {
        graph["nodes"][0]["inputs"][0]["v"] = json!(3);
    }),
    ("which does not exist", |graph| {
        graph["nodes"][0]["output"] = json!(4000);
    }),
    ("which is there already", |graph| {
        let node = graph["nodes"][0].clone();
        graph["nodes"].as_array_mut().unwrap().insert(1, node);
    }),
    ("no node makes value", |graph| {
        graph["nodes"].as_array_mut().unwrap().pop();
    }),
    ("and the graph says", |graph| {
        graph["values"][1][1] = json!(9);
    }),
    ("too large", |graph| {
        graph["tensors"][0]["shape"] = json!([1_u64 << 41]);
    }),
    ("is missing, and its header says [549755813888]", |graph| {
        let huge = json!({ "name": "huge", "shape": [1_u64 << 39], "kind": "unused" });
        graph["tensors"].as_array_mut().unwrap().push(huge);
    }),
    ("its kind Counter(7) cannot have", |graph| {
        let counter = json!({ "name": "many", "shape": [2], "kind": { "counter": 7 } });
        graph["tensors"].as_array_mut().unwrap().push(counter);
    }),
    (
        "the kernel, stride or dilation of its window is more than",
        |graph| {
            graph["nodes"][0]["op"]["conv2d"]["stride"] = json!([1, 1 << 24]);
        },
    ),
    ("is wider than an edge of 32", |graph| {
        graph["nodes"][0]["op"]["conv2d"]["padding"][0] = json!([1, 9000]);
    }),
    ("does not fit an edge of 0", |graph| {
        graph["values"][0][3] = json!(0);
    }),
    ("a name of its own", |graph| {
        graph["tensors"][0]["name"] = graph["tensors"][1]["name"].clone();
    }),
    ("a name of its own", |graph| {
        graph["tensors"][0]["name"] = json!("a..b");
    }),
    ("a weight of the head", |graph| {
        graph["head"][0]["weight"] = json!(0);
    }),
    ("invalid value", |graph| graph["input"] = json!(-1)),
];

#[test]
fn a_graph_that_makes_no_sense_is_refused_with_the_reason() {
    let Some(made) = checkpoint("inplace", |_| {}) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    made.save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for (expected, change) in CASES {
        let found = refusal(&path, &bytes, change);
        assert!(
            found.contains(expected),
            "expected `{expected}`, found: {found}"
        );
    }
    for length in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert!(
            Checkpoint::load(&path, &Device::flex()).is_err(),
            "cut at {length}"
        );
    }
}

/// Every place in a document, as a path.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(list) => {
            for (number, one) in list.iter().enumerate() {
                places(one, &format!("{at}/{number}"), found);
            }
        }
        Value::Object(map) => {
            for (key, one) in map {
                places(one, &format!("{at}/{key}"), found);
            }
        }
        _ => {}
    }
}

/// Changes one place at random: another number, a part left out or doubled, or a part from elsewhere.
fn mutate(graph: &mut Value, rng: &mut ChaCha8Rng) -> String {
    let mut all = Vec::new();
    places(graph, "", &mut all);
    let at = all[rng.random_range(0..all.len())].clone();
    let other = graph
        .pointer(&all[rng.random_range(0..all.len())])
        .unwrap()
        .clone();
    let place = graph.pointer_mut(&at).unwrap();
    let before = place.to_string();
    let huge = [0, 1, 2, 3, 7, 1 << 20, 1 << 24, 1 << 32, 1 << 40, u64::MAX];
    match place {
        Value::Number(number) if rng.random_bool(0.8) => {
            let near = number
                .as_i64()
                .unwrap_or(0)
                .saturating_add(rng.random_range(-2..=2));
            *place = match rng.random_range(0..4) {
                0 => json!(huge[rng.random_range(0..huge.len())]),
                1 => json!(f64::from(rng.random_range(-9..9)) * 0.3),
                _ => json!(near),
            };
        }
        Value::Array(list) if !list.is_empty() && rng.random_bool(0.8) => {
            let (a, b) = (
                rng.random_range(0..list.len()),
                rng.random_range(0..list.len()),
            );
            match rng.random_range(0..3) {
                0 => drop(list.remove(a)),
                1 => list.insert(b, list[a].clone()),
                _ => list.swap(a, b),
            }
        }
        Value::Object(map) if !map.is_empty() && rng.random_bool(0.5) => {
            let key = map
                .keys()
                .nth(rng.random_range(0..map.len()))
                .unwrap()
                .clone();
            map.remove(&key);
        }
        _ => *place = other,
    }
    let after = graph.pointer(&at).unwrap().to_string();
    let short = |text: String| text.chars().take(120).collect::<String>();
    format!("{at}: {} -> {}", short(before), short(after))
}

/// Computes with a network whose header was taken: scores by every plan, and gradients.
fn compute(checkpoint: &Checkpoint) {
    let graph = graph_of(&checkpoint.header.architecture);
    let sizes = graph.values.iter().map(|shape| elements(shape).unwrap());
    if sizes.sum::<usize>() > 1 << 20 {
        return;
    }
    let [height, width] = graph.image_size();
    let data = TensorData::zeros::<f32, _>([2, height, width, 3]);
    let x = Tensor::<4>::from_data(data, &Device::flex());
    let composed = Context::new().with_implementation(Implementation::Composed);
    for norm in [NormMode::Running, NormMode::Batch] {
        let _ = checkpoint.network.forward(x.clone(), norm);
        let _ = composed.scope(|| checkpoint.network.forward(x.clone(), norm));
        let trained = checkpoint.network.clone().trainable(Adaptable::All);
        let scores = trained.forward(Tensor::from_inner(x.clone()), norm);
        let _ = scores.sum().backward();
    }
    let _ = checkpoint.network.head_weights();
}

#[test]
fn thousands_of_changed_headers_are_refused_or_run_and_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut failures = Vec::new();
    for (name, rounds) in [
        ("inplace", 1200),
        ("squeeze_like", 1200),
        ("vit_timm", 600),
        ("inception_like", 400),
    ] {
        let Some(made) = checkpoint(name, |_| {}) else {
            return;
        };
        made.save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut taken = 0;
        for round in 0..rounds {
            let mut rng = ChaCha8Rng::seed_from_u64(round);
            let mut change = String::new();
            let changed = with_header(&bytes, |header| {
                let graph = &mut header["architecture"]["graph"];
                for _ in 0..rng.random_range(1..=2) {
                    change += &mutate(graph, &mut rng);
                    change += "; ";
                }
                // Without this most changes end at the first shape that no longer fits.
                if let Ok(mut whole) = serde_json::from_value::<Graph>(graph.clone())
                    && follow_shapes(&mut whole).is_ok()
                {
                    *graph = serde_json::to_value(whole).unwrap();
                }
            });
            std::fs::write(&path, changed).unwrap();
            let work = || match Checkpoint::load(&path, &Device::flex()) {
                Ok(checkpoint) => {
                    compute(&checkpoint);
                    let _ = export(&checkpoint, &folder.path().join("state"));
                    true
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    false
                }
            };
            match catch_unwind(AssertUnwindSafe(work)) {
                Ok(was_taken) => taken += u32::from(was_taken),
                Err(_) => failures.push(format!("{name} {round}: {change}")),
            }
        }
        note(&format!(
            "{name:16}{taken} of {rounds} changed headers are taken"
        ));
    }
    assert!(
        failures.is_empty(),
        "{} panics:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
