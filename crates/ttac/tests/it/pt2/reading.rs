//! What a small file says, in every form that it may have.

use serde_json::json;
use ttac::graph::{Argument, ElementType, Integer, Role, Values};
use zip::CompressionMethod;

use super::draft::{Draft, floats, meta, node, payload, tensor};

#[test]
fn a_small_file_says_what_was_written() {
    let program = Draft::new().read().unwrap();
    assert_eq!(
        (program.input.as_str(), program.output.as_str()),
        ("x", "linear")
    );
    let [mean, linear] = &program.calls[..] else {
        panic!("two calls")
    };
    assert_eq!(
        (mean.target.as_str(), mean.at.as_str()),
        ("aten.mean.dim", "")
    );
    assert_eq!(
        (linear.target.as_str(), linear.at.as_str()),
        ("aten.linear.default", "fc")
    );
    let weight = &program.tensors["p_fc_weight"];
    assert_eq!(
        (weight.key.as_str(), weight.role),
        ("fc.weight", Role::Parameter)
    );
    assert_eq!(weight.shape, [2, 3]);
    assert_eq!(
        weight.values,
        Values::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    );
    let steps = &program.tensors["b_steps"];
    assert_eq!(
        (steps.role, steps.element),
        (Role::Buffer, ElementType::I64)
    );
    assert_eq!(
        (&steps.shape[..], &steps.values),
        (&[][..], &Values::I64(vec![7]))
    );
    let image: Vec<_> = program.shapes["x"]
        .iter()
        .map(|s| (s.example, s.symbolic))
        .collect();
    assert_eq!(image, [(2, true), (3, false), (4, false), (4, false)]);
    assert!(!program.shapes.contains_key("p_fc_weight"));
    assert!(program.notes.is_empty());
}

#[test]
fn deflated_records_are_read_as_stored_ones() {
    let mut draft = Draft::new();
    let stored = draft.read().unwrap();
    draft.method = CompressionMethod::Deflated;
    let deflated = draft.read().unwrap();
    assert_eq!(stored.tensors, deflated.tensors);
    assert_eq!(stored.calls, deflated.calls);
}

#[test]
fn strides_and_offsets_are_followed() {
    // The transpose of a matrix of three rows, behind one element that belongs to nothing.
    let place = payload("weight_0", true, &meta(7, &[2, 3], &[1, 2], 1));
    let storage = floats(&[9.0, 1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let draft = Draft::new().weight("fc.weight", place);
    let program = draft
        .record("data/weights/weight_0", storage)
        .read()
        .unwrap();
    let expected = Values::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(program.tensors["p_fc_weight"].values, expected);
}

#[test]
fn every_type_of_element_is_widened() {
    let bias = |dtype: i64, bytes: &[u8]| {
        let place = payload("weight_1", true, &meta(dtype, &[2], &[1], 0));
        let draft = Draft::new().weight("fc.bias", place);
        let program = draft
            .record("data/weights/weight_1", bytes.to_vec())
            .read()
            .unwrap();
        let bias = &program.tensors["p_fc_bias"];
        (bias.element, bias.values.clone())
    };
    let halves = Values::F32(vec![1.0, -2.0]);
    assert_eq!(
        bias(6, &[0, 0x3c, 0, 0xc0]),
        (ElementType::F16, halves.clone())
    );
    assert_eq!(
        bias(13, &[0x80, 0x3f, 0, 0xc0]),
        (ElementType::Bf16, halves.clone())
    );
    let doubles = [1.0_f64.to_le_bytes(), (-2.0_f64).to_le_bytes()].concat();
    assert_eq!(bias(8, &doubles), (ElementType::F64, halves));
    assert_eq!(
        bias(1, &[1, 255]),
        (ElementType::U8, Values::I64(vec![1, 255]))
    );
    assert_eq!(
        bias(2, &[1, 255]),
        (ElementType::I8, Values::I64(vec![1, -1]))
    );
    assert_eq!(
        bias(3, &[1, 0, 254, 255]),
        (ElementType::I16, Values::I64(vec![1, -2]))
    );
    let ints = [3_i32.to_le_bytes(), (-3_i32).to_le_bytes()].concat();
    assert_eq!(bias(4, &ints), (ElementType::I32, Values::I64(vec![3, -3])));
    assert_eq!(
        bias(12, &[0, 1]),
        (ElementType::Bool, Values::Bool(vec![false, true]))
    );
}

/// A file in which a second name of the graph means the weight of the linear layer, and calls use it.
fn tied() -> Draft {
    let spec =
        json!({"parameter": {"arg": {"name": "p_twin_weight"}, "parameter_name": "twin.weight"}});
    let draft = Draft::new().weight(
        "twin.weight",
        payload("weight_0", true, &meta(7, &[2, 3], &[3, 1], 0)),
    );
    draft.input(spec)
}

#[test]
fn tied_weights_are_one_tensor() {
    let program = tied().read().unwrap();
    assert_eq!(program.tensors.len(), 3);
    let weight = &program.tensors["p_twin_weight"];
    assert_eq!(
        (weight.key.as_str(), &weight.also[..]),
        ("twin.weight", &["fc.weight".to_owned()][..])
    );
    let used = program.calls[1].argument("weight");
    assert_eq!(used, Some(&Argument::Tensor("p_twin_weight".to_owned())));
    // A tensor in a record of its own is another one, however equal.
    let place = payload("weight_3", true, &meta(7, &[2, 3], &[3, 1], 0));
    let apart = tied().weight("twin.weight", place);
    let apart = apart.record(
        "data/weights/weight_3",
        floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    );
    assert_eq!(apart.read().unwrap().tensors.len(), 4);
}

#[test]
fn overlapping_parameters_are_noted() {
    let part = payload("weight_0", true, &meta(7, &[3], &[1], 3));
    let program = tied().weight("twin.weight", part).read().unwrap();
    assert_eq!(
        program.notes,
        [
            "The parameters `fc.weight` and `twin.weight` share memory in PyTorch and are learned apart here."
        ]
    );
    assert_eq!(
        program.tensors["p_twin_weight"].values,
        Values::F32(vec![4.0, 5.0, 6.0])
    );
}

#[test]
fn tensors_without_a_name_in_the_graph_are_kept() {
    let place = payload("weight_0", true, &meta(7, &[2], &[1], 4));
    let program = Draft::new().weight("head.bias", place).read().unwrap();
    let unused = &program.tensors["state_dict:head.bias"];
    assert_eq!(
        (unused.key.as_str(), unused.role),
        ("head.bias", Role::Parameter)
    );
    assert_eq!(unused.values, Values::F32(vec![5.0, 6.0]));
}

#[test]
fn constants_and_buffers_outside_the_state_dict_are_constants() {
    let mut draft = Draft::new()
        .input(json!({"tensor_constant": {"arg": {"name": "c_lifted_0"}, "tensor_constant_name": "lifted_0"}}))
        .input(json!({"buffer": {"arg": {"name": "b_table"}, "buffer_name": "table", "persistent": false}}))
        .record("data/constants/tensor_0", vec![1, 0, 0, 0, 0, 0, 0, 0])
        .record("data/constants/tensor_1", floats(&[2.5]));
    draft.constants = json!({"config": {
        "lifted_0": payload("tensor_0", false, &meta(5, &[1], &[1], 0)),
        "table": payload("tensor_1", false, &meta(7, &[], &[], 0)),
        // An object that no input names is not looked at.
        "other": {"path_name": "custom_obj_0", "is_param": false, "use_pickle": true, "tensor_meta": null},
    }});
    let program = draft.read().unwrap();
    let lifted = &program.tensors["c_lifted_0"];
    assert_eq!(
        (lifted.role, &lifted.values),
        (Role::Constant, &Values::I64(vec![1]))
    );
    let table = &program.tensors["b_table"];
    assert_eq!(
        (table.role, &table.values),
        (Role::Constant, &Values::F32(vec![2.5]))
    );
    assert_eq!(table.key, "table");
}

#[test]
fn arguments_of_every_kind_are_read() {
    let arguments = [
        ("none", json!({"as_none": true}), Argument::None),
        ("old", json!({"as_none": []}), Argument::None),
        ("float", json!({"as_float": 0.5}), Argument::Float(0.5)),
        (
            "least",
            json!({"as_float": "-Infinity"}),
            Argument::Float(f64::NEG_INFINITY),
        ),
        (
            "floats",
            json!({"as_floats": [1.0, "Infinity"]}),
            Argument::Floats(vec![1.0, f64::INFINITY]),
        ),
        ("bool", json!({"as_bool": true}), Argument::Bool(true)),
        (
            "text",
            json!({"as_string": "same"}),
            Argument::Text("same".to_owned()),
        ),
        (
            "type",
            json!({"as_scalar_type": 5}),
            Argument::Type(ElementType::I64),
        ),
        (
            "symbol",
            json!({"as_sym_int": {"as_name": "s"}}),
            Argument::Integer(Integer::Symbol("s".to_owned())),
        ),
        (
            "number",
            json!({"as_sym_int": {"as_int": -1}}),
            Argument::Integer(Integer::Number(-1)),
        ),
        (
            "tensors",
            json!({"as_tensors": [{"name": "x"}]}),
            Argument::Tensors(vec![Some("x".to_owned())]),
        ),
        (
            "optional",
            json!({"as_optional_tensors": [{"as_none": true}, tensor("x")]}),
            Argument::Tensors(vec![None, Some("x".to_owned())]),
        ),
        (
            "device",
            json!({"as_device": {"type": "cpu", "index": null}}),
            Argument::Other,
        ),
        (
            "graph",
            json!({"as_graph": {"name": "body", "graph": {}}}),
            Argument::Other,
        ),
    ];
    let inputs: Vec<_> = arguments
        .iter()
        .map(|(name, json, _)| (*name, json.clone()))
        .collect();
    let call = node(
        "torch.ops.higher_order.wrap_with_autocast",
        "fc",
        &inputs,
        "mean",
    );
    let program = Draft::new()
        .graph("/graph_module/graph/nodes/0", call)
        .read()
        .unwrap();
    // Whether a function is understood is asked later, so it stays as it is.
    assert_eq!(program.calls[0].target, "higher_order.wrap_with_autocast");
    for (name, _, expected) in &arguments {
        assert_eq!(program.calls[0].argument(name), Some(expected), "{name}");
    }
}

#[test]
fn old_schemas_are_tried_with_a_note() {
    let old = Draft::new().graph("/schema_version", json!({"major": 7, "minor": 3}));
    let program = old.read().unwrap();
    assert_eq!(program.calls.len(), 2);
    assert!(
        program.notes[0].contains("version 7.3 of PyTorch's schema"),
        "{:?}",
        program.notes
    );
}

#[test]
fn training_exports_that_change_buffers_are_noted() {
    let specs = json!([
        {"buffer_mutation": {"arg": {"name": "add"}, "buffer_name": "steps"}},
        {"user_output": {"arg": tensor("linear")}}, {"user_output": {"arg": {"as_none": true}}}
    ]);
    let draft = Draft::new().graph("/graph_module/signature/output_specs", specs);
    let program = draft.read().unwrap();
    assert_eq!(program.output, "linear");
    assert_eq!(
        program.notes,
        [
            "The program changes 1 buffers when it runs, such as `steps`: it was exported in training mode."
        ]
    );
}
