//! Waiting for a condition instead of for a time.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// A deadline for what takes milliseconds, generous on a busy machine.
pub const SECOND: Duration = Duration::from_secs(1);

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition holds; fails the test, naming `what` was waited for, where it does not within `deadline`.
#[track_caller]
pub fn await_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    await_some(what, deadline, || condition().then_some(()));
}

/// Waits until there is a value; fails the test, naming `what` was waited for, where there is none within `deadline`.
#[track_caller]
pub fn await_some<T>(what: &str, deadline: Duration, mut value: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        sleep(INTERVAL);
    }
}
