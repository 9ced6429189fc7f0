//! The cost of SYN cookies of XDP: without the option, without a flood, and in one.

use std::{net::TcpListener, os::fd::AsFd as _};

use aya::maps::{Array, Map};
use ingress_common::{
    SynFlood, Total,
    map::{SYN_FLOOD, SYN_FLOOD_ONLY},
};
use ingress_datapath::{Datapath, Options, RunOptions, SynCookieOptions, TestProgram};

use crate::{
    figures::print_rounds,
    frames::{CLIENT4, CLIENT6, NODE4, NODE6, serving_with},
    measure::{REPEAT, ROUNDS},
    packets::{ACK, Packet, SYN},
    sandbox::sandboxed,
    syn_cookies::{COOKIES, LINUX, NUMBER, frame, per_second, sysctl},
};

#[test]
fn the_cost_of_syn_cookies_is_printed() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        sysctl("tcp_timestamps", 2);
        let quiet = SynCookieOptions { threshold: per_second(u32::MAX), is_dry_run: false };
        let plain = serving_with(&Options { measure: true, ..sandbox.options(&[]) });
        let datapath = serving_with(&Options { syn_cookies: Some(quiet), measure: true, ..sandbox.options(&[]) });
        let listener = TcpListener::bind("[::]:0").expect("listens");
        (0..2).for_each(|slot| datapath.register_listener(slot, listener.as_fd()).expect("registered"));
        datapath.syn_cookies().apply().expect("applied");
        let program = datapath.report().programs.iter().find(|program| program.name == COOKIES).expect("loaded");
        let verified = program.verified_instructions.expect("a kernel from 5.16 on says");
        crate::figures::print(&format!("{COOKIES}, verified"), [verified.into()], "instructions");
        assert!(verified < 600_000, "{program:?}");
        let packet = Packet::tcp(CLIENT4, NODE4, ACK);
        datapath.flows().insert(packet.remote, packet.local, 1);
        let ack = packet.frame();
        let mut unknown = Packet::tcp(CLIENT4, NODE4, ACK);
        unknown.remote.set_port(39_999);
        let unknown = unknown.frame();
        let syn = frame(&Packet::tcp(CLIENT4, NODE4, SYN), [NUMBER, 0], &LINUX);
        let syn6 = frame(&Packet::tcp(CLIENT6, NODE6, SYN), [NUMBER, 0], &LINUX);
        let run = |(datapath, program, frame, repeat): &(&Datapath, TestProgram, &[u8], u32)| {
            datapath.heartbeat().expect("beats");
            let options = RunOptions { frame, repeat: *repeat, live: None };
            datapath.test_run(*program, options).expect("runs").each
        };
        let ingress = TestProgram::Ingress;
        let ways = [
            ("SYN cookies, bare pass", (&datapath, TestProgram::Bare, &ack[..], REPEAT)),
            ("SYN cookies off, v4 with flow", (&plain, ingress, &ack[..], REPEAT)),
            ("SYN cookies quiet, v4 with flow", (&datapath, ingress, &ack[..], REPEAT)),
            ("SYN cookies off, v4 of no connection", (&plain, ingress, &unknown[..], REPEAT)),
            ("SYN cookies quiet, v4 of no connection", (&datapath, ingress, &unknown[..], REPEAT)),
            ("SYN cookies off, v4 SYN", (&plain, ingress, &syn[..], REPEAT)),
            ("SYN cookies quiet, v4 SYN", (&datapath, ingress, &syn[..], REPEAT)),
        ];
        print_rounds(ROUNDS, &ways, run);
        let mut flood: Array<_, SynFlood> = Map::Array(sandbox.map(SYN_FLOOD)).try_into().expect("an array");
        let now = flood.get(&SYN_FLOOD_ONLY, 0).expect("an entry");
        flood.set(SYN_FLOOD_ONLY, SynFlood { until_ns: u64::MAX, ..now }, 0).expect("begun");
        let ways = [
            ("SYN cookies in a flood, v4 with flow", (&datapath, ingress, &ack[..], REPEAT)),
            ("SYN cookies in a flood, v4 of no connection", (&datapath, ingress, &unknown[..], REPEAT)),
        ];
        print_rounds(ROUNDS, &ways, run);
        // An answer is no SYN, so each run gets a new frame; the clock is then part of the time.
        let ways = [
            ("SYN cookies, bare pass, single", (&datapath, TestProgram::Bare, &syn[..], 1)),
            ("SYN cookies, v4 SYN answered, single", (&datapath, ingress, &syn[..], 1)),
            ("SYN cookies, v6 SYN answered, single", (&datapath, ingress, &syn6[..], 1)),
        ];
        print_rounds(3000, &ways, run);
        assert!(datapath.totals().expect("totals").get(Total::SynCookieSent).packets >= 6000);
    });
}
