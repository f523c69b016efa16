//! Streams, modes, labels, events and metrics for operators.

use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use ttac_serve::admin::OPENAPI;
use ttac_serve::api::Event;

use crate::http::{World, get, post, request};

const STREAM: &str = "/v2/models/m/streams/cam-1";

#[test]
fn streams_are_listed_by_name() {
    let world = World::new();
    let listed = world.admin(get("/v2/models/m/streams")).json();
    assert_eq!(
        (&listed["total"], &listed["next"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(listed["streams"][0]["stream"], "cam-1");
    let rest = world.admin(get("/v2/models/m/streams?after=cam-1")).json();
    assert_eq!(rest["streams"].as_array().unwrap().len(), 2);
    let one = world
        .admin(get("/v2/models/m/streams/hall%20%227%22"))
        .json();
    assert_eq!(
        (&one["mode"], &one["share"], &one["health"]),
        (&json!("canary"), &json!(0.05), &json!("healthy"))
    );
    assert_eq!(
        one["kept"][1],
        json!({"version": 17, "after": 1920, "good": false})
    );
    assert_eq!(
        one["guards"][1],
        json!({"name": "drift", "value": null, "bound": 0.3, "alarmed": false})
    );
    assert_eq!(
        one["labels"],
        json!({"adapted_right": 3, "source_right": 1, "evidence": 1.5})
    );
    assert_eq!(
        world.admin(get("/v2/models")).json()["models"][0]["classes"],
        json!(["a", "b"])
    );
}

#[test]
fn a_hundred_streams_make_a_page() {
    let world = World::new();
    {
        let mut streams = world.formula.streams.lock().unwrap();
        let one = streams["cam-1"].clone();
        for number in 0..150 {
            let stream = format!("s{number:03}");
            streams.insert(
                stream.clone(),
                ttac_serve::api::StreamStatus {
                    stream,
                    ..one.clone()
                },
            );
        }
    }
    let (mut after, mut seen) = (String::new(), 0);
    loop {
        let page = world
            .admin(get(&format!("/v2/models/m/streams?after={after}")))
            .json();
        seen += page["streams"].as_array().unwrap().len();
        let Some(next) = page["next"].as_str() else {
            break;
        };
        next.clone_into(&mut after);
    }
    assert_eq!(seen, 153);
}

#[test]
fn streams_are_changed() {
    let world = World::new();
    for (path, body, call) in [
        (
            "mode",
            r#"{"mode":"canary","share":0.05}"#,
            "mode Canary(0.05) by operator",
        ),
        (
            "mode",
            r#"{"mode":"frozen","version":16}"#,
            "mode Frozen(Some(16)) by operator",
        ),
        ("mode", r#"{"mode":"off"}"#, "mode Off by operator"),
        (
            "rollback",
            r#"{"to":"source","reason":"fog"}"#,
            "roll back to Source by operator: fog",
        ),
        (
            "rollback",
            r#"{"to":"good"}"#,
            "roll back to Good by operator: ",
        ),
        (
            "rollback",
            r#"{"to":17}"#,
            "roll back to Version(17) by operator: ",
        ),
        ("snapshot", "", "snapshot cam-1"),
    ] {
        let answer = world.admin(post(&format!("{STREAM}/{path}"), body));
        assert_eq!(answer.json(), json!({}), "{path} {body}");
        assert_eq!(world.formula.calls.lock().unwrap().pop().unwrap(), call);
    }
    assert_eq!(
        world.admin(request("DELETE", STREAM, &[], "")).json(),
        json!({})
    );
    assert_eq!(
        world.formula.calls.lock().unwrap().pop().unwrap(),
        "delete cam-1 by operator"
    );
    assert_eq!(
        world
            .admin(get(&format!("{STREAM}/versions/17/model")))
            .body,
        b"weights"
    );
    let labels = r#"{"items":[{"id":"42","index":0,"label":"b"},{"id":"43","label":"a"}]}"#;
    let answer = world
        .admin(post(&format!("{STREAM}/feedback"), labels))
        .json();
    assert_eq!(answer, json!({"matched": 2, "unknown": 0}));
    assert_eq!(
        world.formula.calls.lock().unwrap().pop().unwrap(),
        "labels [1, 0]"
    );
}

#[test]
fn what_cannot_be_done_is_said() {
    let world = World::new();
    for (path, body, status, words) in [
        (
            "mode",
            r#"{"mode":"fast"}"#,
            400,
            "expected `off`, `shadow`, `canary`, `active` or `frozen`, found `fast`",
        ),
        ("mode", r#"{"mode":"canary"}"#, 400, "needs a `share`"),
        (
            "mode",
            r#"{"mode":"canary","share":2}"#,
            400,
            "expected 0 to 1, found 2",
        ),
        (
            "mode",
            r#"{"mode":"active","share":0.5}"#,
            400,
            "only the mode `canary` has a `share`",
        ),
        (
            "mode",
            r#"{"mode":"active","version":1}"#,
            400,
            "only the mode `frozen` has a `version`",
        ),
        (
            "mode",
            r#"{"mode":"off","speed":1}"#,
            400,
            "unknown field `speed`",
        ),
        (
            "rollback",
            r#"{"to":"yesterday"}"#,
            400,
            "expected `source`, `good` or the number of a kept version",
        ),
        (
            "feedback",
            r#"{"items":[{"id":"1","label":"cat"}]}"#,
            400,
            "item 0: no class of `m` is called `cat`",
        ),
        ("versions/x/model", "", 405, "does not take POST"),
    ] {
        let answer = world.admin(post(&format!("{STREAM}/{path}"), body));
        assert_eq!(answer.status.as_u16(), status, "{path} {body}");
        assert!(answer.error().contains(words), "{}", answer.error());
    }
    for path in [
        "/v2/models/m/streams/none",
        "/v2/models/x/streams",
        "/v2/models/m/streams/none/events",
    ] {
        assert_eq!(
            world.admin(get(path)).status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
    let deep = format!("{}1{}", "[".repeat(20), "]".repeat(20));
    assert!(
        world
            .admin(post(&format!("{STREAM}/mode"), deep))
            .error()
            .contains("at most 16")
    );
}

#[test]
fn events_go_on_after_the_last_that_was_seen() {
    let world = World::new();
    // A server that ends closes the answer after what there is.
    world.front.drain();
    let path = format!("{STREAM}/events");
    let all = world.admin(get(&path));
    assert_eq!(all.header("content-type"), "text/event-stream");
    let text = String::from_utf8(all.body).unwrap();
    assert!(
        text.starts_with("id: 1\nevent: step\ndata: {\"batch\":1}\n\nid: 2\n"),
        "{text}"
    );
    let new = Event {
        id: 4,
        kind: "alarm",
        data: "{}".to_owned(),
    };
    world.formula.events.lock().unwrap().push(Arc::new(new));
    let rest = world.admin(request("GET", &path, &[("last-event-id", "3")], ""));
    assert_eq!(rest.body, b"id: 4\nevent: alarm\ndata: {}\n\n");
    let wrong = world.admin(request("GET", &path, &[("last-event-id", "x")], ""));
    assert!(wrong.error().contains("expected the number of an event"));
}

#[test]
fn pages_that_watch_are_counted() {
    let world = World::new();
    let places = world.front.watchers.clone();
    let all = places.available_permits();
    let held = places.try_acquire_many(all as u32).unwrap();
    let refused = world.admin(get(&format!("{STREAM}/events")));
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    world.front.drain();
    world.admin(get(&format!("{STREAM}/events")));
    assert_eq!(places.available_permits(), all, "the place is given back");
}

#[test]
fn metrics_are_in_the_text_format() {
    let world = World::new();
    world.rest(get("/v2"));
    world.rest(get("/v3"));
    let text = String::from_utf8(world.admin(get("/metrics")).body).unwrap();
    for line in [
        "# TYPE ttac_requests_total counter",
        "ttac_requests_total{transport=\"rest\",code=\"404\"} 1",
        "ttac_images_total{model=\"m\",lane=\"adapted\"} 6",
        "ttac_predict_seconds_total{model=\"m\",lane=\"adapted\"} 0.006",
        "ttac_learned_images_total{model=\"m\",stream=\"hall \\\"7\\\"\"} 1920",
        "ttac_health{model=\"m\",stream=\"cam-1\",state=\"healthy\"} 1",
        "ttac_health{model=\"m\",stream=\"cam-1\",state=\"alarmed\"} 0",
        "ttac_mode{model=\"m\",stream=\"cam-1\",mode=\"canary\"} 1",
        "ttac_guard{model=\"m\",stream=\"cam-1\",guard=\"marginal\"} 0.9",
        "ttac_guard_bound{model=\"m\",stream=\"cam-1\",guard=\"drift\"} 0.3",
        "ttac_alarms_total{model=\"m\",stream=\"cam-1\",guard=\"agreement\"} 2",
        "ttac_rollbacks_total{model=\"m\",stream=\"cam-1\"} 3",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in:\n{text}"
        );
    }
    let mut names = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            assert!(
                names.insert(family.split(' ').next().unwrap()),
                "{family} is there twice"
            );
        }
    }
}

#[test]
fn every_path_is_described() {
    let description: Value = serde_json::from_str(OPENAPI).unwrap();
    let world = World::new();
    assert_eq!(world.admin(get("/openapi.json")).json(), description);
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "parameters")
        {
            let port = methods[method]["tags"][0].as_str().unwrap();
            let filled = path
                .replace("{model}", "m")
                .replace("{stream}", "cam-1")
                .replace("{version}", "1");
            let asked = request(
                &method.to_uppercase(),
                &filled,
                &[("last-event-id", "0")],
                "",
            );
            if filled.ends_with("/events") {
                world.front.drain();
            }
            let status = if port == "admin" {
                world.admin(asked)
            } else {
                world.rest(asked)
            }
            .status
            .as_u16();
            assert!(status != 404 && status != 405, "{method} {path}: {status}");
            let said = methods[method]["responses"].as_object().unwrap();
            assert!(
                said.contains_key(&status.to_string()) || said.contains_key("default"),
                "{method} {path}: {status}"
            );
        }
    }
}

#[test]
fn examples_of_requests_are_answered() {
    let description: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut asked = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let post = &methods["post"];
        let example = &post["requestBody"]["content"]["application/json"]["example"];
        if example.is_null() {
            continue;
        }
        let filled = path
            .replace("{model}", "m")
            .replace("{stream}", "cam-1")
            .replace("{version}", "1");
        let (world, request) = (
            World::new(),
            request("POST", &filled, &[], example.to_string()),
        );
        let answer = if post["tags"][0] == "admin" {
            world.admin(request)
        } else {
            world.rest(request)
        };
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        asked.push(path.rsplit('/').next().unwrap());
    }
    asked.sort_unstable();
    assert_eq!(asked, ["index", "infer", "infer", "mode", "rollback"]);
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let world = World::new();
    let page = world.admin(get("/"));
    assert!(
        page.header("content-security-policy")
            .starts_with("default-src 'self'")
    );
    let text = String::from_utf8(page.body).unwrap();
    for part in ["page.js", "page.css", "icon.svg"] {
        assert!(text.contains(part));
        assert_eq!(world.admin(get(&format!("/{part}"))).status, StatusCode::OK);
    }
    assert!(!text.contains("http://") && !text.contains("https://"));
}
