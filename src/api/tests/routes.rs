//! Every route and every error of it.

use serde_json::json;

use super::fixture::{Engine, Server, sample};
use crate::{api::service_path, model::status::Status};

#[tokio::test]
async fn status_is_the_status_as_it_serialises() {
    let server = Server::start(Engine::new(sample()));
    let answer = server.get("/api/v1/status").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(answer.body.ends_with("}\n"), "a shell prompt belongs on a line of its own");
    assert_eq!(answer.json(), serde_json::to_value(sample()).unwrap());
    assert_eq!(answer.json()["started-at"], 1_795_946_400_u64);
}

#[tokio::test]
async fn lists_are_objects_with_items() {
    let server = Server::start(Engine::new(sample()));
    let services = server.get("/api/v1/services").await.json();
    assert_eq!(services, json!({ "items": sample().services }));
    let backends = server.get("/api/v1/services/web/backends").await.json();
    assert_eq!(backends, json!({ "items": sample().services[0].backends }));
    let none = server.get("/api/v1/services/web-v6/backends").await.json();
    assert_eq!(none, json!({ "items": [] }));
}

#[tokio::test]
async fn a_service_is_found_by_its_name() {
    let server = Server::start(Engine::new(sample()));
    let service = server.get("/api/v1/services/web-v6").await.json();
    assert_eq!(service["address"], "2001:db8::10");
    assert_eq!(server.get("/api/v1/services/%77eb").await.json()["name"], "web");
}

#[tokio::test]
async fn an_unknown_service_is_answered_with_the_names_near_it() {
    let server = Server::start(Engine::new(sample()));
    for path in ["/api/v1/services/wbe", "/api/v1/services/wbe/backends"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, "unknown-service"));
        let problem = answer.json();
        assert_eq!(problem["title"], "Not Found");
        assert_eq!(problem["detail"], "there is no service `wbe`");
        assert_eq!(problem["remedy"], "did you mean `web`? GET /api/v1/services lists all services");
    }
    let far = server.get("/api/v1/services/postgres").await.json();
    assert_eq!(far["remedy"], "GET /api/v1/services lists all services");
}

#[tokio::test]
async fn what_is_not_there_is_answered_with_what_is() {
    let server = Server::start(Engine::new(sample()));
    for path in
        ["/", "/api", "/api/v1/", "/api/v2/status", "/api/v1/services/", "/api/v1/services/web/slots", "//"]
    {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, "no-such-route"), "{path}");
        assert!(answer.json()["remedy"].as_str().unwrap().contains("/api/v1/services/{name}/backends"));
    }
}

#[tokio::test]
async fn a_name_that_is_not_text_is_a_bad_request() {
    let server = Server::start(Engine::new(sample()));
    let answer = server.get("/api/v1/services/%ff").await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "invalid-path"));
}

#[tokio::test]
async fn a_parameter_is_refused_rather_than_ignored() {
    let server = Server::start(Engine::new(sample()));
    let answer = server.get("/api/v1/services?name=web").await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "unknown-parameter"));
    assert_eq!(server.get("/api/v1/services?").await.status, 200);
}

#[tokio::test]
async fn other_methods_are_refused_with_those_allowed() {
    let server = Server::start(Engine::new(sample()));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
        for path in ["/api/v1/services/web", "/healthz"] {
            let answer = server.request(method, path).await;
            assert_eq!((answer.status, answer.problem().as_str()), (405, "method-not-allowed"), "{method}");
            assert_eq!(answer.header("allow"), Some("GET,HEAD"));
        }
    }
}

#[tokio::test]
async fn head_is_get_without_its_body() {
    let server = Server::start(Engine::new(sample()));
    for path in ["/api/v1/status", "/api/v1/services", "/healthz", "/api/v1/services/none"] {
        let (get, head) = (server.get(path).await, server.request("HEAD", path).await);
        assert_eq!((head.status, head.body.as_str()), (get.status, ""), "{path}");
        for name in ["content-length", "content-type"] {
            assert_eq!(head.header(name), get.header(name), "{name} of {path}");
            assert!(head.header(name).is_some());
        }
    }
}

#[tokio::test]
async fn health_and_readiness_are_two_questions() {
    let ready = Server::start(Engine::new(sample()));
    assert_eq!(
        (ready.get("/healthz").await.body.as_str(), ready.get("/healthz").await.status),
        ("ok\n", 200)
    );
    assert_eq!(
        (ready.get("/readyz").await.body.as_str(), ready.get("/readyz").await.status),
        ("ready\n", 200)
    );

    let starting = Server::start(Engine::new(Status { ready: false, ..sample() }));
    assert_eq!(starting.get("/healthz").await.status, 200);
    let answer = starting.get("/readyz").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "not-ready"));
    assert_eq!(answer.json()["problems"], json!(sample().problems));

    let silent = Status { ready: false, problems: Vec::new(), ..sample() };
    let answer = Server::start(Engine::new(silent)).get("/readyz").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "not-ready"));
    assert!(answer.json().get("problems").is_none());
}

#[tokio::test]
async fn unreadable_maps_are_an_error_everywhere() {
    let server = Server::start(Engine::failing("map `ledger` is gone", "start the daemon again"));
    for path in ["/api/v1/status", "/api/v1/services", "/api/v1/services/web", "/healthz", "/readyz"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.problem().as_str()), (500, "state-unreadable"), "{path}");
        assert_eq!(answer.json()["detail"], "map `ledger` is gone");
        assert_eq!(answer.json()["remedy"], "start the daemon again");
    }
}

#[test]
fn a_path_is_encoded_where_it_must_be() {
    assert_eq!(service_path("web-v6.a_b"), "/api/v1/services/web-v6.a_b");
    assert_eq!(service_path("a/b ?é"), "/api/v1/services/a%2Fb%20%3F%C3%A9");
}
