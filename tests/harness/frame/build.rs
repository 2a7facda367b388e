//! From headers to bytes.

use std::net::IpAddr;

use super::{
    Arp, Checksum, Echo, Ethernet, Extension, Ipv4, Ipv6, Network, Outer, Packet, Shim, Tag, Tcp, Transport,
    Udp,
    checksum::{checksum, transport_checksum},
    ethertype, protocol,
};

impl Packet {
    /// The bytes.
    pub fn build(&self) -> Vec<u8> {
        let (number, transport) = self.build_transport();
        let mut bytes = build_network(&self.network, number, transport);
        let mut inside = &self.network;
        for outer in self.outer.iter().rev() {
            let (number, shim) = build_shim(outer, inside, &bytes);
            bytes = build_network(&outer.network, number, [shim, bytes].concat());
            inside = &outer.network;
        }
        let mut frame = build_ethernet(&self.ethernet, &self.tags, ethertype_of(inside));
        frame.extend(bytes);
        frame.extend(&self.padding);
        frame
    }

    /// The protocol number and the bytes of what the innermost IP header carries.
    fn build_transport(&self) -> (u8, Vec<u8>) {
        let (source, destination) = (self.network.source(), self.network.destination());
        match &self.transport {
            Transport::Tcp(tcp) => (protocol::TCP, build_tcp(tcp, source, destination, &self.payload)),
            Transport::Udp(udp) => (protocol::UDP, build_udp(udp, source, destination, &self.payload)),
            Transport::Echo(echo) => build_echo(echo, source, destination, &self.payload),
            Transport::Raw(number) => (*number, self.payload.clone()),
        }
    }
}

impl Arp {
    /// The bytes, without padding.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = build_ethernet(&self.ethernet, &[], ethertype::ARP);
        frame.extend([0, 1, 8, 0, 6, 4]);
        frame.extend(self.operation.to_be_bytes());
        frame.extend(self.sender_mac);
        frame.extend(self.sender.octets());
        frame.extend(self.target_mac);
        frame.extend(self.target.octets());
        frame
    }
}

fn ethertype_of(network: &Network) -> u16 {
    match network {
        Network::V4(_) => ethertype::IPV4,
        Network::V6(_) => ethertype::IPV6,
    }
}

fn build_ethernet(ethernet: &Ethernet, tags: &[Tag], kind: u16) -> Vec<u8> {
    let mut bytes = ethernet.destination.to_vec();
    bytes.extend(ethernet.source);
    for tag in tags {
        bytes.extend(tag.kind.to_be_bytes());
        bytes.extend(tag.control.to_be_bytes());
    }
    bytes.extend(ethernet.ethertype.unwrap_or(kind).to_be_bytes());
    bytes
}

/// The protocol number of the outer header, and what stands between it and the packet `bytes` that it carries.
fn build_shim(outer: &Outer, inside: &Network, bytes: &[u8]) -> (u8, Vec<u8>) {
    match (&outer.shim, inside) {
        (Shim::None, Network::V4(_)) => (protocol::IPIP, Vec::new()),
        (Shim::None, Network::V6(_)) => (protocol::IPV6, Vec::new()),
        (Shim::Gre(gre), _) => {
            let kind = gre.protocol.unwrap_or(ethertype_of(inside));
            (protocol::GRE, [gre.flags.to_be_bytes(), kind.to_be_bytes()].concat())
        }
        (Shim::Gue(udp), _) => {
            let (source, destination) = (outer.network.source(), outer.network.destination());
            let mut datagram = build_udp(udp, source, destination, bytes);
            datagram.truncate(8);
            (protocol::UDP, datagram)
        }
    }
}

fn build_network(network: &Network, number: u8, payload: Vec<u8>) -> Vec<u8> {
    match network {
        Network::V4(ip) => build_ipv4(ip, number, payload),
        Network::V6(ip) => build_ipv6(ip, number, payload),
    }
}

fn build_ipv4(ip: &Ipv4, number: u8, payload: Vec<u8>) -> Vec<u8> {
    assert!(
        ip.options.len().is_multiple_of(4) && ip.options.len() <= 40,
        "{} bytes of options",
        ip.options.len()
    );
    let length = 20 + ip.options.len();
    let words = ip.header_words.unwrap_or((length / 4) as u8);
    let flags = u16::from(ip.reserved_flag) << 15
        | u16::from(ip.dont_fragment) << 14
        | u16::from(ip.more_fragments) << 13
        | ip.fragment_offset;
    let mut bytes = vec![ip.version.unwrap_or(4) << 4 | words, ip.tos];
    bytes.extend(ip.total_length.unwrap_or((length + payload.len()) as u16).to_be_bytes());
    bytes.extend(ip.identification.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes.extend([ip.ttl, ip.protocol.unwrap_or(number), 0, 0]);
    bytes.extend(ip.source.octets());
    bytes.extend(ip.destination.octets());
    bytes.extend(&ip.options);
    let right = checksum(&bytes);
    set_checksum(&mut bytes, 10, ip.checksum, right);
    bytes.extend(payload);
    bytes
}

fn build_ipv6(ip: &Ipv6, number: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut number = number;
    let mut behind = payload;
    for extension in ip.extensions.iter().rev() {
        behind = [build_extension(extension, number), behind].concat();
        number = extension.number();
    }
    let first = u32::from(ip.version.unwrap_or(6)) << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label;
    let mut bytes = first.to_be_bytes().to_vec();
    bytes.extend(ip.payload_length.unwrap_or(behind.len() as u16).to_be_bytes());
    bytes.extend([ip.next_header.unwrap_or(number), ip.hop_limit]);
    bytes.extend(ip.source.octets());
    bytes.extend(ip.destination.octets());
    bytes.extend(behind);
    bytes
}

/// An extension header; `next` is the number of what follows it.
fn build_extension(extension: &Extension, next: u8) -> Vec<u8> {
    match extension {
        Extension::Sized { body, length, .. } => {
            assert!(body.len() % 8 == 6, "{} bytes behind the length of an extension header", body.len());
            let words = length.unwrap_or((body.len() / 8) as u8);
            [&[next, words], body.as_slice()].concat()
        }
        Extension::Fragment { offset, more, identification } => {
            let place = (offset << 3 | u16::from(*more)).to_be_bytes();
            [&[next, 0], place.as_slice(), &identification.to_be_bytes()].concat()
        }
    }
}

fn build_tcp(tcp: &Tcp, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    assert!(
        tcp.options.len().is_multiple_of(4) && tcp.options.len() <= 40,
        "{} bytes of options",
        tcp.options.len()
    );
    let words = tcp.data_offset.unwrap_or((20 + tcp.options.len()) as u8 / 4);
    let mut bytes = tcp.source_port.to_be_bytes().to_vec();
    bytes.extend(tcp.destination_port.to_be_bytes());
    bytes.extend(tcp.sequence.to_be_bytes());
    bytes.extend(tcp.acknowledgement.to_be_bytes());
    bytes.extend([words << 4 | tcp.reserved, tcp.flags]);
    bytes.extend(tcp.window.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(tcp.urgent.to_be_bytes());
    bytes.extend(&tcp.options);
    bytes.extend(payload);
    let right = transport_checksum(source, destination, protocol::TCP, &bytes);
    set_checksum(&mut bytes, 16, tcp.checksum, right);
    bytes
}

fn build_udp(udp: &Udp, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let length = udp.length.unwrap_or((8 + payload.len()) as u16);
    let mut bytes = udp.source_port.to_be_bytes().to_vec();
    bytes.extend(udp.destination_port.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    // A shorter length is legal: what follows is not part of the datagram.
    let covered = usize::from(length).clamp(8, bytes.len());
    let right = match transport_checksum(source, destination, protocol::UDP, &bytes[..covered]) {
        0 => 0xffff,
        right => right,
    };
    set_checksum(&mut bytes, 6, udp.checksum, right);
    bytes
}

fn build_echo(echo: &Echo, source: IpAddr, destination: IpAddr, payload: &[u8]) -> (u8, Vec<u8>) {
    let (number, kind) = match (source, echo.reply) {
        (IpAddr::V4(_), false) => (protocol::ICMP, 8),
        (IpAddr::V4(_), true) => (protocol::ICMP, 0),
        (IpAddr::V6(_), false) => (protocol::ICMPV6, 128),
        (IpAddr::V6(_), true) => (protocol::ICMPV6, 129),
    };
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(echo.identifier.to_be_bytes());
    bytes.extend(echo.sequence.to_be_bytes());
    bytes.extend(payload);
    let right = match number {
        protocol::ICMP => checksum(&bytes),
        _ => transport_checksum(source, destination, protocol::ICMPV6, &bytes),
    };
    set_checksum(&mut bytes, 2, echo.checksum, right);
    (number, bytes)
}

fn set_checksum(bytes: &mut [u8], offset: usize, wanted: Checksum, right: u16) {
    let value = match wanted {
        Checksum::Right => right,
        Checksum::Exactly(value) => value,
    };
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}
