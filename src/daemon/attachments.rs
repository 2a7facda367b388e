//! The interfaces: attached as configured, looked after while they come and go.

use std::fs;

use nix::net::if_::if_nametoindex;

use crate::{
    datapath::{Attachment, DatapathError, Kernel, TcAttach, hidden_vlans},
    engine::Engine,
    model::{
        Interface,
        status::{InterfaceStatus, Problem},
    },
};

/// What is attached, and what should be.
#[derive(Default)]
pub(super) struct Attachments {
    wanted: Vec<Interface>,
    attached: Vec<Attachment>,
    /// Errors of the last attempt, by interface.
    failed: Vec<(String, String)>,
}

impl Attachments {
    /// True while every interface of the configuration has the programs.
    pub(super) fn is_complete(&self) -> bool {
        self.wanted.iter().all(|wanted| self.attached.iter().any(|attached| attached.name == wanted.name))
    }

    /// Attaches to every interface, and takes the programs off those that an earlier process attached to and that are not
    /// wanted any more.
    pub(super) fn attach_all(
        &mut self,
        wanted: &[Interface],
        engine: &mut Engine<Kernel>,
    ) -> Result<(), DatapathError> {
        self.wanted = wanted.to_vec();
        for interface in wanted {
            let attachment = engine.datapath_mut().attach(interface, TcAttach::Auto)?;
            log(&attachment);
            self.attached.push(attachment);
        }
        self.detach_unwanted(engine);
        self.tell(engine);
        Ok(())
    }

    /// Takes away what this process attached.
    pub(super) fn undo(&mut self, engine: &mut Engine<Kernel>) {
        for attachment in self.attached.drain(..).filter(|attachment| !attachment.adopted) {
            if let Err(error) = engine.datapath_mut().detach_interface(&attachment.name) {
                tracing::warn!(interface = attachment.name, "{error}");
            }
        }
    }

    /// Changes the interfaces to those of a new configuration. What fails is tried again by `maintain`.
    pub(super) fn change(&mut self, wanted: &[Interface], engine: &mut Engine<Kernel>) {
        let changed_mode = |name: &str| {
            let mode = |interfaces: &[Interface]| {
                interfaces.iter().find(|interface| interface.name == name).map(|interface| interface.mode)
            };
            mode(wanted) != mode(&self.wanted)
        };
        let stays: Vec<_> =
            self.attached.iter().filter(|attached| !changed_mode(&attached.name)).cloned().collect();
        self.attached = stays;
        self.wanted = wanted.to_vec();
        /* First, so that an interface whose name has changed here as well keeps its links. */
        self.maintain(engine);
        self.detach_unwanted(engine);
    }

    /// Attaches what is not attached, and notices interfaces that went or came back as others of the same name.
    pub(super) fn maintain(&mut self, engine: &mut Engine<Kernel>) {
        self.attached.retain(|attachment| is_in_place(attachment, engine.datapath()));
        let mut failed = Vec::new();
        for interface in &self.wanted {
            if self.attached.iter().any(|attached| attached.name == interface.name) {
                continue;
            }
            match engine.datapath_mut().attach(interface, TcAttach::Auto) {
                Ok(attachment) => {
                    log(&attachment);
                    self.attached.push(attachment);
                }
                Err(error) => failed.push((interface.name.clone(), error.to_string())),
            }
        }
        for (name, error) in &failed {
            if !self.failed.contains(&(name.clone(), error.clone())) {
                tracing::error!(interface = name, "cannot attach: {error}");
            }
        }
        self.failed = failed;
        self.tell(engine);
    }

    fn detach_unwanted(&self, engine: &mut Engine<Kernel>) {
        for name in engine.datapath().attached_interfaces() {
            if self.wanted.iter().any(|wanted| wanted.name == name) {
                continue;
            }
            match engine.datapath_mut().detach_interface(&name) {
                Ok(()) => tracing::info!(interface = name, "detached, as it is not in the configuration"),
                Err(error) => tracing::error!(interface = name, "{error}"),
            }
        }
    }

    fn tell(&self, engine: &mut Engine<Kernel>) {
        engine.set_interfaces(self.attached.iter().map(status).collect());
        let mut problems: Vec<_> = self
            .failed
            .iter()
            .map(|(name, error)| Problem {
                message: format!("nothing is forwarded on {name}: {error}"),
                remedy: "it is tried again every second".to_owned(),
            })
            .collect();
        problems.extend(self.attached.iter().filter(|attached| attached.merges_packets).map(merging_problem));
        if engine.uses_nat() {
            problems.extend(self.attached.iter().flat_map(forwarding_problems));
        }
        problems.extend(self.attached.iter().filter_map(hidden_tags_problem));
        engine.set_problems("interfaces", problems);
    }
}

/// False where the interface is gone, another has its name, or somebody removed what keeps our programs there.
fn is_in_place(attachment: &Attachment, kernel: &Kernel) -> bool {
    let interface = &attachment.name;
    if !if_nametoindex(interface.as_str()).is_ok_and(|index| index == attachment.index) {
        tracing::warn!(interface, "the interface is gone or has another name");
        return false;
    }
    if !kernel.is_attached(attachment) {
        tracing::error!(interface, "somebody removed our pinned links: attaching anew");
        return false;
    }
    true
}

fn log(attachment: &Attachment) {
    tracing::info!(
        interface = attachment.name,
        xdp = %attachment.xdp,
        tc = attachment.tc,
        driver = attachment.driver.as_deref().unwrap_or("unknown"),
        adopted = attachment.adopted,
        "attached"
    );
}

fn status(attachment: &Attachment) -> InterfaceStatus {
    InterfaceStatus {
        name: attachment.name.clone(),
        index: attachment.index,
        xdp: attachment.xdp.to_string(),
        tc: attachment.tc.to_owned(),
        driver: attachment.driver.clone(),
        adopted: attachment.adopted,
    }
}

/// What the device takes off a frame, XDP does not see: packets of every VLAN look alike to it.
fn hidden_tags_problem(attachment: &Attachment) -> Option<Problem> {
    let (name, vlans) = (&attachment.name, hidden_vlans(&attachment.name));
    (!vlans.is_empty()).then(|| Problem {
        message: format!(
            "{name} takes VLAN tags off before XDP sees them: packets of {} count as untagged ones of {name}",
            vlans.join(", ")
        ),
        remedy: format!("ethtool -K {name} rxvlan off"),
    })
}

/// Packets that were merged are larger than any MTU, so that they are dropped and transfers stall.
fn merging_problem(attachment: &Attachment) -> Problem {
    Problem {
        message: format!("{} runs XDP in generic mode and merges packets (GRO) before it", attachment.name),
        remedy: format!("ethtool -K {} gro off, and restart the daemon", attachment.name),
    }
}

/// Replies of NAT services are routed by the kernel's tables, which it does only for interfaces that may forward.
fn forwarding_problems(attachment: &Attachment) -> Vec<Problem> {
    let off = |family: &str| {
        let path = format!("/proc/sys/net/{family}/conf/{}/forwarding", attachment.name);
        fs::read_to_string(path).is_ok_and(|value| value.trim() == "0")
    };
    ["ipv4", "ipv6"]
        .into_iter()
        .filter(|family| off(family))
        .map(|family| Problem {
            message: format!(
                "{} may not forward {family}: replies of nat services that arrive there are dropped",
                attachment.name
            ),
            remedy: format!("sysctl -w net.{family}.conf.{}.forwarding=1", attachment.name.replace('.', "/")),
        })
        .collect()
}
