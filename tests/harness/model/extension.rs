//! Extension headers of IPv6 (RFC 8200, section 4).

use super::{
    Reason,
    view::{Carried, Fragment, word},
};

/// Headers that are stepped over.
const MOST: usize = 6;
/// Last byte of a frame at which what follows them may begin.
const DEEPEST: usize = 511;

/// Steps from the first header behind the IPv6 header to what they lead to, or says why that cannot be told.
pub fn step_over(frame: &[u8], first: Carried) -> Result<Carried, Reason> {
    let mut at = first;
    let mut headers = 0;
    while is_extension(at.protocol) && at.fragment != Fragment::Later {
        headers += 1;
        if headers > MOST {
            return Err(Reason::PassExtensionHeader);
        }
        let header = frame.get(at.offset..at.offset + 8).ok_or(Reason::PassMalformed)?;
        let length = match at.protocol {
            // The destination in the IPv6 header is only a way-point while there are segments left.
            43 if header[3] != 0 => return Err(Reason::PassExtensionHeader),
            // A fragment of a fragment.
            44 if at.fragment == Fragment::First => return Err(Reason::PassExtensionHeader),
            44 => {
                let place = word(header, 2);
                at.fragment = Fragment::new(place >> 3, place & 1 != 0);
                8
            }
            _ => (usize::from(header[1]) + 1) * 8,
        };
        (at.protocol, at.offset) = (header[0], at.offset + length);
        if at.offset > DEEPEST {
            return Err(Reason::PassExtensionHeader);
        }
    }
    Ok(at)
}

/// Hop-by-hop options, routing, fragment, destination options.
fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | 44 | 60)
}
