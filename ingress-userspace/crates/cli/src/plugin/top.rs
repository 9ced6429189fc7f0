//! `kubectl xdp-ingress top`: counters of hosts, summed over nodes.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    io::{self, IsTerminal as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use ingress_common::{HostL7, HostNet, Requests, StatusClass, Total, Traffic};
use serde::Deserialize;
use serde_json::Value;

use super::{
    arguments::{InstallationArgs, TopArgs},
    fleet::Fleet,
    pods::ControllerPod,
};
use crate::{
    print::{self, Format, Style},
    reading::{HostReading, L7Counts, Reading, ReasonCount},
    top::{self, Selection},
};

/// Default time between two readings of a screen.
const INTERVAL: Duration = Duration::from_secs(2);

/// The counters of a host, as the API has them.
#[derive(Clone, Debug, Deserialize)]
struct HostDocument {
    host: String,
    requests: BTreeMap<String, u64>,
    bytes_in: u64,
    bytes_out: u64,
    active: u64,
    rx_packets: u64,
    rx_bytes: u64,
    tx_packets: u64,
    tx_bytes: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct TrafficDocument {
    packets: u64,
    bytes: u64,
}

/// The counters of a node.
#[derive(Clone, Debug)]
struct NodeCounters {
    hosts: Vec<HostDocument>,
    totals: BTreeMap<String, TrafficDocument>,
}

/// Shows hosts with their counters.
///
/// # Errors
/// Fails if no pod answers, standard output cannot be written, or there is no terminal to draw on.
pub(super) fn run(fleet: &Fleet, args: TopArgs) -> Result<()> {
    let TopArgs { all: _, once, interval, sort, filter, limit, output, installation } = args;
    let selection = Selection { sort, reversed: false, filter, limit };
    let is_document = matches!(output.output, Format::Json | Format::Yaml);
    if !once && !output.watch && !is_document && io::stdin().is_terminal() && io::stdout().is_terminal() {
        let InstallationArgs { namespace, cluster } = installation;
        let title = cluster.node.map_or_else(|| format!("all nodes of {namespace}"), |node| format!("node {node}"));
        let interval = interval.unwrap_or(INTERVAL);
        return fleet.on_screen(|| top::screen(&title, interval, selection, || read_all(fleet)));
    }
    ensure!(
        once || output.watch,
        "`top` draws on a terminal; use `--once` for one table or document, or `--watch` for one after each change"
    );
    let read = || {
        let reading = read_all(fleet)?;
        let Some(interval) = interval else { return Ok((reading, None)) };
        thread::sleep(interval);
        let later = read_all(fleet)?;
        let rates = later.since(&reading);
        Ok((later, Some(rates)))
    };
    print::show(&output, read, |(reading, rates), style: Style| {
        let mut document = top::json(reading, rates.as_ref(), &selection);
        // Each node has ids of its own.
        for host in document["hosts"].as_array_mut().into_iter().flatten() {
            host.as_object_mut().and_then(|host| host.remove("id"));
        }
        let amounts = || rates.clone().unwrap_or_else(|| reading.whole());
        style.render(&document, || top::lines(&amounts(), &selection, None).join("\n") + "\n")
    })?;
    Ok(())
}

/// Reads all counters of all nodes.
fn read_all(fleet: &Fleet) -> Result<Reading> {
    let answers = fleet.ask(async |mut connection| {
        let hosts = connection.list("hosts", &[]).await?;
        let hosts = hosts.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
        let totals: Value = connection.one("drops", &[]).await?;
        Ok(NodeCounters { hosts, totals: serde_json::from_value(totals)? })
    })?;
    Ok(sum(answers, Instant::now()))
}

/// Returns the sum over nodes.
fn sum(answers: Vec<(ControllerPod, NodeCounters)>, at: Instant) -> Reading {
    let mut identity = DefaultHasher::new();
    let mut hosts = BTreeMap::<String, L7Counts>::new();
    let mut totals = BTreeMap::<String, Traffic>::new();
    for (pod, NodeCounters { hosts: of_node, totals: totals_of_node }) in answers {
        // Without this, a node that joins or restarts would look like traffic.
        (pod.node, pod.name, pod.restarts).hash(&mut identity);
        for host in of_node {
            let counts = counts(&host);
            let all = hosts.entry(host.host).or_default();
            *all = add(*all, counts);
        }
        for (name, TrafficDocument { packets, bytes }) in totals_of_node {
            *totals.entry(name).or_default() += Traffic { packets, bytes };
        }
    }
    let total = |&(total, name): &(Total, &'static str)| {
        let traffic = totals.get(name).copied().unwrap_or_default();
        ReasonCount { total, name, traffic }
    };
    let host = |(id, (name, counts)): (usize, (String, L7Counts))| {
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        HostReading { name, id, counts }
    };
    // Only equality counts, so half of the hash is as good as all of it.
    let maps = u32::try_from(identity.finish() >> 32).unwrap_or_default();
    Reading {
        at,
        maps,
        hosts: hosts.into_iter().enumerate().map(host).collect(),
        totals: Total::ALL.iter().map(total).collect(),
    }
}

fn counts(host: &HostDocument) -> L7Counts {
    let HostDocument { host: _, requests, bytes_in, bytes_out, active, rx_packets, rx_bytes, tx_packets, tx_bytes } =
        host;
    let requests = StatusClass::NAMES.map(|name| requests.get(name).copied().unwrap_or_default());
    L7Counts {
        l7: HostL7 { requests: requests.into(), bytes_in: *bytes_in, bytes_out: *bytes_out, active: *active },
        net: HostNet { rx_packets: *rx_packets, rx_bytes: *rx_bytes, tx_packets: *tx_packets, tx_bytes: *tx_bytes },
    }
}

fn add(one: L7Counts, other: L7Counts) -> L7Counts {
    let requests: Requests = one.l7.requests + other.l7.requests;
    L7Counts {
        l7: HostL7 {
            requests,
            bytes_in: one.l7.bytes_in + other.l7.bytes_in,
            bytes_out: one.l7.bytes_out + other.l7.bytes_out,
            active: one.l7.active + other.l7.active,
        },
        net: HostNet {
            rx_packets: one.net.rx_packets + other.net.rx_packets,
            rx_bytes: one.net.rx_bytes + other.net.rx_bytes,
            tx_packets: one.net.tx_packets + other.net.tx_packets,
            tx_bytes: one.net.tx_bytes + other.net.tx_bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, hosts: &[(&str, u64)], accepted: u64) -> (ControllerPod, NodeCounters) {
        let pod = ControllerPod {
            node: name.to_owned(),
            name: format!("xdp-ingress-{name}"),
            phase: "Running".to_owned(),
            is_ready: true,
            is_ending: false,
            restarts: 0,
            started: None,
            admin_port: 9110,
            container: "xdp-ingress".to_owned(),
        };
        let host = |(host, unit): &(&str, u64)| {
            let counts = crate::reading::tests::host(host, 7, *unit).counts;
            // As the API writes it.
            serde_json::from_value(crate::counters::host(host, 7, &counts.l7, &counts.net)).expect("a host")
        };
        let totals = json!({ "accepted": { "packets": accepted, "bytes": accepted * 100 } });
        let totals = serde_json::from_value(totals).expect("totals");
        (pod, NodeCounters { hosts: hosts.iter().map(host).collect(), totals })
    }

    #[test]
    fn counters_are_summed_by_host() {
        let start = Instant::now();
        let reading =
            sum(vec![node("a", &[("shop.test", 3), ("a.test", 1)], 5), node("b", &[("shop.test", 4)], 6)], start);
        let hosts: Vec<_> = reading.hosts.iter().map(|host| (host.name.as_str(), host.counts)).collect();
        let expected = |unit| crate::reading::tests::host("", 0, unit).counts;
        assert_eq!(hosts, [("a.test", expected(1)), ("shop.test", expected(7))]);
        assert_eq!(reading.whole().sum(|total| total == Total::Accepted), Traffic { packets: 11, bytes: 1100 });

        let later = sum(vec![node("a", &[("shop.test", 5)], 9), node("b", &[("shop.test", 4)], 6)], start);
        assert_eq!(later.since(&reading).sum(|_| true), Traffic { packets: 4, bytes: 400 });
        let joined = sum(
            vec![node("a", &[("shop.test", 5)], 9), node("b", &[], 6), node("c", &[("shop.test", 900)], 600)],
            start,
        );
        assert_eq!(joined.since(&later).sum(|_| true), Traffic::default(), "a new node is no traffic");
    }
}
