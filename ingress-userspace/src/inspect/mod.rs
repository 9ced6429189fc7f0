//! `xdp-ingress top` and `xdp-ingress status`: show the pinned maps and links of a node. Both commands ask no process,
//! so their output is the same whether a process serves, hangs or has died. They change nothing, and only need
//! permission to open the pins.
//!
//! ```text
//! pins ─▶ read ─▶ Reading ─▶ Reading::since ─▶ Amounts ─▶ Selection ─▶ lines, JSON ─▶ terminal, standard output
//! ```

mod controls;
mod json;
mod node;
mod reading;
mod screen;
mod selection;
mod table;

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ingress_datapath::{HostCounts, Pinned};

pub(crate) use self::selection::Column;
use self::{
    node::State,
    reading::{Counted, Counts, Host, Reading},
    selection::Selection,
};
use crate::{
    config::inspect::{Output, PinArgs, ShowArgs, TopArgs},
    counters::UNATTRIBUTED,
    print,
};

/// Default refresh interval of a terminal, see `--interval`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows hosts with their counters.
///
/// # Errors
/// Fails if nothing is pinned, the pins cannot be read, standard output cannot be written, or there is no terminal to
/// draw on.
pub(crate) fn top(args: TopArgs) -> anyhow::Result<()> {
    let TopArgs { pins: PinArgs { bpffs }, once, output, interval, sort, filter, limit } = args;
    let selection = Selection { sort, reversed: false, filter, limit };
    if !once {
        anyhow::ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "`top` draws on a terminal, and there is none; give it one (`kubectl exec --stdin --tty`), or use \
             `top --once` for one table and `top --once --output json` for programs"
        );
        let title = bpffs.display().to_string();
        return screen::run(&title, interval.unwrap_or(INTERVAL), selection, || Ok(read(&bpffs)?));
    }
    let mut reading = read(&bpffs)?;
    let mut rates = None;
    if let Some(interval) = interval {
        thread::sleep(interval);
        let later = read(&bpffs)?;
        rates = Some(later.since(&reading));
        reading = later;
    }
    match output {
        Output::Json => print::json(&json::top(&reading, rates.as_ref(), &selection)),
        Output::Text => {
            let amounts = rates.unwrap_or_else(|| reading.whole());
            print::text(&(table::lines(&amounts, &selection, None).join("\n") + "\n"))
        }
    }
}

/// Shows the state of the node.
///
/// # Errors
/// Fails if nothing is pinned, the pins cannot be read, or standard output cannot be written.
pub(crate) fn status(args: ShowArgs) -> anyhow::Result<()> {
    let ShowArgs { pins: PinArgs { bpffs }, output } = args;
    let state = State::read(&bpffs, &Pinned::open(&bpffs)?)?;
    match output {
        Output::Json => print::json(&state.json()),
        Output::Text => print::text(&state.text()),
    }
}

/// Reads all counters below `bpffs`. The pins are opened each time, because `unload` and a new start replace them.
fn read(bpffs: &Path) -> Result<Reading, ingress_datapath::Error> {
    let pinned = Pinned::open(bpffs)?;
    let maps = pinned.maps();
    let host = |HostCounts { name, id, l7, net }: HostCounts| {
        let name = name.unwrap_or_else(|| UNATTRIBUTED.to_owned());
        Host { name, id, counts: Counts { l7, net } }
    };
    Ok(Reading {
        at: Instant::now(),
        maps: maps.totals_id(),
        hosts: maps.hosts()?.into_iter().map(host).collect(),
        totals: Counted::all(&maps.totals()?),
    })
}
