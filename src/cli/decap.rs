//! `tidegate decap`: the backend's side of a tunnel.

use std::{collections::BTreeSet, fmt::Write, net::IpAddr, time::Duration};

use nix::ifaddrs::getifaddrs;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    Exit,
    args::{DecapArgs, Output},
    print::{complain, print},
};
use crate::{
    datapath::{DatapathError, Decap, DecapStatus, Pins},
    model::{Interface, status::Ledger},
};

/// How often `--watch` looks at the addresses of this host.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn execute(args: &DecapArgs) -> Exit {
    let pins = Pins::new(&args.pins.folder);
    let done = if args.detach {
        detach(args, &pins)
    } else if args.status {
        status(args, &pins)
    } else {
        attach(args, &pins)
    };
    done.unwrap_or_else(|error| {
        complain(&error);
        if error.is_conflict() { Exit::NotOurs } else { Exit::Failed }
    })
}

fn attach(args: &DecapArgs, pins: &Pins) -> Result<Exit, DatapathError> {
    let mut decap = Decap::load_for(pins, args.gue_port)?;
    /* Addresses first: from its first packet on the program knows what is ours. */
    decap.set_addresses(&host_addresses()?)?;
    let interface = Interface { name: args.interface.clone(), mode: args.mode.into() };
    let mode = decap.attach(&interface)?;
    let exit = match args.output {
        Output::Json => print_json(&StatusReport::from(decap.status()?)),
        Output::Table => {
            let text = format!("{}: attached in {mode} mode; stays until --detach\n", args.interface);
            print(text.as_bytes(), Exit::Ok)
        }
    };
    if args.watch { watch(&mut decap) } else { Ok(exit) }
}

fn detach(args: &DecapArgs, pins: &Pins) -> Result<Exit, DatapathError> {
    let text = if Decap::detach(pins, &args.interface)? {
        format!("{}: detached\n", args.interface)
    } else {
        format!("{}: was not attached\n", args.interface)
    };
    Ok(print(text.as_bytes(), Exit::Ok))
}

fn status(args: &DecapArgs, pins: &Pins) -> Result<Exit, DatapathError> {
    let status = Decap::open(pins)?.map(|decap| decap.status()).transpose()?;
    let Some(status) = status.filter(|status| status.interfaces.contains(&args.interface)) else {
        complain(format_args!(
            "{} has no decapsulation; attach it with `tidegate decap --interface {}`",
            args.interface, args.interface
        ));
        return Ok(Exit::NotReady);
    };
    let report = StatusReport::from(status);
    Ok(match args.output {
        Output::Json => print_json(&report),
        Output::Table => print(report.to_text().as_bytes(), Exit::Ok),
    })
}

/// Keeps the addresses current until SIGINT or SIGTERM.
fn watch(decap: &mut Decap) -> Result<Exit, DatapathError> {
    let failed = |error| DatapathError::system("wait for signals", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(Exit::Ok),
                _ = interrupt.recv() => return Ok(Exit::Ok),
                _ = interval.tick() => {
                    decap.set_addresses(&host_addresses()?)?;
                }
            }
        }
    })
}

/// The addresses that this host owns, those of the loopback networks excepted.
fn host_addresses() -> Result<BTreeSet<IpAddr>, DatapathError> {
    let interfaces =
        getifaddrs().map_err(|error| DatapathError::system("read the addresses of this host", error))?;
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addresses.filter(|address| !address.is_loopback()).collect())
}

/// What is printed.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct StatusReport {
    interfaces: Vec<String>,
    addresses: Vec<IpAddr>,
    ledger: Ledger,
}

impl From<DecapStatus> for StatusReport {
    fn from(status: DecapStatus) -> Self {
        Self {
            interfaces: status.interfaces,
            addresses: status.addresses.into_iter().collect(),
            ledger: Ledger::from(&status.ledger),
        }
    }
}

impl StatusReport {
    fn to_text(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut text = format!(
            "interfaces  {}\naddresses   {}\nseen        {}\n",
            self.interfaces.join(", "),
            addresses.join(", "),
            self.ledger.seen
        );
        for (reason, packets) in &self.ledger.reasons {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {reason:<24} {packets}");
        }
        text
    }
}

fn print_json(report: &StatusReport) -> Exit {
    match serde_json::to_string_pretty(report) {
        Ok(json) => print(format!("{json}\n").as_bytes(), Exit::Ok),
        Err(error) => {
            complain(error);
            Exit::Failed
        }
    }
}
