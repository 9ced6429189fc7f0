//! Generates the load of each case: with wrk or h2load, and parses their summaries, or with its own clients.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::{
    Case,
    credentials::{ECDSA, RSA},
    handshakes::{self, Resume},
    http3,
    peers::Ports,
};
use ingress_lab::client::{Trust, block_on};

/// Result of one measurement.
#[derive(Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) requests: u64,
    /// Requests without a good response (wrk and h2load accept redirects), or made in another way than the case
    /// demands. A measurement with any of these is worthless.
    pub(super) errors: u64,
    pub(super) seconds: f64,
}

/// Address of the peer under load, and parameters of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'t> {
    pub(super) ip: Ipv4Addr,
    pub(super) ports: Ports,
    /// Directory for files that a load needs.
    pub(super) folder: &'t Path,
    /// Trust store for loads that verify certificates.
    pub(super) trust: &'t Trust,
    /// Whether the load is pinned to CPU 0.
    pub(super) pin: bool,
}

/// Amount of requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    For(Duration),
    /// This number of requests.
    Times(u32),
}

/// Loads the target for `length`.
///
/// # Errors
/// Fails if the load generator cannot be run, its output cannot be parsed, or no request is answered.
pub(super) fn run(case: Case, target: Target<'_>, length: Duration) -> anyhow::Result<Sample> {
    let sample = match case {
        Case::H1 | Case::H1log => wrk(target, length, "/", 64, &[]),
        Case::H1close => wrk(target, length, "/", 64, &["-H", "Connection: close"]),
        Case::Body64k => wrk(target, length, "/64k", 32, &[]),
        Case::Body10m => wrk(target, length, "/10m", 8, &[]),
        Case::Post64k => post(target, length, 64 << 10, 32),
        Case::Post10m => post(target, length, 10 << 20, 8),
        Case::Https => wrk_by_tls(target, length, "/", 64),
        Case::Https64k => wrk_by_tls(target, length, "/64k", 32),
        Case::H2 => h2load(target, length),
        Case::Tlsfull | Case::TlsfullRsa | Case::Tlsresume => by_handshakes(case, target, Amount::For(length)),
        Case::H3 | Case::H3close | Case::H3resume | Case::H364k | Case::H310m | Case::H3post64k => {
            http3::run(case, target, Amount::For(length))
        }
    }?;
    anyhow::ensure!(sample.requests > 0, "nothing was answered to `{case}`");
    Ok(sample)
}

/// Runs `work` on its own thread, which is pinned to CPU 0 if `pin` is `true`.
pub(super) fn beside_the_pod<T: Send>(pin: bool, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let working = scope.spawn(move || {
            if pin {
                stay_beside_the_pod()?;
            }
            work()
        });
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Pins the calling thread, and the threads that it creates, to CPU 0.
pub(super) fn stay_beside_the_pod() -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    // 0 is the calling thread.
    sched_setaffinity(Pid::from_raw(0), &cpus).context("cannot keep a load on CPU 0")
}

/// Loads the target with one of the cases that open a TLS connection for each request.
///
/// # Errors
/// Fails if the case is another one, or the clients cannot be created.
pub(super) fn by_handshakes(case: Case, target: Target<'_>, amount: Amount) -> anyhow::Result<Sample> {
    let (name, resume) = match case {
        Case::Tlsfull => (ECDSA, Resume::Never),
        Case::TlsfullRsa => (RSA, Resume::Never),
        Case::Tlsresume => (ECDSA, Resume::Always),
        other => bail!("`{other}` is not about handshakes"),
    };
    let Target { ip, ports, folder: _, trust, pin } = target;
    let address = SocketAddr::from((ip, ports.https));
    beside_the_pod(pin, || block_on(handshakes::run(address, name, resume, trust, amount)))
}

fn post(target: Target<'_>, length: Duration, bytes: usize, connections: u32) -> anyhow::Result<Sample> {
    let script = target.folder.join("post.lua");
    let text = format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {bytes})\n");
    fs::write(&script, text).with_context(|| format!("cannot write `{}`", script.display()))?;
    wrk(target, length, "/post", connections, &["-s", &script.display().to_string()])
}

fn wrk(target: Target<'_>, length: Duration, path: &str, connections: u32, more: &[&str]) -> anyhow::Result<Sample> {
    let url = format!("http://{}:{}{path}", target.ip, target.ports.http);
    wrk_of(url, target.pin, length, connections, more)
}

fn wrk_by_tls(target: Target<'_>, length: Duration, path: &str, connections: u32) -> anyhow::Result<Sample> {
    let url = format!("https://{}:{}{path}", target.ip, target.ports.https);
    wrk_of(url, target.pin, length, connections, &[])
}

fn wrk_of(url: String, pin: bool, length: Duration, connections: u32, more: &[&str]) -> anyhow::Result<Sample> {
    let mut words = vec!["wrk".to_owned(), "-t1".into(), format!("-c{connections}")];
    words.extend([format!("-d{}s", length.as_secs()), "--timeout".into(), "10s".into()]);
    words.extend(more.iter().map(|&word| word.to_owned()));
    words.push(url);
    program(words, pin, wrk_summary)
}

fn h2load(target: Target<'_>, length: Duration) -> anyhow::Result<Sample> {
    let url = format!("https://{}:{}/", target.ip, target.ports.https);
    let seconds = length.as_secs().to_string();
    let words = ["h2load", "-D", &seconds, "-c16", "-m32", &url].map(str::to_owned).to_vec();
    program(words, target.pin, |text| h2load_summary(text, length))
}

fn program(words: Vec<String>, pin: bool, summary: impl FnOnce(&str) -> Option<Sample>) -> anyhow::Result<Sample> {
    let words = if pin { [vec!["taskset".into(), "-c".into(), "0".into()], words].concat() } else { words };
    let output =
        Command::new(&words[0]).args(&words[1..]).output().with_context(|| format!("cannot run `{}`", words[0]))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match summary(&text) {
        Some(sample) => Ok(sample),
        None => bail!("`{}` gave no figures:\n{text}{}", words.join(" "), String::from_utf8_lossy(&output.stderr)),
    }
}

fn wrk_summary(text: &str) -> Option<Sample> {
    let (mut sample, mut found) = (Sample { requests: 0, errors: 0, seconds: 0.0 }, false);
    for line in text.lines().map(str::trim) {
        if let Some((requests, rest)) = line.split_once(" requests in ") {
            sample.requests = requests.parse().ok()?;
            sample.seconds = wrk_time(rest.split(',').next()?)?;
            found = true;
        } else if let Some(errors) = line.strip_prefix("Non-2xx or 3xx responses:") {
            sample.errors += errors.trim().parse::<u64>().ok()?;
        } else if let Some(errors) = line.strip_prefix("Socket errors:") {
            sample.errors += errors.split(',').filter_map(|e| e.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    found.then_some(sample)
}

fn wrk_time(text: &str) -> Option<f64> {
    for (unit, factor) in [("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("m", 60.0)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Some(number.parse::<f64>().ok()? * factor);
        }
    }
    None
}

fn h2load_summary(text: &str, length: Duration) -> Option<Sample> {
    let line = text.lines().find(|line| line.starts_with("requests:"))?;
    let count =
        |what: &str| line.split([',', ':']).find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok());
    Some(Sample {
        requests: count("succeeded")?,
        errors: count("failed")? + count("errored")?,
        seconds: length.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let text = "  120345 requests in 4.01s, 150MB read\n  Socket errors: connect 0, read 2, write 0, timeout 1\n\
                    \x20 Non-2xx or 3xx responses: 7\n";
        assert_eq!(wrk_summary(text), Some(Sample { requests: 120_345, errors: 10, seconds: 4.01 }));
        assert_eq!(wrk_summary("unable to connect"), None);
        let text = "requests: 5100 total, 5200 started, 5100 done, 5090 succeeded, 6 failed, 4 errored, 0 timeout\n";
        let expect = Sample { requests: 5090, errors: 10, seconds: 2.0 };
        assert_eq!(h2load_summary(text, Duration::from_secs(2)), Some(expect));
    }
}
