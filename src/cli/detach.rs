//! `tidegate detach`.

use super::{
    Exit,
    args::DetachArgs,
    print::{complain, print},
};
use crate::datapath::{Pins, detach_all};

pub(super) fn execute(args: &DetachArgs) -> Exit {
    match detach_all(&Pins::new(&args.pins.folder)) {
        Ok(interfaces) if interfaces.is_empty() => {
            print(b"nothing was attached; pins are removed\n", Exit::Ok)
        }
        Ok(interfaces) => {
            let done = format!("detached from {}; pins are removed\n", interfaces.join(", "));
            print(done.as_bytes(), Exit::Ok)
        }
        Err(error) => {
            complain(&error);
            if error.is_conflict() { Exit::NotOurs } else { Exit::Failed }
        }
    }
}
