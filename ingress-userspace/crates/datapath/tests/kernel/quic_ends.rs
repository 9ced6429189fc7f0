//! `ingress_quic` at the begin and the end of connections and processes: first packets, crashes, other versions; and the
//! time that it takes.

use aya::{
    maps::{Array, Map},
    programs::{ProgramInfo, loaded_programs},
    sys::{Stats, enable_stats},
};
use ingress_common::{
    Handoff, QuicState, WorkerLoad,
    map::{QUIC, QUIC_ONLY},
    quic::VERSION,
    steer::CHOSEN_FOR_QUIC,
};
use ingress_datapath::{Datapath, Error, QuicKey, flow_key};

use crate::{
    figures,
    handoffs::Handoffs,
    quic::{Process, V4, events, long, send, short, taken_by},
    sandbox::sandboxed,
};

#[test]
fn first_packets_reach_one_socket_also_after_a_change_of_the_owner() {
    sandboxed(|sandbox| {
        let (before, after) = (Process::start(sandbox, 4), Process::start(sandbox, 4));
        let both = [&before, &after];
        let key = |id: &[u8]| {
            let mut flow = flow_key(([0, 0, 0, 0], 0).into(), ([0, 0, 0, 0], 0).into());
            flow.remote_addr = [0; 16];
            flow.remote_addr[..id.len()].copy_from_slice(id);
            flow.local_addr = [0; 16];
            flow.proto = ingress_common::flow::PROTO_UDP;
            flow
        };
        let mut handoffs = Handoffs::pinned(sandbox);
        for number in 0..8 {
            let id = [number; 8];
            let hello = long(0xc0, &id);
            before.own();
            send(V4, &hello);
            let chosen = taken_by(&both, &hello);
            assert_eq!(chosen.0, 0);
            after.own();
            // The note stays fresh however long this takes: its time is in the future.
            let note = handoffs.of(key(&id));
            assert_eq!(note.chosen_by, CHOSEN_FOR_QUIC);
            handoffs.lay(key(&id), Handoff { time_ns: u64::MAX, ..note });
            for first in [0xc0, 0xd0] {
                let rest = long(first, &id);
                send(V4, &rest);
                assert_eq!(taken_by(&both, &rest), chosen, "from another port, to another owner");
            }
        }
        assert_eq!(events(&after.datapath), [0, 8, 16, 0, 0, 0]);
        let chosen: u64 =
            before.datapath.maps().workers().expect("workers").iter().map(|load: &WorkerLoad| load.chosen).sum();
        assert_eq!(chosen, 8, "each connection counts once");
        // A note for a socket that is gone leads to the owner.
        drop(before);
        let hello = long(0xc0, &[1; 8]);
        send(V4, &hello);
        taken_by(&[&after], &hello);
        assert_eq!(events(&after.datapath), [0, 9, 16, 0, 0, 0]);
    });
}

#[test]
fn packets_of_a_crashed_process_reach_the_owner_who_knows_it() {
    sandboxed(|sandbox| {
        let (crashed, owner) = (Process::start(sandbox, 2), Process::start(sandbox, 2));
        owner.own();
        let id = crashed.id(1, 3);
        assert_eq!(owner.quic.sweep().expect("sweeps"), 0);
        assert_eq!(owner.living(&id), Some(crashed.epoch()));
        let Process { quic, sockets, datapath } = crashed;
        // A crash takes nothing back: the kernel closes the sockets, and releases the mark of the process.
        drop(sockets);
        send(V4, &short(id));
        taken_by(&[&owner], &short(id));
        assert_eq!(events(&owner.datapath), [0, 0, 0, 1, 0, 0]);
        drop(datapath);
        let state = || -> QuicState {
            let map: Array<_, QuicState> = Map::Array(sandbox.map(QUIC)).try_into().expect("an array");
            map.get(&QUIC_ONLY, 0).expect("the state")
        };
        let epochs = |state: QuicState| state.epochs.iter().filter(|epoch| **epoch != 0).count();
        assert_eq!(epochs(state()), 2);
        // Its end in this test; what it shares holds the mark of its life.
        drop(quic);
        assert_eq!(epochs(state()), 1);
        assert_eq!(owner.living(&id), None);
        send(V4, &short(id));
        taken_by(&[&owner], &short(id));
        assert_eq!(events(&owner.datapath), [0, 0, 0, 2, 0, 0]);
        // An epoch that no living process has is swept, as after a crash.
        let mut map: Array<_, QuicState> = Map::Array(sandbox.map(QUIC)).try_into().expect("an array");
        let mut dead = state();
        dead.epochs[7] = 7;
        map.set(QUIC_ONLY, dead, 0).expect("set");
        assert_eq!(owner.quic.sweep().expect("sweeps"), 1);
        assert_eq!(epochs(state()), 1);
        // Without sockets of the owner the kernel chooses.
        owner.quic.close().expect("closes");
        send(V4, &short(id));
        taken_by(&[&owner], &short(id));
        assert_eq!(events(&owner.datapath)[5], 1);
    });
}

#[test]
fn keys_are_shared_and_rotate_and_another_version_is_refused() {
    sandboxed(|sandbox| {
        let process = Process::start(sandbox, 1);
        process.own();
        let mut issued = vec![process.id(0, 0)];
        for key in [[1, 2], [3, 4], [5, 6]] {
            process.quic.use_key(QuicKey::Derived(key)).expect("used");
            process.quic.use_key(QuicKey::Derived(key)).expect("no change");
            process.quic.use_key(QuicKey::Kept { otherwise: [9, 9] }).expect("no change");
            issued.push(process.id(0, 0));
        }
        for id in &issued {
            assert_eq!(process.living(id), Some(process.epoch()));
            send(V4, &short(*id));
            taken_by(&[&process], &short(*id));
        }
        assert_eq!(events(&process.datapath), [4, 0, 0, 0, 0, 0]);
        process.quic.use_key(QuicKey::Derived([7, 8])).expect("used");
        assert_eq!(process.quic.cell().open(&issued[0]), None, "its key made room");
        assert!(!process.quic.has_predecessor());
        let mut map: Array<_, QuicState> = Map::Array(sandbox.map(QUIC)).try_into().expect("an array");
        let state = map.get(&QUIC_ONLY, 0).expect("the state");
        assert_eq!(state.version, VERSION);
        map.set(QUIC_ONLY, QuicState { version: 2, ..state }, 0).expect("set");
        let newer = Datapath::open(&sandbox.options(&[])).expect("TCP is not concerned");
        assert!(matches!(newer.quic(), Err(Error::QuicVersion { found: 2, expected: VERSION })));
    });
}

#[test]
fn a_key_after_a_return_to_an_older_one_takes_an_empty_place() {
    sandboxed(|sandbox| {
        let process = Process::start(sandbox, 1);
        let key = |key| process.quic.use_key(QuicKey::Derived(key)).expect("used");
        key([1, 2]);
        key([3, 4]);
        let issued = process.id(0, 0);
        key([1, 2]);
        key([5, 6]);
        assert_eq!(process.living(&issued), Some(process.epoch()));
        let successor = Process::start(sandbox, 1);
        assert!(successor.quic.has_predecessor());
    });
}

/// Prints the time that the program takes per packet, by the kernel's own statistics.
#[test]
fn time_per_packet() {
    sandboxed(|sandbox| {
        // Many and short, since load on the machine spoils most of them.
        const ROUNDS: usize = 40;
        const BURSTS: u32 = 5;
        /// Datagrams that fit in the buffer of a socket.
        const BURST: u32 = 50;
        let process = Process::start(sandbox, 2);
        process.own();
        let ours = sandbox.map(QUIC).info().expect("info").id();
        let program = || -> ProgramInfo {
            let mut programs = loaded_programs().filter_map(Result::ok);
            let is_ours = |info: &ProgramInfo| {
                info.name_as_str() == Some("ingress_quic")
                    && info.map_ids().is_ok_and(|ids| ids.is_some_and(|ids| ids.contains(&ours)))
            };
            programs.find(is_ours).expect("loaded")
        };
        let verified = program().verified_instruction_count().expect("a kernel from 5.16 on says");
        figures::print("ingress_quic, verified", [verified.into()], "instructions");
        // Measured until this is dropped.
        let _stats = enable_stats(Stats::RunTime).expect("statistics");
        let ways = [
            ("ingress_quic, by ID", (0, short(process.id(1, 1)))),
            ("ingress_quic, noted", (2, long(0xc0, &[5; 8]))),
            ("ingress_quic, unknown", (4, short([7; 16]))),
        ];
        figures::print_rounds(ROUNDS, &ways, |(event, datagram): &(usize, Vec<u8>)| {
            // The first packet of a round is not measured: the note of the round before may be old.
            let client = send(V4, datagram);
            taken_by(&[&process], datagram);
            let (before, counted) = (program(), events(&process.datapath)[*event]);
            for _ in 0..BURSTS {
                for _ in 0..BURST {
                    client.send_to(datagram, V4).expect("sent");
                }
                for _ in 0..BURST {
                    taken_by(&[&process], datagram);
                }
            }
            let after = program();
            assert_eq!(after.run_count() - before.run_count(), u64::from(BURSTS * BURST));
            // A note that is too old, or a broken seal, would measure another way.
            assert_eq!(events(&process.datapath)[*event] - counted, u64::from(BURSTS * BURST));
            (after.run_time() - before.run_time()) / (BURSTS * BURST)
        });
    });
}
