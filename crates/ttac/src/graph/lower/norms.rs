//! Norms and dropout.

use super::arguments::{Outcome, Scope};
use super::build::{Meaning, Refusal};
use crate::graph::ir::Operand;
use crate::graph::op::Op;

/// What helps against a network that was exported as it trains.
pub(super) const EVAL_MODE: &str =
    "export the network in eval mode: call model.eval() before torch.export.export";

/// Lowers `batch_norm` and what is left of it after decomposition.
pub(super) fn batch_norm(s: &mut Scope<'_, '_>) -> Outcome {
    let training = s.flag("training", false)?;
    let x = s.tensor("input")?;
    let shape = s.shape(&x)?;
    let epsilon = s.float("eps", 1e-5)?;
    if training && shape.axis().is_none() {
        return standardise(s, &x, epsilon);
    }
    if training {
        return Err(Refusal::with_hint(
            "it normalises by the statistics of the batch, as a network in training does",
            EVAL_MODE,
        ));
    }
    let channels = shape.dims.get(1).map_or(0, |dim| dim.size);
    let mut inputs = vec![s.builder.operand(&x)?];
    for (name, otherwise) in [("weight", 1.0), ("bias", 0.0)] {
        let given = s.operand(name)?;
        inputs.push(given.map_or_else(|| s.builder.vector(channels, otherwise), Ok)?);
    }
    for name in ["running_mean", "running_var"] {
        let statistic = s.operand(name)?;
        inputs.push(statistic.ok_or("it has no running statistics")?);
    }
    let mut momentum = s.float("momentum", 0.1)?;
    if momentum == 0.0 {
        let note = "Batch norms without a momentum (it is 0 or None in the program) take 0.1.";
        if !s.builder.notes.iter().any(|known| known == note) {
            s.builder.notes.push(note.to_owned());
        }
        momentum = 0.1;
    }
    Ok(vec![s.emit(Op::BatchNorm { epsilon, momentum }, inputs)?])
}

/// Lowers a batch norm in training mode on something that depends on no image: the standardisation of a weight.
fn standardise(s: &mut Scope<'_, '_>, x: &Meaning, epsilon: f64) -> Outcome {
    let mut inputs = vec![s.builder.operand(x)?];
    inputs.extend(s.operand("weight")?);
    let made = s.emit(Op::Standardise { epsilon }, inputs)?;
    let Some(bias) = s.optional("bias")? else {
        return Ok(vec![made]);
    };
    let mut sizes = vec![1; s.shape(x)?.dims.len()];
    let channels = s.sizes(&bias)?;
    if sizes.len() > 1 && channels.len() == 1 {
        sizes[1] = channels[0];
    }
    let bias = s.reshape(&bias, &sizes)?;
    Ok(vec![s.add(&made, &bias)?])
}

/// Lowers `_native_batch_norm_legit` and its relatives that say in their names that they train.
pub(super) fn training_norm(_: &mut Scope<'_, '_>) -> Outcome {
    Err(Refusal::with_hint(
        "it normalises by the statistics of the batch, as a network in training does",
        EVAL_MODE,
    ))
}

/// Lowers `layer_norm` over any number of last axes.
pub(super) fn layer_norm(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.tensor("input")?;
    let normalised = s.integers("normalized_shape")?;
    let normalised = normalised.ok_or("argument `normalized_shape` is missing")?;
    let epsilon = s.float("eps", 1e-5)?;
    let (weight, bias) = (s.optional("weight")?, s.optional("bias")?);
    let sizes = s.sizes(&x)?;
    let kept = sizes.len().checked_sub(normalised.len());
    let kept = kept.ok_or("it normalises more axes than there are")?;
    let length: usize = sizes[kept..].iter().product();
    // Several axes are normalised as one.
    let flat = [&sizes[..kept], &[length]].concat();
    let x = s.reshape(&x, &flat)?;
    let mut inputs = vec![s.builder.operand(&x)?];
    for part in [weight, bias.clone()].into_iter().flatten() {
        let part = s.reshape(&part, &[length])?;
        inputs.push(s.builder.operand(&part)?);
    }
    if inputs.len() == 2 && bias.is_some() {
        inputs.insert(1, s.builder.vector(length, 1.0)?);
    }
    let made = s.emit(Op::LayerNorm { epsilon }, inputs)?;
    Ok(vec![s.reshape(&made, &sizes)?])
}

/// Lowers `group_norm` and `native_group_norm`.
pub(super) fn group_norm(s: &mut Scope<'_, '_>) -> Outcome {
    let groups = match s.argument("num_groups") {
        Some(_) => s.count("num_groups", 1)?,
        None => s.count("group", 1)?,
    };
    grouped(s, groups)
}

/// Lowers `instance_norm`, which is a group norm with a group for each channel.
pub(super) fn instance_norm(s: &mut Scope<'_, '_>) -> Outcome {
    if !s.flag("use_input_stats", true)? {
        return Err("an instance norm with running statistics is no operation of ours".into());
    }
    let x = s.tensor("input")?;
    let channels = s.shape(&x)?.dims.get(1).map_or(0, |dim| dim.size);
    grouped(s, channels)
}

fn grouped(s: &mut Scope<'_, '_>, groups: usize) -> Outcome {
    let epsilon = s.float("eps", 1e-5)?;
    let x = s.subject()?;
    let channels = s.shape(&x)?.dims.get(1).map_or(0, |dim| dim.size);
    let mut inputs = vec![s.builder.operand(&x)?];
    let affine: [Option<Operand>; 2] = [s.operand("weight")?, s.operand("bias")?];
    if affine.iter().any(Option::is_some) {
        for (given, otherwise) in affine.into_iter().zip([1.0, 0.0]) {
            inputs.push(given.map_or_else(|| s.builder.vector(channels, otherwise), Ok)?);
        }
    }
    Ok(vec![s.emit(Op::GroupNorm { groups, epsilon }, inputs)?])
}

/// Lowers `dropout` of a network in eval mode: its probability is kept for source training.
pub(super) fn dropout(s: &mut Scope<'_, '_>) -> Outcome {
    let x = s.subject()?;
    let probability = s.float("p", 0.5)?;
    if probability == 0.0 || matches!(x, Meaning::Known(_)) {
        return Ok(vec![x]);
    }
    if s.flag("train", false)? {
        return training_only(s);
    }
    if !(0.0..1.0).contains(&probability) {
        return Err(format!("its probability is {probability}").into());
    }
    Ok(vec![s.node(Op::Dropout { probability }, &[x])?])
}

/// Lowers kinds of dropout that have no operation: nothing is left of them in eval mode.
pub(super) fn other_dropout(s: &mut Scope<'_, '_>) -> Outcome {
    if s.flag("train", false)? {
        return training_only(s);
    }
    Ok(vec![s.subject()?])
}

/// Refuses what draws at random.
pub(super) fn training_only(_: &mut Scope<'_, '_>) -> Outcome {
    Err(Refusal::with_hint(
        "it draws numbers at random, as a network in training does",
        EVAL_MODE,
    ))
}
