//! `xdp-ingress top`: shows the counters of a node's hosts from the pinned maps. Like `status`, it asks no process, so
//! its output is the same whether a process serves, hangs or has died. It changes nothing, and only needs permission to
//! open the pins.
//!
//! ```text
//! pins ─▶ read ─▶ Reading ─▶ Reading::since ─▶ Amounts ─▶ Selection ─▶ lines, JSON ─▶ terminal, standard output
//! ```

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ingress_cli::{
    counters::UNATTRIBUTED,
    palette::Palette,
    print::{self, Style},
    reading::{HostReading, L7Counts, Reading, ReasonCount},
    top::{self, Selection},
};
use ingress_datapath::{HostCounts, Pinned};

use crate::commands::arguments::{PinArgs, TopArgs};

/// Default refresh interval of a terminal, see `--interval`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows hosts with their counters.
///
/// # Errors
/// Fails if nothing is pinned, the pins cannot be read, standard output cannot be written, or there is no terminal to
/// draw on.
pub(crate) fn run(args: TopArgs) -> anyhow::Result<()> {
    let TopArgs { pins: PinArgs { bpffs }, once, output, interval, sort, filter, limit, no_color: _ } = args;
    let selection = Selection { sort, reversed: false, filter, limit };
    if !once {
        anyhow::ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "`top` needs a terminal; give it one (`kubectl exec --stdin --tty`), or use `top --once` for one table and \
             `top --once -o json` for programs"
        );
        let title = bpffs.display().to_string();
        return top::screen(&title, interval.unwrap_or(INTERVAL), selection, || Ok(read(&bpffs)?));
    }
    let mut reading = read(&bpffs)?;
    let mut rates = None;
    if let Some(interval) = interval {
        thread::sleep(interval);
        let later = read(&bpffs)?;
        rates = Some(later.since(&reading));
        reading = later;
    }
    let text = || {
        let amounts = rates.clone().unwrap_or_else(|| reading.whole());
        top::lines(&amounts, &selection, None).join("\n") + "\n"
    };
    let style = Style { format: output, palette: Palette::NONE };
    print::text(&style.render(&top::json(&reading, rates.as_ref(), &selection), text)?)
}

/// Reads all counters below `bpffs`. The pins are opened each time, because `unload` and a new start replace them.
fn read(bpffs: &Path) -> Result<Reading, ingress_datapath::Error> {
    let pinned = Pinned::open(bpffs)?;
    let maps = pinned.maps();
    let host = |HostCounts { name, id, l7, net }: HostCounts| {
        let name = name.unwrap_or_else(|| UNATTRIBUTED.to_owned());
        HostReading { name, id, counts: L7Counts { l7, net } }
    };
    Ok(Reading {
        at: Instant::now(),
        maps: maps.totals_id(),
        hosts: maps.hosts()?.into_iter().map(host).collect(),
        totals: ReasonCount::all(maps.totals()?.iter()),
    })
}
