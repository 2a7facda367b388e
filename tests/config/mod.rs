//! What an operator reads about a configuration file, and what a good one means.

mod admission;
mod encapsulation;
mod hostile;
mod manual;
mod meaning;
mod node;
mod reporting;
mod services;
mod shapes;

use tidegate::{
    config::{Problem, parse},
    model::Desired,
};

/// What is wrong with `text`, one line a problem: `line:column: field: message`.
pub fn problems(text: &str) -> String {
    let error = parse(text, "tidegate.yaml").expect_err("the text must be refused");
    let line = |problem: &Problem| format!("{}:{}: {problem}\n", problem.line, problem.column);
    error.problems().iter().map(line).collect()
}

/// A file with one service, whose lines are `service`, from line 4 and column 5 on.
pub fn with_service(service: &str) -> String {
    let lines: Vec<&str> = service.lines().collect();
    format!("interfaces: [{{ name: eth0 }}]\nservices:\n  -\n    {}\n", lines.join("\n    "))
}

/// A file with one good service and these lines of backends, from line 9 and column 7 on.
pub fn with_backends(mode: &str, backends: &str) -> String {
    let backends = backends.trim_end().replace('\n', "\n  ");
    with_service(&format!(
        "name: web\naddress: 192.0.2.10:80\nprotocol: tcp\nmode: {mode}\nbackends:\n  {backends}"
    ))
}

/// What a text means that must be accepted.
pub fn good(text: &str) -> Desired {
    parse(text, "tidegate.yaml").unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that `text` is refused for exactly the problems `expected`.
#[track_caller]
pub fn refuses(text: &str, expected: &[&str]) {
    let expected: String = expected.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(problems(text), expected, "in:\n{text}");
}
