//! Administration: streams, their modes and versions, late labels, events, metrics, the page.

mod events;
mod streams;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};

use crate::failure::Failure;
use crate::front::Front;
use crate::metrics;
use crate::rest::finish;
use crate::tokens::{Caller, Role};

/// The description of every path, for tools that read such.
pub const OPENAPI: &str = include_str!("openapi.json");

const PAGE: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const CURVES: &str = include_str!("page/curves.js");
const STYLE: &str = include_str!("page/page.css");
const ICON: &str = include_str!("page/icon.svg");

/// The page loads nothing from anywhere else.
const POLICY: &str =
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Routes of administration.
pub fn router(front: &Arc<Front>) -> Router {
    let routes = Router::new()
        .route("/v2/models/{model}/streams", get(streams::list))
        .route(
            "/v2/models/{model}/streams/{stream}",
            get(streams::one).delete(streams::delete),
        )
        .route(
            "/v2/models/{model}/streams/{stream}/mode",
            post(streams::mode),
        )
        .route(
            "/v2/models/{model}/streams/{stream}/rollback",
            post(streams::rollback),
        )
        .route(
            "/v2/models/{model}/streams/{stream}/snapshot",
            post(streams::snapshot),
        )
        .route(
            "/v2/models/{model}/streams/{stream}/versions/{version}/model",
            get(streams::checkpoint),
        )
        .route(
            "/v2/models/{model}/streams/{stream}/feedback",
            post(streams::feedback),
        )
        .route(
            "/v2/models/{model}/streams/{stream}/events",
            get(events::events),
        )
        .route("/v2/models", get(streams::models))
        .route("/metrics", get(measured))
        .route(
            "/openapi.json",
            get(|| async { file("application/json", OPENAPI) }),
        )
        .route(
            "/",
            get(|| async { file("text/html; charset=utf-8", PAGE) }),
        )
        .route(
            "/page.js",
            get(|| async { file("text/javascript; charset=utf-8", SCRIPT) }),
        )
        .route(
            "/curves.js",
            get(|| async { file("text/javascript; charset=utf-8", CURVES) }),
        )
        .route(
            "/page.css",
            get(|| async { file("text/css; charset=utf-8", STYLE) }),
        )
        .route("/icon.svg", get(|| async { file("image/svg+xml", ICON) }));
    finish(routes, front, "admin")
}

fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, content)
}

async fn measured(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, Failure> {
    caller.check(Role::Read)?;
    let shared = front.clone();
    let text = front
        .call(move |service| metrics::render(service, &shared.counters))
        .await?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    ))
}
