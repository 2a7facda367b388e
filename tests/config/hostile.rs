//! Files that nobody would write: never a panic, never a hang, always an answer.

use proptest::prelude::*;
use tidegate::config::{ConfigError, load, parse};

const EXAMPLE: &str = include_str!("../../examples/tidegate.yaml");

/// Pieces that YAML or the configuration give a meaning to.
const PIECES: [&str; 25] = [
    "- ",
    ": ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "\t",
    "\r",
    "\"",
    "'",
    "#",
    "\n",
    "\u{feff}",
    "\u{1f30a}",
    "%YAML 1.2\n",
];

/// Every answer points into the text and can be printed on a terminal.
fn check(text: &str) {
    let Err(error) = parse(text, "f") else { return };
    let ConfigError::Invalid { problems, .. } = &error else { panic!("{error}") };
    assert!(!problems.is_empty());
    let lines = 1 + text.matches(['\n', '\r']).count();
    for problem in problems {
        assert!((1..=lines).contains(&(problem.line as usize)), "{error}");
        assert!(problem.column >= 1 && !problem.message.is_empty(), "{error}");
        assert_eq!(problem.excerpt.lines().count(), 2, "{error}");
    }
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!error.to_string().contains(control), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text(text in "(?s).{0,200}") {
        check(&text);
    }

    #[test]
    fn any_sequence_of_pieces(pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60)) {
        check(&pieces.concat());
    }

    #[test]
    fn any_small_change_of_a_good_file(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0_usize..40, prop::sample::select(&PIECES[..])),
            1..5,
        ),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (index, removed, piece) in changes {
            let start = index.index(text.len());
            let end = (start + removed).min(text.len());
            text.splice(start..end, piece.chars());
        }
        check(&text.into_iter().collect::<String>());
    }

    #[test]
    fn a_good_file_cut_anywhere(end in 0..EXAMPLE.len()) {
        check(EXAMPLE.get(..end).unwrap_or_default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let _ = load(file.path()).map_err(|error| error.to_string());
    }
}

#[test]
fn many_services_are_read() {
    let services: String = (0..20_000_u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + n);
            let rest = "protocol: tcp, mode: nat, table: { max-backends: 4 }";
            format!("- {{ name: s{n}, address: {address}:80, {rest} }}\n")
        })
        .collect();
    let text =
        format!("interfaces: [{{ name: eth0 }}]\ncapacity: {{ services: 65535 }}\nservices:\n{services}");
    assert_eq!(parse(&text, "f").unwrap().services.len(), 20_000);
}

/// A mapping of a hundred thousand keys is refused without comparing each with each.
#[test]
fn many_wrong_keys_are_refused() {
    let keys: String = (0..100_000).map(|n| format!("k{n}: 1\n")).collect();
    let text = format!("{keys}{}", "services: []\n".repeat(100_000));
    let error = parse(&text, "f").unwrap_err();
    assert!(error.to_string().ends_with("more problems"), "{error}");
}
