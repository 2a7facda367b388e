//! The routes and what they answer.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderValue, Method, StatusCode, Uri, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tracing::debug;

use super::{List, Observe, Problem, similar::similar};
use crate::model::status::{ServiceStatus, Status};

/// Path of the whole status.
pub const STATUS_PATH: &str = "/api/v1/status";
/// Path of the list of services.
pub const SERVICES_PATH: &str = "/api/v1/services";
/// Path that says whether the process lives and can read the maps.
pub const HEALTHZ_PATH: &str = "/healthz";
/// Path that says whether all that was asked for is programmed.
pub const READYZ_PATH: &str = "/readyz";

const ROUTES: &str = "/api/v1/status, /api/v1/services, /api/v1/services/{name}, \
                      /api/v1/services/{name}/backends, /healthz and /readyz";

/// Largest body a request may announce, in bytes. No route reads one yet.
const BODY_LIMIT: u64 = 64 * 1024;
/// Readings of the engine that may run at once; further ones wait their turn.
const READINGS_AT_ONCE: usize = 4;
/// A reading, its turn included, that takes longer is answered with `timed-out`.
const READING_TIMEOUT: Duration = Duration::from_secs(5);

/// Path of one service. Bytes that mean something in a path are percent-encoded.
pub fn service_path(name: &str) -> String {
    let mut path = format!("{SERVICES_PATH}/");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'~' => {
                path.push(char::from(byte))
            }
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

/// Every route, answered from `observe`.
pub(super) fn router(observe: Arc<dyn Observe>) -> Router {
    Router::new()
        .route(STATUS_PATH, get(status))
        .route(SERVICES_PATH, get(services))
        .route("/api/v1/services/{name}", get(service))
        .route("/api/v1/services/{name}/backends", get(backends))
        .route(HEALTHZ_PATH, get(healthz))
        .route(READYZ_PATH, get(readyz))
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn(check_and_log))
        .with_state(Reader { observe, turns: Arc::new(Semaphore::new(READINGS_AT_ONCE)) })
}

/// Reads the engine, a few times at once and never for ever.
#[derive(Clone)]
struct Reader {
    observe: Arc<dyn Observe>,
    turns: Arc<Semaphore>,
}

impl Reader {
    /// Reads the status and makes an answer of it, both on a thread that may block: a status of thousands of services
    /// takes a while to read and to write as text.
    async fn answer<F>(&self, view: F) -> Result<Response, Problem>
    where
        F: FnOnce(Status) -> Result<Response, Problem> + Send + 'static,
    {
        let reading = async {
            let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(internal)?;
            let observe = Arc::clone(&self.observe);
            let work = move || {
                // Kept until the reading ends, even where nobody waits for it any more.
                let _turn = turn;
                view(observe.status().map_err(|error| Problem::unreadable(&error))?)
            };
            spawn_blocking(work).await.map_err(internal)?
        };
        timeout(READING_TIMEOUT, reading)
            .await
            .unwrap_or_else(|_| Err(Problem::timed_out(READING_TIMEOUT.as_secs())))
    }
}

async fn status(State(reader): State<Reader>) -> Result<Response, Problem> {
    reader.answer(|status| json(&status)).await
}

async fn services(State(reader): State<Reader>) -> Result<Response, Problem> {
    reader.answer(|status| json(&List { items: status.services })).await
}

async fn service(State(reader): State<Reader>, name: ServiceParameter) -> Result<Response, Problem> {
    let Path(name) = name.map_err(invalid_path)?;
    reader.answer(move |status| json(find(&status, &name)?)).await
}

async fn backends(State(reader): State<Reader>, name: ServiceParameter) -> Result<Response, Problem> {
    let Path(name) = name.map_err(invalid_path)?;
    reader.answer(move |status| json(&List { items: find(&status, &name)?.backends.clone() })).await
}

async fn healthz(State(reader): State<Reader>) -> Result<Response, Problem> {
    reader.answer(|_| Ok("ok\n".into_response())).await
}

async fn readyz(State(reader): State<Reader>) -> Result<Response, Problem> {
    let view = |status: Status| match status.ready {
        true => Ok("ready\n".into_response()),
        false => Err(Problem::not_ready(status.problems)),
    };
    reader.answer(view).await
}

async fn no_such_route(uri: Uri) -> Problem {
    Problem::no_such_route(uri.path(), ROUTES)
}

/// The router adds the `Allow` header.
async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    Problem::method_not_allowed(method.as_str(), uri.path())
}

/// Refuses what no route wants before it is routed, and forbids caches to keep what is answered.
async fn check_and_log(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match refuse(&request) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    debug!(%method, path, status = response.status().as_u16(), "answered a request");
    response
}

fn refuse(request: &Request) -> Option<Problem> {
    if let Some(query) = request.uri().query().filter(|query| !query.is_empty()) {
        return Some(Problem::unknown_parameter(query));
    }
    let announced = request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>().ok()?;
    (announced > BODY_LIMIT).then(|| Problem::body_too_large(BODY_LIMIT))
}

type ServiceParameter = Result<Path<String>, PathRejection>;

fn find<'a>(status: &'a Status, name: &str) -> Result<&'a ServiceStatus, Problem> {
    status.services.iter().find(|service| service.name.as_str() == name).ok_or_else(|| {
        let known = status.services.iter().map(|service| service.name.as_str());
        Problem::unknown_service(name, &similar(name, known))
    })
}

/// JSON with a closing newline, so that it reads well in a terminal.
fn json<T: Serialize>(value: &T) -> Result<Response, Problem> {
    let mut text = serde_json::to_vec(value).map_err(internal)?;
    text.push(b'\n');
    let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((StatusCode::OK, content_type, text).into_response())
}

fn internal(error: impl std::fmt::Display) -> Problem {
    Problem::internal(error.to_string())
}

fn invalid_path(rejection: PathRejection) -> Problem {
    Problem::invalid_path(rejection.body_text())
}
