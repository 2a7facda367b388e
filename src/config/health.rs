//! Health checks: `none`, or what to probe and when.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    duration,
    field::{Field, Fields},
    tree::Value,
};
use crate::model::{HealthCheck, InitialState, Probe};

const KEYS: [&str; 7] = ["tcp", "interval", "degraded-interval", "timeout", "rise", "fall", "initial"];

/// Faster probes than this are an attack on the backend.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
const COUNTS: RangeInclusive<u32> = 1..=1000;

/// Reads a health check; what it does not say is as in `base`.
pub fn health(field: &Field<'_>, base: &HealthCheck) -> Option<HealthCheck> {
    if let Value::Scalar { .. } = field.value() {
        return match field.text()? {
            "none" => Some(HealthCheck::none()),
            _ => field.refused(format!(
                "{} is not a health check; use none, or keys such as {{ tcp: {{}}, interval: 5s }}",
                field.kind()
            )),
        };
    }
    let fields = field.mapping(&KEYS)?;
    let probe = probe(&fields, base)?;
    // Timings of `none` were never meant for probing.
    let defaults = HealthCheck::default();
    let base = if base.probe.is_none() { &defaults } else { base };

    let interval = given(&fields, "interval", base.interval, |field| field.duration(INTERVALS));
    let timeout = given(&fields, "timeout", base.timeout, |field| field.duration(TIMEOUTS));
    let rise = given(&fields, "rise", base.rise, |field| field.integer(COUNTS));
    let fall = given(&fields, "fall", base.fall, |field| field.integer(COUNTS));
    let states = [("down", InitialState::Down), ("up", InitialState::Up)];
    let initial = given(&fields, "initial", base.initial, |field| field.choice(&states));
    let degraded_interval = degraded_interval(&fields, interval, base);
    Some(HealthCheck {
        probe: Some(probe),
        interval: interval?,
        degraded_interval: degraded_interval?,
        timeout: timeout?,
        rise: rise?,
        fall: fall?,
        initial: initial?,
    })
}

fn given<T>(
    fields: &Fields<'_>,
    key: &str,
    default: T,
    read: impl FnOnce(&Field<'_>) -> Option<T>,
) -> Option<T> {
    fields.get(key).map_or(Some(default), |field| read(&field))
}

fn probe(fields: &Fields<'_>, base: &HealthCheck) -> Option<Probe> {
    let Some(field) = fields.get("tcp") else {
        if base.probe.is_none() {
            fields.require("tcp", "defaults.health is none, so say what to probe: tcp: {}");
        }
        return base.probe;
    };
    let fields = field.mapping(&["port"])?;
    let port = match fields.get("port") {
        Some(port) => Some(port.integer(1..=u16::MAX)?),
        None => None,
    };
    Some(Probe::Tcp { port })
}

/// Where it is not given it is never longer than `interval`, whatever `base` says.
fn degraded_interval(
    fields: &Fields<'_>,
    interval: Option<Duration>,
    base: &HealthCheck,
) -> Option<Duration> {
    let Some(field) = fields.get("degraded-interval") else {
        return Some(interval?.min(base.degraded_interval));
    };
    let degraded = field.duration(INTERVALS)?;
    match interval {
        Some(interval) if degraded > interval => field.refused(format!(
            "{} is longer than the interval of {}; a backend in doubt is probed faster, not slower",
            duration::format(degraded),
            duration::format(interval)
        )),
        _ => Some(degraded),
    }
}
