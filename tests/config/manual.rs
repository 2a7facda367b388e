//! The manual, `docs/reference/configuration.md`, says what the code does.

use std::collections::BTreeSet;

use tidegate::config::parse;

use super::good;

const MANUAL: &str = include_str!("../../docs/reference/configuration.md");

/// The blocks of the manual that begin with ```` ```<language> ````, with what follows each.
fn blocks(language: &str) -> Vec<(&'static str, &'static str)> {
    let opening = format!("\n```{language}\n");
    let mut found = Vec::new();
    let mut rest = MANUAL;
    while let Some((_, after)) = rest.split_once(opening.as_str()) {
        let (block, after) = after.split_once("```\n").unwrap();
        found.push((block, after));
        rest = after;
    }
    found
}

/// The keys that the code allows in a mapping: those it offers where it meets an unknown one.
fn allowed(text: &str) -> Vec<String> {
    let error = parse(text, "tidegate.yaml").expect_err("it has an unknown key");
    let unknown = error.problems().iter().find(|problem| problem.field.ends_with("nonsense")).unwrap();
    let (_, keys) = unknown.message.split_once("allowed here: ").unwrap();
    keys.split(", ").map(str::to_owned).collect()
}

#[test]
fn every_key_stands_in_the_manual_and_no_other() {
    let mappings = [
        ("", "{}"),
        ("interfaces[].", "interfaces: [{}]"),
        ("api.", "api: {}"),
        ("api.socket.", "api: { socket: {} }"),
        ("capacity.", "capacity: {}"),
        ("encapsulation.", "encapsulation: {}"),
        ("admission.", "admission: {}"),
        ("defaults.", "defaults: {}"),
        ("health.", "defaults: { health: {} }"),
        ("health.tcp.", "defaults: { health: { tcp: {} } }"),
        ("services[].", "services: [{}]"),
        ("services[].table.", "services: [{ table: {} }]"),
        ("services[].sources.", "services: [{ sources: {} }]"),
        ("services[].limits.", "services: [{ limits: {} }]"),
        ("services[].limits.per-source.", "services: [{ limits: { per-source: {} } }]"),
        ("services[].backends[].", "services: [{ backends: [{}] }]"),
    ];
    let keys: BTreeSet<String> = mappings
        .iter()
        .flat_map(|(path, text)| {
            let with_nonsense = text.replacen("{}", "{ nonsense: 1 }", 1);
            allowed(&with_nonsense).into_iter().map(move |key| format!("{path}{key}"))
        })
        .collect();
    let in_manual: BTreeSet<String> = MANUAL
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .filter(|(_, rest)| rest.matches('|').count() == 2)
        .map(|(key, _)| key.to_owned())
        .collect();
    assert_eq!(keys, in_manual);
}

#[test]
fn its_examples_are_valid() {
    let examples = blocks("yaml");
    assert!(examples.len() >= 2);
    for (text, _) in examples {
        good(text);
    }
}

#[test]
fn its_errors_are_those_that_are_printed() {
    let examples = blocks("yaml error");
    assert!(examples.len() >= 4);
    for (text, after) in examples {
        let shown = after.split_once("```text\n").unwrap().1.split_once("```\n").unwrap().0;
        let error = parse(text, "tidegate.yaml").expect_err("it must be refused");
        assert_eq!(format!("{error}\n"), shown);
    }
}

#[test]
fn its_defaults_are_those_of_the_code() {
    let rows = |text: &str| -> BTreeSet<String> { text.lines().map(str::to_owned).collect() };
    let manual = rows(MANUAL);
    let desired = good(
        "interfaces: [{ name: eth0 }]\nservices: [{ name: a, address: 192.0.2.10:80, protocol: tcp, mode: nat }]",
    );
    let health = &desired.services[0].health;
    for (key, value) in [
        ("api.socket.path", desired.api.path.display().to_string()),
        ("capacity.services", desired.capacity.services.to_string()),
        ("capacity.backends", desired.capacity.backends.to_string()),
        ("capacity.flows", desired.capacity.flows.to_string()),
        ("encapsulation.gue-port", desired.encapsulation.gue_port.to_string()),
        ("health.interval", tidegate::config::duration::format(health.interval)),
        ("health.timeout", tidegate::config::duration::format(health.timeout)),
        ("health.rise", health.rise.to_string()),
        ("health.fall", health.fall.to_string()),
    ] {
        let row = manual.iter().find(|row| row.starts_with(&format!("| `{key}` |"))).unwrap();
        let default = row.trim_end_matches(" |").rsplit("| ").next().unwrap().trim_matches('`');
        assert_eq!(default, value, "{key}");
    }
}
