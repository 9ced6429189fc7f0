//! The kernel programs embedded in the binary: creates or adopts their maps, and loads them. Nothing is attached here.

use std::thread;

use aya::{
    Ebpf, EbpfLoader,
    programs::{Program, ProgramError, ProgramFd, ProgramInfo, SchedClassifier},
    util::KernelVersion,
};
use ingress_common::map;

use super::{
    ProgramReport,
    error::Error,
    kernel,
    pins::{MAPS, Pins},
    sys::{self, MapInfo, PinAccess},
};

/// Empty if the crate was built without the kernel programs (`build.rs`).
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ingress-ebpf.o"));

pub(super) const TC_IN: &str = "ingress_tc_in";
pub(super) const TC_OUT: &str = "ingress_tc_out";
pub(super) const REUSEPORT: &str = "ingress_quic";
pub(super) const XDP_COOKIES: &str = "ingress_xdp_cookies";
pub(super) const BARE: &str = "ingress_bare";
/// Read by the programs at every log statement; the verifier removes statements above the level.
const LOG_LEVEL: &str = "AYA_LOG_LEVEL";

/// Variant of the programs for the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// For kernels from [`kernel::FULL`] on.
    Full,
    /// For older kernels. XDP only sees frames of one buffer and rewrites no ports, and sk_lookup does not know the
    /// interface of a packet.
    Linear,
}

/// Size of an instruction of a translated program.
const INSTRUCTION: u32 = 8;

/// Maps with one entry per host.
const HOST_MAPS: [&str; 3] = [map::HOST_NET, map::HOST_L7, map::HOST_IDS];

// === impl Variant ===

impl Variant {
    /// Returns the variant for a kernel; an unknown version counts as recent.
    pub(super) fn of(version: Option<KernelVersion>) -> Self {
        if version.is_some_and(|version| version < kernel::FULL) { Self::Linear } else { Self::Full }
    }

    /// Returns the name of the XDP program.
    pub(super) const fn xdp(self) -> &'static str {
        match self {
            Self::Full => "ingress_xdp",
            Self::Linear => "ingress_xdp_linear",
        }
    }

    /// Returns the name of the sk_lookup program.
    pub(super) const fn lookup(self) -> &'static str {
        match self {
            Self::Full => "ingress_lookup",
            Self::Linear => "ingress_lookup_blind",
        }
    }
}

pub(super) const fn is_stub() -> bool {
    OBJECT.is_empty()
}

/// Creates maps that are not pinned yet; loads no program. `hosts` is the capacity of new host maps; pinned maps keep
/// theirs.
pub(super) fn open(pins: &Pins, hosts: u32, log: bool) -> Result<Ebpf, Error> {
    let mut loader = EbpfLoader::new();
    loader.override_global(LOG_LEVEL, if log { &u8::MAX } else { &0 }, true);
    for name in MAPS {
        loader.map_pin_path(name, pins.map(name));
    }
    for name in HOST_MAPS {
        loader.map_max_entries(name, hosts);
    }
    loader.load(OBJECT).map_err(|source| {
        if kernel::lacks_locked_memory(&source) { Error::LockedMemory } else { Error::Object(Box::new(source)) }
    })
}

/// Loads programs in parallel. The verifier takes most of the startup time, during which a node may have no serving
/// process. Errors are left to [`loaded`], which returns them.
pub(super) fn load_programs(object: &mut Ebpf, names: &[&str]) {
    thread::scope(|scope| {
        for (_, program) in object.programs_mut().filter(|(name, _)| names.contains(name)) {
            let load = || {
                let _is_asked_again = load_program(program).is_err();
            };
            // If no thread can be started, the program is loaded on demand.
            let _waits = thread::Builder::new().spawn_scoped(scope, load).is_err();
        }
    });
}

fn load_program(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::Xdp(xdp) => xdp.load(),
        Program::SkLookup(lookup) => lookup.load(),
        Program::SchedClassifier(classifier) => classifier.load(),
        Program::SkReuseport(reuseport) => reuseport.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Returns a program, and loads it if necessary.
pub(super) fn loaded<'a>(object: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Program, Error> {
    let refused = |source| refused(name, source);
    let program = object.program_mut(name).ok_or(ProgramError::NotLoaded).map_err(refused)?;
    if program.fd().is_err() {
        load_program(program).map_err(refused)?;
    }
    Ok(program)
}

/// Returns the descriptor of a program ([`loaded`] if necessary), and a report from the kernel's info.
pub(super) fn program<'a>(object: &'a mut Ebpf, name: &'static str) -> Result<(&'a ProgramFd, ProgramReport), Error> {
    let program = loaded(object, name)?;
    let info = program.info().ok();
    let report = ProgramReport {
        name,
        verified_instructions: info.as_ref().and_then(ProgramInfo::verified_instruction_count),
        translated_instructions: info.as_ref().and_then(ProgramInfo::size_translated).map(|size| size / INSTRUCTION),
    };
    Ok((program.fd().map_err(|source| refused(name, source))?, report))
}

/// Returns the descriptor of a program that is already loaded.
pub(super) fn fd<'a>(object: &'a Ebpf, name: &'static str) -> Result<&'a ProgramFd, Error> {
    let program = object.program(name).ok_or(ProgramError::NotLoaded);
    program.and_then(Program::fd).map_err(|source| refused(name, source))
}

/// Returns the kernel's number of a program that is already loaded.
pub(super) fn id(object: &Ebpf, name: &'static str) -> Result<u32, Error> {
    let program = object.program(name).ok_or(ProgramError::NotLoaded);
    program.and_then(Program::info).map(|info| info.id()).map_err(|source| refused(name, source))
}

/// Returns a tc program ([`loaded`] if necessary), to attach it.
pub(super) fn classifier<'a>(object: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, Error> {
    <&mut SchedClassifier>::try_from(loaded(object, name)?).map_err(|source| refused(name, source))
}

pub(super) fn refused(program: &'static str, source: ProgramError) -> Error {
    if kernel::lacks_locked_memory(&source) {
        return Error::LockedMemory;
    }
    Error::Program { program, source: Box::new(source) }
}

/// Returns the capacity of the host maps if they are already pinned.
pub(super) fn pinned_hosts(pins: &Pins) -> Result<Option<u32>, Error> {
    let mut capacity = None;
    for name in HOST_MAPS {
        let path = pins.map(name);
        if !path.exists() {
            continue;
        }
        let kernel = |operation| move |source| Error::kernel(operation, format!("map {name}"), source);
        let fd = sys::open_pin(&path, PinAccess::Read).map_err(kernel("open"))?;
        let info: MapInfo = sys::info(std::os::fd::AsFd::as_fd(&fd)).map_err(kernel("inspect"))?;
        if capacity.is_some_and(|capacity| capacity != info.max_entries) {
            let found = format!("{} entries", info.max_entries);
            let expected = format!("{} entries as its sisters", capacity.unwrap_or_default());
            return Err(Error::Layout { path, found, expected });
        }
        capacity = Some(info.max_entries);
    }
    Ok(capacity)
}

#[cfg(test)]
mod tests;
