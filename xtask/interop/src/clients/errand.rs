//! Errands of clients on paths with faults: all paths at once, each with an errand of its own.

use std::fmt;
use std::slice;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context as _, Result};

use super::visit::Visit;
use super::{Client, Host, Kind, chromium, command, firefox, ngtcp2};
use crate::stage::Stage;

/// Result of an errand, with the reason of a failure.
pub(crate) type Said = Result<(), String>;

/// A task at the end of a path.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    /// Name of the case.
    pub(crate) name: String,
    pub(crate) task: Task,
    /// Whether it is a measurement, which follows the others.
    pub(crate) alone: bool,
    /// Hosts at the beginnings of the path. A browser has a connection to each; other clients use the first.
    pub(crate) hosts: Vec<Host>,
}

/// Task of an errand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// A response of as many bytes.
    Bytes(usize),
    /// Connections at once, with 1,000 bytes each. A client may begin each up to three times.
    Connections(usize),
}

impl fmt::Display for Task {
    /// Writes the task as an argument of clients.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(length) => write!(f, "bytes-{length}"),
            Self::Connections(count) => write!(f, "connections-{count}"),
        }
    }
}

// === impl Client ===

impl Client {
    /// Runs all errands at once but for those that are to be alone, and returns the result of each.
    ///
    /// # Errors
    /// Fails if a program cannot be started, or a client says something else than a result for each errand. A browser
    /// without a report has failed in all errands.
    pub(crate) fn run_errands(&self, stage: &Stage, errands: &[Errand]) -> Result<Vec<Said>> {
        let visit = || Visit::of_errands(Host::web(stage.address()), errands);
        let said = match self.kind {
            Kind::Chromium => chromium::said(&self.program, stage, &visit()),
            Kind::Firefox => firefox::said(&self.program, stage, &visit()),
            Kind::QuicGo | Kind::Aioquic | Kind::Qh3 | Kind::Ngtcp2 | Kind::Curl => {
                return self.run_programs(stage, errands);
            }
        };
        match said {
            Ok(said) => errands.iter().map(|errand| command::result(&said, &errand.name)).collect(),
            // A page has one report, so no errand has a result.
            Err(error) => Ok(errands.iter().map(|_| Err(format!("{error:#}"))).collect()),
        }
    }

    /// Runs a program for each errand.
    fn run_programs(&self, stage: &Stage, errands: &[Errand]) -> Result<Vec<Said>> {
        let run = |errand: &Errand| {
            let (host, tasks) = (errand.hosts.first().context("a path without a port")?, slice::from_ref(&errand.task));
            let said = match self.kind {
                Kind::Ngtcp2 => ngtcp2::said_on_path(&self.program, stage, host, tasks),
                Kind::QuicGo | Kind::Aioquic | Kind::Qh3 | Kind::Curl | Kind::Chromium | Kind::Firefox => {
                    command::said(&mut self.command(&[])?, stage, host, tasks)
                }
            }?;
            command::result(&said, &errand.task.to_string())
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                errands.iter().map(|errand| (!errand.alone).then(|| scope.spawn(move || run(errand)))).collect();
            let end = |thread: Option<ScopedJoinHandle<'_, Result<Said>>>| {
                thread.map(|thread| thread.join().ok().context("a client's thread panicked")?).transpose()
            };
            let said: Vec<Option<Said>> = threads.into_iter().map(end).collect::<Result<_>>()?;
            errands.iter().zip(said).map(|(errand, said)| said.map_or_else(|| run(errand), Ok)).collect()
        })
    }
}
