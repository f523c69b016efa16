//! The protocol over gRPC: every call, both forms of values, limits, tokens, streams.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use proptest::prelude::*;
use prost::Message;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tonic::{Code, Request, Status};
use ttac_serve::api::Lane;
use ttac_serve::grpc;
use ttac_serve::grpc::generated::health::health_check_response::ServingStatus;
use ttac_serve::grpc::generated::health::{HealthCheckRequest, health_client::HealthClient};
use ttac_serve::grpc::generated::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use ttac_serve::grpc::generated::inference::infer_parameter::ParameterChoice;
use ttac_serve::grpc::generated::inference::infer_parameter::ParameterChoice::{
    BoolParam, Int64Param, StringParam, Uint64Param,
};
use ttac_serve::grpc::generated::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use ttac_serve::grpc::generated::inference::{
    DataType, InferParameter, InferTensorContents, ModelConfigRequest, ModelInferRequest,
    ModelInferResponse, ModelMetadataRequest, ModelReadyRequest, ModelRepositoryParameter,
    ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest, ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest,
};
use ttac_serve::oip::{Encoding, Limits, compress};
use ttac_serve::tokens::Tokens;

use crate::http::{World, request as http_request};

type Client = GrpcInferenceServiceClient<Router>;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

fn client(world: &World) -> Client {
    Client::new(grpc::router(&world.front))
}

fn parameters(each: &[(&str, ParameterChoice)]) -> HashMap<String, InferParameter> {
    let each = each.iter().map(|(name, value)| {
        let value = InferParameter {
            parameter_choice: Some(value.clone()),
        };
        ((*name).to_owned(), value)
    });
    each.collect()
}

fn text(text: &str) -> ParameterChoice {
    StringParam(text.to_owned())
}

/// An image whose first byte decides the class.
fn image(first: u8) -> Vec<u8> {
    let mut pixels = vec![0; 48];
    pixels[0] = first;
    pixels
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

/// A request with one image.
fn one_image(first: u8) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: vec![input("images", "UINT8", &[1, 4, 4, 3])],
        raw_input_contents: vec![image(first)],
        ..ModelInferRequest::default()
    }
}

/// The same with its values in the field of their datatype.
fn in_contents(first: u8) -> ModelInferRequest {
    let mut request = one_image(first);
    let pixels = request.raw_input_contents.remove(0);
    request.inputs[0].contents = Some(InferTensorContents {
        uint_contents: pixels.into_iter().map(u32::from).collect(),
        ..InferTensorContents::default()
    });
    request
}

fn named(stream: &str, first: u8) -> ModelInferRequest {
    ModelInferRequest {
        parameters: parameters(&[("stream", text(stream))]),
        ..one_image(first)
    }
}

fn output(name: &str, each: &[(&str, ParameterChoice)]) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor {
        name: name.to_owned(),
        parameters: parameters(each),
    }
}

fn infer(
    world: &World,
    request: impl tonic::IntoRequest<ModelInferRequest>,
) -> Result<ModelInferResponse, Status> {
    let answer = world.wait(client(world).model_infer(request));
    answer.map(tonic::Response::into_inner)
}

/// A message as it is sent, of which the head says whether it is compressed.
fn frame(compressed: u8, message: &[u8]) -> Vec<u8> {
    let mut frame = vec![compressed];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    frame
}

/// Sends bytes as a call; returns the code and the text of its failure.
fn send(world: &World, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (String, String) {
    let mut all = vec![("content-type", "application/grpc"), ("te", "trailers")];
    all.extend(headers);
    let answer = world.grpc(http_request("POST", path, &all, body));
    assert_eq!(answer.status.as_u16(), 200);
    Status::from_header_map(&answer.headers)
        .map(|status| {
            (
                (status.code() as u8).to_string(),
                status.message().to_owned(),
            )
        })
        .unwrap_or_default()
}

#[test]
fn server_and_models_describe_themselves() {
    let world = World::new();
    let mut client = client(&world);
    world.wait(async {
        assert!(
            client
                .server_live(ServerLiveRequest {})
                .await
                .unwrap()
                .into_inner()
                .live
        );
        assert!(
            client
                .server_ready(ServerReadyRequest {})
                .await
                .unwrap()
                .into_inner()
                .ready
        );
        let server = client
            .server_metadata(ServerMetadataRequest {})
            .await
            .unwrap()
            .into_inner();
        assert_eq!((server.name.as_str(), server.extensions.len()), ("ttac", 7));
        for version in ["", "1"] {
            let (name, version) = ("m".to_owned(), version.to_owned());
            let asked = ModelReadyRequest {
                name: name.clone(),
                version: version.clone(),
            };
            assert!(client.model_ready(asked).await.unwrap().into_inner().ready);
            let asked = ModelMetadataRequest {
                name: name.clone(),
                version: version.clone(),
            };
            let model = client.model_metadata(asked).await.unwrap().into_inner();
            assert_eq!(model.versions, ["0", "1"]);
            assert_eq!(model.platform, "ttac_safetensors");
            assert_eq!(
                (
                    model.inputs[0].name.as_str(),
                    model.inputs[0].datatype.as_str()
                ),
                ("images", "UINT8")
            );
            assert_eq!(
                (model.inputs.len(), &model.inputs[0].shape),
                (1, &vec![-1, 4, 4, 3])
            );
            assert_eq!(model.outputs[0].shape, [-1, 2]);
            let config = client
                .model_config(ModelConfigRequest { name, version })
                .await
                .unwrap();
            let config = config.into_inner().config.unwrap();
            assert_eq!(
                (config.max_batch_size, config.backend.as_str()),
                (64, "ttac")
            );
            assert_eq!(
                (config.input[0].data_type(), &config.input[0].dims),
                (DataType::TypeUint8, &vec![4, 4, 3])
            );
            let label = config
                .output
                .iter()
                .find(|output| output.name == "label")
                .unwrap();
            assert_eq!(
                (label.data_type(), &label.dims),
                (DataType::TypeString, &vec![1])
            );
            assert_eq!(label.reshape.as_ref().unwrap().shape, [0; 0]);
        }
        let asked = |name: &str, version: &str| ModelStatisticsRequest {
            name: name.to_owned(),
            version: version.to_owned(),
        };
        let all = client
            .model_statistics(asked("", ""))
            .await
            .unwrap()
            .into_inner()
            .model_stats;
        assert_eq!(all.len(), 2);
        let one = client
            .model_statistics(asked("m", "1"))
            .await
            .unwrap()
            .into_inner()
            .model_stats;
        assert_eq!(one, all[1..]);
        let (stats, passes) = (
            one[0].inference_stats.as_ref().unwrap(),
            &one[0].batch_stats[0],
        );
        assert_eq!((one[0].execution_count, one[0].inference_count), (3, 6));
        assert_eq!(
            stats
                .success
                .as_ref()
                .map(|success| (success.count, success.ns)),
            Some((3, 9_000_000))
        );
        assert_eq!(
            (passes.batch_size, passes.compute_infer.as_ref().unwrap().ns),
            (2, 6_000_000)
        );
    });
}

#[test]
fn the_repository_lists_what_is_configured() {
    let world = World::new();
    let mut client = client(&world);
    world.wait(async {
        let asked = |ready| RepositoryIndexRequest {
            ready,
            ..RepositoryIndexRequest::default()
        };
        let listed = client
            .repository_index(asked(true))
            .await
            .unwrap()
            .into_inner()
            .models;
        let (model, state) = (&listed[1], listed[1].state.as_str());
        assert_eq!(
            (model.name.as_str(), model.version.as_str(), state),
            ("m", "1", "READY")
        );
        let load = |name: &str| RepositoryModelLoadRequest {
            model_name: name.to_owned(),
            ..RepositoryModelLoadRequest::default()
        };
        client.repository_model_load(load("m")).await.unwrap();
        assert_eq!(
            client
                .repository_model_load(load("x"))
                .await
                .unwrap_err()
                .code(),
            Code::NotFound
        );
        let with_files = RepositoryModelLoadRequest {
            parameters: HashMap::from([("config".to_owned(), ModelRepositoryParameter::default())]),
            ..load("m")
        };
        let refused = client.repository_model_load(with_files).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(
            "parameter `config`: models are loaded as the server's configuration says"
        ));
        let unload = RepositoryModelUnloadRequest {
            model_name: "m".to_owned(),
            ..RepositoryModelUnloadRequest::default()
        };
        let refused = client.repository_model_unload(unload).await.unwrap_err();
        assert!(refused.message().contains("stays loaded"), "{refused}");

        world.formula.loading.store(true, Ordering::Relaxed);
        let listed = client
            .repository_index(asked(false))
            .await
            .unwrap()
            .into_inner()
            .models;
        assert_eq!(listed[0].state, "LOADING");
        assert!(
            client
                .repository_index(asked(true))
                .await
                .unwrap()
                .into_inner()
                .models
                .is_empty()
        );
        let ready = ModelReadyRequest {
            name: "m".to_owned(),
            ..ModelReadyRequest::default()
        };
        assert!(!client.model_ready(ready).await.unwrap().into_inner().ready);
        assert!(
            !client
                .server_ready(ServerReadyRequest {})
                .await
                .unwrap()
                .into_inner()
                .ready
        );
        assert!(
            client
                .server_live(ServerLiveRequest {})
                .await
                .unwrap()
                .into_inner()
                .live
        );
        assert_eq!(
            client
                .repository_model_load(load("m"))
                .await
                .unwrap_err()
                .code(),
            Code::Unavailable
        );
    });
}

#[test]
fn an_answer_has_the_form_of_the_request_unless_it_says_otherwise() {
    let world = World::new();
    let probabilities: Vec<u8> = [0.25_f32, 0.75]
        .iter()
        .flat_map(|p| p.to_le_bytes())
        .collect();
    for (request, binary) in [
        (one_image(3), true),
        (in_contents(3), false),
        (
            ModelInferRequest {
                parameters: parameters(&[("binary_data_output", BoolParam(false))]),
                ..one_image(3)
            },
            false,
        ),
        (
            ModelInferRequest {
                parameters: parameters(&[("binary_data_output", BoolParam(true))]),
                ..in_contents(3)
            },
            true,
        ),
    ] {
        let answer = infer(&world, request).unwrap();
        let names: Vec<&str> = answer
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        assert_eq!(names, ["probabilities", "class", "label"]);
        let datatypes: Vec<&str> = answer
            .outputs
            .iter()
            .map(|output| output.datatype.as_str())
            .collect();
        assert_eq!(datatypes, ["FP32", "INT64", "BYTES"]);
        assert_eq!(answer.outputs[0].shape, [1, 2]);
        if binary {
            assert_eq!(
                answer.raw_output_contents,
                [
                    probabilities.clone(),
                    1_u64.to_le_bytes().to_vec(),
                    b"\x01\0\0\0b".to_vec()
                ]
            );
            assert!(
                answer
                    .outputs
                    .iter()
                    .all(|output| output.contents.is_none())
            );
        } else {
            assert!(answer.raw_output_contents.is_empty());
            let contents: Vec<_> = answer
                .outputs
                .into_iter()
                .map(|output| output.contents.unwrap())
                .collect();
            assert_eq!(contents[0].fp32_contents, [0.25, 0.75]);
            assert_eq!(contents[1].int64_contents, [1]);
            assert_eq!(contents[2].bytes_contents, [b"b"]);
        }
    }
}

#[test]
fn an_answer_says_who_gave_it_and_what_becomes_of_the_images() {
    let world = World::new();
    let request = ModelInferRequest {
        id: "42".to_owned(),
        outputs: vec![output("class", &[]), output("source_class", &[])],
        ..named("cam1", 3)
    };
    let answer = infer(&world, request).unwrap();
    assert_eq!(
        (
            answer.model_name.as_str(),
            answer.model_version.as_str(),
            answer.id.as_str()
        ),
        ("m", "1", "42")
    );
    let expected = [
        ("stream", text("cam1")),
        ("weights_version", Int64Param(17)),
        ("weights", text("b3:5f0c9a1e2d3b4c5d")),
        ("mode", text("active")),
        ("health", text("healthy")),
        ("learned", text("accepted")),
        ("seq", Int64Param(10_432)),
    ];
    assert_eq!(answer.parameters, parameters(&expected));
    let classes = [1_i64.to_le_bytes().to_vec(), 0_i64.to_le_bytes().to_vec()];
    assert_eq!(answer.raw_output_contents, classes);
}

#[test]
fn what_a_request_says_reaches_the_service() {
    let world = World::new();
    let request = ModelInferRequest {
        model_version: "0".to_owned(),
        parameters: parameters(&[
            ("sequence_id", Uint64Param(1 << 63)),
            ("sequence_start", BoolParam(true)),
            ("learn", BoolParam(false)),
            ("at", Int64Param(12)),
        ]),
        ..one_image(1)
    };
    let mut request = Request::new(request);
    request.set_timeout(Duration::from_mins(1));
    let answer = infer(&world, request).unwrap();
    assert_eq!(answer.model_version, "0");
    assert_eq!(
        answer.parameters["learned"],
        parameters(&[("", text("off"))])[""]
    );
    let asked = world.formula.requests.lock().unwrap().pop().unwrap();
    assert_eq!(
        (asked.stream.as_str(), asked.lane, asked.at),
        ("9223372036854775808", Some(Lane::Source), Some(12))
    );
    assert!(!asked.learn && !asked.source_too && asked.deadline.is_some());

    let mut request = Request::new(one_image(1));
    request
        .metadata_mut()
        .insert("ttac-stream", "cam-2".parse().unwrap());
    infer(&world, request).unwrap();
    let asked = world.formula.requests.lock().unwrap().pop().unwrap();
    assert_eq!((asked.stream.as_str(), asked.deadline), ("cam-2", None));
    let end = parameters(&[("stream", text("cam-1")), ("sequence_end", BoolParam(true))]);
    infer(
        &world,
        ModelInferRequest {
            parameters: end,
            ..one_image(1)
        },
    )
    .unwrap();
    assert_eq!(
        world.formula.calls.lock().unwrap().last().unwrap(),
        "snapshot cam-1"
    );
}

#[test]
fn files_come_raw_in_contents_or_in_base64() {
    let world = World::new();
    let mut png = std::io::Cursor::new(Vec::new());
    let picture = image::RgbImage::from_pixel(4, 4, image::Rgb([3, 0, 0]));
    picture.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let file = png.into_inner();
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &file);
    let files = |contents: Option<Vec<u8>>, content_type: &str| ModelInferRequest {
        inputs: vec![InferInputTensor {
            parameters: parameters(&[("content_type", text(content_type))]),
            contents: contents.map(|file| InferTensorContents {
                bytes_contents: vec![file],
                ..InferTensorContents::default()
            }),
            ..input("files", "BYTES", &[1])
        }],
        raw_input_contents: Vec::new(),
        ..one_image(0)
    };
    let mut raw = (file.len() as u32).to_le_bytes().to_vec();
    raw.extend(&file);
    let raw = ModelInferRequest {
        raw_input_contents: vec![raw],
        ..files(None, "")
    };
    for request in [
        raw,
        files(Some(file.clone()), ""),
        files(Some(base64.into_bytes()), "base64"),
    ] {
        infer(&world, request).unwrap();
        let asked = world.formula.requests.lock().unwrap().pop().unwrap();
        assert_eq!(
            asked.samples.as_images().unwrap().each().next().unwrap()[..3],
            [3, 0, 0]
        );
    }
    let cut = infer(&world, files(Some(file[..20].to_vec()), "")).unwrap_err();
    assert_eq!(cut.code(), Code::InvalidArgument);
    assert!(
        cut.message().starts_with("input `files`: file 0: "),
        "{cut}"
    );
}

#[test]
fn the_best_classes_are_named() {
    let world = World::new();
    let request = ModelInferRequest {
        outputs: vec![output(
            "probabilities",
            &[("classification", Int64Param(2))],
        )],
        ..in_contents(3)
    };
    let answer = infer(&world, request).unwrap();
    assert_eq!(
        (
            answer.outputs[0].datatype.as_str(),
            &answer.outputs[0].shape
        ),
        ("BYTES", &vec![1, 2])
    );
    let contents = answer.outputs[0].contents.as_ref().unwrap();
    assert_eq!(contents.bytes_contents, [b"0.750000:1:b", b"0.250000:0:a"]);
}

#[test]
fn every_refusal_has_its_code() {
    let world = World::new();
    let with = |each: &[(&str, ParameterChoice)]| ModelInferRequest {
        parameters: parameters(each),
        ..one_image(1)
    };
    let tensor = |tensor: InferInputTensor| ModelInferRequest {
        inputs: vec![tensor],
        ..one_image(1)
    };
    let both = ModelInferRequest {
        raw_input_contents: vec![image(1)],
        ..in_contents(1)
    };
    let wrong_field = ModelInferRequest {
        inputs: vec![InferInputTensor {
            contents: Some(InferTensorContents {
                int_contents: vec![1; 48],
                ..InferTensorContents::default()
            }),
            ..input("images", "UINT8", &[1, 4, 4, 3])
        }],
        raw_input_contents: Vec::new(),
        ..one_image(1)
    };
    for (request, code, words) in [
        (
            ModelInferRequest {
                model_name: "x".to_owned(),
                ..one_image(1)
            },
            Code::NotFound,
            "no model is called `x`; there are `m`",
        ),
        (
            ModelInferRequest {
                model_version: "2".to_owned(),
                ..one_image(1)
            },
            Code::NotFound,
            "no version `2`: expected `0`",
        ),
        (
            ModelInferRequest {
                inputs: vec![],
                raw_input_contents: vec![],
                ..one_image(1)
            },
            Code::InvalidArgument,
            "expected one input, one of `images`",
        ),
        (
            ModelInferRequest {
                raw_input_contents: vec![],
                ..one_image(1)
            },
            Code::InvalidArgument,
            "found neither",
        ),
        (
            ModelInferRequest {
                raw_input_contents: vec![vec![]; 2],
                ..one_image(1)
            },
            Code::InvalidArgument,
            "values of 1 inputs in `raw_input_contents`, found 2",
        ),
        (
            ModelInferRequest {
                raw_input_contents: vec![vec![0; 47]],
                ..one_image(1)
            },
            Code::InvalidArgument,
            "needs 48 bytes, found 47",
        ),
        (both, Code::InvalidArgument, "found both"),
        (
            wrong_field,
            Code::InvalidArgument,
            "of UINT8 in `uint_contents`, found `int_contents`",
        ),
        (
            tensor(input("images", "UINT8", &[-1, 4, 4, 3])),
            Code::InvalidArgument,
            "without negative numbers",
        ),
        (
            tensor(input("images", "INT8", &[1, 4, 4, 3])),
            Code::InvalidArgument,
            "expected datatype UINT8, found INT8",
        ),
        (
            tensor(input("pictures", "UINT8", &[1, 4, 4, 3])),
            Code::InvalidArgument,
            "found `pictures`",
        ),
        (
            ModelInferRequest {
                outputs: vec![output("features", &[])],
                ..one_image(1)
            },
            Code::InvalidArgument,
            "found `features`",
        ),
        (
            ModelInferRequest {
                inputs: vec![InferInputTensor::default(); 9],
                ..one_image(1)
            },
            Code::InvalidArgument,
            "at most 8 `inputs`",
        ),
        (
            with(&[("learn", text("no"))]),
            Code::InvalidArgument,
            "parameter `learn`: expected true or false",
        ),
        (
            with(&[("stream", text("full"))]),
            Code::ResourceExhausted,
            "the share of the client",
        ),
        (
            with(&[("stream", text("slow")), ("timeout", Int64Param(1000))]),
            Code::DeadlineExceeded,
            "time limit",
        ),
        (
            with(&[("stream", text("panic"))]),
            Code::Internal,
            "a fault of the server, number 1 in its log",
        ),
    ] {
        let refused = infer(&world, request).unwrap_err();
        assert_eq!(refused.code(), code, "{words}: {refused}");
        assert!(refused.message().contains(words), "{words}: {refused}");
        let wait = refused.metadata().get("grpc-retry-pushback-ms");
        assert_eq!(wait.is_some(), code == Code::ResourceExhausted);
    }
    // The time limit of the protocol below is as good as the parameter.
    let mut late = Request::new(named("slow", 1));
    late.set_timeout(Duration::from_millis(1));
    assert_eq!(
        infer(&world, late).unwrap_err().code(),
        Code::DeadlineExceeded
    );
    // Each is counted by the status that HTTP has for it.
    let metrics = world.admin(crate::http::get("/metrics")).body;
    let metrics = String::from_utf8(metrics).unwrap();
    for line in [
        "ttac_requests_total{transport=\"grpc\",code=\"400\"} 12",
        "ttac_requests_total{transport=\"grpc\",code=\"504\"} 2",
        "ttac_requests_total{transport=\"grpc\",code=\"429\"} 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in:\n{metrics}"
        );
    }
}

#[test]
fn messages_are_bounded_also_when_they_are_compressed() {
    let limits = Limits {
        body: 10_000,
        ..Limits::default()
    };
    let world = World::with(None, limits);
    let message = one_image(3).encode_to_vec();
    let gzip = [("grpc-encoding", "gzip")];
    let compressed = compress(Encoding::Gzip, message.clone());
    assert_eq!(send(&world, INFER, &gzip, frame(1, &compressed)).0, "");
    // A message may stay as it is among those that are compressed.
    assert_eq!(send(&world, INFER, &gzip, frame(0, &message)).0, "");
    let bomb = compress(Encoding::Gzip, vec![0; 1 << 18]);
    assert!(bomb.len() < 10_000);
    let ready = "/inference.GRPCInferenceService/ModelReady";
    let large = vec![0; 10_001];
    for (path, headers, body, code, words) in [
        (INFER, &[][..], frame(0, &large), "8", "at most 10000 bytes"),
        // What its head says is enough.
        (
            INFER,
            &[],
            frame(0, &large)[..50].to_vec(),
            "8",
            "at most 10000 bytes",
        ),
        (
            INFER,
            &gzip,
            frame(1, &bomb),
            "8",
            "at most 10000 bytes, also when it is decompressed",
        ),
        (ready, &[], frame(0, &large), "8", "at most 10000 bytes"),
        (INFER, &gzip, frame(1, b"abc"), "3", "no whole `gzip`"),
        (
            INFER,
            &[],
            frame(1, b"abc"),
            "3",
            "`grpc-encoding` does not say how",
        ),
        (
            INFER,
            &[("grpc-encoding", "br")],
            frame(1, b"abc"),
            "3",
            "found `br`",
        ),
        (
            INFER,
            &[],
            frame(2, &message),
            "3",
            "begins with 0 or 1, found 2",
        ),
        (
            INFER,
            &[],
            frame(0, &message)[..20].to_vec(),
            "3",
            "ends before its message",
        ),
        (INFER, &[], vec![0, 0], "3", "ends before its message"),
        (
            INFER,
            &[],
            frame(0, b"\x0bx"),
            "3",
            "found bytes that are no message",
        ),
        (
            INFER,
            &[],
            [frame(0, &message), frame(0, &message)].concat(),
            "3",
            "expected a call of one message",
        ),
        (
            INFER,
            &[("grpc-timeout", "soon")],
            frame(0, &message),
            "3",
            "found `soon`",
        ),
        // A name that is no text.
        (INFER, &[], frame(0, b"\x0a\x01\xff"), "3", "UTF-8"),
        (INFER, &[], vec![], "3", "ends before its message"),
    ] {
        let (found, text) = send(&world, path, headers, body);
        assert_eq!(found, code, "{words}: {text}");
        assert!(text.contains(words), "{words}: {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A right message of which some bytes are others.
    #[test]
    fn any_bytes_have_an_answer(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), contents: bool) {
        let world = World::new();
        let mut request = if contents { in_contents(3) } else { named("cam", 3) };
        request.outputs = vec![output("probabilities", &[("classification", Int64Param(2))])];
        let mut message = request.encode_to_vec();
        for (place, byte) in changes {
            let length = message.len();
            message[place.index(length)] = byte;
        }
        let (code, text) = send(&world, INFER, &[], frame(0, &message));
        prop_assert!(["", "3", "4", "5", "8"].contains(&code.as_str()), "{code}: {text}");
        prop_assert!(!text.contains("a fault of the server"), "{text}");
        let body = [frame(0, &message), message].concat();
        let path = "/inference.GRPCInferenceService/ModelStreamInfer";
        let (code, text) = send(&world, path, &[], body);
        prop_assert!(code.is_empty(), "{code}: {text}");
    }
}

#[test]
fn what_is_not_there_is_unimplemented() {
    let world = World::new();
    for path in [
        "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
        "/other.Service/Call",
        "/v2",
        "/",
    ] {
        let (code, text) = send(&world, path, &[], frame(0, b""));
        assert_eq!(code, "12", "{path}");
        assert!(text.contains(path), "{text}");
    }
    // Whoever speaks something else is told in the words of HTTP.
    for content in ["application/json", "application/grpc-web", ""] {
        let headers = [("content-type", content)];
        let other = world.grpc(http_request("POST", INFER, &headers, "{}"));
        assert_eq!(other.status.as_u16(), 415, "{content}");
        assert!(other.error().contains("this port speaks gRPC alone"));
    }
    let page = [("origin", "http://elsewhere"), ("host", "here")];
    assert_eq!(send(&world, INFER, &page, frame(0, b"")).0, "7");
}

#[test]
fn a_server_that_ends_takes_nothing_new() {
    let world = World::new();
    world.front.drain();
    assert_eq!(
        infer(&world, one_image(1)).unwrap_err().code(),
        Code::Unavailable
    );
    let ready = world.wait(client(&world).server_ready(ServerReadyRequest {}));
    assert!(!ready.unwrap().into_inner().ready);
}

// ------------------------------------------------------------------------------------- streams

#[test]
fn a_stream_is_answered_in_order_and_goes_on_after_a_mistake() {
    let world = World::new();
    let requests = (0..5).map(|number| ModelInferRequest {
        id: number.to_string(),
        ..if number == 2 {
            named("full", 1)
        } else {
            named("cam", number as u8)
        }
    });
    let requests: Vec<_> = requests.collect();
    let answers = world.wait(async {
        let answers = client(&world)
            .model_stream_infer(tokio_stream::iter(requests))
            .await
            .unwrap();
        answers.into_inner().collect::<Vec<_>>().await
    });
    assert_eq!(answers.len(), 5);
    for (number, answer) in answers.into_iter().enumerate() {
        let answer = answer.unwrap();
        let response = answer.infer_response.unwrap();
        assert_eq!(response.id, number.to_string());
        assert_eq!(
            response.parameters["triton_final_response"],
            parameters(&[("", BoolParam(true))])[""]
        );
        if number == 2 {
            assert!(answer.error_message.contains("the share of the client"));
        } else {
            assert_eq!(answer.error_message, "");
            assert_eq!(
                response.raw_output_contents[1],
                (number as u64 % 2).to_le_bytes()
            );
        }
    }
}

#[test]
fn a_stream_ends_with_what_is_no_message_and_with_the_server() {
    let world = World::new();
    let path = "/inference.GRPCInferenceService/ModelStreamInfer";
    let body = [frame(0, &one_image(1).encode_to_vec()), frame(0, b"\x0bx")].concat();
    let headers = [("content-type", "application/grpc")];
    let answer = world.grpc(http_request("POST", path, &headers, body));
    // The first is answered; what comes after the answers is the failure.
    assert_eq!(answer.header("grpc-status"), "");
    assert!(answer.body.len() > 50);
    world.wait(async {
        // A client that sends one request and then waits for ever.
        let silent = tokio_stream::iter([one_image(1)]).chain(tokio_stream::pending());
        let mut answers = client(&world)
            .model_stream_infer(silent)
            .await
            .unwrap()
            .into_inner();
        assert!(answers.message().await.unwrap().is_some());
        world.front.drain();
        assert!(answers.message().await.unwrap().is_none());
    });
}

// ------------------------------------------------------------------------------------- health

#[test]
fn balancers_hear_whether_requests_are_taken() {
    let world = World::new();
    let mut client = HealthClient::new(grpc::router(&world.front));
    let asked = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    world.wait(async {
        for service in ["", "inference.GRPCInferenceService"] {
            let health = client.check(asked(service)).await.unwrap().into_inner();
            assert_eq!(health.status(), ServingStatus::Serving);
        }
        let unknown = client.check(asked("other")).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        let mut unknown = client.watch(asked("other")).await.unwrap().into_inner();
        let first = unknown.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::ServiceUnknown);

        let mut watched = client.watch(asked("")).await.unwrap().into_inner();
        assert_eq!(
            watched.message().await.unwrap().unwrap().status(),
            ServingStatus::Serving
        );
        world.formula.loading.store(true, Ordering::Relaxed);
        assert_eq!(
            client.check(asked("")).await.unwrap().into_inner().status(),
            ServingStatus::NotServing
        );
        assert_eq!(
            watched.message().await.unwrap().unwrap().status(),
            ServingStatus::NotServing
        );
        world.front.drain();
        assert!(watched.message().await.unwrap().is_none());
    });
}

#[test]
fn only_so_many_clients_watch() {
    let world = World::new();
    let mut client = HealthClient::new(grpc::router(&world.front));
    world.wait(async {
        let mut watching = Vec::new();
        let refused = loop {
            match client.watch(HealthCheckRequest::default()).await {
                Ok(one) => watching.push(one),
                Err(status) => break status,
            }
            assert!(watching.len() < 1000, "somebody has to be refused");
        };
        assert_eq!(refused.code(), Code::Unavailable);
        watching.pop();
        client.watch(HealthCheckRequest::default()).await.unwrap();
    });
}

// ------------------------------------------------------------------------------------- tokens

const ROLES: [&str; 5] = ["predict", "learn", "feedback", "read", "admin"];

fn guarded() -> World {
    let token = |name: &str, rest: &str| {
        let digest = blake3::hash(format!("{name}-token").as_bytes()).to_hex();
        format!("[[token]]\nname = '{name}'\ndigest = '{digest}'\n{rest}\n")
    };
    let of_role = |role: &str| token(role, &format!("roles = ['{role}']\nstreams = ['cam-1']"));
    let both = "roles = ['predict', 'learn']\nimages_per_second = 1";
    let text = ROLES.map(of_role).concat() + &token("both", both);
    World::with(Some(Tokens::parse(&text).unwrap()), Limits::default())
}

fn with_token<T>(name: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = format!("Bearer {name}-token").parse().unwrap();
    request.metadata_mut().insert("authorization", header);
    request
}

#[test]
fn each_call_takes_its_roles_alone() {
    let world = guarded();
    let (looking, predicting, changing) =
        (&["predict", "read"][..], &["predict"][..], &["admin"][..]);
    for (call, message, roles) in [
        ("ServerLive", vec![], &ROLES[..]),
        ("ServerReady", vec![], &ROLES),
        ("ServerMetadata", vec![], &ROLES),
        ("ModelReady", b"\x0a\x01m".to_vec(), looking),
        ("ModelMetadata", b"\x0a\x01m".to_vec(), looking),
        ("ModelConfig", b"\x0a\x01m".to_vec(), looking),
        ("ModelStatistics", vec![], looking),
        ("RepositoryIndex", vec![], looking),
        ("RepositoryModelLoad", b"\x12\x01m".to_vec(), changing),
        ("ModelInfer", named("cam-1", 1).encode_to_vec(), predicting),
        (
            "ModelStreamInfer",
            named("cam-1", 1).encode_to_vec(),
            predicting,
        ),
    ] {
        let path = format!("/inference.GRPCInferenceService/{call}");
        let is_open = roles == ROLES;
        for role in ROLES {
            let token = format!("Bearer {role}-token");
            let (code, text) = send(
                &world,
                &path,
                &[("authorization", &token)],
                frame(0, &message),
            );
            let expected = if roles.contains(&role) { "" } else { "7" };
            assert_eq!(code, expected, "{call} as {role}: {text}");
        }
        for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
            let (code, _) = send(&world, &path, headers, frame(0, &message));
            assert_eq!(code, if is_open { "" } else { "16" }, "{call}");
        }
    }
    let health = send(&world, "/grpc.health.v1.Health/Check", &[], frame(0, b""));
    assert_eq!(health.0, "");
}

#[test]
fn streams_of_others_are_not_there_and_shares_are_used_up() {
    let world = guarded();
    let refused = infer(&world, with_token("predict", named("cam-2", 1))).unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::NotFound, "no stream is called `cam-2`")
    );
    let learned = |token: &str| {
        infer(&world, with_token(token, named("cam-1", 1)))
            .unwrap()
            .parameters["learned"]
            .clone()
    };
    assert_eq!(learned("predict"), parameters(&[("", text("off"))])[""]);
    assert_eq!(learned("both"), parameters(&[("", text("accepted"))])[""]);
    let asked = world.formula.requests.lock().unwrap().pop().unwrap();
    assert_eq!(asked.client.as_deref(), Some("both"));
    // Its share is one image a second, and two at once.
    let codes: Vec<Code> = (0..4)
        .map(|_| {
            infer(&world, with_token("both", named("cam-1", 1)))
                .map_or_else(|status| status.code(), |_| Code::Ok)
        })
        .collect();
    assert!(codes.contains(&Code::ResourceExhausted), "{codes:?}");
}

#[test]
fn a_token_that_is_taken_back_ends_in_streams_too() {
    let world = guarded();
    let other = blake3::hash(b"other").to_hex();
    let other = format!("[[token]]\nname = 'other'\ndigest = '{other}'\nroles = ['predict']");
    world.wait(async {
        let (front, mut sent) = (world.front.clone(), 0);
        // The second request comes when the first is answered, and the tokens are others then.
        let answered = world.formula.clone();
        let requests = tokio_stream::StreamExt::take(
            futures_util::stream::poll_fn(move |context| {
                if sent == 1 {
                    if answered.requests.lock().unwrap().is_empty() {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    front.set_tokens(Tokens::parse(&other).unwrap());
                }
                sent += 1;
                Poll::Ready(Some(named("cam-1", 1)))
            }),
            2,
        );
        let answers = client(&world)
            .model_stream_infer(with_token("predict", requests))
            .await
            .unwrap();
        let answers: Vec<_> = answers.into_inner().collect().await;
        assert_eq!(answers[0].as_ref().unwrap().error_message, "");
        let refused = &answers[1].as_ref().unwrap().error_message;
        assert!(
            refused.contains("not one that this server knows"),
            "{refused}"
        );
    });
}
