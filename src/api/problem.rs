//! Errors as RFC 9457 problem details.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::ObserveError;
use crate::model::status;

/// Media type of a problem (RFC 9457, section 6.1).
pub const CONTENT_TYPE: &str = "application/problem+json";

/// An error answer. Its members are those of RFC 9457 and three of ours: `code`, `remedy` and `problems`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Always `about:blank`: `code` tells problems apart, not a link.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// The standard phrase of the HTTP status.
    pub title: Box<str>,
    /// The HTTP status.
    pub status: u16,
    /// What was wrong with this request, for a person.
    pub detail: Box<str>,
    /// What was wrong, for a program: kebab-case, and stable once released.
    pub code: Box<str>,
    /// What to do about it.
    pub remedy: Box<str>,
    /// With `not-ready`: what keeps the daemon from being ready, most urgent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<status::Problem>,
}

impl Problem {
    fn new(status: StatusCode, code: &str, detail: impl Into<Box<str>>, remedy: impl Into<Box<str>>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            detail: detail.into(),
            code: code.into(),
            remedy: remedy.into(),
            problems: Vec::new(),
        }
    }

    /// The path is none of ours.
    pub(super) fn no_such_route(path: &str, routes: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "no-such-route",
            format!("there is nothing at {path}"),
            format!("ask one of {routes}"),
        )
    }

    /// The path is ours, the method is not for it. The caller sees to the `Allow` header.
    pub(super) fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            format!("{method} is not possible on {path}"),
            "this version of the API only reads: use GET or HEAD, and change the configuration file",
        )
    }

    /// No service has this name; `similar` are the names nearest to it.
    pub(super) fn unknown_service(name: &str, similar: &[&str]) -> Self {
        let remedy = match similar {
            [] => "GET /api/v1/services lists all services".to_owned(),
            names => format!("did you mean {}? GET /api/v1/services lists all services", quoted(names)),
        };
        Self::new(StatusCode::NOT_FOUND, "unknown-service", format!("there is no service `{name}`"), remedy)
    }

    /// The path is not text.
    pub(super) fn invalid_path(detail: String) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid-path",
            detail,
            "percent-encode the name of the service as UTF-8",
        )
    }

    /// A query parameter that would have been ignored in silence.
    pub(super) fn unknown_parameter(query: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "unknown-parameter",
            format!("the query `{query}` is not understood: no route takes a parameter in this version"),
            "leave the query out",
        )
    }

    /// The request announces a body that no route wants.
    pub(super) fn body_too_large(limit: u64) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body-too-large",
            format!("the body of the request is larger than {limit} bytes"),
            "leave the body out: no route reads one in this version",
        )
    }

    /// The daemon lives, and not all that it was asked for is programmed.
    pub(super) fn not_ready(problems: Vec<status::Problem>) -> Self {
        let detail = match problems.first() {
            Some(first) => first.message.clone(),
            None => "the desired state is not programmed yet".to_owned(),
        };
        let remedy = match problems.first() {
            Some(first) => first.remedy.clone(),
            None => "wait, then ask again; `tidegate status` shows what is missing".to_owned(),
        };
        let blank = Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail, remedy);
        Self { problems, ..blank }
    }

    /// The engine did not answer in time.
    pub(super) fn timed_out(seconds: u64) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "timed-out",
            format!(
                "the state could not be read within {seconds} seconds; packets are forwarded all the same"
            ),
            "ask again; if it stays so, read the daemon's log (journalctl -u tidegate)",
        )
    }

    /// More connections than the daemon keeps open, each with a request in work.
    pub(super) fn too_many_connections(limit: usize) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too-many-connections",
            format!("{limit} connections are open, each with a request in work"),
            "ask again, and with fewer connections at once",
        )
    }

    /// The kernel's maps could not be read.
    pub(super) fn unreadable(error: &ObserveError) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "state-unreadable",
            error.message.as_str(),
            error.remedy.as_str(),
        )
    }

    /// A defect of the daemon.
    pub(super) fn internal(detail: String) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            detail,
            "this is a defect of tidegate: report it with the daemon's log (journalctl -u tidegate)",
        )
    }

    /// The problem as JSON text with a closing newline, so that it reads well in a terminal.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // Strings and numbers always serialise; an empty body would still carry the status.
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))];
        (status, content_type, self.to_json()).into_response()
    }
}

fn quoted(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_code_with_its_status() {
        let manual = include_str!("../../docs/reference/api.md");
        for problem in [
            Problem::no_such_route("/x", "/y"),
            Problem::method_not_allowed("PUT", "/x"),
            Problem::unknown_service("x", &[]),
            Problem::invalid_path("x".to_owned()),
            Problem::unknown_parameter("x=y"),
            Problem::body_too_large(1),
            Problem::not_ready(Vec::new()),
            Problem::timed_out(5),
            Problem::too_many_connections(1),
            Problem::unreadable(&ObserveError::new("x", "y")),
            Problem::internal("x".to_owned()),
        ] {
            let row = format!("| `{}` | {} |", problem.code, problem.status);
            assert!(manual.contains(&row), "{row}");
        }
    }

    #[test]
    fn names_are_listed_as_a_person_would() {
        assert_eq!(quoted(&["a"]), "`a`");
        assert_eq!(quoted(&["a", "b"]), "`a` or `b`");
        assert_eq!(quoted(&["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
