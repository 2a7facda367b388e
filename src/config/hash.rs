//! What of a packet decides which backend it gets.

use super::field::Fields;
use crate::model::{HashMode, ServiceAddress};

/// Reads `hash` and `hash-prefix`. Where the address is wrong, the prefix is checked as far as it can be.
pub fn hash(fields: &Fields<'_>, address: Option<ServiceAddress>) -> Option<HashMode> {
    let longest = address.map_or(128, |address| HashMode::longest_prefix(address.address));
    let choices = [
        HashMode::FiveTuple,
        HashMode::Source { prefix: longest },
        HashMode::SourceDestination { prefix: longest },
    ]
    .map(|mode| (mode.name(), mode));
    let mode = match fields.get("hash") {
        Some(field) => field.choice(&choices),
        None => Some(HashMode::FiveTuple),
    };
    let Some(field) = fields.get("hash-prefix") else { return mode };
    let prefix = field.integer(1..=longest);
    match mode? {
        HashMode::FiveTuple => field.refused(
            "means nothing with hash five-tuple; set hash: source or hash: source-destination, or leave it out",
        ),
        HashMode::Source { .. } => Some(HashMode::Source { prefix: prefix? }),
        HashMode::SourceDestination { .. } => Some(HashMode::SourceDestination { prefix: prefix? }),
    }
}
