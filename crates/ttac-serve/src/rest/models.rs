//! What the server and its models are, and whether they are ready.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::api::ModelInfo;
use crate::calls;
use crate::failure::{Failure, json_body};
use crate::front::Front;
use crate::oip;
use crate::tokens::Caller;

/// The parts of a path by their names.
pub(super) type Parts = Path<HashMap<String, String>>;

/// Returns a part of a path.
pub(super) fn part<'a>(parts: &'a HashMap<String, String>, name: &str) -> Option<&'a str> {
    parts.get(name).map(String::as_str)
}

/// Returns the model that a path names, for somebody who may look at it.
fn look(
    front: &Front,
    caller: &Caller,
    parts: &HashMap<String, String>,
) -> Result<ModelInfo, Failure> {
    let model = part(parts, "model").unwrap_or_default();
    calls::look(front, caller, model, part(parts, "version"))
}

pub async fn server() -> impl IntoResponse {
    json_body(&json!({
        "name": oip::SERVER,
        "version": oip::VERSION,
        "extensions": oip::EXTENSIONS,
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
    let model = look(&front, &caller, &parts)?;
    calls::check_ready(&front, &model)?;
    Ok(json_body(&json!({ "name": model.name, "ready": true })))
}

pub async fn metadata(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    let model = look(&front, &caller, &parts)?;
    Ok(json_body(&oip::metadata(&model)))
}

pub async fn config(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    let model = look(&front, &caller, &parts)?;
    Ok(json_body(&oip::config(&model)))
}

pub async fn statistics(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<impl IntoResponse, Failure> {
    let (model, version) = (part(&parts, "model"), part(&parts, "version"));
    let stats = calls::statistics(&front, &caller, model, version).await?;
    Ok(json_body(&json!({ "model_stats": stats })))
}

pub async fn all_statistics(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, Failure> {
    let stats = calls::statistics(&front, &caller, None, None).await?;
    Ok(json_body(&json!({ "model_stats": stats })))
}
