//! The calls of the protocol.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::codegen::BoxStream;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::Arrived;
use super::generated::inference::grpc_inference_service_server::GrpcInferenceService;
use super::generated::inference::{
    ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
    ServerReadyRequest, ServerReadyResponse,
};
use super::messages::{answered, parameter, read};
use super::status::{of_http, refused};
use crate::api::Refusal;
use crate::calls;
use crate::failure::Failure;
use crate::front::Front;
use crate::inference::{admit, answer};
use crate::oip::{self, Parameter};

/// Says in a stream that an answer is the last one to its request. Here each is.
const FINAL: &str = "triton_final_response";

/// Answers the calls.
pub struct Inference {
    front: Arc<Front>,
}

impl Inference {
    pub fn new(front: Arc<Front>) -> Self {
        Self { front }
    }
}

/// Returns what is known of a call.
fn arrived(extensions: &Extensions) -> Result<Arrived, Status> {
    let arrived = extensions.get::<Arrived>().cloned();
    // The router puts it there.
    arrived.ok_or_else(|| Status::internal("a call came past the router"))
}

/// A version in a message, where an empty one is none.
fn version(version: &str) -> Option<&str> {
    Some(version).filter(|version| !version.is_empty())
}

/// Answers a request for predictions.
async fn infer(
    front: &Arc<Front>,
    arrived: Arrived,
    request: ModelInferRequest,
) -> Result<ModelInferResponse, Failure> {
    let named = version(&request.model_version);
    let (model, lane) = admit(front, &arrived.caller, &request.model_name, named)?;
    let shared = front.clone();
    let done = front.predict(move || {
        let mut request = read(request)?;
        request.timeout = match (request.timeout, arrived.timeout) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let (caller, stream) = (&arrived.caller, arrived.stream.as_deref());
        let to = (&model, lane);
        let answer = answer(&shared, caller, to, (request, stream), arrived.begun)?;
        // Until here the message was held in memory.
        drop(arrived.room);
        Ok(answered(model.name, answer))
    });
    done.await
}

/// A stream of requests that is being answered.
struct Talk {
    front: Arc<Front>,
    arrived: Arrived,
    requests: Streaming<ModelInferRequest>,
}

impl Talk {
    /// Waits for a request and answers it; none at the end of the stream, or of the server.
    async fn next(&mut self) -> Result<Option<ModelStreamInferResponse>, Status> {
        let request = tokio::select! {
            request = self.requests.message() => request?,
            () = self.front.drained() => None,
        };
        let Some(request) = request else {
            return Ok(None);
        };
        let id = request.id.clone();
        let result = self.answer(request).await;
        let counted = result.as_ref().err().map_or(200, of_http);
        self.front.counters.request("grpc", counted);
        let answer = match result {
            Ok(mut response) => {
                let last = parameter(Parameter::Truth(true));
                response.parameters.insert(FINAL.to_owned(), last);
                ModelStreamInferResponse {
                    error_message: String::new(),
                    infer_response: Some(response),
                }
            }
            // The others of the stream are answered all the same.
            Err(status) => ModelStreamInferResponse {
                error_message: status.message().to_owned(),
                infer_response: Some(ModelInferResponse {
                    id,
                    parameters: HashMap::from([(
                        FINAL.to_owned(),
                        parameter(Parameter::Truth(true)),
                    )]),
                    ..ModelInferResponse::default()
                }),
            },
        };
        Ok(Some(answer))
    }

    async fn answer(&self, request: ModelInferRequest) -> Result<ModelInferResponse, Status> {
        let arrived = Arrived {
            begun: std::time::Instant::now(),
            // A token may have been taken back meanwhile.
            caller: self.front.caller(self.arrived.authorization.as_deref())?,
            // The client's time limit is that of the whole stream.
            timeout: None,
            ..self.arrived.clone()
        };
        Ok(infer(&self.front, arrived, request).await?)
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Inference {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        let ready = self.front.ready();
        Ok(Response::new(ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        let asked = request.into_inner();
        let model = calls::look(&self.front, &caller, &asked.name, version(&asked.version))?;
        let ready = calls::check_ready(&self.front, &model).is_ok();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: oip::SERVER.to_owned(),
            version: oip::VERSION.to_owned(),
            extensions: oip::EXTENSIONS.map(str::to_owned).into(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        let asked = request.into_inner();
        let model = calls::look(&self.front, &caller, &asked.name, version(&asked.version))?;
        Ok(Response::new(oip::metadata(&model).into()))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let arrived = arrived(request.extensions())?;
        let response = infer(&self.front, arrived, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    type ModelStreamInferStream = BoxStream<ModelStreamInferResponse>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let talk = Talk {
            front: self.front.clone(),
            arrived: arrived(request.extensions())?,
            requests: request.into_inner(),
        };
        let answers = futures_util::stream::unfold(Some(talk), |talk| async {
            let mut talk = talk?;
            match talk.next().await {
                Ok(answer) => answer.map(|answer| (Ok(answer), Some(talk))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        let asked = request.into_inner();
        let model = calls::look(&self.front, &caller, &asked.name, version(&asked.version))?;
        Ok(Response::new(ModelConfigResponse {
            config: Some(oip::config(&model).into()),
        }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        let asked = request.into_inner();
        let model = Some(asked.name.as_str()).filter(|name| !name.is_empty());
        let lane = version(&asked.version);
        let statistics = calls::statistics(&self.front, &caller, model, lane).await?;
        Ok(Response::new(ModelStatisticsResponse {
            model_stats: statistics.into_iter().map(Into::into).collect(),
        }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        let listed = calls::index(&self.front, &caller, request.into_inner().ready)?;
        Ok(Response::new(RepositoryIndexResponse {
            models: listed.into_iter().map(Into::into).collect(),
        }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        let asked = request.into_inner();
        calls::load(&self.front, &caller, &asked.model_name)?;
        if let Some(name) = asked.parameters.keys().min() {
            return Err(refused(Refusal::Invalid(format!(
                "parameter `{name}`: models are loaded as the server's configuration says, and take no parameters"
            ))));
        }
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let caller = arrived(request.extensions())?.caller;
        calls::unload(&self.front, &caller, &request.into_inner().model_name)?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }
}
