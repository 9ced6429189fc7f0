//! Cases of the QUIC Interop Runner on paths with faults, by its names. A case passes only if its path has met the fault.
//! All cases of a client but goodput run at once, since most of their time is waiting. Only few clients are asked, unless
//! all are wanted.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use xtask_tools::progress;

use crate::clients::errand::{Errand, Task};
use crate::clients::{Client, Host, Kind};
use crate::path::{Counts, Fault, Path, Plan, RATE, Tally};
use crate::report::{Report, Row};
use crate::stage::Stage;

/// Variable that widens the choice of clients, and its only value.
pub(crate) const VARIABLE: &str = "XDP_INGRESS_INTEROP";
const ALL: &str = "all";
/// Clients of the narrow choice: two libraries that are soon done.
const FEW: [Kind; 2] = [Kind::QuicGo, Kind::Aioquic];
/// Connections of a case that has many, and those of them that clients may begin anew: a handshake that loses too much
/// ends after 10 seconds, or 20 once the address is proven.
const CONNECTIONS: usize = 10;
const AGAIN: usize = 3;
/// Length of responses that meet faults, in bytes.
const TRANSFER: usize = 2_000_000;
/// Length of the response for goodput, in bytes.
const GOODPUT: usize = 4_000_000;
/// Delay of a direction, on all paths but the long one, and on that.
const DELAY: Duration = Duration::from_millis(15);
const LONG_DELAY: Duration = Duration::from_millis(750);
/// Share of the path that goodput must reach, in per cent. Clients have some 90; a busy machine takes a part.
const LEAST_GOODPUT: u64 = 60;
/// Fewest bytes of a handshake with the long certificate.
const LONG_HANDSHAKE: usize = 10_000;
/// Longest datagram of a server before it knows the path, in bytes.
const DATAGRAM: usize = 1_452;

/// A case, by its name at the QUIC Interop Runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Impaired {
    /// Three of ten datagrams are lost while connections begin.
    Handshakeloss,
    /// Three of ten datagrams are corrupted while connections begin.
    Handshakecorruption,
    /// A few datagrams of a response are lost.
    Transferloss,
    /// A few datagrams of a response are corrupted.
    Transfercorruption,
    /// The client is not heard for a while, so that the server may not send the rest of a long certificate.
    Amplificationlimit,
    /// A round trip takes 1.5 seconds.
    Longrtt,
    /// A response on a path of 10 Mbit/s and 30 ms.
    Goodput,
    /// The client's address changes several times.
    RebindAddr,
    /// The path loses all for two seconds.
    Blackhole,
    /// Congestion marks pass, and both sides count them.
    Ecn,
}

/// Choice of the clients that are asked on paths with faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Few,
    All,
}

// === impl Choice ===

impl Choice {
    /// Reads the choice from [`VARIABLE`]; it is narrow without.
    ///
    /// # Errors
    /// Fails if the variable has another value.
    pub(crate) fn from_environment() -> Result<Self> {
        Self::of(std::env::var_os(VARIABLE).as_deref())
    }

    fn of(value: Option<&OsStr>) -> Result<Self> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(Self::Few) };
        ensure!(value == ALL, "`{VARIABLE}` is {value:?}; the only value is `{ALL}`");
        Ok(Self::All)
    }

    /// Returns whether the client runs the cases.
    pub(crate) fn has(self, kind: Kind) -> bool {
        self == Self::All || FEW.contains(&kind)
    }
}

// === impl Impaired ===

impl Impaired {
    const fn plan(self) -> Plan {
        let fault = match self {
            Self::Handshakeloss => Fault::Loss(30),
            Self::Handshakecorruption => Fault::Corruption(30),
            Self::Transferloss => Fault::Loss(2),
            Self::Transfercorruption => Fault::Corruption(2),
            Self::Amplificationlimit => Fault::ClientLoss(3),
            Self::Longrtt | Self::Goodput => Fault::None,
            Self::RebindAddr => Fault::Rebinding { every: 400, keeps_address: false },
            Self::Blackhole => Fault::Blackhole { after: 500, lasts: Duration::from_secs(2) },
            Self::Ecn => Fault::KeepsEcn,
        };
        Plan { delay: if matches!(self, Self::Longrtt) { LONG_DELAY } else { DELAY }, rate: Some(RATE), fault }
    }

    const fn connections(self) -> usize {
        if matches!(self, Self::Handshakeloss | Self::Handshakecorruption) { CONNECTIONS } else { 1 }
    }

    const fn task(self) -> Task {
        match self {
            Self::Handshakeloss | Self::Handshakecorruption => Task::Connections(CONNECTIONS),
            Self::Transferloss | Self::Transfercorruption | Self::RebindAddr | Self::Blackhole => Task::Bytes(TRANSFER),
            Self::Goodput => Task::Bytes(GOODPUT),
            Self::Amplificationlimit => Task::Bytes(5_000),
            Self::Longrtt => Task::Bytes(1_000),
            Self::Ecn => Task::Bytes(400_000),
        }
    }

    /// Returns a figure of the path if it has met what the case is about, or what is missing.
    fn judge(self, counts: &Counts) -> Result<String, String> {
        let Counts { to_server, to_client, .. } = counts;
        let expected = self.connections();
        let most = if expected == CONNECTIONS { expected + AGAIN } else { expected };
        require((expected..=most).contains(&counts.connections), || {
            format!("{} connections began instead of {expected}", counts.connections)
        })?;
        // What the server gets of a corrupted datagram may prove the address.
        let is_corrupted = matches!(self, Self::Handshakecorruption | Self::Transfercorruption);
        require(is_corrupted || !counts.is_over_limit, || "more than three times was sent before a proof".to_owned())?;
        let (hit, all) = counts.hit_of_all();
        let figure = |what: &str| Ok(format!("{hit} of {all} datagrams {what}"));
        match self {
            Self::Handshakeloss | Self::Handshakecorruption => {
                require_hits(to_server.hit_in_handshake.min(to_client.hit_in_handshake), 3)?;
                figure(if self == Self::Handshakeloss { "lost" } else { "corrupted" })
            }
            Self::Transferloss | Self::Transfercorruption => {
                require_hits(to_client.hit, 10)?;
                require_hits(to_server.hit, 1)?;
                figure(if self == Self::Transferloss { "lost" } else { "corrupted" })
            }
            Self::Amplificationlimit => {
                require_hits(to_server.hit, 3)?;
                let (received, sent) = counts.unproven.ok_or("the server sent nothing")?;
                let text = format!("{sent} bytes sent for {received}");
                require(counts.handshake >= LONG_HANDSHAKE, || format!("the certificate took {}", counts.handshake))?;
                require(sent + DATAGRAM > 3 * received, || format!("{text}: the limit was not reached"))?;
                Ok(text)
            }
            Self::Longrtt => {
                let time = counts.handshake_time();
                require(time >= 2 * LONG_DELAY, || format!("the handshake took {time:?}"))?;
                Ok(format!("a handshake of {} ms", time.as_millis()))
            }
            Self::Goodput => {
                let share = share_of_rate(counts.transfer_time());
                require(to_client.marked_to_the_end < 10, || "the server goes on marking".to_owned())?;
                require(share >= LEAST_GOODPUT, || format!("{share} % of the rate"))?;
                Ok(format!("{share} % of the rate"))
            }
            Self::RebindAddr => {
                let (moves, proven) = (counts.moves, counts.proven);
                require(moves >= 3 && proven >= moves - 1, || format!("{proven} of {moves} addresses were proven"))?;
                Ok(format!("{proven} new addresses"))
            }
            Self::Blackhole => {
                require_hits(to_server.hit.min(to_client.hit), 1)?;
                figure("lost")
            }
            Self::Ecn => {
                // Some implementations mark ten packets, and go on only when the peer has counted them.
                require(is_marked(*to_server), || format!("the client stopped marking: {to_server:?}"))?;
                require(is_marked(*to_client), || format!("the server stopped marking: {to_client:?}"))?;
                Ok(format!("{} of {all} datagrams marked", to_server.marked + to_client.marked))
            }
        }
    }
}

impl Row for Impaired {
    const HEAD: &'static str = "| path of the QUIC Interop Runner |";

    /// Returns why the client cannot run the case; `None` if it can.
    fn cannot(self, kind: Kind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Handshakeloss | Self::Handshakecorruption, Kind::Chromium) => {
                Some("it ends a handshake after 4 seconds without packets")
            }
            (Self::Ecn, Kind::Aioquic | Kind::Qh3 | Kind::Curl | Kind::Chromium) => {
                Some("it does not mark its packets")
            }
            // Servers depend on that probe while they may send no more (RFC 9002, 6.2.2.1).
            (Self::Amplificationlimit, Kind::Qh3) => Some("it waits without a probe if its first ACKs are lost"),
            // The name in its handshake is `localhost`, so it gets no long certificate.
            (Self::Amplificationlimit, Kind::Ngtcp2) => Some("it names no host if it is given an address"),
            _ => None,
        }
    }

    fn head(self) -> String {
        format!("| `{self}` |")
    }
}

impl fmt::Display for Impaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().ok_or(fmt::Error)?.get_name())
    }
}

fn require(is_met: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if is_met { Ok(()) } else { Err(why()) }
}

fn require_hits(hits: u64, least: u64) -> Result<(), String> {
    require(hits >= least, || format!("the fault came {hits} times instead of {least}"))
}

fn is_marked(tally: Tally) -> bool {
    const ENOUGH: u64 = 15;
    tally.marked_to_the_end >= ENOUGH
}

/// Returns the goodput as a share of the path's rate, in per cent.
fn share_of_rate(time: Duration) -> u64 {
    let ideal = GOODPUT as u128 * 8 * 1_000_000_000 * 100 / u128::from(RATE);
    ideal.checked_div(time.as_nanos()).and_then(|share| u64::try_from(share).ok()).unwrap_or_default()
}

/// Runs all cases that the client can run, if `choice` has it. Otherwise the table says that they did not run. A goodput
/// that fails is measured once more: it depends on the machine's other work.
///
/// # Errors
/// Fails if a path cannot be started or fails, or the client says something else than results.
pub(crate) fn ask(choice: Choice, client: &Client, stage: &Stage, report: &mut Report<Impaired>) -> Result<()> {
    report.add(client.kind, []);
    if !choice.has(client.kind) {
        return Ok(());
    }
    let can = |case: &Impaired| case.cannot(client.kind).is_none();
    let cases: Vec<Impaired> = Impaired::value_variants().iter().copied().filter(can).collect();
    let results = run(client, stage, &cases)?;
    for (case, result) in results {
        let result = match (case, result) {
            (Impaired::Goodput, Err(first)) => {
                progress::warn(&format!("{}: `{case}` is measured again: {first}", client.kind));
                let again = run(client, stage, &[case])?.pop().context("no second result")?.1;
                again.map_err(|why| format!("{first}; again: {why}"))
            }
            (_, result) => result,
        };
        report.add(client.kind, [(case, result.map(|figure| format!("passed: {figure}")))]);
    }
    Ok(())
}

/// Runs `cases`, each on a path of its own.
fn run(client: &Client, stage: &Stage, cases: &[Impaired]) -> Result<Vec<(Impaired, Result<String, String>)>> {
    let start = |(case, number): (&Impaired, u8)| Path::start(stage.address(), case.plan(), number, case.connections());
    let paths: Vec<Path> = cases.iter().zip(1..).map(start).collect::<Result<_>>()?;
    let errand = |(case, path): (&Impaired, &Path)| Errand {
        name: case.to_string(),
        task: case.task(),
        alone: *case == Impaired::Goodput,
        hosts: Host::on_path(&case.to_string(), &path.ports),
    };
    let errands: Vec<Errand> = cases.iter().zip(&paths).map(errand).collect();
    let said = client.run_errands(stage, &errands)?;
    let judge = |((case, path), said): ((&Impaired, Path), Result<(), String>)| {
        let counts = path.end()?;
        let result = said.and_then(|()| case.judge(&counts)).map_err(|why| format!("{why}; {counts:?}"));
        Ok((*case, result))
    };
    cases.iter().zip(paths).zip(said).map(judge).collect()
}

#[cfg(test)]
mod tests;
