//! `tidegate version`.

use serde_json::json;

use super::{Exit, args::Output, args::VersionArgs, print::print};

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints the version.
pub fn execute(args: &VersionArgs) -> Exit {
    let text = match args.output {
        Output::Table => format!("tidegate {VERSION}\n"),
        Output::Json => {
            format!("{}\n", json!({ "version": VERSION, "architecture": std::env::consts::ARCH }))
        }
    };
    print(text.as_bytes(), Exit::Ok)
}
