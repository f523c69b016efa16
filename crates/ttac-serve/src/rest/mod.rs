//! The Open Inference Protocol over HTTP, with Triton's extensions.

mod infer;
mod models;
mod repository;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::failure::Failure;
use crate::front::Front;

/// Routes of the protocol.
pub fn router(front: &Arc<Front>) -> Router {
    let routes = Router::new()
        .route("/v2", get(models::server))
        .route("/v2/", get(models::server))
        .route("/v2/health/live", get(models::live))
        .route("/v2/health/ready", get(models::ready))
        .route("/v2/models/stats", get(models::all_statistics))
        .route("/v2/models/{model}", get(models::metadata))
        .route(
            "/v2/models/{model}/versions/{version}",
            get(models::metadata),
        )
        .route("/v2/models/{model}/ready", get(models::model_ready))
        .route(
            "/v2/models/{model}/versions/{version}/ready",
            get(models::model_ready),
        )
        .route("/v2/models/{model}/config", get(models::config))
        .route(
            "/v2/models/{model}/versions/{version}/config",
            get(models::config),
        )
        .route("/v2/models/{model}/stats", get(models::statistics))
        .route(
            "/v2/models/{model}/versions/{version}/stats",
            get(models::statistics),
        )
        .route("/v2/models/{model}/infer", post(infer::infer))
        .route(
            "/v2/models/{model}/versions/{version}/infer",
            post(infer::infer),
        )
        .route("/v2/repository/index", post(repository::index))
        .route("/v2/repository/models/{model}/load", post(repository::load))
        .route(
            "/v2/repository/models/{model}/unload",
            post(repository::unload),
        );
    finish(routes, front, "rest")
}

/// Adds what all routers have: errors in JSON, callers, counters.
pub(crate) fn finish(
    routes: Router<Arc<Front>>,
    front: &Arc<Front>,
    transport: &'static str,
) -> Router {
    let counted = (front.clone(), transport);
    routes
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(front.clone(), find_caller))
        .layer(middleware::from_fn_with_state(counted, count))
        .with_state(front.clone())
}

async fn unknown(request: Request) -> Failure {
    let path = request.uri().path();
    Failure::new(StatusCode::NOT_FOUND, format!("nothing is at `{path}`"))
}

async fn other_method(request: Request) -> Failure {
    let (method, path) = (request.method(), request.uri().path());
    let text = format!("`{path}` does not take {method}");
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, text)
}

/// Paths that everybody may ask for, so that probes and browsers need no token.
const OPEN: [&str; 9] = [
    "/v2",
    "/v2/",
    "/v2/health/live",
    "/v2/health/ready",
    "/openapi.json",
    "/",
    "/page.js",
    "/curves.js",
    "/page.css",
];

async fn find_caller(
    State(front): State<Arc<Front>>,
    mut request: Request,
    next: Next,
) -> Response {
    let refused = {
        let text = |name| {
            let header = request.headers().get(name);
            header.map(|value| value.to_str().unwrap_or("?"))
        };
        front
            .check_origin(text(header::HOST), text(header::ORIGIN))
            .err()
    };
    if let Some(failure) = refused {
        return failure.into_response();
    }
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let header = request.headers().get(header::AUTHORIZATION);
    match front.caller(header.map(|value| value.to_str().unwrap_or_default())) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(failure) => failure.into_response(),
    }
}

async fn count(
    State((front, transport)): State<(Arc<Front>, &'static str)>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = in_json(next.run(request).await).await;
    let status = response.status().as_u16();
    front.counters.request(transport, status);
    tracing::debug!(transport, %method, path, status, "request");
    response
}

/// Makes errors that come from below the handlers, such as paths that are no text, errors like all others.
async fn in_json(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let plain = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !plain || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = axum::body::to_bytes(response.into_body(), 4096).await;
    let text = text.map(|text| String::from_utf8_lossy(&text).into_owned());
    let text = text.ok().filter(|text| !text.is_empty());
    let reason = || {
        status
            .canonical_reason()
            .unwrap_or("refused")
            .to_lowercase()
    };
    Failure::new(status, text.unwrap_or_else(reason)).into_response()
}
