//! Who may do what.

use axum::http::StatusCode;
use ttac_serve::oip::Limits;
use ttac_serve::tokens::Tokens;

use crate::http::{World, request};

/// The roles; each has a token of its name.
const ROLES: [&str; 5] = ["predict", "learn", "feedback", "read", "admin"];

fn world() -> World {
    let token = |name: &str, secret: &str, rest: &str| {
        let digest = blake3::hash(secret.as_bytes()).to_hex();
        format!("[[token]]\nname = '{name}'\ndigest = '{digest}'\n{rest}\n")
    };
    let of_role = |role: &str| {
        let rest = format!("roles = ['{role}']\nstreams = ['cam-1']");
        token(role, &format!("{role}-token"), &rest)
    };
    let both = "roles = ['predict', 'learn']\nimages_per_second = 1";
    let text = ROLES.map(of_role).concat() + &token("both", "both", both);
    World::with(Some(Tokens::parse(&text).unwrap()), Limits::default())
}

fn infer(stream: &str) -> String {
    let data = vec!["1"; 48].join(",");
    format!(
        r#"{{"parameters":{{"stream":"{stream}"}},"inputs":[{{"name":"images","shape":[1,4,4,3],"datatype":"UINT8","data":[{data}]}}]}}"#
    )
}

#[test]
fn each_path_takes_its_roles_alone() {
    let world = world();
    let stream = "/v2/models/m/streams/cam-1";
    let body = infer("cam-1");
    for (port, method, path, body, roles) in [
        (
            "rest",
            "POST",
            "/v2/models/m/infer",
            body.as_str(),
            &["predict"][..],
        ),
        ("rest", "GET", "/v2/models/m", "", &["predict", "read"]),
        (
            "rest",
            "GET",
            "/v2/models/m/config",
            "",
            &["predict", "read"],
        ),
        (
            "rest",
            "GET",
            "/v2/models/m/ready",
            "",
            &["predict", "read"],
        ),
        (
            "rest",
            "GET",
            "/v2/models/m/stats",
            "",
            &["predict", "read"],
        ),
        ("rest", "GET", "/v2/models/stats", "", &["predict", "read"]),
        (
            "rest",
            "POST",
            "/v2/repository/index",
            "",
            &["predict", "read"],
        ),
        (
            "rest",
            "POST",
            "/v2/repository/models/m/load",
            "",
            &["admin"],
        ),
        (
            "rest",
            "POST",
            "/v2/repository/models/m/unload",
            "",
            &["admin"],
        ),
        ("rest", "GET", "/v2/health/ready", "", &ROLES),
        ("rest", "GET", "/v2", "", &ROLES),
        ("admin", "GET", "/v2/models", "", &["read"]),
        ("admin", "GET", "/v2/models/m/streams", "", &["read"]),
        ("admin", "GET", stream, "", &["read"]),
        (
            "admin",
            "POST",
            "STREAM/mode",
            r#"{"mode":"off"}"#,
            &["admin"],
        ),
        (
            "admin",
            "POST",
            "STREAM/rollback",
            r#"{"to":"source"}"#,
            &["admin"],
        ),
        ("admin", "POST", "STREAM/snapshot", "", &["admin"]),
        ("admin", "DELETE", stream, "", &["admin"]),
        ("admin", "GET", "STREAM/versions/17/model", "", &["admin"]),
        (
            "admin",
            "POST",
            "STREAM/feedback",
            r#"{"items":[]}"#,
            &["feedback"],
        ),
        ("admin", "GET", "/metrics", "", &["read"]),
        ("admin", "GET", "/openapi.json", "", &ROLES),
        ("admin", "GET", "/", "", &ROLES),
    ] {
        let path = path.replace("STREAM", stream);
        let send = |token: Option<String>| {
            let header = token.map(|token| format!("Bearer {token}"));
            let headers: Vec<(&str, &str)> = header
                .iter()
                .map(|value| ("authorization", value.as_str()))
                .collect();
            let asked = request(method, &path, &headers, body.to_owned());
            if port == "admin" {
                world.admin(asked)
            } else {
                world.rest(asked)
            }
        };
        for role in ROLES {
            let answer = send(Some(format!("{role}-token")));
            if roles.contains(&role) {
                let allowed = answer.status.is_success() || path.ends_with("unload");
                assert!(allowed, "{role} {method} {path}: {}", answer.status);
            } else {
                assert_eq!(
                    answer.status,
                    StatusCode::FORBIDDEN,
                    "{role} {method} {path}"
                );
                assert!(
                    answer
                        .error()
                        .contains(&format!("the token `{role}` lacks")),
                    "{}",
                    answer.error()
                );
            }
        }
        for token in [None, Some("guess".to_owned())] {
            let answer = send(token);
            if roles == ROLES {
                assert_eq!(answer.status, StatusCode::OK);
            } else {
                assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}");
                assert_eq!(answer.header("www-authenticate"), "Bearer");
            }
        }
    }
}

#[test]
fn streams_of_others_are_not_there() {
    let world = world();
    let of = |role: &str| format!("Bearer {role}-token");
    let (read, predict) = (of("read"), of("predict"));
    let ask = |token: &str, path: &str| {
        world.admin(request("GET", path, &[("authorization", token)], ""))
    };
    let foreign = ask(&read, "/v2/models/m/streams/cam-2");
    let absent = ask(&read, "/v2/models/m/streams/cam-9");
    assert_eq!(
        (foreign.status, absent.status),
        (StatusCode::NOT_FOUND, StatusCode::NOT_FOUND)
    );
    assert_eq!(foreign.error().replace("cam-2", "cam-9"), absent.error());
    assert_eq!(ask(&read, "/v2/models/m/streams").json()["total"], 1);
    let headers = [("authorization", predict.as_str())];
    let refused = world.rest(request(
        "POST",
        "/v2/models/m/infer",
        &headers,
        infer("cam-2"),
    ));
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
}

#[test]
fn who_may_not_teach_is_answered_all_the_same() {
    let world = world();
    let ask = |token: &str| {
        let headers = [("authorization", token)];
        world.rest(request(
            "POST",
            "/v2/models/m/infer",
            &headers,
            infer("cam-1"),
        ))
    };
    assert_eq!(
        ask("Bearer predict-token").json()["parameters"]["learned"],
        "off"
    );
    assert_eq!(
        ask("Bearer both").json()["parameters"]["learned"],
        "accepted"
    );
    assert_eq!(
        world
            .formula
            .requests
            .lock()
            .unwrap()
            .pop()
            .unwrap()
            .client
            .as_deref(),
        Some("both")
    );
    // Its share is one image a second, and two at once.
    let statuses: Vec<u16> = (0..4).map(|_| ask("Bearer both").status.as_u16()).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
}
