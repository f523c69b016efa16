//! One-shot requests to routers, without sockets.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::Value;
use tower::ServiceExt;
use ttac_serve::oip::Limits;
use ttac_serve::tokens::Tokens;
use ttac_serve::{Front, admin, grpc, rest};

use crate::formula::Formula;

/// A front before the formula.
pub struct World {
    pub formula: Arc<Formula>,
    pub front: Arc<Front>,
    runtime: tokio::runtime::Runtime,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The text of an error, which has to be all that the body says.
    pub fn error(&self) -> String {
        let json = self.json();
        assert_eq!(json.as_object().unwrap().len(), 1, "{json}");
        json["error"].as_str().unwrap().to_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(None, Limits::default())
    }

    pub fn with(tokens: Option<Tokens>, limits: Limits) -> Self {
        let formula = Formula::new();
        let front = Arc::new(Front::new(formula.clone(), limits, tokens));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            formula,
            front,
            runtime: runtime.unwrap(),
        }
    }

    pub fn rest(&self, request: Request<Body>) -> Answer {
        self.send(rest::router(&self.front), request)
    }

    pub fn admin(&self, request: Request<Body>) -> Answer {
        self.send(admin::router(&self.front), request)
    }

    pub fn grpc(&self, request: Request<Body>) -> Answer {
        self.send(grpc::router(&self.front), request)
    }

    /// Waits for what a client does.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn send(&self, router: Router, request: Request<Body>) -> Answer {
        self.runtime.block_on(async {
            let response = router.oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
            Answer {
                status: parts.status,
                headers: parts.headers,
                body: body.to_vec(),
            }
        })
    }
}

/// A request; headers are pairs.
pub fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

pub fn get(path: &str) -> Request<Body> {
    request("GET", path, &[], Body::empty())
}

pub fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    request("POST", path, &[], body)
}
