//! Updates from an earlier build of the product and roll-backs to it, under load over TCP and HTTP/3.
//! `XDP_INGRESS_BEFORE=PATH` names such a build with HTTP/3; without it, this build takes its place, once.

use nix::sys::signal::Signal;

use crate::{
    earlier::earlier,
    generation::Generation,
    handover::Clients,
    http3::{FLAGS, network, print, rounds, start},
    http3_client::MovingLoad,
};

#[test]
fn updates_from_an_earlier_build_with_http3_and_back_fail_no_request() {
    let Some((net, trust)) = network("h3-earlier") else { return };
    let rounds = if std::env::var_os("XDP_INGRESS_BEFORE").is_some() { rounds() } else { 1 };
    let start_earlier = |name: &str| {
        let mut generation = earlier(&net, name, &FLAGS);
        generation.process.wait_for_log("HTTP/3 open", 1).expect("the sockets are open");
        generation
    };
    let end = |mut generation: Generation| {
        generation.process.signal(Signal::SIGTERM).expect("the kubelet ends it");
        assert!(generation.ended().success());
    };
    let mut before = start_earlier("earlier");
    let (tcp, quic) = (Clients::start(&net, &trust), MovingLoad::start(&net, &trust, 4));
    let pass = || {
        tcp.pass(10);
        quic.pass(50);
    };
    for round in 0..rounds {
        let update = start(&net, &format!("update-{round}"));
        pass();
        end(before);
        pass();
        before = start_earlier(&format!("back-{round}"));
        pass();
        end(update);
        pass();
    }
    let answered = tcp.stop("TCP");
    let report = quic.stop();
    println!("{answered} answered over TCP");
    print(&format!("{rounds} updates and ways back"), &report);
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
}
