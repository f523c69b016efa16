//! The JSON of an exported program, as far as it is needed. Fields that are not listed are ignored, so that later minor
//! versions of the schema, which only add to it, can be read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The versions of `models/NAME.json`, which are read before anything else is.
#[derive(Deserialize)]
pub(super) struct Versions {
    pub(super) schema_version: SchemaVersion,
    #[serde(default)]
    pub(super) torch_version: Option<String>,
}

/// The version of the schema.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct SchemaVersion {
    pub(super) major: u64,
    #[serde(default)]
    pub(super) minor: u64,
}

/// `models/NAME.json`.
#[derive(Deserialize)]
pub(super) struct ExportedProgram {
    pub(super) graph_module: GraphModule,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub(super) graph: Graph,
    pub(super) signature: Signature,
}

#[derive(Deserialize)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    #[serde(default)]
    pub(super) tensor_values: BTreeMap<String, TensorMeta>,
}

/// One call.
#[derive(Deserialize)]
pub(super) struct Node {
    pub(super) target: String,
    pub(super) inputs: Vec<NamedArgument>,
    /// Each an object with one key, as arguments are.
    pub(super) outputs: Vec<Value>,
    #[serde(default)]
    pub(super) metadata: Metadata,
}

/// Of what PyTorch remembers about a call, only the modules around it: the rest has the user's paths in it.
#[derive(Default, Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) nn_module_stack: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct NamedArgument {
    pub(super) name: String,
    /// An object with one key that tells the kind, such as `{"as_int": 3}`.
    pub(super) arg: Value,
}

#[derive(Deserialize)]
pub(super) struct Signature {
    /// Each an object with one key that tells the kind, such as `{"parameter": ..}`.
    pub(super) input_specs: Vec<BTreeMap<String, InputSpec>>,
    pub(super) output_specs: Vec<BTreeMap<String, OutputSpec>>,
}

/// What an input of the graph stands for. The fields are those of all kinds.
#[derive(Deserialize)]
pub(super) struct InputSpec {
    /// `{"name": ..}` of tensors of the file, an argument with its kind of the user's inputs.
    #[serde(default)]
    pub(super) arg: Value,
    #[serde(default)]
    pub(super) parameter_name: Option<String>,
    #[serde(default)]
    pub(super) buffer_name: Option<String>,
    /// Whether a buffer belongs to the `state_dict`.
    #[serde(default)]
    pub(super) persistent: Option<bool>,
    #[serde(default)]
    pub(super) tensor_constant_name: Option<String>,
}

/// What an output of the graph stands for.
#[derive(Deserialize)]
pub(super) struct OutputSpec {
    #[serde(default)]
    pub(super) arg: Value,
    #[serde(default)]
    pub(super) buffer_name: Option<String>,
}

/// The shape, strides and type of a tensor.
#[derive(Clone, Deserialize)]
pub(super) struct TensorMeta {
    pub(super) dtype: i64,
    pub(super) sizes: Vec<SymInt>,
    #[serde(default)]
    pub(super) strides: Vec<SymInt>,
    #[serde(default)]
    pub(super) storage_offset: Option<SymInt>,
    #[serde(default)]
    pub(super) layout: Option<i64>,
}

/// An integer, or an expression of which only the value for the example is of interest.
#[derive(Clone, Deserialize)]
pub(super) struct SymInt {
    #[serde(default)]
    pub(super) as_int: Option<i64>,
    #[serde(default)]
    pub(super) as_expr: Option<SymExpr>,
}

#[derive(Clone, Deserialize)]
pub(super) struct SymExpr {
    #[serde(default)]
    pub(super) hint: Value,
}

/// `data/weights/NAME_weights_config.json` and `data/constants/NAME_constants_config.json`.
#[derive(Deserialize)]
pub(super) struct PayloadConfig {
    pub(super) config: BTreeMap<String, Payload>,
}

/// Where one tensor lies.
#[derive(Clone, Deserialize)]
pub(super) struct Payload {
    pub(super) path_name: String,
    #[serde(default)]
    pub(super) is_param: bool,
    #[serde(default)]
    pub(super) use_pickle: bool,
    #[serde(default)]
    pub(super) tensor_meta: Option<TensorMeta>,
}
