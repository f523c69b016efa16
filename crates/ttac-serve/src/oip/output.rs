//! Replies as tensors.

use super::{Described, WantedOutput, invalid};
use crate::api::{ModelInfo, Refusal, Reply};

/// The outputs by name, with their datatype and whether they are given without being asked for.
const OUTPUTS: [(&str, &str, bool); 5] = [
    ("probabilities", "FP32", true),
    ("class", "INT64", true),
    ("label", "BYTES", true),
    ("logits", "FP32", false),
    ("source_class", "INT64", false),
];

/// A tensor of a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTensor {
    /// Its name.
    pub name: String,
    /// How many values there are in each direction.
    pub shape: Vec<usize>,
    /// Its values.
    pub values: Column,
    /// Whether the values come behind the JSON.
    pub binary: bool,
}

/// The values of an output, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// `FP32`.
    Floats(Vec<f32>),
    /// `INT64`.
    Integers(Vec<i64>),
    /// `BYTES`.
    Texts(Vec<String>),
}

impl Column {
    /// Returns the protocol's name of the type.
    pub fn datatype(&self) -> &'static str {
        match self {
            Self::Floats(_) => "FP32",
            Self::Integers(_) => "INT64",
            Self::Texts(_) => "BYTES",
        }
    }

    /// Returns the values as they lie in memory, little-endian; each text after its length as `u32`.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Floats(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::Integers(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::Texts(values) => {
                let mut bytes = Vec::new();
                for text in values {
                    bytes.extend((text.len() as u32).to_le_bytes());
                    bytes.extend(text.as_bytes());
                }
                bytes
            }
        }
    }
}

/// Lists the outputs of a model, with `-1` for the number of samples.
pub fn described(model: &ModelInfo) -> Vec<Described> {
    let classes = model.classes.len() as i64;
    let shape = |datatype: &str| match datatype {
        "FP32" => vec![-1, classes],
        _ => vec![-1],
    };
    let each = OUTPUTS.iter().map(|&(name, datatype, _)| Described {
        name,
        datatype,
        shape: shape(datatype),
    });
    each.collect()
}

/// Refuses outputs that there are not, before anything is computed.
pub fn check_outputs(wanted: &[WantedOutput]) -> Result<(), Refusal> {
    for output in wanted {
        let name = &output.name;
        if !OUTPUTS.iter().any(|(known, ..)| known == name) {
            let known = OUTPUTS.map(|(known, ..)| known).join("`, `");
            return Err(invalid(format!(
                "output: expected one of `{known}`, found `{name}`"
            )));
        }
        if output.classification.is_some() && name != "probabilities" {
            return Err(invalid(format!(
                "output `{name}`: only `probabilities` can be given as classes by `classification`"
            )));
        }
    }
    Ok(())
}

/// Makes the tensors that were asked for, or the usual ones.
pub fn outputs(
    reply: &Reply,
    model: &ModelInfo,
    wanted: &[WantedOutput],
    binary: bool,
) -> Vec<OutputTensor> {
    if wanted.is_empty() {
        let usual = OUTPUTS.iter().filter(|(.., usual)| *usual);
        let all = usual.map(|&(name, ..)| WantedOutput {
            name: name.to_owned(),
            binary,
            classification: None,
        });
        return all
            .filter_map(|output| tensor(reply, model, &output))
            .collect();
    }
    wanted
        .iter()
        .filter_map(|output| tensor(reply, model, output))
        .collect()
}

/// Makes one tensor; none if the reply does not have it.
fn tensor(reply: &Reply, model: &ModelInfo, output: &WantedOutput) -> Option<OutputTensor> {
    let (samples, classes) = (reply.classes.len(), model.classes.len());
    let integers =
        |classes: &[usize]| Column::Integers(classes.iter().map(|&c| c as i64).collect());
    let (values, shape) = match (output.name.as_str(), output.classification) {
        ("probabilities", Some(best)) => {
            let best = best.min(classes);
            (
                Column::Texts(classified(reply, model, best)),
                vec![samples, best],
            )
        }
        ("probabilities", None) => (
            Column::Floats(reply.probabilities.clone()),
            vec![samples, classes],
        ),
        ("logits", _) => (Column::Floats(reply.scores.clone()), vec![samples, classes]),
        ("class", _) => (integers(&reply.classes), vec![samples]),
        ("source_class", _) => (integers(reply.source_classes.as_ref()?), vec![samples]),
        ("label", _) => {
            let labels = reply.classes.iter().map(|&class| label(model, class));
            (Column::Texts(labels.collect()), vec![samples])
        }
        _ => return None,
    };
    Some(OutputTensor {
        name: output.name.clone(),
        shape,
        values,
        binary: output.binary,
    })
}

fn label(model: &ModelInfo, class: usize) -> String {
    model.classes.get(class).cloned().unwrap_or_default()
}

/// Names the best classes of each sample as `score:index:label`, as Triton does.
fn classified(reply: &Reply, model: &ModelInfo, best: usize) -> Vec<String> {
    let mut texts = Vec::with_capacity(best * reply.classes.len());
    for row in reply.probabilities.chunks_exact(model.classes.len().max(1)) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        for &class in &order[..best] {
            texts.push(format!("{:.6}:{class}:{}", row[class], label(model, class)));
        }
    }
    texts
}
