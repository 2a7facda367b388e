//! The real programs, loaded with the contents of a model's [`Node`] and run on single frames (BPF_PROG_TEST_RUN).
//!
//! It shares nothing with `tidegate::datapath`: what the daemon writes into the maps is another test's business.
//!
//! ```ignore
//! let mut kernel = Kernel::load(&node);
//! let got = kernel.xdp_lb(&frame, ingress);
//! kernel.assert_agrees(&node.xdp_lb(&frame, ingress), &got);
//! ```

mod mirror;
mod query;
mod skeleton;

use std::{
    collections::BTreeMap,
    io,
    mem::MaybeUninit,
    ptr::{NonNull, null},
};

use libbpf_rs::{
    AsRawLibbpf, Link, MapCore, MapFlags, Mut, OpenObject, ProgramImpl, ProgramInput,
    libbpf_sys::bpf_program__attach_tcx,
    skel::{OpenSkel, SkelBuilder},
};
use nix::net::if_::if_nametoindex;
pub use query::{program_with_map, run_xdp, run_xdp_repeatedly};
use skeleton::{LbSkel, LbSkelBuilder, types};

use super::{
    frame::{difference, hex},
    model::{Action, Flow, Ledger, Node, Outcome, Reason, hash},
};

/// The loaded programs and their maps. They go when this is dropped.
pub struct Kernel {
    skel: LbSkel<'static>,
    secret: [u64; 2],
}

/// What a program made of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The kernel's number, as [`super::model::Action`] has it.
    pub action: u32,
    /// The note, where there is one, and the frame.
    pub data: Vec<u8>,
}

/// More than any frame of a test run: the kernel allows one page, less room for headers.
const LARGEST_OUTPUT: usize = 8192;

impl Kernel {
    /// Loads the programs and writes everything that the node knows into their maps, but for routes: those are the
    /// kernel's own.
    pub fn load(node: &Node) -> Self {
        // The skeleton borrows it for as long as it lives; a test process is short.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = LbSkelBuilder::default().open(object).expect("open the programs");
        mirror::set_sizes(&mut open, node);
        // How many answers there still may be depends on the time, so there are none here: what would have been answered is only
        // dropped. tests/icmp has the answers.
        open.maps.rodata_data.as_deref_mut().expect("constants").answer_burst = 0;
        let skel = open.load().expect("load the programs: tests with BPF need root");
        mirror::write(&skel.maps, node);
        Self { skel, secret: node.flows.secret }
    }

    /// Runs `xdp_lb` on a frame of 14 bytes or more that arrives on an interface of the calling thread's namespace.
    pub fn xdp_lb(&self, frame: &[u8], ingress_ifindex: u32) -> Run {
        let mut output = vec![0; LARGEST_OUTPUT];
        let mut context = [0; size_of::<types::xdp_md>()];
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        context[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&ingress_ifindex.to_ne_bytes());
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            data_out: Some(&mut output),
            ..ProgramInput::default()
        };
        run(self.skel.progs.xdp_lb.test_run(input))
    }

    /// Runs `xdp_decap` on a frame.
    pub fn xdp_decap(&self, frame: &[u8]) -> Run {
        let mut output = vec![0; LARGEST_OUTPUT];
        let input =
            ProgramInput { data_in: Some(frame), data_out: Some(&mut output), ..ProgramInput::default() };
        run(self.skel.progs.xdp_decap.test_run(input))
    }

    /// Runs `tc_nat` on a frame that leaves by an interface of the calling thread's namespace. What it lets go on is
    /// [`Action::Pass`].
    pub fn tc_nat(&self, frame: &[u8]) -> Run {
        const UNSPECIFIED: u32 = u32::MAX;
        const SHOT: u32 = 2;
        let mut output = vec![0; LARGEST_OUTPUT];
        let input =
            ProgramInput { data_in: Some(frame), data_out: Some(&mut output), ..ProgramInput::default() };
        let got = run(self.skel.progs.tc_nat.test_run(input));
        let action = match got.action {
            UNSPECIFIED => Action::Pass,
            SHOT => Action::Drop,
            other => panic!("tc_nat returned {other}"),
        };
        Run { action: action as u32, ..got }
    }

    /// Attaches `xdp_lb` to an interface of the calling thread's namespace, until the link is dropped.
    pub fn attach_xdp_lb(&self, interface: &str) -> Link {
        let index = if_nametoindex(interface).expect("the interface");
        self.skel.progs.xdp_lb.attach_xdp(index as i32).expect("attach xdp_lb")
    }

    /// Attaches `tc_handoff` to the ingress of an interface.
    pub fn attach_tc_handoff(&self, interface: &str) -> Link {
        attach_tcx(&self.skel.progs.tc_handoff, interface)
    }

    /// Attaches `tc_nat` to the egress of an interface.
    pub fn attach_tc_nat(&self, interface: &str) -> Link {
        attach_tcx(&self.skel.progs.tc_nat, interface)
    }

    /// Makes every tracked flow look as if its last packet had come so many ticks later (or earlier).
    pub fn shift_flow_ticks(&self, ticks: i16) {
        let flows = &self.skel.maps.flows;
        for bucket in 0..flows.max_entries() {
            let mut bytes = flows.lookup(&bucket.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            for entry in bytes.chunks_mut(size_of::<types::flow>()).filter(|entry| entry[8..12] != [0; 4]) {
                let tick = u16::from_ne_bytes([entry[12], entry[13]]).wrapping_add_signed(ticks);
                entry[12..14].copy_from_slice(&tick.to_ne_bytes());
            }
            flows.update(&bucket.to_ne_bytes(), &bytes, MapFlags::ANY).unwrap();
        }
    }

    /// The ledger of `xdp_lb`: key 0 has all packets, others those of a service.
    pub fn ledger(&self, key: u32) -> Ledger {
        read_ledger(&self.skel.maps.ledger, key)
    }

    /// The ledger of `tc_nat`.
    pub fn tc_nat_ledger(&self) -> Ledger {
        read_ledger(&self.skel.maps.hook_ledger, 0)
    }

    /// The ledger of `tc_handoff`.
    pub fn tc_handoff_ledger(&self) -> Ledger {
        read_ledger(&self.skel.maps.hook_ledger, 1)
    }

    /// The ledger of `xdp_decap`.
    pub fn decap_ledger(&self) -> Ledger {
        read_ledger(&self.skel.maps.decap_ledger, 0)
    }

    /// Packets and bytes sent to a backend of a service.
    pub fn backend_counters(&self, service: u32, number: u16) -> (u64, u64) {
        let key = mirror::record(service, number).to_ne_bytes();
        let cpus = self.skel.maps.backend_counters.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap();
        let word = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        cpus.iter().fold((0, 0), |sum, cpu| (sum.0 + word(cpu, 0), sum.1 + word(cpu, 8)))
    }

    /// Entries of the flow table by tag, service, backend and kind.
    pub fn flows(&self) -> Vec<(u64, u32, u16, u8)> {
        let flows = &self.skel.maps.flows;
        let mut found = Vec::new();
        for bucket in 0..flows.max_entries() {
            let bytes = flows.lookup(&bucket.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            for entry in bytes.chunks(size_of::<types::flow>()) {
                let check = u64::from_ne_bytes(entry[..8].try_into().unwrap());
                let owner = u32::from_ne_bytes(entry[8..12].try_into().unwrap());
                if owner != 0 {
                    let tag = check ^ u64::from(owner).wrapping_mul(mirror::OWNER_SPREAD);
                    found.push((tag, owner >> 16, owner as u16, entry[14]));
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// The flow of a model as [`Self::flows`] shows it.
    pub fn expected_flow(&self, flow: &Flow) -> (u64, u32, u16, u8) {
        (hash::client(flow.client, flow.protocol, self.secret), flow.service, flow.backend, flow.kind as u8)
    }

    /// Fails where counters or flows are not those of the model. The bytes of a ledger are not looked at, since one packet
    /// that lies about its length would spoil them all.
    #[track_caller]
    pub fn assert_state(&self, node: &Node) {
        let counts = |ledger: &Ledger| (ledger.seen, ledger.packets.clone());
        for (key, expected) in &node.ledger {
            assert_eq!(counts(&self.ledger(*key)), counts(expected), "ledger {key}");
        }
        assert_eq!(counts(&self.tc_nat_ledger()), counts(&node.tc_nat_ledger), "ledger of tc_nat");
        assert_eq!(counts(&self.decap_ledger()), counts(&node.decap_ledger), "ledger of xdp_decap");
        for (&(service, number), &expected) in &node.backend_counters {
            assert_eq!(
                self.backend_counters(service, number),
                expected,
                "backend {number} of service {service}"
            );
        }
        let mut expected: Vec<_> = node.flows.live().iter().map(|flow| self.expected_flow(flow)).collect();
        expected.sort_unstable();
        assert_eq!(self.flows(), expected, "flows");
    }
}

/// Says how what the kernel made of a frame differs from what the model did. Of dropped packets the bytes do not matter.
pub fn disagreement(frame: &[u8], expected: &Outcome, got: &Run) -> Option<String> {
    let mut text = String::new();
    if got.action != expected.action as u32 {
        text = format!(
            "action: expected {:?} ({}) got {}\n",
            expected.action, expected.action as u32, got.action
        );
    }
    if !expected.reason.is_dropped()
        && let Some(difference) = difference(&expected.data_out(), &got.data)
    {
        text += &difference;
    }
    (!text.is_empty()).then(|| format!("{} for {}\n{text}", expected.reason, hex(frame)))
}

/// libbpf-rs has no call for it.
fn attach_tcx(program: &ProgramImpl<'_, Mut>, interface: &str) -> Link {
    let index = if_nametoindex(interface).expect("the interface");
    // SAFETY: the program is loaded, and options may be null.
    let link = unsafe { bpf_program__attach_tcx(program.as_libbpf_object().as_ptr(), index as i32, null()) };
    let link =
        NonNull::new(link).unwrap_or_else(|| panic!("attach to {interface}: {}", io::Error::last_os_error()));
    // SAFETY: libbpf has just made the link, and nobody else has it.
    unsafe { Link::from_ptr(link) }
}

fn run(output: libbpf_rs::Result<libbpf_rs::ProgramOutput<'_>>) -> Run {
    let output = output.expect("a test run");
    Run { action: output.return_value, data: output.data.map(|data| data.to_vec()).unwrap_or_default() }
}

fn read_ledger(map: &impl MapCore, key: u32) -> Ledger {
    let cpus = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let sum = |at: usize| -> u64 {
        cpus.iter().map(|cpu| u64::from_ne_bytes(cpu[at * 8..at * 8 + 8].try_into().unwrap())).sum()
    };
    let packets: BTreeMap<Reason, u64> = Reason::ALL
        .iter()
        .map(|reason| (*reason, sum(2 + reason.number() as usize)))
        .filter(|(_, count)| *count > 0)
        .collect();
    Ledger { seen: sum(0), bytes: sum(1), packets }
}
