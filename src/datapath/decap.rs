//! The backend's side of a tunnel: the program that takes outer headers off, its addresses and its counters.

use std::{collections::BTreeSet, mem::MaybeUninit, net::IpAddr, os::fd::AsFd};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use super::{
    attach::{self, attach_xdp, interface_index, pin_program},
    error::DatapathError,
    kernel::read_ledger,
    ledger::LedgerCounters,
    load::{LoadedProgram, adopt_map, exclude_load_balancer, load_failed, log_libbpf, take_program},
    pins::Pins,
    records::{address_from_words, address_words},
    skeleton::{LbSkelBuilder, types},
    sys::{self, PlainData},
};
use crate::model::{AttachMode, GUE_PORT, Interface};

const LINK: &str = "decap";
const ADDRESSES: &str = "decap_addresses";
const LEDGER: &str = "decap_ledger";
const PROGRAM: &str = "xdp_decap";

/// The program that takes outer headers off, attached to interfaces of this host.
pub struct Decap {
    pins: Pins,
    addresses: MapHandle,
    ledger: MapHandle,
    program: Option<LoadedProgram>,
}

/// What the program does and did.
#[derive(Clone, Debug)]
pub struct DecapStatus {
    /// Interfaces it is attached to.
    pub interfaces: Vec<String>,
    /// Addresses for which it takes outer headers off.
    pub addresses: BTreeSet<IpAddr>,
    /// What became of the packets it saw.
    pub ledger: LedgerCounters,
}

impl Decap {
    /// Loads the program, on the maps that are pinned where some are. Nothing is attached yet. It takes GUE on its usual port.
    ///
    /// # Errors
    /// Where there is no BPF file system, or the kernel refuses the program.
    pub fn load(pins: &Pins) -> Result<Self, DatapathError> {
        Self::load_for(pins, GUE_PORT)
    }

    /// As [`Self::load`], for GUE on another port. Each interface keeps the port of the program it was given last.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_for(pins: &Pins, gue_port: u16) -> Result<Self, DatapathError> {
        log_libbpf();
        pins.create()?;
        let _lock = pins.lock_decap()?;
        let mut object = MaybeUninit::uninit();
        let mut skeleton = LbSkelBuilder::default().open(&mut object).map_err(load_failed)?;
        exclude_load_balancer(&mut skeleton)?;
        if let Some(constants) = skeleton.maps.rodata_data.as_deref_mut() {
            constants.decap_gue_port = gue_port;
        }
        let pinned = pins.map(ADDRESSES).exists() && pins.map(LEDGER).exists();
        if pinned {
            adopt_map(&pins.map(ADDRESSES), &mut skeleton.maps.decap_addresses)?;
            adopt_map(&pins.map(LEDGER), &mut skeleton.maps.decap_ledger)?;
        }
        let skeleton = skeleton.load().map_err(load_failed)?;
        let failed = |error| DatapathError::system("keep a map's descriptor", error);
        let decap = Self {
            pins: pins.clone(),
            addresses: MapHandle::try_from(&skeleton.maps.decap_addresses).map_err(failed)?,
            ledger: MapHandle::try_from(&skeleton.maps.decap_ledger).map_err(failed)?,
            program: Some(take_program(PROGRAM, &skeleton.progs.xdp_decap)?),
        };
        if !pinned {
            for (name, map) in [(ADDRESSES, &decap.addresses), (LEDGER, &decap.ledger)] {
                let path = pins.map(name);
                Pins::remove(&path)?;
                sys::pin(map.as_fd(), &path)
                    .map_err(|error| DatapathError::system(format!("pin {}", path.display()), error))?;
            }
        }
        Ok(decap)
    }

    /// Attaches the loaded program to an interface, or replaces the one that is there. Says which mode it got.
    ///
    /// # Errors
    /// Where there is no such interface, it cannot run XDP programs in this mode, or another program is there.
    pub fn attach(&self, interface: &Interface) -> Result<AttachMode, DatapathError> {
        let Some(program) = &self.program else {
            return Err(DatapathError::system("attach", "the program is not loaded"));
        };
        let _lock = self.pins.lock_decap()?;
        let index = interface_index(&interface.name)?;
        let attached = attach_xdp(&self.pins, LINK, program, &interface.name, index, interface.mode)?;
        pin_program(&self.pins, program)?;
        Ok(attached.mode)
    }

    /// What is pinned, without loading anything; `None` where nothing is.
    pub fn open(pins: &Pins) -> Result<Option<Self>, DatapathError> {
        if !pins.map(ADDRESSES).exists() {
            return Ok(None);
        }
        let open = |name: &str| {
            let path = pins.map(name);
            MapHandle::from_pinned_path(&path).map_err(|error| {
                DatapathError::system(format!("open the map pinned at {}", path.display()), error)
            })
        };
        Ok(Some(Self {
            pins: pins.clone(),
            addresses: open(ADDRESSES)?,
            ledger: open(LEDGER)?,
            program: None,
        }))
    }

    /// Takes the program off an interface; with the last one everything pinned for it goes. `false`: it was not there.
    pub fn detach(pins: &Pins, interface: &str) -> Result<bool, DatapathError> {
        if !pins.root().exists() {
            return Ok(false);
        }
        let lock = pins.lock_decap()?;
        let link = pins.link(LINK, interface);
        let was_there = link.exists();
        attach::remove_link(&link)?;
        if pins.linked_interfaces(LINK).is_empty() {
            for path in [pins.map(ADDRESSES), pins.map(LEDGER), pins.programs().join(PROGRAM)] {
                Pins::remove(&path)?;
            }
        }
        drop(lock);
        pins.remove_empty_folders();
        Ok(was_there)
    }

    /// Makes these the addresses for which outer headers are taken off. Returns whether anything changed.
    pub fn set_addresses(&mut self, wanted: &BTreeSet<IpAddr>) -> Result<bool, DatapathError> {
        let present = self.read_addresses();
        let failed = |address: &IpAddr| {
            let action = format!("change the address {address} of the decapsulation");
            move |error| DatapathError::system(action, error)
        };
        for address in wanted.difference(&present) {
            self.addresses
                .update(key(*address).bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(failed(address))?;
        }
        for address in present.difference(wanted) {
            self.addresses.delete(key(*address).bytes()).map_err(failed(address))?;
        }
        Ok(present != *wanted)
    }

    /// What the program does and did.
    pub fn status(&self) -> Result<DecapStatus, DatapathError> {
        Ok(DecapStatus {
            interfaces: self.pins.linked_interfaces(LINK),
            addresses: self.read_addresses(),
            ledger: read_ledger(&self.ledger, 0)?,
        })
    }

    /// Runs the pinned program on a frame, as if it had come in by the interface with index `ingress`.
    pub fn run(&self, frame: &[u8], ingress: u32) -> Result<super::RunOutcome, DatapathError> {
        let path = self.pins.programs().join(PROGRAM);
        let failed = |error| DatapathError::system(format!("run {}", path.display()), error);
        let program = sys::open_pin(&path).map_err(failed)?;
        sys::run_xdp(program.as_fd(), frame, ingress).map_err(failed)
    }

    fn read_addresses(&self) -> BTreeSet<IpAddr> {
        self.addresses
            .keys()
            .filter_map(|key| types::endpoint_v6::from_bytes(&key))
            .map(|key| {
                let ipv6 = u32::from(key.protocol) == types::address_family::FAMILY_IPV6.0;
                address_from_words(key.address, ipv6)
            })
            .collect()
    }
}

fn key(address: IpAddr) -> types::endpoint_v6 {
    let family = if address.is_ipv6() {
        types::address_family::FAMILY_IPV6
    } else {
        types::address_family::FAMILY_IPV4
    };
    types::endpoint_v6 { address: address_words(address), protocol: family.0 as u8, ..Default::default() }
}
