//! The models of the configuration, in the words of Triton's model repository.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;

use super::models::{Parts, part};
use crate::api::Refusal;
use crate::calls;
use crate::failure::{Failure, json_body};
use crate::front::Front;
use crate::tokens::Caller;

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
    calls::may_look(&caller)?;
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
    Ok(json_body(&calls::index(&front, &caller, asked.ready)?))
}

pub async fn load(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<StatusCode, Failure> {
    calls::load(&front, &caller, part(&parts, "model").unwrap_or_default())?;
    Ok(StatusCode::OK)
}

pub async fn unload(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(parts): Parts,
) -> Result<StatusCode, Failure> {
    calls::unload(&front, &caller, part(&parts, "model").unwrap_or_default())?;
    Ok(StatusCode::OK)
}
