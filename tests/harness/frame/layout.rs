//! Which field is which byte, and is what stands there sound?
//!
//! A walk over the bytes of its own, which shares nothing with the builder and the parser but the checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    GUE_PORT,
    checksum::{sum, transport_checksum},
    ethertype, protocol,
};

/// A named range of bytes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset of its first byte.
    pub start: usize,
    /// Its bytes.
    pub length: usize,
    /// Such as `IPv4 checksum`; `inner IPv4 checksum` within a tunnel.
    pub name: String,
}

/// What a walk over a frame found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Fields in order, without gaps.
    pub fields: Vec<Field>,
    /// Every length and checksum that is wrong, in words.
    pub problems: Vec<String>,
}

/// Checks every length and checksum of a frame, of outer and inner headers alike.
///
/// A fragment's transport checksum is not checked, since it covers bytes of other fragments.
pub fn verify(frame: &[u8]) -> Result<(), String> {
    let problems = layout(frame).problems;
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Walks over a frame.
pub fn layout(frame: &[u8]) -> Layout {
    let mut walk = Walk { frame, at: 0, end: frame.len(), prefix: "", layout: Layout::default() };
    walk.ethernet();
    walk.rest("trailing bytes", frame.len());
    walk.layout
}

impl Layout {
    /// The field that a byte belongs to.
    pub fn field_at(&self, byte: usize) -> Option<&Field> {
        self.fields.iter().find(|field| (field.start..field.start + field.length).contains(&byte))
    }
}

struct Walk<'a> {
    frame: &'a [u8],
    /// Next byte to name.
    at: usize,
    /// End of the packet that is being walked over.
    end: usize,
    prefix: &'static str,
    layout: Layout,
}

impl Walk<'_> {
    /// Names the next bytes, as far as there are any, and returns them.
    fn field(&mut self, length: usize, name: &str) -> Vec<u8> {
        let end = (self.at + length).min(self.frame.len());
        let bytes = self.frame[self.at..end].to_vec();
        if !bytes.is_empty() {
            let name = format!("{}{name}", self.prefix);
            self.layout.fields.push(Field { start: self.at, length: bytes.len(), name });
        }
        self.at = end;
        bytes
    }

    fn fields(&mut self, header: &str, parts: &[(usize, &str)]) {
        for (length, part) in parts {
            self.field(*length, &format!("{header} {part}"));
        }
    }

    /// Names what is left up to `end`.
    fn rest(&mut self, name: &str, end: usize) {
        self.field(end.saturating_sub(self.at), name);
    }

    fn problem(&mut self, at: usize, text: String) {
        self.layout.problems.push(format!("byte {at}: {}{text}", self.prefix));
    }

    fn room(&mut self, needed: usize, header: &str) -> bool {
        let room = self.end.saturating_sub(self.at);
        if room < needed {
            self.problem(self.at, format!("{header} header of {needed} bytes in {room}"));
        }
        room >= needed
    }

    fn ethernet(&mut self) {
        if !self.room(14, "Ethernet") {
            return;
        }
        self.fields("Ethernet", &[(6, "destination"), (6, "source")]);
        let kind = self.field(2, "Ethernet type");
        self.after_ethertype(u16::from_be_bytes([kind[0], kind[1]]));
    }

    fn after_ethertype(&mut self, kind: u16) {
        match kind {
            ethertype::VLAN | ethertype::SERVICE_VLAN => {
                if self.room(4, "VLAN") {
                    self.field(2, "VLAN tag");
                    let kind = self.field(2, "VLAN type");
                    self.after_ethertype(u16::from_be_bytes([kind[0], kind[1]]));
                }
            }
            ethertype::IPV4 => self.ipv4(),
            ethertype::IPV6 => self.ipv6(),
            ethertype::ARP => self.fields(
                "ARP",
                &[(8, "operation"), (6, "sender MAC"), (4, "sender"), (6, "target MAC"), (4, "target")],
            ),
            _ => self.rest("payload", self.frame.len()),
        }
    }

    fn ipv4(&mut self) {
        let start = self.at;
        if !self.room(20, "IPv4") {
            return;
        }
        let bytes = self.frame[start..].to_vec();
        let header = usize::from(bytes[0] & 0xf) * 4;
        self.fields("IPv4", &[(1, "version and header length"), (1, "TOS"), (2, "total length")]);
        self.fields("IPv4", &[(2, "identification"), (2, "flags and offset"), (1, "TTL"), (1, "protocol")]);
        self.fields("IPv4", &[(2, "checksum"), (4, "source"), (4, "destination")]);
        if bytes[0] >> 4 != 4 || header < 20 || header > self.end - start {
            return self.problem(start, format!("IPv4 version and header length {:#04x}", bytes[0]));
        }
        self.fields("IPv4", &[(header - 20, "options")]);
        if sum(&bytes[..header]) != 0xffff {
            self.problem(start + 10, format!("IPv4 checksum {:02x}{:02x} is wrong", bytes[10], bytes[11]));
        }
        let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if total < header || !self.limit(start, total, "IPv4 total length") {
            return self.problem(start + 2, format!("IPv4 total length {total}, header {header}"));
        }
        let source = IpAddr::from(Ipv4Addr::from([bytes[12], bytes[13], bytes[14], bytes[15]]));
        let destination = IpAddr::from(Ipv4Addr::from([bytes[16], bytes[17], bytes[18], bytes[19]]));
        if u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff != 0 {
            return self.rest("fragment", self.end);
        }
        self.transport(bytes[9], source, destination);
    }

    fn ipv6(&mut self) {
        let start = self.at;
        if !self.room(40, "IPv6") {
            return;
        }
        let bytes = self.frame[start..start + 40].to_vec();
        self.fields(
            "IPv6",
            &[(4, "version, class and flow label"), (2, "payload length"), (1, "next header")],
        );
        self.fields("IPv6", &[(1, "hop limit"), (16, "source"), (16, "destination")]);
        if bytes[0] >> 4 != 6 {
            return self.problem(start, format!("IPv6 version {}", bytes[0] >> 4));
        }
        let total = 40 + usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
        if !self.limit(start, total, "IPv6 payload length") {
            return;
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            IpAddr::from(Ipv6Addr::from(octets))
        };
        self.extensions(bytes[6], address(8), address(24));
    }

    /// Walks over the extension headers and what follows them. `number` is that of the first header.
    fn extensions(&mut self, number: u8, source: IpAddr, destination: IpAddr) {
        const SIZED: [u8; 3] = [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION_OPTIONS];
        if number != protocol::FRAGMENT && !SIZED.contains(&number) {
            return self.transport(number, source, destination);
        }
        if !self.room(8, "IPv6 extension") {
            return;
        }
        let start = self.at;
        let next = self.frame[start];
        if number == protocol::FRAGMENT {
            let place = u16::from_be_bytes([self.frame[start + 2], self.frame[start + 3]]);
            self.fields("IPv6 fragment", &[(1, "next header"), (1, "reserved"), (2, "offset and flags")]);
            self.fields("IPv6 fragment", &[(4, "identification")]);
            if place & 0xfff9 != 0 {
                return self.rest("fragment", self.end);
            }
        } else {
            let length = (usize::from(self.frame[start + 1]) + 1) * 8;
            if !self.room(length, "IPv6 extension") {
                return;
            }
            self.fields("IPv6 extension", &[(1, "next header"), (1, "length"), (length - 2, "body")]);
        }
        self.extensions(next, source, destination);
    }

    /// Takes the length in an IP header as the end of the packet. Only Ethernet may have padding behind it.
    fn limit(&mut self, start: usize, total: usize, name: &str) -> bool {
        let room = self.end - start;
        if total > room || (!self.prefix.is_empty() && total != room) {
            self.problem(start, format!("{name}: packet of {total} bytes in {room}"));
            return false;
        }
        self.end = start + total;
        true
    }

    fn transport(&mut self, number: u8, source: IpAddr, destination: IpAddr) {
        match number {
            protocol::IPIP | protocol::IPV6 => {
                self.inner(if number == protocol::IPIP { ethertype::IPV4 } else { ethertype::IPV6 });
            }
            protocol::GRE => self.gre(),
            protocol::TCP => self.tcp(source, destination),
            protocol::UDP => self.udp(source, destination),
            protocol::ICMP | protocol::ICMPV6 => self.icmp(number, source, destination),
            _ => self.rest("IP payload", self.end),
        }
    }

    fn inner(&mut self, kind: u16) {
        self.prefix = "inner ";
        if kind == ethertype::IPV4 { self.ipv4() } else { self.ipv6() }
    }

    fn gre(&mut self) {
        if !self.room(4, "GRE") {
            return;
        }
        let flags = self.field(2, "GRE flags and version");
        let kind = self.field(2, "GRE protocol");
        match u16::from_be_bytes([kind[0], kind[1]]) {
            kind @ (ethertype::IPV4 | ethertype::IPV6) if flags == [0, 0] => self.inner(kind),
            _ => self.rest("GRE payload", self.end),
        }
    }

    fn tcp(&mut self, source: IpAddr, destination: IpAddr) {
        let start = self.at;
        if !self.room(20, "TCP") {
            return;
        }
        let header = usize::from(self.frame[start + 12] >> 4) * 4;
        self.fields("TCP", &[(2, "source port"), (2, "destination port"), (4, "sequence")]);
        self.fields("TCP", &[(4, "acknowledgement"), (1, "data offset"), (1, "flags"), (2, "window")]);
        self.fields("TCP", &[(2, "checksum"), (2, "urgent pointer")]);
        if header < 20 || start + header > self.end {
            return self.problem(start + 12, format!("TCP data offset of {header} bytes"));
        }
        self.fields("TCP", &[(header - 20, "options")]);
        self.check_transport("TCP", protocol::TCP, start, 16, self.end, source, destination);
        self.rest("TCP payload", self.end);
    }

    fn udp(&mut self, source: IpAddr, destination: IpAddr) {
        let start = self.at;
        if !self.room(8, "UDP") {
            return;
        }
        let length = usize::from(u16::from_be_bytes([self.frame[start + 4], self.frame[start + 5]]));
        self.fields("UDP", &[(2, "source port"), (2, "destination port"), (2, "length"), (2, "checksum")]);
        if length < 8 || start + length > self.end {
            return self.problem(start + 4, format!("UDP length {length}, room for {}", self.end - start));
        }
        let has_checksum = self.frame[start + 6..start + 8] != [0, 0];
        let tunnelled = self.tunnelled_in_udp(start, start + length);
        if has_checksum {
            self.check_transport("UDP", protocol::UDP, start, 6, start + length, source, destination);
        } else if source.is_ipv6() && tunnelled.is_none() {
            // Tunnels may do without (RFC 6935).
            self.problem(start + 6, "UDP over IPv6 without a checksum".into());
        }
        if let Some(kind) = tunnelled {
            self.end = start + length;
            return self.inner(kind);
        }
        self.rest("UDP payload", start + length);
        self.rest("IP payload behind UDP", self.end);
    }

    /// The ethertype of the packet that a UDP datagram carries right behind its header, where it does.
    fn tunnelled_in_udp(&self, start: usize, end: usize) -> Option<u16> {
        if self.frame[start + 2..start + 4] != GUE_PORT.to_be_bytes() || end <= start + 8 {
            return None;
        }
        match self.frame[start + 8] >> 4 {
            4 => Some(ethertype::IPV4),
            6 => Some(ethertype::IPV6),
            _ => None,
        }
    }

    fn icmp(&mut self, number: u8, source: IpAddr, destination: IpAddr) {
        let start = self.at;
        if !self.room(8, "ICMP") {
            return;
        }
        self.fields("ICMP", &[(1, "type"), (1, "code"), (2, "checksum"), (4, "rest of header")]);
        if number == protocol::ICMPV6 {
            self.check_transport("ICMPv6", number, start, 2, self.end, source, destination);
        } else if sum(&self.frame[start..self.end]) != 0xffff {
            self.problem(start + 2, "ICMP checksum is wrong".into());
        }
        self.rest("ICMP payload", self.end);
    }

    #[allow(clippy::too_many_arguments, reason = "one checksum has that many inputs")]
    fn check_transport(
        &mut self,
        name: &str,
        number: u8,
        start: usize,
        field: usize,
        end: usize,
        source: IpAddr,
        destination: IpAddr,
    ) {
        // With its checksum in place, a sound packet sums up to all ones, and its complement is zero.
        if transport_checksum(source, destination, number, &self.frame[start..end]) != 0 {
            let at = start + field;
            let (high, low) = (self.frame[at], self.frame[at + 1]);
            self.problem(at, format!("{name} checksum {high:02x}{low:02x} is wrong"));
        }
    }
}
