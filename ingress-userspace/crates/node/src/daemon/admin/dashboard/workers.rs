//! Threads with their connections and CPUs, the interfaces, and the resources of the process.

use maud::{Markup, html};

use super::{
    Page,
    format::{bytes, count, duration},
    overview::tile,
    table::{self, byte_rate, counter, number, rate, spark, table, text},
};
use crate::daemon::admin::{
    AdminSource, InterfaceCounters, WorkerState,
    metrics::process::{ProcessState, ThreadState, threads},
};

/// Connections of a worker above this part of the average, in percent, are worth a look.
const IMBALANCE: usize = 125;

pub(super) fn page(source: &dyn AdminSource) -> Page {
    let main = html! {
        h1 { "Workers" }
        section {
            h2 { "Threads" }
            (worker_table(&source.workers(), &threads()))
        }
        section {
            h2 { "Interfaces" }
            (interface_table(&source.interfaces()))
        }
        (process(ProcessState::read().as_ref()))
    };
    Page::new("Workers", main)
}

fn worker_table(workers: &[WorkerState], threads: &[ThreadState]) -> Markup {
    let columns = [
        text("Thread"),
        number("Connections"),
        number("Of the average"),
        number("CPU %"),
        text("Last minute"),
        number("CPU time"),
        number("Last CPU"),
        number("Last sign of life"),
    ];
    let open: Vec<_> = workers.iter().filter_map(|worker| worker.connections).collect();
    let sum: usize = open.iter().sum();
    let rows = html! {
        @for WorkerState { name, silence, connections } in workers {
            @let thread = threads.iter().find(|thread| thread.name == *name);
            tr data-key=(name) {
                th scope="row" { (name) }
                td.n { @match connections { Some(connections) => (count(*connections as u64)), None => "–" } }
                td.n { @match connections { Some(connections) => (share(*connections, sum, open.len())), None => "–" } }
                @match thread {
                    Some(ThreadState { cpu, processor, .. }) => {
                        // A rate of hundredths of seconds per second is a percentage.
                        (rate(&format!("cpu:{name}"), u64::try_from(cpu.as_millis() / 10).unwrap_or(u64::MAX)))
                        td { (spark(&format!("cpu:{name}"))) }
                        td.n { (duration(*cpu)) }
                        td.n { @match processor { Some(processor) => (processor), None => "–" } }
                    },
                    None => { td.n { "–" } td {} td.n { "–" } td.n { "–" } },
                }
                td.n { (duration(*silence)) " ago" }
            }
        }
        @if workers.is_empty() { (table::empty(&columns, "No worker has started yet.")) }
    };
    table("workers", "Threads that serve connections", &columns, &rows)
}

/// Returns the connections of a worker in percent of the average.
fn share(connections: usize, sum: usize, workers: usize) -> Markup {
    let Some(percent) = connections.saturating_mul(workers).saturating_mul(100).checked_div(sum) else {
        return html! { "–" };
    };
    html! {
        @if percent > IMBALANCE && sum >= 10 * workers { strong.bad { (percent) " %" } } @else { (percent) " %" }
    }
}

fn interface_table(interfaces: &[InterfaceCounters]) -> Markup {
    let columns = [
        text("Interface"),
        text("Receives"),
        text("Sends"),
        number("Packets in/s"),
        number("Bytes in/s"),
        number("Packets out/s"),
        number("Bytes out/s"),
        number("Packets in"),
        number("Packets out"),
    ];
    let rows = html! {
        @for InterfaceCounters { name, receives, transmits, net } in interfaces {
            @let key = |what: &str| format!("{what}:{name}");
            tr data-key=(name) {
                th scope="row" { (name) }
                @for side in [receives, transmits] {
                    td { @if side.is_there || side.how == "off" { (side.how) } @else { strong.bad { (side.how) } } }
                }
                (rate(&key("rx"), net.rx_packets))
                (byte_rate(&key("rxb"), net.rx_bytes))
                (rate(&key("tx"), net.tx_packets))
                (byte_rate(&key("txb"), net.tx_bytes))
                (counter(net.rx_packets))
                (counter(net.tx_packets))
            }
        }
        @if interfaces.is_empty() { (table::empty(&columns, "The kernel part is off, so no interface has a program.")) }
    };
    table("interfaces", "Interfaces with the attachment of the programs", &columns, &rows)
}

fn process(process: Option<&ProcessState>) -> Markup {
    let Some(ProcessState { cpu, resident_bytes, open_fds, max_fds, .. }) = process else { return html! {} };
    html! {
        section aria-labelledby="process-title" {
            h2 #process-title { "Process" }
            dl.facts {
                (tile("CPU time", &duration(*cpu)))
                (tile("Resident memory", &bytes(*resident_bytes)))
                (tile("Open files", &format!("{} of {}", count(*open_fds), count(*max_fds))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_marked_only_above_a_quarter_more_than_average() {
        let text = |connections, sum, workers| share(connections, sum, workers).into_string();
        assert_eq!(text(0, 0, 2), "–");
        assert_eq!(text(125, 200, 2), "125 %");
        assert_eq!(text(126, 200, 2), r#"<strong class="bad">126 %</strong>"#);
        assert_eq!(text(2, 2, 2), "200 %", "two connections say nothing about balance");
    }
}
