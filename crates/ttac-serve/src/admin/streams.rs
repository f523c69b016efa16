//! Streams as operators see and change them.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::{Feedback, Mode, Refusal, Rollback, StreamStatus};
use crate::failure::{Failure, json_body};
use crate::front::Front;
use crate::oip::check_depth;
use crate::tokens::{Caller, Role, no_stream};

/// How many streams are listed at once.
const PAGE: usize = 100;

/// The most labels of one request.
const LABELS: usize = 10_000;

/// Model and stream of a path.
pub(super) type Named = Path<(String, String)>;

/// Refuses callers without a role, models that are not there, and streams of others.
pub(super) fn check(
    front: &Front,
    caller: &Caller,
    role: Role,
    named: &(String, String),
) -> Result<(), Failure> {
    caller.check(role)?;
    front.model(&named.0)?;
    Ok(caller.check_stream(&named.1)?)
}

/// Reads a body of JSON.
async fn read<T: DeserializeOwned>(front: &Front, body: Body) -> Result<T, Failure> {
    let body = front.body(body).await?;
    check_depth(&body)?;
    let read = serde_json::from_slice(&body);
    Ok(read.map_err(|error| Refusal::Invalid(format!("the body: {error}")))?)
}

/// Names the caller for the audit trail.
fn by(caller: &Caller) -> String {
    caller.name().unwrap_or("operator").to_owned()
}

fn done() -> impl IntoResponse {
    json_body(&json!({}))
}

// --------------------------------------------------------------------------------------- to look

pub async fn models(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, Failure> {
    caller.check(Role::Read)?;
    let models = front.service().models().into_iter().map(|model| {
        json!({ "name": model.name, "architecture": model.architecture, "classes": model.classes, "ready": model.ready })
    });
    Ok(json_body(&json!({ "models": models.collect::<Vec<_>>() })))
}

pub async fn list(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(model): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<impl IntoResponse, Failure> {
    caller.check(Role::Read)?;
    front.model(&model)?;
    let mut streams = front.call(move |service| service.streams(&model)).await?;
    streams.retain(|stream| caller.sees(&stream.stream));
    streams.sort_by(|a, b| a.stream.cmp(&b.stream));
    let total = streams.len();
    if let Some(after) = query.get("after") {
        streams.retain(|stream| stream.stream > *after);
    }
    let more = streams.len() > PAGE;
    streams.truncate(PAGE);
    let next = streams
        .last()
        .filter(|_| more)
        .map(|stream| stream.stream.clone());
    let streams: Vec<Value> = streams.iter().map(written).collect();
    Ok(json_body(
        &json!({ "streams": streams, "total": total, "next": next }),
    ))
}

pub async fn one(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Read, &named)?;
    let (model, name) = named;
    let status = front.call(move |service| {
        let mut streams = service.streams(&model)?.into_iter();
        streams
            .find(|stream| stream.stream == name)
            .ok_or_else(|| no_stream(&name))
    });
    Ok(json_body(&written(&status.await?)))
}

pub async fn checkpoint(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path((model, stream, version)): Path<(String, String, String)>,
) -> Result<impl IntoResponse, Failure> {
    let named = (model, stream);
    check(&front, &caller, Role::Admin, &named)?;
    let version: u64 = version.parse().map_err(|_| {
        Refusal::NotFound(format!(
            "no version `{version}`: expected the number of a kept one"
        ))
    })?;
    let bytes = front
        .call(move |service| service.checkpoint(&named.0, &named.1, version))
        .await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"model.safetensors\"",
        ),
    ];
    Ok((headers, bytes))
}

/// Writes the state of a stream.
fn written(status: &StreamStatus) -> Value {
    let kept = status
        .kept
        .iter()
        .map(|(version, after, good)| json!({ "version": version, "after": after, "good": good }));
    let guards = status.guards.iter().map(|guard| {
        json!({ "name": guard.name, "value": guard.value, "bound": guard.bound, "alarmed": guard.alarmed })
    });
    let mut written = json!({
        "stream": status.stream,
        "mode": status.mode.name(),
        "health": status.health.name(),
        "accepted": status.accepted,
        "learned": status.learned,
        "pending": status.pending,
        "weights_version": status.version,
        "kept": kept.collect::<Vec<_>>(),
        "guards": guards.collect::<Vec<_>>(),
        "labels": {
            "adapted_right": status.labels.0,
            "source_right": status.labels.1,
            "evidence": status.labels.2,
        },
        "log_bytes": status.log_bytes,
        "memory_bytes": status.memory_bytes,
    });
    match status.mode {
        Mode::Canary(share) => written["share"] = share.into(),
        Mode::Frozen(version) => written["version"] = version.into(),
        Mode::Off | Mode::Shadow | Mode::Active => {}
    }
    written
}

// ------------------------------------------------------------------------------------- to change

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenMode {
    mode: String,
    share: Option<f64>,
    version: Option<u64>,
}

impl WrittenMode {
    fn mode(&self) -> Result<Mode, Refusal> {
        let invalid = |text: String| Err(Refusal::Invalid(text));
        if self.share.is_some() && self.mode != "canary" {
            return invalid(format!(
                "only the mode `canary` has a `share`, found it with `{}`",
                self.mode
            ));
        }
        if self.version.is_some() && self.mode != "frozen" {
            return invalid(format!(
                "only the mode `frozen` has a `version`, found it with `{}`",
                self.mode
            ));
        }
        match (self.mode.as_str(), self.share) {
            ("off", _) => Ok(Mode::Off),
            ("shadow", _) => Ok(Mode::Shadow),
            ("active", _) => Ok(Mode::Active),
            ("frozen", _) => Ok(Mode::Frozen(self.version)),
            ("canary", Some(share)) if (0.0..=1.0).contains(&share) => Ok(Mode::Canary(share)),
            ("canary", Some(share)) => invalid(format!("`share`: expected 0 to 1, found {share}")),
            ("canary", None) => invalid("the mode `canary` needs a `share` from 0 to 1".to_owned()),
            (other, _) => invalid(format!(
                "`mode`: expected `off`, `shadow`, `canary`, `active` or `frozen`, found `{other}`"
            )),
        }
    }
}

pub async fn mode(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
    body: Body,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Admin, &named)?;
    let mode = read::<WrittenMode>(&front, body).await?.mode()?;
    front
        .call(move |service| service.set_mode(&named.0, &named.1, mode, &by(&caller)))
        .await?;
    Ok(done())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRollback {
    to: Value,
    #[serde(default)]
    reason: String,
}

pub async fn rollback(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
    body: Body,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Admin, &named)?;
    let WrittenRollback { to, reason } = read(&front, body).await?;
    let to = match (to.as_str(), to.as_u64()) {
        (Some("source"), _) => Rollback::Source,
        (Some("good"), _) => Rollback::Good,
        (_, Some(version)) => Rollback::Version(version),
        _ => {
            let text = format!(
                "`to`: expected `source`, `good` or the number of a kept version, found {to}"
            );
            return Err(Refusal::Invalid(text).into());
        }
    };
    let done_by = by(&caller);
    front
        .call(move |service| service.roll_back(&named.0, &named.1, to, &done_by, &reason))
        .await?;
    Ok(done())
}

pub async fn snapshot(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Admin, &named)?;
    front
        .call(move |service| service.snapshot(&named.0, &named.1))
        .await?;
    Ok(done())
}

pub async fn delete(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Admin, &named)?;
    front
        .call(move |service| service.delete(&named.0, &named.1, &by(&caller)))
        .await?;
    Ok(done())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenFeedback {
    items: Vec<WrittenLabel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLabel {
    id: String,
    #[serde(default)]
    index: usize,
    label: String,
}

pub async fn feedback(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
    body: Body,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Feedback, &named)?;
    let model = front.model(&named.0)?;
    let items = read::<WrittenFeedback>(&front, body).await?.items;
    if items.len() > LABELS {
        let text = format!(
            "expected at most {LABELS} labels at once, found {}",
            items.len()
        );
        return Err(Refusal::Invalid(text).into());
    }
    let labels = items.into_iter().enumerate().map(|(at, item)| {
        let class = model
            .classes
            .iter()
            .position(|class| *class == item.label)
            .ok_or_else(|| {
                Refusal::Invalid(format!(
                    "item {at}: no class of `{}` is called `{}`",
                    model.name, item.label
                ))
            })?;
        Ok(Feedback {
            id: item.id,
            index: item.index,
            class,
        })
    });
    let labels = labels.collect::<Result<Vec<_>, Refusal>>()?;
    let (matched, unknown) = front
        .call(move |service| service.feedback(&named.0, &named.1, &labels))
        .await?;
    Ok(json_body(
        &json!({ "matched": matched, "unknown": unknown }),
    ))
}
