//! Problems of interfaces, the API and the capacity.

use super::{good, refuses};

#[test]
fn interfaces_must_be_named_and_nameable() {
    refuses(
        "services: []",
        &["1:1: interfaces: missing; name at least one interface: interfaces: [{ name: eth0 }]"],
    );
    refuses(
        "interfaces: []",
        &["1:13: interfaces: the list is empty; name at least one interface, such as - name: eth0"],
    );
    let rule = "is not an interface name; use 1 to 15 bytes without `/`, `:` and white space";
    for bad in ["a/b", "a b", "sixteen-bytes-xx", ".", "..", "eth0:1"] {
        refuses(
            &format!("interfaces: [{{ name: \"{bad}\" }}]"),
            &[&format!("1:22: interfaces[0].name: `{bad}` {rule}")],
        );
    }
    assert_eq!(good("interfaces: [{ name: fifteen-bytes-x }]").interfaces[0].name, "fifteen-bytes-x");
    refuses(
        "interfaces: eth0",
        &["1:13: interfaces: `eth0` stands where a list belongs; write [] for an empty one"],
    );
    refuses(
        "interfaces: [eth0]",
        &["1:14: interfaces[0]: `eth0` stands where keys belong; allowed here: name, mode"],
    );
    refuses(
        "interfaces: [{ mode: auto }]",
        &["1:14: interfaces[0].name: missing; write the kernel's name of the interface, such as eth0"],
    );
}

#[test]
fn the_socket_needs_a_usable_path_and_octal_permissions() {
    let file = |socket: &str| format!("interfaces: [{{ name: eth0 }}]\napi: {{ socket: {{ {socket} }} }}");
    for mode in ["\"0600\"", "0600", "\"600\""] {
        assert_eq!(good(&file(&format!("mode: {mode}"))).api.mode, 0o600, "{mode}");
    }
    for mode in ["0o660", "rw-rw----", "1777", "66", "0680"] {
        refuses(
            &file(&format!("mode: {mode}")),
            &[&format!(
                "2:24: api.socket.mode: `{mode}` is not a file mode; use octal digits from \"0000\" to \"0777\""
            )],
        );
    }
    refuses(
        &file("path: api.sock"),
        &["2:24: api.socket.path: `api.sock` is not the absolute path of a socket"],
    );
    refuses(
        &file(&format!("path: /{}", "x".repeat(107))),
        &["2:24: api.socket.path: a socket's path has at most 107 bytes, none of them zero"],
    );
    refuses(&file("group: \"a b\""), &["2:25: api.socket.group: `a b` is not the name of a group"]);
}

#[test]
fn capacity_must_suffice_and_the_error_names_the_limit() {
    let service = |n: usize, table: &str| {
        format!("- {{ name: s{n}, address: 192.0.2.{n}:80, protocol: tcp, mode: nat{table} }}\n")
    };
    let file = |capacity: &str, services: String| {
        format!("interfaces: [{{ name: eth0 }}]\ncapacity: {{ {capacity} }}\nservices:\n{services}")
    };
    // Each of the two needs 2 x 16 + 1 records, and one is reserved: 67.
    let two = service(1, "") + &service(2, "");
    assert_eq!(good(&file("backends: 67", two.clone())).services.len(), 2);
    refuses(
        &file("backends: 66", two.clone()),
        &[
            "2:23: capacity.backends: the services need 67 backend records (for each twice its table.max-backends and \
           one more, and one besides), 66 do not suffice; set capacity.backends to 67 or more",
        ],
    );
    refuses(
        &file("services: 1, backends: 66", two).replace("backends: 66", "backends: 67"),
        &["2:23: capacity.services: 2 services do not fit into 1; set capacity.services to 2 or more"],
    );
    // Without a limit in the file the list of services is what is too long.
    let large: String = (1..=3).map(|n| service(n, ", table: { max-backends: 65535 }")).collect();
    refuses(
        &file("flows: 2000", large),
        &[
            "4:3: services: the services need 393214 backend records (for each twice its table.max-backends and one \
           more, and one besides), 262144 do not suffice; set capacity.backends to 393214 or more",
        ],
    );
}

#[test]
fn what_is_done_with_packets_for_no_service_is_a_word() {
    use tidegate::model::{AddressPolicy, EchoRequest, UnservedPort};
    let file = |keys: &str| format!("interfaces: [{{ name: eth0 }}]\n{keys}");
    assert_eq!(good(&file("")).address_policy, AddressPolicy::default());
    let both = AddressPolicy { unserved_port: UnservedPort::Drop, echo: EchoRequest::Answer };
    assert_eq!(good(&file("unserved-port: drop\necho: answer")).address_policy, both);
    refuses(
        &file("unserved-port: reject\necho: reply"),
        &[
            "2:16: unserved-port: `reject` is not allowed; use pass or drop",
            "3:7: echo: `reply` is not allowed; use pass, answer or drop",
        ],
    );
    assert_eq!(good(&file("capacity: { fragments: 1024 }")).capacity.fragments, 1024);
    refuses(
        &file("capacity: { fragments: 1023 }"),
        &["2:24: capacity.fragments: 1023 is out of range; use 1024 to 16777216"],
    );
}
