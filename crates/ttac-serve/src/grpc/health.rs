//! Whether the server takes requests, for those who balance between servers.

use std::sync::Arc;
use std::time::Duration;

use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::generated::health::health_check_response::ServingStatus;
use super::generated::health::{HealthCheckRequest, HealthCheckResponse, health_server};
use super::status::refused;
use super::{HEALTH, INFERENCE};
use crate::api::Refusal;
use crate::front::{Front, busy};

/// How soon those who watch hear of a change.
const PAUSE: Duration = Duration::from_millis(500);

pub struct Health {
    front: Arc<Front>,
}

impl Health {
    pub fn new(front: Arc<Front>) -> Self {
        Self { front }
    }
}

fn is_known(service: &str) -> bool {
    ["", INFERENCE, HEALTH].contains(&service)
}

fn status(front: &Front) -> ServingStatus {
    if front.ready() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !is_known(&service) {
            let text = format!("no service is called `{service}`; there is `{INFERENCE}`");
            return Err(refused(Refusal::NotFound(text)));
        }
        Ok(Response::new(response(status(&self.front))))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let place = self.front.watchers.clone().try_acquire_owned();
        let place = place.map_err(|_| refused(busy("too many clients watch")))?;
        let known = is_known(&request.into_inner().service);
        let state = (self.front.clone(), None, place);
        let changes = futures_util::stream::unfold(state, move |(front, last, place)| async move {
            loop {
                let now = if known {
                    status(&front)
                } else {
                    ServingStatus::ServiceUnknown
                };
                if last != Some(now) {
                    return Some((Ok(response(now)), (front, Some(now), place)));
                }
                // A server that ends does not wait for those who watch it end.
                if front.draining() {
                    return None;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
