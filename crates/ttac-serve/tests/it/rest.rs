//! The protocol over HTTP: every path, body and status.

use axum::http::StatusCode;
use serde_json::json;
use std::sync::atomic::Ordering;
use ttac_serve::api::Lane;
use ttac_serve::oip::{Encoding, Limits, compress, decompress};

use crate::http::{World, get, post, request};

const INFER: &str = "/v2/models/m/infer";

/// A request with one image, whose first byte decides the class.
fn one_image(first: u8, more: &str) -> String {
    let mut pixels = vec!["0"; 48];
    let first = first.to_string();
    pixels[0] = &first;
    let data = pixels.join(",");
    format!(
        r#"{{"inputs":[{{"name":"images","shape":[1,4,4,3],"datatype":"UINT8","data":[{data}]}}]{more}}}"#
    )
}

#[test]
fn server_and_models_describe_themselves() {
    let world = World::new();
    for path in ["/v2", "/v2/"] {
        let server = world.rest(get(path)).json();
        assert_eq!(server["name"], "ttac");
        assert_eq!(server["extensions"].as_array().unwrap().len(), 7);
    }
    assert_eq!(
        world.rest(get("/v2/health/live")).json(),
        json!({"live": true})
    );
    assert_eq!(
        world.rest(get("/v2/health/ready")).json(),
        json!({"live": true, "ready": true})
    );
    for path in ["/v2/models/m", "/v2/models/m/versions/1"] {
        let model = world.rest(get(path)).json();
        assert_eq!(model["versions"], json!(["0", "1"]));
        assert_eq!(model["platform"], "ttac_safetensors");
        assert_eq!(
            model["inputs"],
            json!([{"name": "images", "datatype": "UINT8", "shape": [-1, 4, 4, 3]}])
        );
        assert_eq!(
            model["outputs"][0],
            json!({"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]})
        );
        assert_eq!(model["parameters"]["instead"][0]["name"], "files");
        assert_eq!(
            world.rest(get(&format!("{path}/ready"))).json(),
            json!({"name": "m", "ready": true})
        );
        let config = world.rest(get(&format!("{path}/config"))).json();
        assert_eq!(
            config["input"],
            json!([{"name": "images", "data_type": "TYPE_UINT8", "dims": [4, 4, 3]}])
        );
        assert_eq!(config["max_batch_size"], 64);
    }
    let all = world.rest(get("/v2/models/stats")).json();
    assert_eq!(all["model_stats"].as_array().unwrap().len(), 2);
    assert_eq!(all["model_stats"][1]["execution_count"], 3);
    assert_eq!(world.rest(get("/v2/models/m/stats")).json(), all);
    let one = world.rest(get("/v2/models/m/versions/1/stats")).json();
    let stats = &one["model_stats"][0];
    assert_eq!(
        stats["inference_stats"]["success"],
        json!({"count": 3, "ns": 9_000_000})
    );
    assert_eq!(
        stats["batch_stats"][0]["compute_infer"],
        json!({"count": 3, "ns": 6_000_000})
    );
}

#[test]
fn the_repository_lists_what_is_configured() {
    let world = World::new();
    for body in ["", r#"{"ready":true}"#] {
        let listed = world.rest(post("/v2/repository/index", body)).json();
        assert_eq!(
            listed[1],
            json!({"name": "m", "version": "1", "state": "READY", "reason": ""})
        );
    }
    assert_eq!(
        world.rest(post("/v2/repository/index", "[")).status,
        StatusCode::BAD_REQUEST
    );
    let load = world.rest(post("/v2/repository/models/m/load", "{}"));
    assert_eq!((load.status, load.body.len()), (StatusCode::OK, 0));
    let unload = world.rest(post("/v2/repository/models/m/unload", "{}"));
    assert!(unload.error().contains("stays loaded"));
    assert_eq!(
        world.rest(post("/v2/repository/models/x/load", "")).status,
        StatusCode::NOT_FOUND
    );

    world.formula.loading.store(true, Ordering::Relaxed);
    assert_eq!(
        world.rest(post("/v2/repository/index", "")).json()[0]["state"],
        "LOADING"
    );
    assert_eq!(
        world
            .rest(post("/v2/repository/index", r#"{"ready":true}"#))
            .json(),
        json!([])
    );
    for path in ["/v2/health/ready", "/v2/models/m/ready"] {
        assert_eq!(
            world.rest(get(path)).status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{path}"
        );
    }
    assert_eq!(world.rest(get("/v2/health/live")).status, StatusCode::OK);
}

#[test]
fn an_answer_says_who_gave_it_and_what_becomes_of_the_images() {
    let world = World::new();
    let more = r#","id":"42","parameters":{"stream":"cam1"},"outputs":[{"name":"class"},{"name":"source_class"}]"#;
    let answer = world.rest(post(INFER, one_image(3, more)));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(
        answer.json(),
        json!({
            "model_name": "m", "model_version": "1", "id": "42",
            "parameters": {"stream": "cam1", "weights_version": 17, "weights": "b3:5f0c9a1e2d3b4c5d", "mode": "active",
                           "health": "healthy", "learned": "accepted", "seq": 10432},
            "outputs": [{"name": "class", "datatype": "INT64", "shape": [1], "data": [1]},
                        {"name": "source_class", "datatype": "INT64", "shape": [1], "data": [0]}],
        })
    );
    let usual = world.rest(post(INFER, one_image(2, ""))).json();
    let names: Vec<&str> = usual["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["probabilities", "class", "label"]);
    assert_eq!(usual["outputs"][0]["data"], json!([0.75, 0.25]));
    assert!(usual.get("id").is_none());
}

#[test]
fn what_a_request_says_reaches_the_service() {
    let world = World::new();
    let more = r#","parameters":{"sequence_id":9,"sequence_start":true,"learn":false,"at":12,"timeout":60000000}"#;
    let answer = world
        .rest(post("/v2/models/m/versions/0/infer", one_image(1, more)))
        .json();
    assert_eq!(
        (&answer["model_version"], &answer["parameters"]["learned"]),
        (&json!("0"), &json!("off"))
    );
    let asked = world.formula.requests.lock().unwrap().pop().unwrap();
    assert_eq!(
        (asked.stream.as_str(), asked.lane, asked.at),
        ("9", Some(Lane::Source), Some(12))
    );
    assert!(!asked.learn && !asked.source_too && asked.deadline.is_some());

    let header = [("ttac-stream", "cam-2")];
    world.rest(request("POST", INFER, &header, one_image(1, "")));
    assert_eq!(
        world.formula.requests.lock().unwrap().pop().unwrap().stream,
        "cam-2"
    );
    let end = r#","parameters":{"stream":"cam-1","sequence_end":true}"#;
    assert_eq!(
        world.rest(post(INFER, one_image(1, end))).status,
        StatusCode::OK
    );
    assert_eq!(
        world.formula.calls.lock().unwrap().last().unwrap(),
        "snapshot cam-1"
    );
}

#[test]
fn tensors_are_binary_and_bodies_compressed_as_clients_want() {
    let world = World::new();
    let json = br#"{"parameters":{"binary_data_output":true},"inputs":[{"name":"images","shape":[2,4,4,3],"datatype":"UINT8",
        "parameters":{"binary_data_size":96}}]}"#;
    let mut body = json.to_vec();
    body.extend([1; 48]);
    body.extend([2; 48]);
    let length = json.len().to_string();
    let lengths = ("inference-header-content-length", length.as_str());
    for encoding in [Encoding::Identity, Encoding::Gzip, Encoding::Deflate] {
        let mut headers = vec![lengths];
        if let Some(name) = encoding.name() {
            headers.extend([("content-encoding", name), ("accept-encoding", name)]);
        }
        let answer = world.rest(request(
            "POST",
            INFER,
            &headers,
            compress(encoding, body.clone()),
        ));
        assert_eq!(
            answer.status,
            StatusCode::OK,
            "{:?}",
            String::from_utf8_lossy(&answer.body)
        );
        assert_eq!(
            answer.header("content-encoding"),
            encoding.name().unwrap_or_default()
        );
        assert_eq!(answer.header("content-type"), "application/octet-stream");
        let whole = decompress(encoding, answer.body.clone(), 1 << 20).unwrap();
        // The header counts the JSON before it is compressed.
        let json_length: usize = answer
            .header("inference-header-content-length")
            .parse()
            .unwrap();
        let (json, binary) = whole.split_at(json_length);
        let json: serde_json::Value = serde_json::from_slice(json).unwrap();
        assert_eq!(json["outputs"][1]["parameters"]["binary_data_size"], 16);
        let probabilities: Vec<u8> = [0.25_f32, 0.75, 0.75, 0.25]
            .iter()
            .flat_map(|p| p.to_le_bytes())
            .collect();
        assert_eq!(binary[..16], probabilities);
        assert_eq!(binary[32..], *b"\x01\0\0\0b\x01\0\0\0a");
    }
    let raw = request(
        "POST",
        INFER,
        &[("inference-header-content-length", "0")],
        vec![3; 96],
    );
    assert_eq!(world.rest(raw).json()["outputs"][1]["data"], json!([1, 1]));
}

#[test]
fn every_refusal_is_an_error_in_json_with_its_status() {
    let world = World::new();
    let stream = |name: &str, more: &str| {
        one_image(1, &format!(r#","parameters":{{"stream":"{name}"{more}}}"#))
    };
    let gzip = [("content-encoding", "gzip")];
    let long = [("inference-header-content-length", "999")];
    for (asked, status, words) in [
        (get("/v3"), 404, "nothing is at `/v3`"),
        (get(INFER), 405, "does not take GET"),
        (
            get("/v2/models/x"),
            404,
            "no model is called `x`; there are `m`",
        ),
        (
            get("/v2/models/m/versions/2"),
            404,
            "no version `2`: expected `0`",
        ),
        // The model is looked for before the body is.
        (
            post("/v2/models/x/infer", "{"),
            404,
            "no model is called `x`",
        ),
        (post(INFER, "{"), 400, "the request: EOF"),
        (
            post(INFER, r#"{"inputs":[]}"#),
            400,
            "expected one input, one of `images`",
        ),
        (
            post(INFER, one_image(1, r#","outputs":[{"name":"features"}]"#)),
            400,
            "found `features`",
        ),
        (
            post(INFER, stream("full", "")),
            429,
            "the share of the client; try again in 1 s",
        ),
        (
            post(INFER, stream("slow", r#","timeout":1000"#)),
            504,
            "time limit",
        ),
        (
            post(INFER, stream("panic", "")),
            500,
            "a fault of the server, number 1 in its log",
        ),
        (request("POST", INFER, &gzip, "abc"), 400, "no whole `gzip`"),
        (
            request("POST", INFER, &[("content-encoding", "br")], "abc"),
            400,
            "found `br`",
        ),
        (
            request("POST", INFER, &long, "{}"),
            400,
            "says 999 bytes of JSON, and the body has 2",
        ),
        (
            request(
                "POST",
                INFER,
                &[("origin", "http://elsewhere"), ("host", "here")],
                "",
            ),
            403,
            "`http://elsewhere`",
        ),
    ] {
        let name = format!("{asked:?}");
        let answer = world.rest(asked);
        assert_eq!(
            answer.status.as_u16(),
            status,
            "{name}: {:?}",
            answer.error()
        );
        assert!(answer.error().contains(words), "{name}: {}", answer.error());
        // Whole seconds, rounded up.
        assert_eq!(
            answer.header("retry-after"),
            if status == 429 { "2" } else { "" }
        );
    }
}

#[test]
fn bodies_are_bounded_also_when_they_are_compressed() {
    let world = World::with(
        None,
        Limits {
            body: 10_000,
            ..Limits::default()
        },
    );
    let declared = request(
        "POST",
        INFER,
        &[("content-length", "10001")],
        vec![b' '; 10_001],
    );
    let bomb = compress(Encoding::Gzip, vec![b' '; 1 << 18]);
    assert!(bomb.len() < 10_000);
    for asked in [
        declared,
        post(INFER, vec![b' '; 10_001]),
        request("POST", INFER, &[("content-encoding", "gzip")], bomb),
    ] {
        let answer = world.rest(asked);
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(answer.error().contains("at most 10000 bytes"));
    }
}

#[test]
fn a_server_that_ends_takes_nothing_new() {
    let world = World::new();
    world.front.drain();
    let ready = world.rest(get("/v2/health/ready"));
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ready.json()["error"], "the server is about to end");
    let refused = world.rest(post(INFER, one_image(1, "")));
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
}
