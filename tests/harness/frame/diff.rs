//! How two frames differ, in words for whoever reads a failed test.

use std::fmt::Write;

use super::layout;

/// Bytes as `ab cd`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// How `got` differs from `expected`, field by field; `None` where it does not.
pub fn difference(expected: &[u8], got: &[u8]) -> Option<String> {
    if expected == got {
        return None;
    }
    let mut text = String::new();
    if expected.len() != got.len() {
        let _ = writeln!(text, "length: expected {} got {}", expected.len(), got.len());
    }
    for field in layout(expected).fields {
        let range = field.start..field.start + field.length;
        let wanted = &expected[range.clone()];
        let found = &got[range.start.min(got.len())..range.end.min(got.len())];
        if wanted != found {
            let skipped = wanted.iter().zip(found).take_while(|(a, b)| a == b).count();
            let (at, name) = (range.start + skipped, &field.name);
            let (wanted, found) = (hex(&wanted[skipped..]), hex(&found[skipped..]));
            let _ = writeln!(text, "byte {at} ({name}): expected {wanted} got {found}");
        }
    }
    if got.len() > expected.len() {
        let _ =
            writeln!(text, "byte {} (beyond the end): got {}", expected.len(), hex(&got[expected.len()..]));
    }
    let _ = write!(text, "expected: {}\n     got: {}", hex(expected), hex(got));
    Some(text)
}

/// Fails the test with the difference where two frames are not the same.
#[track_caller]
pub fn assert_same(expected: &[u8], got: &[u8]) {
    if let Some(difference) = difference(expected, got) {
        panic!("frames differ\n{difference}");
    }
}
