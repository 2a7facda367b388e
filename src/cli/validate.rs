//! `tidegate validate`.

use super::{
    Exit,
    args::ValidateArgs,
    print::{complain, print},
};
use crate::config;

pub(super) fn execute(args: &ValidateArgs) -> Exit {
    match config::load_from_anything(&args.file) {
        Ok(desired) => {
            let backends: usize = desired.services.iter().map(|service| service.backends.len()).sum();
            let summary = format!(
                "{}: valid: {} interfaces, {} services, {backends} backends\n",
                args.file.display(),
                desired.interfaces.len(),
                desired.services.len(),
            );
            print(summary.as_bytes(), Exit::Ok)
        }
        Err(error) => {
            complain(error);
            Exit::InvalidConfiguration
        }
    }
}
