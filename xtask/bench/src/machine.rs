//! Conditions of a measurement: machine, versions, and other load on the machine.

use std::{fs, path::Path, process::Command};

use anyhow::Context as _;

use super::{
    peers::{Peer, Programs, said},
    report::median,
};
use xtask_tools::process;

/// Load averages, sampled during a measurement.
#[derive(Debug, Default)]
pub(super) struct Loads(Vec<f64>);

impl Loads {
    /// Samples the load average of one minute, which includes the measurement itself.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        let text = fs::read_to_string("/proc/loadavg").context("cannot read the load average")?;
        let load = text.split(' ').next().and_then(|first| first.parse().ok());
        self.0.push(load.with_context(|| format!("no load average in `{text}`"))?);
        Ok(())
    }

    /// Returns the load averages as a sentence.
    pub(super) fn said(&self) -> String {
        let most = self.0.iter().copied().fold(f64::NAN, f64::max);
        format!("Load average while measuring: median {:.2}, most {most:.2}.", median(self.0.iter().copied()))
    }
}

/// Returns a paragraph about the machine and the versions of these peers, without HTTP/3.
pub(super) fn description(peers: &[Peer], product: &Path, programs: &Programs) -> anyhow::Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("cannot read `/proc/cpuinfo`")?;
    let date = process::capture(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    let versions = peers.iter().filter(|peer| peer.is_ours() || programs.has(**peer, false));
    let versions = versions.map(|peer| version(*peer, product, programs, false)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(format!(
        "{date}, {} × {}, Linux {}; {}.",
        cpus(&cpuinfo),
        model(&cpuinfo).unwrap_or("CPU of an unknown model"),
        kernel_version()?,
        versions.join(", ")
    ))
}

/// Returns the version of the running kernel, without the suffix of a distribution.
///
/// # Errors
/// Fails if there is no procfs.
pub(super) fn kernel_version() -> anyhow::Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's release")?;
    Ok(release.trim().split('-').next().unwrap_or_default().to_owned())
}

/// Returns the conditions of a measurement: machine, versions of all peers, and the load before it.
///
/// # Errors
/// Fails if there is no procfs, or one of the programs does not start.
pub(super) fn conditions(product: &Path) -> anyhow::Result<String> {
    let machine = description(&[Peer::Nginx, Peer::Haproxy, Peer::XdpIngress], product, &Programs::default())?;
    let load = fs::read_to_string("/proc/loadavg").context("cannot read the load average")?;
    let averages: Vec<&str> = load.split(' ').take(3).collect();
    Ok(format!("{machine} Load average before: {}", averages.join(" ")))
}

fn cpus(cpuinfo: &str) -> usize {
    cpuinfo.lines().filter(|line| line.starts_with("processor")).count()
}

/// Returns the model of the CPU; not all architectures report it.
fn model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Returns the name of a peer with its version.
///
/// # Errors
/// Fails if its program does not start, or tells no version.
pub(super) fn version(peer: Peer, product: &Path, programs: &Programs, http3: bool) -> anyhow::Result<String> {
    let (words, argument) = match peer {
        Peer::Nginx | Peer::Haproxy => (programs.words(peer, http3)?, "-v"),
        Peer::Caddy => (programs.words(peer, http3)?, "version"),
        Peer::XdpIngress | Peer::Again => (vec![product.display().to_string()], "--version"),
        Peer::Before => return Ok(peer.to_string()),
    };
    let text = said(&words, argument).with_context(|| format!("cannot ask {peer} for its version"))?;
    let number = number_in(&text).with_context(|| format!("{peer} tells no version:\n{text}"))?;
    Ok(format!("{peer} {number}"))
}

/// Returns the first number with dots in a text, such as `1.22.1` or `2.6.12`.
fn number_in(text: &str) -> Option<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    words.map(|word| word.trim_matches('.')).find(|word| word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_output_of_each_peer() {
        for (text, expect) in [
            ("nginx version: nginx/1.22.1\n", Some("1.22.1")),
            ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\n", Some("2.6.12")),
            ("2.11.2\n", Some("2.11.2")),
            ("xdp-ingress 0.1.0 (abc)\n", Some("0.1.0")),
            ("none at all.\n", None),
        ] {
            assert_eq!(number_in(text), expect, "{text}");
        }
    }

    #[test]
    fn cpus_are_counted_and_named() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!((cpus(text), model(text)), (2, Some("Some CPU @ 2 GHz")));
        assert_eq!((cpus("processor : 0\n"), model("processor : 0\n")), (1, None));
    }
}
