use super::*;

fn backend() -> BackendRecord {
    BackendRecord {
        link: Link {
            interface: 7,
            mtu: 1500,
            state: Membership::Member(BackendState::Up),
            flags: LinkFlags { resolved: true, ..LinkFlags::default() },
            ipv6: false,
        },
        address: BackendAddress { address: "198.51.100.11".parse().unwrap(), port: 8080 },
        protocol: Protocol::Udp,
        mode: Mode::Ipip,
        inner_ipv6: true,
        source: "192.0.2.1".parse().unwrap(),
        tags: [0x2064, 5],
        destination_mac: [2, 0, 0, 0, 0, 1],
        source_mac: [2, 0, 0, 0, 0, 2],
    }
}

#[test]
fn records_survive_the_maps() {
    let record = backend();
    assert_eq!(BackendRecord::from_raw(&record.to_raw(), true), Some(record.clone()));
    assert_eq!(PlainData::bytes(&record.to_raw())[..8], record.link.to_word().to_ne_bytes());

    let service = ServiceRecord {
        address: ServiceAddress::new("2001:db8::10".parse().unwrap(), 443, Protocol::Tcp),
        mode: Mode::Nat,
        hash: HashMode::Source { prefix: 56 },
        on_no_backend: OnNoBackend::Reject,
        slots: 4001,
        range: RecordRange { base: 33, limit: 33 },
    };
    assert_eq!(ServiceRecord::from_raw(&service.to_raw()), Some(service.clone()));
    assert_eq!(PlainData::bytes(&service.to_raw())[32..40], service.policy_word().to_ne_bytes());
    assert_eq!(
        PlainData::bytes(&service.to_raw())[16..24],
        ServiceRecord::range_word(service.range).to_ne_bytes()
    );
}

#[test]
fn the_record_of_a_range_has_no_port_of_its_own() {
    for ports in [PortRange::ANY, PortRange::new(1, 65535).unwrap(), PortRange::new(8000, 8099).unwrap()] {
        let address =
            ServiceAddress { ports, ..ServiceAddress::new("192.0.2.10".parse().unwrap(), 1, Protocol::Udp) };
        let record = ServiceRecord {
            address,
            mode: Mode::Nat,
            hash: HashMode::FiveTuple,
            on_no_backend: OnNoBackend::Drop,
            slots: 4001,
            range: RecordRange { base: 33, limit: 33 },
        };
        let raw = record.to_raw();
        assert_eq!(raw.port, 0);
        assert_eq!(raw.endpoint_sum, sum(&[&[192, 0, 2, 10]]), "the sum is of the address alone");
        assert_eq!(ServiceRecord::from_raw(&raw), Some(record));
    }
}

#[test]
fn a_record_that_was_tampered_with_is_not_adopted() {
    let mut raw = backend().to_raw();
    raw.outer_sum ^= 1;
    assert_eq!(BackendRecord::from_raw(&raw, true), None);
    assert_eq!(ServiceRecord::from_raw(&types::service::default()), None);
}

#[test]
fn the_outer_sum_makes_a_right_checksum() {
    let record = backend();
    let mut header = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 41, 0, 0];
    header.extend("192.0.2.1".parse::<Ipv4Addr>().unwrap().octets());
    header.extend("198.51.100.11".parse::<Ipv4Addr>().unwrap().octets());
    let total = u32::from(record.outer_sum()) + u32::from(60u16.to_be());
    let folded = (total & 0xffff) + (total >> 16);
    let check = !(folded as u16);
    header[10..12].copy_from_slice(&check.to_ne_bytes());
    assert_eq!(sum(&[&header]), 0xffff);
}

#[test]
fn keys_read_back_what_they_were_made_of() {
    for address in ["192.0.2.10", "2001:db8::10"] {
        let address: IpAddr = address.parse().unwrap();
        let key = EndpointKey::new(address, 53, Protocol::Udp);
        assert_eq!(EndpointKey::parse(key.bytes(), address.is_ipv6()), Some((address, 53, Protocol::Udp)));
    }
}

#[test]
fn a_range_ends_at_its_limit() {
    let range = RecordRange { base: 100, limit: 3 };
    assert_eq!([0, 1, 2, 3].map(|n| range.record(n)), [None, Some(101), Some(102), None]);
}
