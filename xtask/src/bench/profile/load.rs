//! An exact number of requests of one kind, by h2load, which also speaks HTTP/1.1.

use std::{fmt, net::Ipv4Addr, path::Path, process::Command};

use anyhow::{Context, ensure};
use clap::ValueEnum;

use crate::{bench::peers::Ports, process};

/// What is asked; connections and streams are as `cargo xtask bench` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Case {
    /// HTTP/1.1, 64 connections kept alive, 1 KiB responses
    H1,
    /// HTTP/1.1, a new connection for each request
    H1close,
    /// As h1, over TLS
    Https,
    /// HTTP/2 over TLS, 16 connections × 32 streams
    H2,
    /// 64 KiB responses, 32 connections
    Body64k,
    /// Request bodies of 64 KiB, 32 connections
    Post64k,
}

/// Who is asked for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load<'a> {
    pub(super) case: Case,
    pub(super) ports: Ports,
    /// Of the backend, one of whose files is also what is posted.
    pub(super) folder: &'a Path,
    /// Whether the load stays on CPU 0.
    pub(super) pin: bool,
}

// === impl Case ===

impl fmt::Display for Case {
    /// As it is chosen on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().ok_or(fmt::Error)?;
        f.write_str(value.get_name())
    }
}

// === impl Load ===

impl Load<'_> {
    /// Asks `requests` times, over connections that are opened for it and closed after.
    ///
    /// # Errors
    /// When h2load cannot be run, or not every request is answered well.
    pub(super) fn run(self, requests: u32) -> anyhow::Result<()> {
        let words = self.words(requests);
        let mut command = Command::new(&words[0]);
        let text = process::capture(command.args(&words[1..]))?;
        let well = succeeded(&text).with_context(|| format!("h2load gave no figures:\n{text}"))?;
        ensure!(well == u64::from(requests), "{well} of {requests} requests were answered well:\n{text}");
        Ok(())
    }

    /// The command line that does so.
    pub(super) fn words(self, requests: u32) -> Vec<String> {
        let Self { case, ports, folder, pin } = self;
        let pinned: &[&str] = if pin { &["taskset", "-c", "0"] } else { &[] };
        let body = folder.join("www/64k").display().to_string();
        let (options, secure, path): (Vec<&str>, bool, &str) = match case {
            Case::H1 => (vec!["--h1", "-c64"], false, "/"),
            Case::H1close => (vec!["--h1", "-c64", "-H", "connection: close"], false, "/"),
            Case::Https => (vec!["--h1", "-c64"], true, "/"),
            Case::H2 => (vec!["-c16", "-m32"], true, "/"),
            Case::Body64k => (vec!["--h1", "-c32"], false, "/64k"),
            Case::Post64k => (vec!["--h1", "-c32", "-d", body.as_str()], false, "/post"),
        };
        let (scheme, port) = if secure { ("https", ports.https) } else { ("http", ports.http) };
        let url = format!("{scheme}://{}:{port}{path}", Ipv4Addr::LOCALHOST);
        let count = format!("-n{requests}");
        let words = pinned.iter().copied().chain(["h2load", count.as_str()]).chain(options).chain([url.as_str()]);
        words.map(str::to_owned).collect()
    }
}

/// Requests that were answered with a status below 400, of the summary that h2load prints.
fn succeeded(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("requests:"))?;
    line.split(',').find_map(|part| part.trim().strip_suffix(" succeeded")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let text = "finished in 161.18ms, 3102.22 req/s, 3.38MB/s\n\
            requests: 500 total, 500 started, 500 done, 498 succeeded, 2 failed, 0 errored, 0 timeout\n";
        assert_eq!(succeeded(text), Some(498));
        assert_eq!(succeeded("unable to connect"), None);
    }

    #[test]
    fn each_case_is_a_command_line_of_its_own() {
        let ports = Ports { http: 80, https: 443 };
        let check = |case: Case, pin: bool, expect: &str| {
            let load = Load { case, ports, folder: Path::new("/f"), pin };
            assert_eq!(load.words(500).join(" "), expect);
        };
        check(Case::H1, true, "taskset -c 0 h2load -n500 --h1 -c64 http://127.0.0.1:80/");
        check(Case::H1close, false, "h2load -n500 --h1 -c64 -H connection: close http://127.0.0.1:80/");
        check(Case::Https, false, "h2load -n500 --h1 -c64 https://127.0.0.1:443/");
        check(Case::H2, false, "h2load -n500 -c16 -m32 https://127.0.0.1:443/");
        check(Case::Body64k, false, "h2load -n500 --h1 -c32 http://127.0.0.1:80/64k");
        check(Case::Post64k, false, "h2load -n500 --h1 -c32 -d /f/www/64k http://127.0.0.1:80/post");
    }
}
