//! The kernel programs as they are embedded in the binary: creates or adopts their maps and loads them. Attaches
//! nothing.

use aya::{
    Ebpf, EbpfLoader, TestRun as _, TestRunAttrs, TestRunOptions,
    programs::{Program, ProgramError, ProgramFd, ProgramInfo, SchedClassifier, Xdp},
};
use ingress_common::map;

use super::{
    ProgramReport, RunOptions, RunResult, TestProgram, TransmitOptions,
    error::Error,
    pins::{MAPS, Pins},
    sys::{self, Access, MapInfo},
};

/// Empty if the crate was built without the kernel programs (`build.rs`).
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ingress-ebpf.o"));

pub(super) const XDP: &str = "ingress_xdp";
pub(super) const LOOKUP: &str = "ingress_lookup";
pub(super) const TC_IN: &str = "ingress_tc_in";
pub(super) const TC_OUT: &str = "ingress_tc_out";
const BARE: &str = "ingress_bare";
/// Read by the programs at every log statement; the verifier removes those above the level.
const LOG_LEVEL: &str = "AYA_LOG_LEVEL";

/// Size of `struct xdp_md`, and where the fields lie that a live run sets.
const XDP_MD: usize = 24;
const XDP_MD_DATA_END: usize = 4;
const XDP_MD_IFINDEX: usize = 12;
/// Size of an instruction of a translated program.
const INSTRUCTION: u32 = 8;

/// Size of `struct __sk_buff`, and where the fields lie that a test run sets.
const SK_BUFF: usize = 192;
const SK_BUFF_IFINDEX: usize = 40;
const SK_BUFF_WIRE_LEN: usize = 160;
const SK_BUFF_GSO_SEGS: usize = 164;

/// Maps that have one entry per host.
const HOST_MAPS: [&str; 3] = [map::HOST_NET, map::HOST_L7, map::HOST_IDS];

pub(super) const fn is_stub() -> bool {
    OBJECT.is_empty()
}

/// Creates the maps that are not pinned yet and loads the programs; `hosts` is the capacity of the host maps. Pinned
/// maps keep theirs.
pub(super) fn load(pins: &Pins, hosts: u32, log: bool) -> Result<Ebpf, Error> {
    let mut loader = EbpfLoader::new();
    loader.override_global(LOG_LEVEL, if log { &u8::MAX } else { &0 }, true);
    for name in MAPS {
        loader.map_pin_path(name, pins.map(name));
    }
    for name in HOST_MAPS {
        loader.map_max_entries(name, hosts);
    }
    loader.load(OBJECT).map_err(|source| Error::Object(Box::new(source)))
}

/// Loads a program; its descriptor, and what the kernel says of it.
pub(super) fn program<'a>(object: &'a mut Ebpf, name: &'static str) -> Result<(&'a ProgramFd, ProgramReport), Error> {
    let refused = |source| refused(name, source);
    let program = object.program_mut(name).ok_or(ProgramError::NotLoaded).map_err(refused)?;
    match program {
        Program::Xdp(xdp) => xdp.load(),
        Program::SkLookup(lookup) => lookup.load(),
        Program::SchedClassifier(classifier) => classifier.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
    .map_err(refused)?;
    let info = program.info().ok();
    let report = ProgramReport {
        name,
        verified_instructions: info.as_ref().and_then(ProgramInfo::verified_instruction_count),
        translated_instructions: info.as_ref().and_then(ProgramInfo::size_translated).map(|size| size / INSTRUCTION),
    };
    Ok((program.fd().map_err(refused)?, report))
}

/// The descriptor of a program that [`program`] has loaded.
pub(super) fn fd<'a>(object: &'a Ebpf, name: &'static str) -> Result<&'a ProgramFd, Error> {
    let program = object.program(name).ok_or(ProgramError::NotLoaded);
    program.and_then(Program::fd).map_err(|source| refused(name, source))
}

/// Runs a program on a frame (BPF_PROG_TEST_RUN).
pub(super) fn run(object: &Ebpf, program: TestProgram, options: RunOptions<'_>) -> Result<RunResult, Error> {
    let name = match program {
        TestProgram::Ingress => XDP,
        TestProgram::Stack => TC_IN,
        TestProgram::Bare => BARE,
    };
    let refused = |source| refused(name, source);
    let loaded = object.program(name).ok_or(ProgramError::NotLoaded).map_err(refused)?;
    let RunOptions { frame, repeat, live } = options;
    let context = live.map(|interface| {
        let mut context = [0; XDP_MD];
        let end = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        for (offset, value) in [(XDP_MD_DATA_END, end), (XDP_MD_IFINDEX, interface)] {
            context[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        }
        context
    });
    let mut test = TestRunOptions::new();
    test.data_in = Some(frame);
    test.repeat = repeat;
    if let Some(context) = &context {
        test.ctx_in = Some(context);
        // 0: as many at a time as a driver takes, which is 64.
        test.attrs = TestRunAttrs::new().xdp_live_frames(0);
    }
    let result = match program {
        TestProgram::Stack => <&SchedClassifier>::try_from(loaded).and_then(|tc| tc.test_run(test)),
        TestProgram::Ingress | TestProgram::Bare => <&Xdp>::try_from(loaded).and_then(|xdp| xdp.test_run(test)),
    };
    let result = result.map_err(refused)?;
    Ok(RunResult { verdict: result.return_value, each: result.duration })
}

/// Runs the transmit program on a packet (BPF_PROG_TEST_RUN).
pub(super) fn run_transmit(object: &Ebpf, options: TransmitOptions<'_>) -> Result<RunResult, Error> {
    let refused = |source| refused(TC_OUT, source);
    let program = object.program(TC_OUT).ok_or(ProgramError::NotLoaded);
    let classifier: &SchedClassifier = program.and_then(TryInto::try_into).map_err(refused)?;
    let TransmitOptions { frame, repeat, interface, segments, wire_bytes } = options;
    let mut context = [0; SK_BUFF];
    for (offset, value) in [(SK_BUFF_IFINDEX, interface), (SK_BUFF_WIRE_LEN, wire_bytes), (SK_BUFF_GSO_SEGS, segments)]
    {
        context[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let mut test = TestRunOptions::new();
    test.data_in = Some(frame);
    test.ctx_in = Some(&context);
    test.repeat = repeat;
    let result = classifier.test_run(test).map_err(refused)?;
    Ok(RunResult { verdict: result.return_value, each: result.duration })
}

/// A program for packets of the stack, to attach it; loads it if that has not been done.
pub(super) fn classifier<'a>(object: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, Error> {
    let refused = |source| refused(name, source);
    let program = object.program_mut(name).ok_or(ProgramError::NotLoaded).map_err(refused)?;
    let classifier: &mut SchedClassifier = program.try_into().map_err(refused)?;
    if classifier.fd().is_err() {
        classifier.load().map_err(refused)?;
    }
    Ok(classifier)
}

pub(super) fn refused(program: &'static str, source: ProgramError) -> Error {
    Error::Program { program, source: Box::new(source) }
}

/// Loads the program for packets of the stack for [`run`], if that has not been done.
pub(super) fn load_stack(object: &mut Ebpf) -> Result<(), Error> {
    classifier(object, TC_IN).map(|_loaded| ())
}

/// Loads the reference program for [`run`].
pub(super) fn load_bare(object: &mut Ebpf) -> Result<(), Error> {
    program(object, BARE).map(drop)
}

/// The capacity of the host maps if they are pinned already.
pub(super) fn pinned_hosts(pins: &Pins) -> Result<Option<u32>, Error> {
    let mut capacity = None;
    for name in HOST_MAPS {
        let path = pins.map(name);
        if !path.exists() {
            continue;
        }
        let kernel = |operation| move |source| Error::kernel(operation, format!("map {name}"), source);
        let fd = sys::open_pin(&path, Access::Read).map_err(kernel("open"))?;
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
