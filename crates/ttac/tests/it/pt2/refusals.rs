//! Every way in which a file can be wrong, and what is said about it.

use std::path::Path;

use serde_json::json;
use ttac::graph::pt2;
use zip::CompressionMethod;

use super::draft::{Draft, archive, meta, payload, tensor};
use crate::files::assert_refused;

/// Asserts that a file is refused, and that the message or the hint says this.
fn refused(draft: &Draft, expected: &str) {
    assert_refused(Path::new("/nowhere"), draft.read(), expected);
}

fn bytes_refused(bytes: &[u8], expected: &str) {
    let result = pt2::read_bytes(bytes, Path::new("net.pt2"));
    assert_refused(Path::new("/nowhere"), result, expected);
}

#[test]
fn files_that_are_something_else_are_named() {
    bytes_refused(
        b"",
        "`net.pt2` is not a network that `torch.export.save` wrote: it is no zip file",
    );
    bytes_refused(
        &[0x80, 2, 0x8a, 10],
        "hint: a graph is what `torch.export.save(",
    );
    let zip = |names: &[&str]| {
        let records: Vec<_> = names
            .iter()
            .map(|name| ((*name).to_owned(), vec![0; 8]))
            .collect();
        archive(&records, CompressionMethod::Stored)
    };
    bytes_refused(
        &zip(&["data.pkl", "data/0", "version"]),
        "it holds weights and no graph, as `torch.save` writes them",
    );
    bytes_refused(
        &zip(&["data.pkl", "code/net.py", "constants.pkl"]),
        "it is TorchScript",
    );
    bytes_refused(
        &zip(&["data/aotinductor/model/a.so"]),
        "it holds compiled code and no graph",
    );
    bytes_refused(&zip(&["readme"]), "there is no record `models/NAME.json`");
    bytes_refused(
        &zip(&["models/model.json"]),
        "it holds the program `model` and no weights of it",
    );
}

#[test]
fn several_programs_are_named() {
    let draft = Draft::new().record("models/encoder.json", b"{}".to_vec());
    refused(&draft, "it holds 2 programs: `encoder`, `model`");
    refused(&draft, "hint: save the classifier alone");
}

#[test]
fn unknown_schemas_and_byte_orders_are_named() {
    let draft = Draft::new().graph("/schema_version", json!({"major": 9, "minor": 1}));
    refused(
        &draft,
        "its schema has version 9.1 (PyTorch 2.9.1), known are 8, 7 and 5",
    );
    refused(&draft, "hint: export the network with PyTorch 2.9");
    let draft = Draft::new().record("byteorder", b"big".to_vec());
    refused(
        &draft,
        "its numbers are in the byte order `big`, expected is `little`",
    );
}

#[test]
fn other_inputs_than_one_batch_of_images_are_named() {
    let second = json!({"user_input": {"arg": tensor("mask")}});
    let two = Draft::new().input(second);
    refused(
        &two,
        "the network has 2 inputs (`mask`, `x`), expected is one, a batch of images",
    );
    refused(
        &two,
        "hint: wrap the network in a module whose `forward` takes the images alone",
    );
    let none = Draft::new().graph(
        "/graph_module/signature/input_specs/3",
        json!({"token": {"arg": {"name": "t"}}}),
    );
    refused(&none, "the network has 0 inputs, expected is one");
    let image = "/graph_module/graph/tensor_values/x";
    let rank = Draft::new().graph(image, meta(7, &[2, 3, 4], &[12, 4, 1], 0));
    refused(
        &rank,
        "the input `x` has 3 axes, expected are 4: batch, channels, height, width",
    );
    let bytes = Draft::new().graph(image, meta(1, &[2, 3, 4, 4], &[48, 16, 4, 1], 0));
    refused(&bytes, "the input `x` does not hold floating-point numbers");
    let number =
        Draft::new().input(json!({"user_input": {"arg": {"as_sym_int": {"as_name": "s"}}}}));
    refused(
        &number,
        "an input of the network is no tensor but `as_sym_int`",
    );
    let object =
        Draft::new().input(json!({"custom_obj": {"arg": {"name": "o"}, "custom_obj_name": "o"}}));
    refused(&object, "an input of the graph is of the kind `custom_obj`");
}

#[test]
fn several_outputs_are_named() {
    let specs = json!([{"user_output": {"arg": tensor("linear")}}, {"user_output": {"arg": tensor("mean")}}]);
    let draft = Draft::new().graph("/graph_module/signature/output_specs", specs);
    refused(
        &draft,
        "the network has 2 outputs (`linear`, `mean`), expected is one, the scores of the classes",
    );
    refused(&draft, "in which auxiliary heads are left out");
    let specs = json!([{"loss_output": {"arg": {"name": "loss"}}}]);
    let draft = Draft::new().graph("/graph_module/signature/output_specs", specs);
    refused(
        &draft,
        "an output of the graph is of the kind `loss_output`",
    );
}

#[test]
fn pickled_tensors_are_named() {
    let mut place = payload("weight_0", true, &meta(7, &[2, 3], &[3, 1], 0));
    place["use_pickle"] = json!(true);
    let draft = Draft::new().weight("fc.weight", place);
    refused(&draft, "the tensor `fc.weight` is pickled");
    refused(
        &draft,
        "hint: convert it to an ordinary tensor before the export",
    );
}

#[test]
fn tensors_outside_their_record_are_named() {
    let weight = |sizes: &[i64], strides: &[i64], offset: i64| {
        let place = payload("weight_0", true, &meta(7, sizes, strides, offset));
        Draft::new().weight("fc.weight", place)
    };
    let outside = "the tensor `fc.weight` with sizes [2, 3], strides [3, 1] and offset 1 reaches outside its record of 6 elements";
    refused(&weight(&[2, 3], &[3, 1], 1), outside);
    refused(
        &weight(&[2, 3], &[4, 1], 0),
        "reaches outside its record of 6 elements",
    );
    refused(
        &weight(&[1 << 40, 1 << 40], &[1, 1], 0),
        "reaches outside its record",
    );
    refused(
        &weight(&[2], &[i64::MAX], i64::MAX),
        "reaches outside its record",
    );
    // Strides of zero stay inside, and would take any amount of memory.
    refused(
        &weight(&[1 << 40], &[0], 0),
        "has more elements than its record of 6 elements",
    );
    refused(
        &weight(&[-2, 3], &[3, 1], 0),
        "the tensor `fc.weight` has a size of -2",
    );
    refused(
        &weight(&[2, 3], &[-3, 1], 0),
        "the tensor `fc.weight` has a stride of -3",
    );
    refused(
        &weight(&[2, 3], &[3, 1], -1),
        "the tensor `fc.weight` has a storage offset of -1",
    );
    refused(
        &weight(&[2, 3], &[1], 0),
        "the tensor `fc.weight` has 2 sizes and 1 strides",
    );
    refused(
        &weight(&[i64::MAX, i64::MAX, 0], &[1, 1, 1], 0),
        "reaches outside its record",
    );
    // A tensor without elements needs no memory, and the stride of an axis of size one means nothing.
    assert!(weight(&[0, 1000], &[1000, 1], 0).read().is_ok());
    assert!(weight(&[1, 6], &[i64::MAX, 1], 0).read().is_ok());
}

#[test]
fn many_large_views_of_one_record_are_refused() {
    let mut draft = Draft::new().record("data/weights/weight_0", vec![0; 1 << 20]);
    for index in 0..64 {
        let place = payload("weight_0", true, &meta(7, &[(1 << 18) - 64], &[1], index));
        draft = draft.weight(&format!("view.{index}"), place);
    }
    refused(&draft, "more than 4 times the file's");
}

#[test]
fn unusual_tensors_are_named() {
    let bias = |dtype: i64, layout: i64| {
        let mut meta = meta(dtype, &[2], &[1], 0);
        meta["layout"] = json!(layout);
        Draft::new().weight("fc.bias", payload("weight_1", true, &meta))
    };
    refused(
        &bias(10, 7),
        "the tensor `fc.bias` has elements of type complex numbers",
    );
    refused(&bias(29, 7), "number 29 of the schema, which is unknown");
    refused(
        &bias(7, 1),
        "the tensor `fc.bias` is sparse or in a special layout",
    );
    let missing = payload("weight_9", true, &meta(7, &[2], &[1], 0));
    let draft = Draft::new().weight("fc.bias", missing);
    refused(
        &draft,
        "the record `data/weights/weight_9` of the tensor `fc.bias` is missing",
    );
    let mut draft = Draft::new();
    draft.weights["config"]
        .as_object_mut()
        .unwrap()
        .remove("fc.bias");
    refused(
        &draft,
        "the tensor `fc.bias` of the graph is missing among the weights",
    );
    let twice = json!({"parameter": {"arg": {"name": "p_fc_bias"}, "parameter_name": "fc.weight"}});
    refused(
        &Draft::new().input(twice),
        "two inputs of the graph have the name `p_fc_bias`",
    );
}

#[test]
fn malformed_calls_are_named_with_their_module() {
    let argument = "/graph_module/graph/nodes/1/inputs/1/arg";
    let draft = Draft::new().graph(argument, json!({"as_tensor": "p_fc_weight"}));
    refused(
        &draft,
        "the argument `weight` of the call of `aten.linear.default` in `fc` is malformed",
    );
    let draft = Draft::new().graph(
        "/graph_module/graph/nodes/0/outputs/0",
        json!({"as_tensor": {}}),
    );
    refused(
        &draft,
        "a result of the call of `aten.mean.dim` is malformed",
    );
    let draft = Draft::new().graph("/graph_module/graph/nodes", json!(3));
    refused(&draft, "the graph `models/model.json` cannot be read");
}

#[test]
fn damaged_records_are_found() {
    let bytes = Draft::new().bytes();
    let place = bytes
        .windows(4)
        .position(|four| four == 6_f32.to_le_bytes())
        .unwrap();
    let mut changed = bytes;
    changed[place] ^= 1;
    bytes_refused(
        &changed,
        "the record `net/data/weights/weight_0` cannot be read",
    );
    bytes_refused(&changed, "hint: it is damaged or was cut short");
}

/// The place of a field in the directory's entry of the first record.
fn in_directory(bytes: &[u8], field: usize) -> usize {
    let mut windows = bytes.windows(4);
    windows.position(|four| four == b"PK\x01\x02").unwrap() + field
}

#[test]
fn sizes_that_no_file_has_are_refused_before_memory_is_taken() {
    // The fields of the sizes, packed and unpacked, are at 20 and 24.
    let huge = 0xf000_0000_u32.to_le_bytes();
    let mut bytes = Draft::new().bytes();
    let place = in_directory(&bytes, 24);
    bytes[place..place + 4].copy_from_slice(&huge);
    // The tensor would fit into the claimed record, which is refused when it is to be read.
    bytes_refused(
        &bytes,
        "the record `net/data/weights/weight_0` claims 4026531840 bytes and has 24, although it is not compressed",
    );
    let place = in_directory(&bytes, 20);
    bytes[place..place + 4].copy_from_slice(&huge);
    bytes_refused(&bytes, "its records claim 402653");
    let mut draft = Draft::new();
    draft.method = CompressionMethod::Deflated;
    let mut bytes = draft.bytes();
    let place = in_directory(&bytes, 24);
    bytes[place..place + 4].copy_from_slice(&(1_u32 << 16).to_le_bytes());
    bytes_refused(
        &bytes,
        "the record `net/data/weights/weight_0` claims 65536 bytes, packed into",
    );
    bytes[place..place + 4].copy_from_slice(&huge);
    bytes_refused(&bytes, "bytes when unpacked, more than 32 times the file's");
}

#[test]
fn a_cut_file_is_refused_wherever_it_is_cut() {
    let bytes = Draft::new().bytes();
    for length in 0..bytes.len() {
        let result = pt2::read_bytes(&bytes[..length], Path::new("net.pt2"));
        assert!(result.is_err(), "{length} of {} bytes", bytes.len());
    }
    bytes_refused(
        &bytes[..bytes.len() / 2],
        "it is no zip file, or its end is missing",
    );
}

/// Any byte may be any other: the file is read or refused, and nothing panics.
#[test]
fn a_changed_byte_never_panics() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let mut draft = Draft::new();
        draft.method = method;
        let mut bytes = draft.bytes();
        for place in 0..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                bytes[place] ^= change;
                let _ = pt2::read_bytes(&bytes, Path::new("net.pt2"));
                bytes[place] ^= change;
            }
        }
    }
}

/// Checksums find changed bytes of the JSON, so changes of its text are tried in files that are whole.
#[test]
fn changed_text_never_panics() {
    let draft = Draft::new();
    for part in 0..2 {
        let text = [&draft.model, &draft.weights][part].to_string();
        for (place, _) in text.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
            for replacement in [
                "-1",
                "99999999999999999999",
                "9223372036854775807",
                "null",
                "\"\"",
                "1e300",
            ] {
                let changed = format!("{}{replacement}{}", &text[..place], &text[place + 1..]);
                let Ok(value) = serde_json::from_str(&changed) else {
                    continue;
                };
                let mut draft = draft.clone();
                *[&mut draft.model, &mut draft.weights][part] = value;
                let _ = draft.read();
            }
        }
    }
}
