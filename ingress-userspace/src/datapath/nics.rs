//! Attaches the programs of interfaces: `ingress_xdp` to what they receive, `ingress_tc_out` to what they send. The
//! second only counts, so where it cannot be attached everything else goes on; an interface without the first has it
//! neither.

use std::{os::fd::AsFd as _, sync::Arc};

use aya::Ebpf;
use ingress_common::{
    Nic,
    map::{NIC_GONE, NIC_OTHER},
};

use super::{
    NicMode, NicReport, NicState, Options, ProgramReport, TcHook, TransmitState, error::Error, link, maps::Maps,
    object, pins::Pins, sys, tc_out,
};

/// Attaches the programs to `interfaces` (names and indices of those in `options`), and takes them off all others.
pub(super) fn attach(
    pins: &Pins,
    maps: &Maps,
    object: &mut Ebpf,
    interfaces: &[(String, u32)],
    options: &Options,
    programs: &mut Vec<ProgramReport>,
) -> Result<Vec<NicReport>, Error> {
    make_room(maps, interfaces)?;
    let before = tc_out::interfaces(pins)?;
    let states = receive(pins, maps, object, interfaces, options, programs)?;
    for interface in before.iter().filter(|interface| !options.interfaces.contains(interface)) {
        tc_out::detach(pins, interface)?;
    }
    link::remove_other_xdp(pins, &options.interfaces)?;
    let transmit = transmit(pins, object, interfaces, &states, &before, options.tc_hook, programs);
    let reports = interfaces.iter().zip(states).zip(transmit).map(|(((name, index), state), transmit)| NicReport {
        name: name.clone(),
        index: *index,
        state,
        transmit,
    });
    Ok(reports.collect())
}

/// Gives each interface an entry in `nic_net`, so that programs need not make any, and puts what was counted for those
/// that are gone together: an index is not used again.
fn make_room(maps: &Maps, interfaces: &[(String, u32)]) -> Result<(), Error> {
    for key in [NIC_OTHER, NIC_GONE] {
        maps.nic_net.ensure(key)?;
    }
    for (index, traffic) in maps.nic_net()? {
        // Of an interface that is there a program may still count.
        if index == NIC_OTHER || index == NIC_GONE || sys::interface_exists(index) {
            continue;
        }
        maps.nic_net.change_first(NIC_GONE, |sum| *sum += traffic)?;
        maps.nic_net.remove(index)?;
    }
    for (_, index) in interfaces {
        // Where there is no room, programs count under `NIC_OTHER`.
        let _counted_there = maps.nic_net.ensure(*index).is_err();
    }
    Ok(())
}

fn receive(
    pins: &Pins,
    maps: &Maps,
    object: &mut Ebpf,
    interfaces: &[(String, u32)],
    options: &Options,
    programs: &mut Vec<ProgramReport>,
) -> Result<Vec<NicState>, Error> {
    let (program, report) = object::program(object, object::XDP)?;
    programs.push(report);
    let mut states = Vec::with_capacity(interfaces.len());
    let mut nics = Vec::with_capacity(interfaces.len());
    for (name, index) in interfaces {
        let known = maps.nics.get(index)?.and_then(|nic| NicMode::from_code(nic.mode));
        let state = link::xdp(pins, program.as_fd(), (name, *index), options.xdp_mode, known)?;
        if let NicState::Attached { mode, .. } = state {
            let nic = Nic { mode: mode.code(), pad: 0 };
            // At once, so that a failure at the next interface leaves this one known.
            maps.nics.set(index, &nic)?;
            nics.push((*index, nic));
        }
        states.push(state);
    }
    maps.nics.replace(&nics)?;
    Ok(states)
}

/// What became of each interface; `states` are what they receive by, `before` are those that may have the program
/// already.
fn transmit(
    pins: &Pins,
    object: &mut Ebpf,
    interfaces: &[(String, u32)],
    states: &[NicState],
    before: &[String],
    hook: Option<TcHook>,
    programs: &mut Vec<ProgramReport>,
) -> Vec<TransmitState> {
    let loaded = object::program(object, object::TC_OUT).map(|(_, report)| report);
    let program = match loaded {
        Ok(report) => {
            programs.push(report);
            object::classifier(object)
        }
        Err(error) => Err(error),
    };
    let mut program = program.map_err(Arc::new);
    let attached = interfaces.iter().zip(states).map(|((name, index), state)| {
        let attached = match &mut program {
            // What an interface has that was never ours is somebody else's.
            _ if !state.is_attached() && !before.contains(name) => Ok(TransmitState::Off),
            _ if !state.is_attached() => tc_out::detach(pins, name).map(|_| TransmitState::Off),
            Ok(program) => tc_out::attach(pins, program, (name, *index), hook)
                .map(|(hook, attachment)| TransmitState::Attached { hook, attachment }),
            Err(error) => return TransmitState::Failed(Arc::clone(error)),
        };
        attached.unwrap_or_else(|error| TransmitState::Failed(Arc::new(error)))
    });
    attached.collect()
}
