//! The models of the configuration, in the words of Triton's model repository.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use serde_json::json;

use super::models::{Parts, may_look, named};
use crate::api::{Lane, Refusal};
use crate::failure::{Failure, json_body};
use crate::front::Front;
use crate::tokens::{Caller, Role};

#[derive(Default, Deserialize)]
struct Asked {
    #[serde(default)]
    ready: bool,
}

pub async fn index(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<impl IntoResponse, Failure> {
    may_look(&caller)?;
    let body = front.body(body).await?;
    // Clients of Triton send an empty body.
    let asked: Asked = if body.is_empty() {
        Asked::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            Refusal::Invalid(format!(
                "expected `{{\"ready\": true}}` or an empty body: {error}"
            ))
        })?
    };
    let mut listed = Vec::new();
    for model in front.service().models() {
        if asked.ready && !model.ready {
            continue;
        }
        let state = if model.ready { "READY" } else { "LOADING" };
        for lane in [Lane::Source, Lane::Adapted] {
            let version = lane.version();
            listed.push(
                json!({ "name": model.name, "version": version, "state": state, "reason": "" }),
            );
        }
    }
    Ok(json_body(&json!(listed)))
}

/// Models are loaded when the server starts, so that what is asked for is done already.
pub async fn load(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<StatusCode, Failure> {
    caller.check(Role::Admin)?;
    let (model, _) = named(&front, &parts)?;
    if !model.ready {
        return Err(Refusal::Unavailable(format!("model `{}` is being loaded", model.name)).into());
    }
    Ok(StatusCode::OK)
}

pub async fn unload(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<StatusCode, Failure> {
    caller.check(Role::Admin)?;
    let (model, _) = named(&front, &parts)?;
    Err(Refusal::Invalid(format!(
        "model `{}` stays loaded as long as the server runs; take it out of the configuration and start again",
        model.name
    ))
    .into())
}
