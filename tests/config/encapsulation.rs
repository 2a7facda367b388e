//! `encapsulation`: outer source addresses and the port of GUE.

use tidegate::{
    config,
    model::{Encapsulation, SourcePrefix},
};

fn parse(text: &str) -> Result<Encapsulation, String> {
    let text = format!("interfaces: [{{ name: eth0 }}]\n{text}");
    config::parse(&text, "file").map(|desired| desired.encapsulation).map_err(|error| error.to_string())
}

fn prefix(address: &str, length: u8) -> Option<SourcePrefix> {
    Some(SourcePrefix::containing(address.parse().unwrap(), length))
}

#[test]
fn without_it_the_nodes_own_addresses_and_the_registered_port_are_used() {
    let expected = Encapsulation { source_v4: None, source_v6: None, gue_port: 6080 };
    assert_eq!(parse(""), Ok(expected));
    assert_eq!(parse("encapsulation: {}"), Ok(expected));
}

#[test]
fn prefixes_and_port_are_taken_as_written() {
    let text =
        "encapsulation: { source-v4: 198.18.0.0/24, source-v6: \"2001:db8:0:1::/64\", gue-port: 5555 }";
    let expected = Encapsulation {
        source_v4: prefix("198.18.0.0", 24),
        source_v6: prefix("2001:db8:0:1::", 64),
        gue_port: 5555,
    };
    assert_eq!(parse(text), Ok(expected));
    let single =
        parse("encapsulation: { source-v4: 198.18.0.7/32, source-v6: \"2001:db8::7/128\" }").unwrap();
    assert_eq!((single.source_v4, single.source_v6), (prefix("198.18.0.7", 32), prefix("2001:db8::7", 128)));
}

#[test]
fn prefixes_that_cannot_work_are_refused_with_what_to_write() {
    for (value, expected) in [
        ("source-v4: 198.18.0.1/24", "has bits beyond its length; write 198.18.0.0/24"),
        ("source-v6: \"2001:db8::1/64\"", "has bits beyond its length; write 2001:db8::/64"),
        ("source-v4: 198.18.0.0", "is not an IPv4 prefix; write one like 198.18.0.0/24"),
        ("source-v4: 198.18.0.0/", "is not an IPv4 prefix"),
        ("source-v4: 198.18.0.0/+24", "is not an IPv4 prefix"),
        ("source-v4: 198.18.0.0/255.255.255.0", "is not an IPv4 prefix"),
        ("source-v4: \"2001:db8::/64\"", "is not an IPv4 prefix"),
        ("source-v6: 198.18.0.0/24", "is not an IPv6 prefix; write one like 2001:db8:0:1::/64"),
        ("source-v4: 198.18.0.0/33", "length 33 does not do for source addresses; use /8 to /32"),
        ("source-v4: 128.0.0.0/7", "length 7 does not do"),
        ("source-v6: \"2001:db8::/31\"", "use /32 to /128"),
        ("source-v6: \"2001:db8::/129\"", "use /32 to /128"),
        ("source-v4: 0.0.0.0/8", "is in 0.0.0.0/8"),
        ("source-v4: 127.0.0.0/8", "is of loopback addresses"),
        ("source-v4: 224.0.0.0/8", "is not of unicast addresses"),
        ("source-v6: \"ff02::/64\"", "is of multicast addresses"),
        ("source-v6: \"fe80::/64\"", "is of link-local addresses"),
        ("source-v6: \"::1/128\"", "is of addresses with a special meaning"),
        ("source-v6: \"::ffff:0.0.0.0/96\"", "is of addresses with a special meaning"),
        ("gue-port: 0", "use 1 to 65535"),
        ("gue-port: 65536", "use 1 to 65535"),
        ("port: 6080", "unknown key"),
    ] {
        let error = parse(&format!("encapsulation: {{ {value} }}")).unwrap_err();
        assert!(error.contains(expected), "{value}: {error}");
        assert!(error.contains("file:2:"), "{value}: {error}");
    }
}
