//! The only unsafe code: plain data as bytes, mapped arrays, and the system calls that libbpf-rs does not offer.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    io,
    marker::PhantomData,
    mem::size_of,
    num::NonZeroUsize,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use libbpf_rs::libbpf_sys;
use nix::sys::{
    mman::{MapFlags, ProtFlags, mmap, munmap},
    statfs::{BPF_FS_MAGIC, statfs},
};

use super::skeleton::types;

mod ethtool;

pub(super) use ethtool::{driver, merges_packets, rx_vlan_offload};

/// The unit in which packets and the daemon see each other's stores whole.
pub(super) type Word = u64;

/// Types of the contract: fixed layout, no padding, every bit pattern valid.
///
/// # Safety
/// Implementors must be `repr(C)` without padding bytes and with only integers and arrays of such inside.
pub(super) unsafe trait PlainData: Copy + Default {
    /// The value's bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the trait's contract every byte of the value is initialized.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The value with these bytes; `None` where they are of another length.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<Self>() {
            return None;
        }
        // SAFETY: the length was checked and by the trait's contract every bit pattern is a value.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! plain_data {
    ($($name:ident),*) => {
        $(
            // SAFETY: a struct of include/tidegate/*.h, whose padding is explicit; sizes are asserted in records.rs.
            unsafe impl PlainData for types::$name {}
        )*
    };
}

plain_data!(
    service,
    backend,
    slot_line,
    flow_bucket,
    node_settings,
    endpoint_v4,
    endpoint_v6,
    address_key,
    address_services,
    port_ranges,
    ledger,
    egress,
    backend_counters,
    admission,
    source_key_v4,
    source_key_v6,
    source_rule
);

/// The elements of a mappable BPF array, shared with running programs.
///
/// Every access is of whole words with atomic instructions, so that neither side ever sees half a word; an element of several
/// words is not read or written as one.
pub(super) struct MappedArray<T> {
    words: NonNull<AtomicU64>,
    bytes: NonZeroUsize,
    elements: usize,
    element: PhantomData<T>,
}

// SAFETY: the memory is only accessed through atomics.
unsafe impl<T> Send for MappedArray<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for MappedArray<T> {}

impl<T: PlainData> MappedArray<T> {
    const WORDS: usize = size_of::<T>() / size_of::<Word>();

    /// Maps the array behind `fd`, which must be a mappable BPF array of `elements` values of type `T`.
    pub(super) fn new(fd: BorrowedFd<'_>, elements: usize) -> io::Result<Self> {
        const {
            assert!(size_of::<T>().is_multiple_of(size_of::<Word>()));
        }
        let bytes = NonZeroUsize::new(elements * size_of::<T>())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an array of no elements"))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice; it ends only in `drop`.
        let address = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { words: address.cast(), bytes, elements, element: PhantomData })
    }

    pub(super) fn len(&self) -> usize {
        self.elements
    }

    fn word(&self, index: usize, word: usize) -> &AtomicU64 {
        assert!(index < self.elements && word < Self::WORDS, "element {index} of {}", self.elements);
        // SAFETY: within the mapping by the assertion; mappings are page-aligned and so are words.
        unsafe { self.words.add(index * Self::WORDS + word).as_ref() }
    }

    /// Reads an element, word by word.
    pub(super) fn get(&self, index: usize) -> T {
        let mut value = T::default();
        let target = std::ptr::from_mut(&mut value).cast::<Word>();
        for word in 0..Self::WORDS {
            let bits = self.word(index, word).load(Ordering::Relaxed);
            // SAFETY: `word` is within the value, and `T` is plain data.
            unsafe { target.add(word).write_unaligned(bits) };
        }
        value
    }

    /// Writes an element, word by word, the first word last: in records that packets test, it makes the others valid.
    pub(super) fn set(&self, index: usize, value: &T) {
        let source = std::ptr::from_ref(value).cast::<Word>();
        for word in (0..Self::WORDS).rev() {
            // SAFETY: `word` is within the value.
            let bits = unsafe { source.add(word).read_unaligned() };
            self.word(index, word).store(bits, Ordering::Release);
        }
    }

    /// Replaces one word of an element, atomically.
    pub(super) fn set_word(&self, index: usize, offset: usize, bits: Word) {
        self.word(index, offset / size_of::<Word>()).store(bits, Ordering::Release);
    }

    /// Replaces one word of an element if it is still `expected`.
    pub(super) fn replace_word(&self, index: usize, offset: usize, expected: Word, bits: Word) -> bool {
        self.word(index, offset / size_of::<Word>())
            .compare_exchange(expected, bits, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing refers to any more. It cannot fail for a mapping that exists.
        let _ = unsafe { munmap(self.words.cast(), self.bytes.get()) };
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    XdpNative,
    XdpGeneric,
    TcxIngress,
    TcxEgress,
}

/// Attaches a program to an interface by a BPF link, which ends with the returned descriptor unless it is pinned.
pub(super) fn create_link(program: BorrowedFd<'_>, interface: u32, hook: Hook) -> io::Result<OwnedFd> {
    let (kind, flags) = match hook {
        Hook::XdpNative => (libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_DRV_MODE),
        Hook::XdpGeneric => (libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_SKB_MODE),
        /* Before other programs: one that ends the chain by accepting a packet would leave replies untranslated. Ours let
         * every packet that is not theirs go on to the next. */
        Hook::TcxIngress => (libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_F_BEFORE),
        Hook::TcxEgress => (libbpf_sys::BPF_TCX_EGRESS, libbpf_sys::BPF_F_BEFORE),
    };
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: the options live through the call; libbpf copies them.
    let fd =
        check(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), interface as i32, kind, &options) })?;
    // SAFETY: a descriptor that the call just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces the program of a link, for packets at once.
pub(super) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no options are given.
    check(unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })?;
    Ok(())
}

fn path_text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Pins a BPF object.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_text(path)?;
    // SAFETY: a valid descriptor and a C string.
    check(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) })?;
    Ok(())
}

/// Opens a pinned BPF object.
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = path_text(path)?;
    // SAFETY: a C string.
    let fd = check(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: a descriptor that the call just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What runs at the XDP hook of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct XdpState {
    /// ID of the program in the driver, 0 for none.
    pub(super) native: u32,
    /// ID of the generic program, 0 for none.
    pub(super) generic: u32,
}

/// Asks what runs at the XDP hook of an interface.
pub(super) fn query_xdp(interface: u32) -> io::Result<XdpState> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options live through the call.
    check(unsafe { libbpf_sys::bpf_xdp_query(interface as i32, 0, &mut options) })?;
    /* With one program only, older kernels report it in `prog_id` and the mode beside it. */
    const ATTACHED_NATIVE: u8 = 1;
    const ATTACHED_GENERIC: u8 = 2;
    let mut state = XdpState { native: options.drv_prog_id, generic: options.skb_prog_id };
    match options.attach_mode {
        ATTACHED_NATIVE => state.native = options.prog_id,
        ATTACHED_GENERIC => state.generic = options.prog_id,
        _ => {}
    }
    Ok(state)
}

/// True where `path` lies on a BPF file system.
pub(super) fn is_bpf_file_system(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.filesystem_type() == BPF_FS_MAGIC)
}

/// Waits until every BPF program that runs now has ended, by the kernel's own grace period. `false`: not to be had here.
pub(super) fn wait_for_programs() -> bool {
    const MEMBARRIER_CMD_GLOBAL: libc::c_long = 1;
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0 }
}

/// Fills the words with random bits from the kernel.
pub(super) fn random_words<const N: usize>() -> io::Result<[u64; N]> {
    let mut words = [0; N];
    let bytes = size_of_val(&words);
    // SAFETY: the buffer is of the given size. Requests of up to 256 bytes are never cut short.
    let read = unsafe { libc::getrandom(words.as_mut_ptr().cast(), bytes, 0) };
    if read == bytes as isize { Ok(words) } else { Err(io::Error::last_os_error()) }
}

/// Makes a table: a mappable inner array with the type information of the object that `btf` belongs to.
pub(super) fn create_table(lines: u32, btf: Option<(BorrowedFd<'_>, u32, u32)>) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_MMAPABLE | libbpf_sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    if let Some((fd, key, value)) = btf {
        options.btf_fd = fd.as_raw_fd() as u32;
        options.btf_key_type_id = key;
        options.btf_value_type_id = value;
    }
    // SAFETY: a C string and options that live through the call.
    let fd = check(unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_ARRAY,
            c"table".as_ptr(),
            size_of::<u32>() as u32,
            size_of::<types::slot_line>() as u32,
            lines,
            &options,
        )
    })?;
    // SAFETY: a descriptor that the call just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The type of a map's keys.
pub(super) enum Element<'a> {
    /// `unsigned int`.
    Int,
    /// The struct of this name.
    Struct(&'a CStr),
}

/// Type numbers of keys and of a struct of values in a loaded object's type information, with its descriptor.
///
/// The descriptor is libbpf's and lives as long as the object.
pub(super) fn element_types<'o>(
    object: &'o libbpf_rs::Object,
    key: Element<'_>,
    value: &CStr,
) -> Option<(BorrowedFd<'o>, u32, u32)> {
    use libbpf_rs::AsRawLibbpf;
    const KIND_INT: u32 = 1;
    const KIND_STRUCT: u32 = 4;
    let (key, key_kind) = match key {
        Element::Int => (c"unsigned int", KIND_INT),
        Element::Struct(name) => (name, KIND_STRUCT),
    };
    // SAFETY: a loaded object; the returned pointer belongs to it and is valid while it lives.
    unsafe {
        let btf = libbpf_sys::bpf_object__btf(object.as_libbpf_object().as_ptr());
        if btf.is_null() {
            return None;
        }
        let key = libbpf_sys::btf__find_by_name_kind(btf, key.as_ptr(), key_kind);
        let value = libbpf_sys::btf__find_by_name_kind(btf, value.as_ptr(), KIND_STRUCT);
        let fd = libbpf_sys::btf__fd(btf);
        if key <= 0 || value <= 0 || fd < 0 {
            return None;
        }
        Some((BorrowedFd::borrow_raw(fd), key as u32, value as u32))
    }
}

/// A copy of a descriptor.
pub(super) fn duplicate(fd: impl AsFd) -> io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

/// What a program did with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Its return value, such as `XDP_TX`.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// Metadata that the program put in front of the frame.
    pub metadata: Vec<u8>,
}

/// Runs an XDP program once on a frame (BPF_PROG_TEST_RUN), as if it had come in by the interface with index `ingress`.
pub(super) fn run_xdp(program: BorrowedFd<'_>, frame: &[u8], ingress: u32) -> io::Result<RunOutcome> {
    /* struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex */
    let mut context = [0u32, frame.len() as u32, 0, ingress, 0, 0];
    let mut out = vec![0u8; frame.len() + 512];
    let size = size_of_val(&context) as u32;
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size,
        ctx_out: context.as_mut_ptr().cast(),
        ctx_size_out: size,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: all buffers live through the call and have the sizes given.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    out.truncate(options.data_size_out as usize);
    let metadata_length = (context[0] as usize).min(out.len());
    let frame = out.split_off(metadata_length);
    Ok(RunOutcome { action: options.retval, frame, metadata: out })
}
