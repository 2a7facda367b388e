//! Loaded programs by their descriptors, whoever loaded them.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{
    Program,
    libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts},
    query::{ProgInfoIter, ProgInfoQueryOptions},
};

use super::{Kernel, LARGEST_OUTPUT, Run};

impl Kernel {
    /// Instructions that the verifier looked at before it took a program, by the program's name: branches count once for
    /// every state in which they were looked at.
    pub fn verified_instructions(&self) -> BTreeMap<&'static str, u32> {
        use std::os::fd::AsFd;
        let programs = &self.skel.progs;
        let named = [
            ("xdp_lb", programs.xdp_lb.as_fd()),
            ("tc_nat", programs.tc_nat.as_fd()),
            ("tc_handoff", programs.tc_handoff.as_fd()),
            ("xdp_decap", programs.xdp_decap.as_fd()),
        ];
        let by_id: BTreeMap<u32, &'static str> = named
            .into_iter()
            .map(|(name, fd)| (Program::id_from_fd(fd).expect("the program's ID"), name))
            .collect();
        ProgInfoIter::default()
            .filter_map(|info| Some((*by_id.get(&info.id)?, info.verified_insns)))
            .collect()
    }
}

/// The loaded program with this name that uses the map with this ID.
pub fn program_with_map(name: &str, map: u32) -> OwnedFd {
    let id = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
        .find(|info| info.name == name && info.map_ids.contains(&map))
        .unwrap_or_else(|| panic!("no {name} with map {map} is loaded"))
        .id;
    Program::fd_from_id(id).expect("open the program")
}

/// Runs an XDP program on a frame so many times without leaving the kernel in between.
pub fn run_xdp_repeatedly(program: BorrowedFd<'_>, frame: &[u8], ingress_ifindex: u32, times: u32) {
    let context = [0, frame.len() as u32, 0, ingress_ifindex, 0, 0];
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        repeat: times as i32,
        ..Default::default()
    };
    // SAFETY: all buffers live through the call and have the sizes given.
    let result = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    assert_eq!(result, 0, "a test run: {}", io::Error::from_raw_os_error(-result));
}

/// Runs an XDP program on a frame that arrives on an interface of the calling thread's namespace.
pub fn run_xdp(program: BorrowedFd<'_>, frame: &[u8], ingress_ifindex: u32) -> Run {
    let mut data = vec![0; LARGEST_OUTPUT];
    let context = [0, frame.len() as u32, 0, ingress_ifindex, 0, 0];
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: data.as_mut_ptr().cast(),
        data_size_out: data.len() as u32,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: all buffers live through the call and have the sizes given.
    let result = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    assert_eq!(result, 0, "a test run: {}", io::Error::from_raw_os_error(-result));
    data.truncate(options.data_size_out as usize);
    Run { action: options.retval, data }
}
