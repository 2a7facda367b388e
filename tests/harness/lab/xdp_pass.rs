//! The smallest programs: they pass every packet on. Hand-made, so that no compiler is needed when tests run.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr::null_mut,
};

use libbpf_rs::libbpf_sys::{
    BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP, BPF_TCX_EGRESS, BPF_XDP, XDP_FLAGS_DRV_MODE, bpf_attach_type,
    bpf_insn, bpf_link_create, bpf_link_create_opts, bpf_prog_load, bpf_prog_type,
};
use nix::net::if_::if_nametoindex;

/// `r0 = imm`.
const MOVE_IMMEDIATE: u8 = 0xb7;
/// `return r0`.
const EXIT: u8 = 0x95;
const XDP_PASS: i32 = 2;
/// The packet is accepted: no program behind this one sees it.
const TCX_PASS: i32 = 0;

/// Attaches an XDP program to an interface of the calling thread's namespace, in the driver. It stays until the link is closed.
pub fn attach(interface: &str) -> io::Result<OwnedFd> {
    link(interface, &load(BPF_PROG_TYPE_XDP, XDP_PASS)?, BPF_XDP, XDP_FLAGS_DRV_MODE)
}

/// The same at TCX egress, with a program that ends the chain of programs there.
pub fn attach_tcx_egress(interface: &str) -> io::Result<OwnedFd> {
    link(interface, &load(BPF_PROG_TYPE_SCHED_CLS, TCX_PASS)?, BPF_TCX_EGRESS, 0)
}

fn link(interface: &str, program: &OwnedFd, kind: bpf_attach_type, flags: u32) -> io::Result<OwnedFd> {
    let index = if_nametoindex(interface)?;
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        flags,
        ..bpf_link_create_opts::default()
    };
    // SAFETY: the options outlive the call and say their size; the file descriptor of the program is open.
    own(unsafe { bpf_link_create(program.as_raw_fd(), index as i32, kind, &options) })
}

fn load(kind: bpf_prog_type, result: i32) -> io::Result<OwnedFd> {
    let instructions = [
        bpf_insn { code: MOVE_IMMEDIATE, imm: result, ..bpf_insn::default() },
        bpf_insn { code: EXIT, ..bpf_insn::default() },
    ];
    let (name, license) = (CString::new("test_pass")?, CString::new("Apache-2.0")?);
    let count = instructions.len() as _;
    // SAFETY: both strings and the instructions outlive the call; there are `count` instructions; options may be null.
    own(unsafe {
        bpf_prog_load(kind, name.as_ptr(), license.as_ptr(), instructions.as_ptr(), count, null_mut())
    })
}

fn own(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the kernel has just returned it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}
