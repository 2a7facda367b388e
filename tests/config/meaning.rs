//! What a good file means.

use std::time::Duration;

use tidegate::{
    config::load,
    model::{AttachMode, HashMode, HealthCheck, InitialState, Mode, Probe, Protocol},
};

use super::{good, refuses, with_backends, with_service};

#[test]
fn the_example_is_valid_and_means_what_it_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tidegate.yaml");
    let desired = load(path.as_ref()).unwrap_or_else(|error| panic!("{error}"));
    let interfaces: Vec<_> = desired.interfaces.iter().map(|i| (i.name.as_str(), i.mode)).collect();
    assert_eq!(interfaces, [("eth0", AttachMode::Native), ("eth1", AttachMode::Auto)]);
    assert_eq!(desired.api.group.as_deref(), Some("tidegate"));
    let names: Vec<_> = desired.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["web", "web-6", "dns", "media", "spare"]);
    let web = &desired.services[0];
    assert_eq!((web.mode, web.max_backends, web.address.protocol), (Mode::Nat, 16, Protocol::Tcp));
    assert_eq!(web.health.probe, Some(Probe::Tcp { port: Some(8081) }));
    assert_eq!((web.health.interval, web.health.timeout), (Duration::from_secs(2), Duration::from_secs(1)));
    let backends: Vec<_> = web.backends.iter().map(|b| (b.address.to_string(), b.weight)).collect();
    assert_eq!(
        backends,
        [
            ("198.51.100.11:8080".into(), 10),
            ("198.51.100.12:8080".into(), 10),
            ("198.51.100.13:8080".to_owned(), 5)
        ]
    );
    assert_eq!(desired.services[1].backends[0].address.to_string(), "[2001:db8:1::11]:80");
    assert_eq!(desired.services[2].address.to_string(), "192.0.2.53:53/udp");
    assert_eq!(desired.services[3].address.to_string(), "192.0.2.12:16384-32767/udp");
    assert_eq!(desired.services[3].hash, HashMode::Source { prefix: 24 });
    assert_eq!(desired.services[4].health, HealthCheck::none());
}

/// The values the example shows as defaults are the defaults.
#[test]
fn what_is_left_out_has_the_documented_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tidegate.yaml");
    let example = load(path.as_ref()).unwrap();
    let smallest = good("interfaces: [{ name: eth0 }]");
    assert_eq!(smallest.interfaces[0], example.interfaces[0]);
    assert_eq!(smallest.capacity, example.capacity);
    assert_eq!((&smallest.api.path, smallest.api.mode), (&example.api.path, example.api.mode));
    assert_eq!(smallest.api.group, None);
    assert_eq!(smallest.services, []);
    let service = good(&with_backends("nat", "- { address: 198.51.100.11 }")).services.remove(0);
    assert_eq!(service.health, example.services[1].health);
    assert_eq!((service.max_backends, service.backends[0].weight), (16, 1));
    assert_eq!(service.backends[0].address.port, 80);
}

#[test]
fn tables_are_sized_for_what_is_listed_or_asked() {
    let list: String = (1..=17).map(|host| format!("- {{ address: 198.51.100.{host} }}\n")).collect();
    assert_eq!(good(&with_backends("nat", &list)).services[0].max_backends, 32);
    let asked = with_service(
        "name: web\naddress: 192.0.2.10:80\nprotocol: tcp\nmode: nat\ntable: { max-backends: 3 }",
    );
    assert_eq!(good(&asked).services[0].max_backends, 3);
    assert_eq!(good(&asked).services[0].backends, []);
}

#[test]
fn ports_stand_with_the_address_or_apart() {
    for text in [
        "address: 192.0.2.10:80",
        "address: \"192.0.2.10:80\"\nport: 80",
        "address: 192.0.2.10\nport: 80",
        "address: \"[2001:db8::10]:80\"",
        "address: 2001:db8::10\nport: 80",
    ] {
        let desired = good(&with_service(&format!("name: web\nprotocol: tcp\nmode: nat\n{text}")));
        assert_eq!(desired.services[0].address.ports.as_single(), Some(80), "{text}");
    }
}

#[test]
fn a_service_overrides_the_default_health_field_by_field() {
    let text = "interfaces: [{ name: eth0 }]\ndefaults: { health: { interval: 300ms, rise: 7 } }\nservices:\n  - \
                { name: a, address: 192.0.2.1:80, protocol: tcp, mode: nat, health: { fall: 9, initial: up } }\n  - \
                { name: b, address: 192.0.2.2:80, protocol: tcp, mode: nat, health: none }\n";
    let desired = good(text);
    let health = &desired.services[0].health;
    assert_eq!((health.rise, health.fall, health.initial), (7, 9, InitialState::Up));
    assert_eq!(health.interval, Duration::from_millis(300));
    assert_eq!(health.degraded_interval, Duration::from_millis(300), "never longer than the interval");
    assert_eq!(desired.services[1].health.probe, None);
}

#[test]
fn health_of_none_by_default_can_be_asked_for() {
    let service = "- { name: a, address: 192.0.2.1:80, protocol: tcp, mode: nat, health: HEALTH }";
    let text =
        format!("interfaces: [{{ name: eth0 }}]\ndefaults: {{ health: none }}\nservices:\n{service}\n");
    let desired = good(&text.replace("HEALTH", "{ tcp: {}, rise: 4 }"));
    assert_eq!(desired.services[0].health, HealthCheck { rise: 4, ..HealthCheck::default() });
    refuses(
        &text.replace("HEALTH", "{ rise: 4 }"),
        &["4:71: services[0].health.tcp: missing; defaults.health is none, so say what to probe: tcp: {}"],
    );
}
