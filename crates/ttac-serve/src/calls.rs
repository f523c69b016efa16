//! Calls of the protocol that are no predictions, alike for every transport.

use crate::api::{Lane, ModelInfo, Refusal, Service};
use crate::failure::Failure;
use crate::front::{Front, lane};
use crate::oip::{self, Indexed, ModelStatistics};
use crate::tokens::{Caller, Role};

/// Returns the model and the lane that a request names.
pub fn named(
    front: &Front,
    model: &str,
    version: Option<&str>,
) -> Result<(ModelInfo, Option<Lane>), Refusal> {
    Ok((front.model(model)?, lane(version)?))
}

/// Lets those look at models who may use or watch them.
pub fn may_look(caller: &Caller) -> Result<(), Failure> {
    if caller.has(Role::Predict) {
        return Ok(());
    }
    caller.check(Role::Read)
}

/// Returns a model for somebody who may look at it.
pub fn look(
    front: &Front,
    caller: &Caller,
    model: &str,
    version: Option<&str>,
) -> Result<ModelInfo, Failure> {
    may_look(caller)?;
    Ok(named(front, model, version)?.0)
}

/// Refuses models for which no requests are taken yet, or any more.
pub fn check_ready(front: &Front, model: &ModelInfo) -> Result<(), Refusal> {
    if model.ready && front.ready() {
        return Ok(());
    }
    let name = &model.name;
    Err(Refusal::Unavailable(format!("model `{name}` is not ready")))
}

/// Describes what a model, or all, have done, lane by lane.
pub async fn statistics(
    front: &Front,
    caller: &Caller,
    model: Option<&str>,
    version: Option<&str>,
) -> Result<Vec<ModelStatistics>, Failure> {
    may_look(caller)?;
    let asked = match model {
        Some(model) => Some(named(front, model, version)?),
        None => None,
    };
    let all = front.call(move |service| {
        if let Some((model, lane)) = asked {
            return of_model(service, &model.name, lane);
        }
        let mut all = Vec::new();
        for model in service.models() {
            all.extend(of_model(service, &model.name, None)?);
        }
        Ok(all)
    });
    all.await
}

fn of_model(
    service: &dyn Service,
    model: &str,
    lane: Option<Lane>,
) -> Result<Vec<ModelStatistics>, Refusal> {
    let lanes = lane.map_or(vec![Lane::Source, Lane::Adapted], |lane| vec![lane]);
    let each = lanes.into_iter().map(|lane| {
        let statistics = service.statistics(model, lane)?;
        Ok(oip::statistics(model, lane, &statistics))
    });
    each.collect()
}

/// Lists the models, all or those that are ready.
pub fn index(front: &Front, caller: &Caller, ready: bool) -> Result<Vec<Indexed>, Failure> {
    may_look(caller)?;
    Ok(oip::index(&front.service().models(), ready))
}

/// Succeeds for models that are loaded: that happens when the server starts.
pub fn load(front: &Front, caller: &Caller, model: &str) -> Result<(), Failure> {
    caller.check(Role::Admin)?;
    let model = front.model(model)?;
    if !model.ready {
        return Err(Refusal::Unavailable(format!("model `{}` is being loaded", model.name)).into());
    }
    Ok(())
}

/// Refuses to unload a model.
pub fn unload(front: &Front, caller: &Caller, model: &str) -> Result<(), Failure> {
    caller.check(Role::Admin)?;
    let model = front.model(model)?;
    Err(Refusal::Invalid(format!(
        "model `{}` stays loaded as long as the server runs; take it out of the configuration and start again",
        model.name
    ))
    .into())
}
