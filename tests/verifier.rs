//! The programs stay well below what the kernel's verifier is willing to look at.
//!
//! `docs/performance.md` has the table of the figures that were recorded. They depend on compiler and kernel as well, hence the
//! room above them.

use std::collections::BTreeMap;

use crate::harness::{kernel::Kernel, model::Node};

const MANUAL: &str = include_str!("../docs/performance.md");
/// What the verifier looks at before it gives up.
const KERNEL_LIMIT: u32 = 1_000_000;

/// The rows `| program | instructions | limit |` of the manual's table.
fn recorded() -> BTreeMap<&'static str, (u32, u32)> {
    let number = |text: &str| text.replace(',', "").parse().ok();
    let rows = MANUAL.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, figure, limit, _] = cells.as_slice() else { return None };
        Some((name.trim_matches('`'), (number(figure)?, number(limit)?)))
    });
    rows.collect()
}

#[test]
fn no_program_is_much_more_work_for_the_verifier_than_was_recorded() {
    let recorded = recorded();
    let found = Kernel::load(&Node::new(16)).verified_instructions();
    for (name, instructions) in &found {
        println!("| `{name}` | {instructions} | {} |", instructions * 5 / 4);
    }
    assert!(found.keys().eq(recorded.keys()), "programs: {found:?}, in the manual: {recorded:?}");
    for (name, instructions) in found {
        let (figure, limit) = recorded[name];
        assert_eq!(limit, figure * 5 / 4, "the limit of {name} in the manual");
        assert!(limit < KERNEL_LIMIT / 2, "{name} leaves no room for other kernels");
        assert!(
            instructions <= limit,
            "the verifier looks at {instructions} instructions of {name}, {figure} were recorded: find out why, or record the \
             new figure in docs/performance.md"
        );
    }
}
