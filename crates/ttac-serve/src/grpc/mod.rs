//! The Open Inference Protocol over gRPC, with Triton's extensions, and the health service that balancers ask.

mod bounds;
mod codec;
mod frames;
mod health;
mod messages;
mod service;
mod status;

/// What `reference/oip/generate` makes of the descriptions in `reference/oip/proto`. Clients of the services are there too.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod generated {
    /// The package `inference`.
    pub mod inference;

    /// The package `grpc.health.v1`.
    pub mod health;
}

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tonic::Status;
use tonic::service::Routes;

use self::frames::Room;
use self::generated::health::health_server::HealthServer;
use self::generated::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::failure::Failure;
use crate::front::Front;
use crate::oip::Encoding;
use crate::tokens::{Caller, Role};

/// The name of the protocol's service.
const INFERENCE: &str = "inference.GRPCInferenceService";

/// The name of the service that balancers ask.
const HEALTH: &str = "grpc.health.v1.Health";

/// The most bytes of messages that carry no samples.
const SMALL: usize = 64 << 10;

/// The kinds of content that gRPC has.
const CONTENTS: [&str; 2] = ["application/grpc", "application/grpc+proto"];

/// Says how messages are compressed.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Names the stream for clients that cannot set parameters.
const STREAM: &str = "ttac-stream";

/// Routes of the services, which speak HTTP/2 alone.
pub fn router(front: &Arc<Front>) -> Router {
    // Messages are bounded before they come here.
    let inference = service::Inference::new(front.clone());
    let inference =
        GrpcInferenceServiceServer::new(inference).max_decoding_message_size(usize::MAX);
    let health = HealthServer::new(health::Health::new(front.clone()));
    Routes::new(inference)
        .add_service(health)
        .into_axum_router()
        .layer(middleware::from_fn_with_state(front.clone(), receive))
}

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Everybody may ask, so that probes need no token.
    Open,
    /// Predicts once.
    Infer,
    /// Predicts for each of many messages.
    StreamInfer,
    /// Anything else.
    Other,
}

impl Kind {
    /// Finds the call at a path.
    fn of(path: &str) -> Option<Self> {
        let (service, call) = path.strip_prefix('/')?.split_once('/')?;
        match (service, call) {
            (INFERENCE, "ServerLive" | "ServerReady" | "ServerMetadata")
            | (HEALTH, "Check" | "Watch") => Some(Self::Open),
            (INFERENCE, "ModelInfer") => Some(Self::Infer),
            (INFERENCE, "ModelStreamInfer") => Some(Self::StreamInfer),
            (
                INFERENCE,
                "ModelReady"
                | "ModelMetadata"
                | "ModelConfig"
                | "ModelStatistics"
                | "RepositoryIndex"
                | "RepositoryModelLoad"
                | "RepositoryModelUnload",
            ) => Some(Self::Other),
            _ => None,
        }
    }
}

/// What is known of a call before its message has come.
#[derive(Clone)]
struct Arrived {
    begun: Instant,
    caller: Caller,
    /// The header `Authorization`, for calls that are still there when tokens change.
    authorization: Option<String>,
    /// How long the client waits.
    timeout: Option<Duration>,
    /// The stream that a header names.
    stream: Option<String>,
    /// Memory for the message of now.
    room: Room,
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Finds out who asks, puts the limits of bodies around messages, and counts.
async fn receive(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let content = text(request.headers(), header::CONTENT_TYPE).unwrap_or_default();
    let kind = content.split_once(';').map_or(content, |(kind, _)| kind);
    let (response, counted) = if CONTENTS.contains(&kind.trim_end()) {
        let response = match arrive(&front, request) {
            Ok(request) => next.run(request).await,
            Err(status) => status.into_http(),
        };
        let status = response.extensions().get::<Status>();
        let counted = status.map_or(200, status::of_http);
        (response, counted)
    } else {
        // Who asks so does not look for the status of gRPC.
        let expected = "expected the content type `application/grpc`";
        let text = format!("{expected}, found `{content}`; this port speaks gRPC alone");
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        (Failure::new(status, text).into_response(), status.as_u16())
    };
    front.counters.request("grpc", counted);
    tracing::debug!(path, status = counted, "call");
    response
}

/// Does what can be done before the message comes.
fn arrive(front: &Arc<Front>, mut request: Request) -> Result<Request, Status> {
    let begun = Instant::now();
    let path = request.uri().path();
    let Some(kind) = Kind::of(path) else {
        return Err(Status::unimplemented(format!("nothing is at `{path}`")));
    };
    let headers = request.headers();
    let authority = request.uri().authority().map(Authority::as_str);
    let host = authority.or_else(|| text(headers, header::HOST));
    front.check_origin(host, text(headers, header::ORIGIN))?;
    let authorization = text(headers, header::AUTHORIZATION).map(str::to_owned);
    let caller = match kind {
        Kind::Open => Caller::anyone(),
        _ => front.caller(authorization.as_deref())?,
    };
    if matches!(kind, Kind::Infer | Kind::StreamInfer) {
        caller.check(Role::Predict)?;
    }
    let encoding = Encoding::of_body(text(headers, ENCODING)).map_err(Failure::from)?;
    let arrived = Arrived {
        begun,
        caller,
        authorization,
        timeout: status::timeout(text(headers, "grpc-timeout"))?,
        stream: text(headers, STREAM).map(str::to_owned),
        room: Room::default(),
    };
    let room = arrived.room.clone();
    request.extensions_mut().insert(arrived);
    // What comes out of the frames is not compressed.
    request.headers_mut().remove(ENCODING);
    let front = front.clone();
    Ok(request.map(|body| frames::bounded(front, body, kind, encoding, room)))
}
