//! What the server and its models are, and whether they are ready.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::{Lane, ModelInfo, Refusal, Service};
use crate::failure::{Failure, json_body};
use crate::front::{Front, lane};
use crate::oip;
use crate::tokens::{Caller, Role};

/// The extensions of the protocol that are spoken.
pub(crate) const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "model_repository",
    "statistics",
    "model_configuration",
    "classification",
    "parameters",
    "sequence",
];

/// The parts of a path by their names.
pub(super) type Parts = Path<HashMap<String, String>>;

/// Returns the model and the lane that a path names.
pub(super) fn named(
    front: &Front,
    parts: &HashMap<String, String>,
) -> Result<(ModelInfo, Option<Lane>), Refusal> {
    let model = front.model(parts.get("model").map_or("", String::as_str))?;
    let lane = lane(parts.get("version").map(String::as_str))?;
    Ok((model, lane))
}

/// Lets those look at models who may use or watch them.
pub(super) fn may_look(caller: &Caller) -> Result<(), Failure> {
    if caller.has(Role::Predict) {
        return Ok(());
    }
    caller.check(Role::Read)
}

pub async fn server() -> impl IntoResponse {
    json_body(&json!({
        "name": "ttac",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": EXTENSIONS,
    }))
}

pub async fn live() -> impl IntoResponse {
    json_body(&json!({ "live": true }))
}

pub async fn ready(State(front): State<Arc<Front>>) -> Response {
    let ready = front.ready();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut answer = json!({ "live": true, "ready": ready });
    if !ready {
        let why = if front.draining() {
            "the server is about to end"
        } else {
            "models are being loaded"
        };
        answer["error"] = why.into();
    }
    (status, json_body(&answer)).into_response()
}

pub async fn model_ready(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    may_look(&caller)?;
    let (model, _) = named(&front, &parts)?;
    if !model.ready || !front.ready() {
        return Err(Refusal::Unavailable(format!("model `{}` is not ready", model.name)).into());
    }
    Ok(json_body(&json!({ "name": model.name, "ready": true })))
}

pub async fn metadata(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    may_look(&caller)?;
    let (model, _) = named(&front, &parts)?;
    Ok(json_body(&oip::metadata(&model)))
}

pub async fn config(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    may_look(&caller)?;
    let (model, _) = named(&front, &parts)?;
    Ok(json_body(&oip::config(&model)))
}

pub async fn statistics(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    may_look(&caller)?;
    let (model, lane) = named(&front, &parts)?;
    let stats = front
        .call(move |service| of_model(service, &model.name, lane))
        .await?;
    Ok(json_body(&json!({ "model_stats": stats })))
}

pub async fn all_statistics(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, Failure> {
    may_look(&caller)?;
    let all = front.call(|service| {
        let mut all = Vec::new();
        for model in service.models() {
            all.extend(of_model(service, &model.name, None)?);
        }
        Ok(all)
    });
    let all = all.await?;
    Ok(json_body(&json!({ "model_stats": all })))
}

/// Describes what a model has done, lane by lane.
fn of_model(service: &dyn Service, model: &str, lane: Option<Lane>) -> Result<Vec<Value>, Refusal> {
    let lanes = lane.map_or(vec![Lane::Source, Lane::Adapted], |lane| vec![lane]);
    let each = lanes.into_iter().map(|lane| {
        let statistics = service.statistics(model, lane)?;
        Ok(oip::statistics(model, lane, &statistics))
    });
    each.collect()
}
