//! Updates from an earlier build of the product, and ways back to it, under load. It knows neither Gateways nor a pool of
//! addresses, but adopts the same pins. `XDP_INGRESS_BEFORE=PATH` names such a build; without it, this build without a pool
//! takes its place.

use std::{collections::BTreeSet, net::SocketAddr, process::Command, time::Duration};

use ingress_lab::{
    client::Ask,
    controller::XdpMode,
    load::{Connections, Load},
    topology::Family,
    until,
};

use crate::{
    gateway_addresses::{Node, WITH_POOL, at, pool, routes},
    gateway_listeners::{ADDRESSES, gateway},
    generation::Generation,
    net::{Net, http, stop_all},
    udp_services,
};

/// Updates, each with its way back.
const ROUNDS: usize = 2;
/// Longest wait for the end of a process, drained connections included.
const END: Duration = Duration::from_secs(40);

/// Starts the earlier build, and waits until it is ready.
pub(crate) fn earlier(net: &Net, name: &str, more: &[&str]) -> Generation {
    let other = |command: Command| match std::env::var_os("XDP_INGRESS_BEFORE") {
        None => command,
        Some(path) => {
            let mut other = Command::new(path);
            other.args(command.get_args()).env("NO_COLOR", "1");
            other
        }
    };
    let generation = Generation::spawn_in(net, name, more, other);
    until("readiness", || generation.probe("ready").ok())
        .unwrap_or_else(|error| panic!("{error:#}\n{}", generation.process.log_tail(20)));
    generation
}

#[test]
fn updates_from_a_build_without_gateways_and_back_fail_no_request() {
    let Some(net) = Net::build("earlier") else { return };
    udp_services::manifests(&net, &[]);
    net.write("web.yaml", &net.site("web", &[0, 1]));
    net.write("gateway.yaml", &gateway());
    let node = Node::of(&net);
    let load = |to: SocketAddr, connections| {
        let load = Load::start(&net.topology.client, to, Ask::get("web.test", "/"), 2, connections).expect("starts");
        (format!("{connections:?} at {to}"), load)
    };
    let mut before = earlier(&net, "earlier", &[]);
    let loads = vec![
        load(http(Family::V4), Connections::Kept),
        load(http(Family::V4), Connections::New),
        load(http(Family::V6), Connections::New),
        load(http(Family::V4), Connections::WebSockets),
    ];
    let go_on = || loads.iter().for_each(|(_, load)| load.pass(50).expect("requests are answered"));
    for round in 0..ROUNDS {
        let mut process = node.start(&net, &format!("update-{round}"), XdpMode::Native, 9111, &WITH_POOL);
        before.process.terminate(END).expect("the earlier one drains and ends");
        node.announces(&pool());
        go_on();
        for address in ADDRESSES {
            let served = until(&format!("an answer at {address}"), || {
                let (answer, _) = net.try_ask(node.namespace, at(address), &Ask::get("web.test", "/")).ok()?;
                (answer.status == 200).then_some(())
            });
            served.unwrap_or_else(|error| panic!("{error:#}"));
        }
        before = earlier(&net, &format!("back-{round}"), &[]);
        process.terminate(END).expect("it drains and ends");
        go_on();
        assert_eq!(node.held(), (BTreeSet::new(), BTreeSet::new()), "the earlier build has no pool");
        until("no routes of the pool", || routes(node.namespace).is_empty().then_some(())).expect("they are removed");
    }
    let total = stop_all(loads);
    println!("{ROUNDS} updates and ways back: {} answered, {} failed", total.answered, total.failed);
    assert_eq!(total.failed, 0, "{:?}", total.reasons);
}
