//! Attaching the programs to interfaces, by pinned links that outlive the daemon and whose program is replaced in place.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use libbpf_rs::{
    Link, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder,
    query::{LinkTypeInfo, ProgInfoIter},
};
use nix::net::if_::if_nametoindex;

use super::{
    devices::native_remedy,
    error::DatapathError,
    kernel::Kernel,
    load::LoadedProgram,
    pins::Pins,
    sys::{self, Hook},
};
use crate::model::{AttachMode, Interface};

/// Handle and priority of our filters where the kernel has no TCX: fixed, so that a later process finds them.
const FILTER_HANDLE: u32 = 1;
const FILTER_PRIORITY: u32 = 49_000;

const XDP: &str = "xdp";
const TCX_EGRESS: &str = "tcx-egress";
const TCX_INGRESS: &str = "tcx-ingress";
/// An empty folder under this name says that an interface has our filters, which cannot be pinned.
const CLSACT: &str = "clsact";

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcAttach {
    /// By TCX where the kernel has it (6.6), else by filters of a clsact qdisc.
    #[default]
    Auto,
    /// By filters of a clsact qdisc.
    Clsact,
}

/// What an interface got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the interface.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// The mode of its XDP program: native or generic.
    pub xdp: AttachMode,
    /// `tcx` or `clsact`.
    pub tc: &'static str,
    /// Its driver, where the kernel names one.
    pub driver: Option<String>,
    /// True where the XDP program was replaced in a link that was there.
    pub adopted: bool,
    /// True where the program may be given several packets merged into one, which it must drop: generic mode with GRO on.
    pub merges_packets: bool,
}

impl Kernel {
    /// Attaches all programs to an interface, or replaces them in the links that are pinned for it.
    pub fn attach(&mut self, interface: &Interface, tc: TcAttach) -> Result<Attachment, DatapathError> {
        let name = &interface.name;
        let index = interface_index(name)?;
        follow_renaming(&self.pins, name, index)?;
        let xdp = attach_xdp(&self.pins, XDP, &self.programs.xdp_lb, name, index, interface.mode)?;
        let tc = match self.attach_tc(name, index, tc) {
            Ok(tc) => tc,
            Err(error) => {
                /* Half of it is of no use: requests would be forwarded whose replies are not translated. */
                if !xdp.adopted {
                    detach_interface(&self.pins, name)?;
                }
                return Err(error);
            }
        };
        for program in [&self.programs.xdp_lb, &self.programs.tc_nat, &self.programs.tc_handoff] {
            pin_program(&self.pins, program)?;
        }
        Ok(Attachment {
            name: name.clone(),
            index,
            xdp: xdp.mode,
            tc,
            driver: sys::driver(name),
            adopted: xdp.adopted,
            merges_packets: xdp.mode == AttachMode::Generic && sys::merges_packets(name),
        })
    }

    /// True while everything that keeps the programs on an interface is pinned: nothing else does.
    pub fn is_attached(&self, attachment: &Attachment) -> bool {
        let hooks: &[&str] =
            if attachment.tc == "tcx" { &[XDP, TCX_EGRESS, TCX_INGRESS] } else { &[XDP, CLSACT] };
        hooks.iter().all(|hook| self.pins.link(hook, &attachment.name).exists())
    }

    /// Interfaces that have links or filters of ours.
    pub fn attached_interfaces(&self) -> Vec<String> {
        attached_interfaces(&self.pins)
    }

    /// Takes our programs off an interface.
    pub fn detach_interface(&mut self, name: &str) -> Result<(), DatapathError> {
        detach_interface(&self.pins, name)
    }

    fn attach_tc(&self, name: &str, index: u32, tc: TcAttach) -> Result<&'static str, DatapathError> {
        if tc == TcAttach::Auto {
            let egress = attach_tcx(&self.pins, TCX_EGRESS, &self.programs.tc_nat, name, index);
            match egress {
                Ok(()) => {
                    attach_tcx(&self.pins, TCX_INGRESS, &self.programs.tc_handoff, name, index)
                        .map_err(|error| tc_failed(name, error))?;
                    /* After an upgrade of the kernel the filters would translate a second time. */
                    return remove_filters(&self.pins, name).map(|()| "tcx");
                }
                Err(error) if lacks_tcx(&error) => {}
                Err(error) => return Err(tc_failed(name, error)),
            }
        }
        for (point, program) in [(TC_EGRESS, &self.programs.tc_nat), (TC_INGRESS, &self.programs.tc_handoff)]
        {
            filter(program.fd.as_fd(), index, point).create().map_err(|error| tc_failed(name, error))?;
            filter(program.fd.as_fd(), index, point).attach().map_err(|error| tc_failed(name, error))?;
        }
        let marker = self.pins.link(CLSACT, name);
        match fs::create_dir(&marker) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(DatapathError::system(format!("make {}", marker.display()), error));
            }
            _ => {}
        }
        remove_link(&self.pins.link(TCX_EGRESS, name))?;
        remove_link(&self.pins.link(TCX_INGRESS, name))?;
        Ok("clsact")
    }
}

/// Takes everything of the load balancer off all interfaces and removes its pins. Returns the interfaces.
///
/// # Errors
/// Where a process holds the pins, or something cannot be removed; what was removed until then stays removed.
pub fn detach_all(pins: &Pins) -> Result<Vec<String>, DatapathError> {
    if !pins.root().exists() {
        return Ok(Vec::new());
    }
    let lock = pins.lock()?;
    let interfaces = attached_interfaces(pins);
    for name in &interfaces {
        detach_interface(pins, name)?;
    }
    pins.remove_load_balancer()?;
    drop(lock);
    pins.remove_empty_folders();
    Ok(interfaces)
}

fn attached_interfaces(pins: &Pins) -> Vec<String> {
    let hooks = [XDP, TCX_EGRESS, TCX_INGRESS, CLSACT];
    let mut names: Vec<_> = hooks.into_iter().flat_map(|hook| pins.linked_interfaces(hook)).collect();
    names.sort();
    names.dedup();
    names
}

fn detach_interface(pins: &Pins, name: &str) -> Result<(), DatapathError> {
    for hook in [XDP, TCX_INGRESS, TCX_EGRESS] {
        remove_link(&pins.link(hook, name))?;
    }
    remove_filters(pins, name)
}

pub(super) fn interface_index(name: &str) -> Result<u32, DatapathError> {
    if_nametoindex(name).map_err(|_| DatapathError::NoInterface { name: name.to_owned() })
}

/// How an XDP program came to an interface.
pub(super) struct XdpAttachment {
    pub(super) mode: AttachMode,
    pub(super) adopted: bool,
}

/// Attaches an XDP program by a link pinned under `hook`, or replaces the program of the link that is pinned there.
pub(super) fn attach_xdp(
    pins: &Pins,
    hook: &str,
    program: &LoadedProgram,
    name: &str,
    index: u32,
    wanted: AttachMode,
) -> Result<XdpAttachment, DatapathError> {
    let path = pins.link(hook, name);
    if let Some(link) = open_link(&path, index)? {
        let mode = attached_mode(index);
        if wanted == AttachMode::Auto || wanted == mode {
            sys::update_link(link.as_fd(), program.fd.as_fd()).map_err(|error| {
                DatapathError::system(format!("replace the XDP program on {name}"), error)
            })?;
            return Ok(XdpAttachment { mode, adopted: true });
        }
        tracing::warn!(interface = name, from = %mode, to = %wanted, "attaching anew in another mode: a gap of milliseconds");
    }
    remove_link(&path)?;
    let (link, mode) = create_xdp_link(program, name, index, wanted)?;
    pin_link(&link, &path)?;
    Ok(XdpAttachment { mode, adopted: false })
}

fn create_xdp_link(
    program: &LoadedProgram,
    name: &str,
    index: u32,
    wanted: AttachMode,
) -> Result<(OwnedFd, AttachMode), DatapathError> {
    let driver = sys::driver(name).unwrap_or_else(|| "unknown".to_owned());
    if wanted != AttachMode::Generic {
        match sys::create_link(program.fd.as_fd(), index, Hook::XdpNative) {
            Ok(link) => return Ok((link, AttachMode::Native)),
            Err(error) if is_busy(&error) => return Err(occupied(name, index, error)),
            Err(error) if wanted == AttachMode::Native => {
                let remedy = native_remedy(name);
                return Err(DatapathError::NotNative {
                    name: name.to_owned(),
                    driver,
                    remedy,
                    source: error.into(),
                });
            }
            Err(error) => {
                tracing::warn!(interface = name, driver, %error, "no native XDP here: falling back to generic, which is slower");
            }
        }
    }
    match sys::create_link(program.fd.as_fd(), index, Hook::XdpGeneric) {
        Ok(link) => Ok((link, AttachMode::Generic)),
        Err(error) if is_busy(&error) => Err(occupied(name, index, error)),
        Err(error) => {
            Err(DatapathError::system(format!("attach an XDP program to {name} in generic mode"), error))
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn occupied(name: &str, index: u32, error: io::Error) -> DatapathError {
    let Ok(state) = sys::query_xdp(index) else {
        return DatapathError::system(format!("attach an XDP program to {name}"), error);
    };
    let id = if state.native != 0 { state.native } else { state.generic };
    let program = ProgInfoIter::default()
        .find(|info| info.id == id)
        .map_or_else(|| "?".to_owned(), |info| info.name.to_string_lossy().into_owned());
    DatapathError::Occupied { name: name.to_owned(), program, id }
}

fn attached_mode(index: u32) -> AttachMode {
    match sys::query_xdp(index) {
        Ok(state) if state.native == 0 && state.generic != 0 => AttachMode::Generic,
        _ => AttachMode::Native,
    }
}

/// The link pinned at `path`, if it is attached to the interface with this index. The link of an interface that is gone is not.
fn open_link(path: &Path, index: u32) -> Result<Option<Link>, DatapathError> {
    if !path.exists() {
        return Ok(None);
    }
    let failed = |error| DatapathError::system(format!("open the link pinned at {}", path.display()), error);
    let link = Link::open(path).map_err(failed)?;
    let attached_to = match link.info().map_err(failed)?.info {
        LinkTypeInfo::Xdp(info) => info.ifindex,
        LinkTypeInfo::Tcx(info) => info.ifindex,
        _ => 0,
    };
    Ok((attached_to == index).then_some(link))
}

/// Where an interface was renamed, its links are pinned under its former name: moves them to the name it has now. What was
/// pinned there takes the former name, as two interfaces may have swapped theirs.
fn follow_renaming(pins: &Pins, name: &str, index: u32) -> Result<(), DatapathError> {
    let is_at = |hook: &str, name: &str| matches!(open_link(&pins.link(hook, name), index), Ok(Some(_)));
    let Some(former) = pins
        .linked_interfaces(XDP)
        .into_iter()
        .find(|former| former != name && is_at(XDP, former) && runs_on(&pins.link(XDP, former), index))
    else {
        return Ok(());
    };
    tracing::warn!(interface = name, former, "the interface was renamed: its links are kept");
    /* The link by which the renaming is noticed comes last, should we die in between. */
    for hook in [TCX_INGRESS, TCX_EGRESS, XDP] {
        if is_at(hook, &former) && !is_at(hook, name) {
            Pins::exchange(&pins.link(hook, &former), &pins.link(hook, name))?;
        }
    }
    Ok(())
}

/// True where it is this link's program that runs on the interface. An interface of another network namespace may have the
/// same index.
fn runs_on(link: &Path, index: u32) -> bool {
    let program = Link::open(link).and_then(|link| link.info()).map(|info| info.prog_id);
    match (program, sys::query_xdp(index)) {
        (Ok(program), Ok(state)) => program != 0 && [state.native, state.generic].contains(&program),
        _ => false,
    }
}

fn attach_tcx(
    pins: &Pins,
    hook: &str,
    program: &LoadedProgram,
    name: &str,
    index: u32,
) -> Result<(), DatapathError> {
    let path = pins.link(hook, name);
    if let Some(link) = open_link(&path, index)? {
        return sys::update_link(link.as_fd(), program.fd.as_fd()).map_err(|error| {
            DatapathError::system(format!("replace the program {} on {name}", program.name), error)
        });
    }
    remove_link(&path)?;
    let point = if hook == TCX_EGRESS { Hook::TcxEgress } else { Hook::TcxIngress };
    let link = sys::create_link(program.fd.as_fd(), index, point)
        .map_err(|error| DatapathError::system(format!("attach {} to {name} by TCX", program.name), error))?;
    pin_link(&link, &path)
}

/// True where the kernel does not know TCX: it then refuses the kind of attachment as invalid.
fn lacks_tcx(error: &DatapathError) -> bool {
    let DatapathError::System { source, .. } = error else { return false };
    source
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error)
        .is_some_and(|code| matches!(code, libc::EINVAL | libc::EOPNOTSUPP))
}

fn tc_failed(name: &str, error: impl std::error::Error + Send + Sync + 'static) -> DatapathError {
    DatapathError::system(format!("attach the TC programs to {name}"), error)
}

fn filter(program: BorrowedFd<'_>, index: u32, point: TcAttachPoint) -> TcHook {
    TcHookBuilder::new(program)
        .ifindex(index as i32)
        .replace(true)
        .handle(FILTER_HANDLE)
        .priority(FILTER_PRIORITY)
        .hook(point)
}

fn remove_filters(pins: &Pins, name: &str) -> Result<(), DatapathError> {
    let marker = pins.link(CLSACT, name);
    if !marker.exists() {
        return Ok(());
    }
    if let (Ok(index), Ok(program)) = (if_nametoindex(name), sys::open_pin(&pins.programs().join("tc_nat"))) {
        for point in [TC_EGRESS, TC_INGRESS] {
            let mut ours = filter(program.as_fd(), index, point);
            if ours.query().is_ok() {
                ours.detach()
                    .map_err(|error| DatapathError::system(format!("take our filter off {name}"), error))?;
            }
        }
    }
    fs::remove_dir(&marker)
        .map_err(|error| DatapathError::system(format!("remove {}", marker.display()), error))
}

/// Detaches the link pinned at `path` and removes the pin; nothing is no error.
pub(super) fn remove_link(path: &Path) -> Result<(), DatapathError> {
    if !path.exists() {
        return Ok(());
    }
    if let Ok(link) = Link::open(path) {
        /* Fails where the interface is gone, and the link with it. */
        let _ = link.detach();
    }
    Pins::remove(path)
}

fn pin_link(link: &OwnedFd, path: &Path) -> Result<(), DatapathError> {
    sys::pin(link.as_fd(), path)
        .map_err(|error| DatapathError::system(format!("pin the link at {}", path.display()), error))
}

/// Pins a program under its name, in place of an older one.
pub(super) fn pin_program(pins: &Pins, program: &LoadedProgram) -> Result<(), DatapathError> {
    let path = pins.programs().join(program.name);
    Pins::remove(&path)?;
    sys::pin(program.fd.as_fd(), &path)
        .map_err(|error| DatapathError::system(format!("pin {}", path.display()), error))
}
