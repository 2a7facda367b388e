//! Errors that were damaged on their way or made to do harm.

use std::net::{IpAddr, SocketAddr};

use super::{
    errors::{about_a_reply, about_a_request},
    node::{ARRIVING, Node, Service, XDP_DROP, XDP_PASS, XDP_TX, client, middle_box},
    wire::Extra,
};
use crate::harness::frame::{assert_same, hex};
use tidegate::{datapath::Datapath, model::Mode};

/// Small, fast and repeatable (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// What the quoted packet of an untagged frame says, read as plainly as can be: source, destination and protocol.
fn quoted(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, u8)> {
    let ipv4 = frame.get(12..14)? == [0x08, 0x00];
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let (mut at, mut next) = (14, 0);
    let mut addresses = None;
    for quoted in [false, true] {
        if quoted {
            at += 8;
        }
        if ipv4 {
            next = *frame.get(at + 9)?;
            let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
            addresses = Some((address(at + 12)?, address(at + 16)?));
            at += usize::from(frame[at] & 15) * 4;
        } else {
            next = *frame.get(at + 6)?;
            let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
            addresses = Some((address(at + 8)?, address(at + 24)?));
            at += 40;
            while [0, 43, 44, 60].contains(&next) {
                let length = if next == 44 { 8 } else { (usize::from(*frame.get(at + 1)?) + 1) * 8 };
                next = *frame.get(at)?;
                at += length;
            }
        }
    }
    let (source, destination) = addresses?;
    Some((SocketAddr::new(source, word(at)?), SocketAddr::new(destination, word(at + 2)?), next))
}

/// An error about a flow of the service, with everything that may stand in its way.
fn sound(node: &Node, service: &Service, random: &mut Random) -> Vec<u8> {
    let ipv6 = service.kind.ipv6;
    let client = SocketAddr::new(client(ipv6, 35), 42_000 + random.below(4) as u16);
    let number = node.backend_of_flow(service, client);
    let mut error = if service.kind.mode == Mode::Nat && random.below(2) == 0 {
        let from = if random.below(2) == 0 { service.backend(number).ip() } else { middle_box(ipv6) };
        about_a_request(service, client, number, from)
    } else {
        about_a_reply(service, client, (if ipv6 { 2 } else { 3 }, 4 * u8::from(!ipv6), 1400))
    };
    error.quote.l4_bytes = 8 + random.below(30);
    error.extra = if random.below(3) == 0 { Extra::Options } else { Extra::Nothing };
    error.quote.extra = if random.below(3) == 0 { Extra::Options } else { Extra::Nothing };
    error.build(ARRIVING)
}

#[test]
fn damaged_errors_reach_no_backend_but_that_of_the_quoted_flow() {
    let node = Node::new(1500);
    let mut random = Random(3);
    let mut forwarded = 0;
    for round in 0..30_000 {
        let service = &node.services[round % node.services.len()];
        let mut frame = sound(&node, service, &mut random);
        match random.below(4) {
            0 => frame.truncate(14 + random.below(frame.len() - 14)),
            _ => {
                for _ in 0..1 + random.below(3) {
                    let at = 12 + random.below(frame.len() - 12);
                    frame[at] = if random.below(2) == 0 {
                        random.below(256) as u8
                    } else {
                        frame[at] ^ 1 << random.below(8)
                    };
                }
            }
        }
        let (outcome, reason) = node.run(&frame);
        let context = || format!("{reason}: {}", hex(&frame));
        match outcome.action {
            XDP_PASS if reason.starts_with("pass-") => assert_same(&frame, &outcome.frame),
            XDP_DROP => {}
            XDP_TX if reason.ends_with("-answered") => panic!("answered: {}", context()),
            XDP_TX | XDP_PASS if reason.starts_with("forward-reply") => {
                let (_, to, protocol) = quoted(&frame).unwrap_or_else(|| panic!("{}", context()));
                let known = node.services.iter().any(|service| {
                    service.kind.mode == Mode::Nat
                        && service.protocol() == protocol
                        && service.has_backend(to)
                });
                assert!(known, "{}", context());
                forwarded += 1;
            }
            XDP_TX if reason == "forward-tx" => {
                let (from, _, protocol) = quoted(&frame).unwrap_or_else(|| panic!("{}", context()));
                let named = node.services.iter().find(|s| s.is_at(from) && s.protocol() == protocol);
                let named = named.unwrap_or_else(|| panic!("{}", context()));
                assert!(named.backend_of(&outcome.frame).is_some(), "{}", context());
                forwarded += 1;
            }
            action => panic!("action {action}, {}", context()),
        }
    }
    assert!(
        forwarded > 5_000,
        "only {forwarded} were forwarded: the damage is not as random as it should be"
    );
    let whole = node.kernel.ledger(0).unwrap();
    let sum: u64 = tidegate::datapath::REASONS.iter().map(|&reason| whole.packets(reason)).sum();
    assert_eq!(whole.seen, sum, "the ledger does not close");
}
