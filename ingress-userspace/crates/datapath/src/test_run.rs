//! Runs the programs on synthetic frames, for tests and measurements: BPF_PROG_TEST_RUN.

use std::time::Duration;

use aya::{
    Ebpf, TestRun as _, TestRunAttrs, TestRunOptions,
    programs::{ProgramError, SchedClassifier, Xdp},
};

use super::{
    Datapath,
    error::Error,
    nics::Nics,
    object::{self, BARE, TC_IN, TC_OUT, Variant},
};

/// Size of `struct xdp_md`, and offsets of the fields set by a live run.
const XDP_MD: usize = 24;
const XDP_MD_DATA_END: usize = 4;
const XDP_MD_IFINDEX: usize = 12;

/// Size of `struct __sk_buff`, and offsets of the fields set by a test run.
const SK_BUFF: usize = 192;
const SK_BUFF_IFINDEX: usize = 40;
const SK_BUFF_WIRE_LEN: usize = 160;
const SK_BUFF_GSO_SEGS: usize = 164;

/// A program for [`Datapath::test_run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestProgram {
    /// The program for XDP: `ingress_xdp`, `ingress_xdp_cookies` with SYN cookies, or `ingress_xdp_linear` before Linux
    /// 5.18.
    Ingress,
    /// `ingress_xdp_linear`, loaded at its first run.
    Linear,
    /// `ingress_tc_in`, loaded at its first run.
    Stack,
    /// `return XDP_PASS`, the baseline of measurements. Loaded only with [`super::Options::measure`].
    Bare,
}

/// Input of [`Datapath::test_run`].
#[derive(Clone, Copy, Debug)]
pub struct RunOptions<'a> {
    /// Frame with its link header; at least 14 bytes, at most a page minus some 500 bytes. For [`TestProgram::Stack`]
    /// the kernel may require complete IP headers.
    pub frame: &'a [u8],
    /// Number of runs, each of which is counted.
    pub repeat: u32,
    /// Index of an interface that actually receives the frames: passed frames continue into the stack. Its time is part
    /// of the result, and the verdict is not available (Linux 5.18, commit b530e9e1063e; not for
    /// [`TestProgram::Stack`]). `None` runs the program alone.
    pub live: Option<u32>,
}

/// Input of [`Datapath::test_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct TransmitOptions<'a> {
    /// Same as [`RunOptions::frame`].
    pub frame: &'a [u8],
    /// Same as [`RunOptions::repeat`].
    pub repeat: u32,
    /// Index of the sending interface; 0 means loopback, which is 1.
    pub interface: u32,
    /// Number of segments after segmentation; 0 for a frame that is not segmented.
    pub segments: u32,
    /// Bytes of all segments with their headers; at most 64 KiB. 0 uses the size of the frame.
    pub wire_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    /// Verdict, `XDP_*` or `TCX_*` as an unsigned number.
    pub verdict: u32,
    /// Mean time of one run.
    pub each: Duration,
    /// The frame after the program; empty after a live run.
    pub frame: Vec<u8>,
}

impl Datapath {
    /// Runs a program on a frame as if it had been received (BPF_PROG_TEST_RUN); counters are updated.
    ///
    /// # Errors
    /// Fails if the kernel refuses, for instance a frame of less than 14 bytes.
    pub fn test_run(&self, program: TestProgram, options: RunOptions<'_>) -> Result<RunResult, Error> {
        let at_first_run = match program {
            TestProgram::Linear => Some(Variant::Linear.xdp()),
            TestProgram::Stack => Some(TC_IN),
            TestProgram::Ingress | TestProgram::Bare => None,
        };
        if let Some(name) = at_first_run {
            object::loaded(&mut self.nics_mut().object, name)?;
        }
        run(&self.nics(), program, options)
    }

    /// Runs the transmit program on a packet as if an interface were about to send it; counters are updated.
    ///
    /// # Errors
    /// Fails like [`Datapath::test_run`], and if the interface does not exist.
    pub fn test_transmit(&self, options: TransmitOptions<'_>) -> Result<RunResult, Error> {
        run_transmit(&self.nics().object, options)
    }
}

/// Runs a program on a frame (BPF_PROG_TEST_RUN).
fn run(nics: &Nics, program: TestProgram, options: RunOptions<'_>) -> Result<RunResult, Error> {
    let Nics { object, xdp, .. } = nics;
    let name = match program {
        TestProgram::Ingress => xdp,
        TestProgram::Linear => Variant::Linear.xdp(),
        TestProgram::Stack => TC_IN,
        TestProgram::Bare => BARE,
    };
    let refused = |source| object::refused(name, source);
    let loaded = object.program(name).ok_or(ProgramError::NotLoaded).map_err(refused)?;
    let RunOptions { frame, repeat, live } = options;
    let context = live.map(|interface| {
        let end = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        context::<XDP_MD>(&[(XDP_MD_DATA_END, end), (XDP_MD_IFINDEX, interface)])
    });
    let mut test = TestRunOptions::new();
    // A live run returns no frame, and the kernel rejects an output buffer.
    let mut left = vec![0_u8; frame.len()];
    test.data_in = Some(frame);
    test.data_out = live.is_none().then_some(&mut left);
    test.repeat = repeat;
    if let Some(context) = &context {
        test.ctx_in = Some(context);
        // The value 0 selects the batch size of drivers, which is 64.
        test.attrs = TestRunAttrs::new().xdp_live_frames(0);
    }
    let result = match program {
        TestProgram::Stack => <&SchedClassifier>::try_from(loaded).and_then(|tc| tc.test_run(test)),
        TestProgram::Ingress | TestProgram::Linear | TestProgram::Bare => {
            <&Xdp>::try_from(loaded).and_then(|xdp| xdp.test_run(test))
        }
    };
    let result = result.map_err(refused)?;
    let frame = if live.is_none() { left } else { Vec::new() };
    Ok(RunResult { verdict: result.return_value, each: result.duration, frame })
}

/// Runs the transmit program on a packet (BPF_PROG_TEST_RUN).
fn run_transmit(object: &Ebpf, options: TransmitOptions<'_>) -> Result<RunResult, Error> {
    let refused = |source| object::refused(TC_OUT, source);
    let program = object.program(TC_OUT).ok_or(ProgramError::NotLoaded);
    let classifier: &SchedClassifier = program.and_then(TryInto::try_into).map_err(refused)?;
    let TransmitOptions { frame, repeat, interface, segments, wire_bytes } = options;
    let fields = [(SK_BUFF_IFINDEX, interface), (SK_BUFF_WIRE_LEN, wire_bytes), (SK_BUFF_GSO_SEGS, segments)];
    let context = context::<SK_BUFF>(&fields);
    let mut test = TestRunOptions::new();
    let mut left = vec![0_u8; frame.len()];
    test.data_in = Some(frame);
    test.data_out = Some(&mut left);
    test.ctx_in = Some(&context);
    test.repeat = repeat;
    let result = classifier.test_run(test).map_err(refused)?;
    Ok(RunResult { verdict: result.return_value, each: result.duration, frame: left })
}

/// Builds the context of a run: these fields, each at its offset, and zeroes.
fn context<const SIZE: usize>(fields: &[(usize, u32)]) -> [u8; SIZE] {
    let mut context = [0; SIZE];
    for &(offset, value) in fields {
        context[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}
