//! An exact number of requests of one kind: from h2load, which also speaks HTTP/1.1, or from this project's own TLS
//! clients.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::{
    case::Case,
    http3,
    load::{Amount, Sample, Target, by_handshakes},
};
use xtask_tools::process;

/// Target and case of a load; connections and streams are those of `cargo xtask bench proxy`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load<'a> {
    pub(super) case: Case,
    /// Its folder also contains the request bodies.
    pub(super) target: Target<'a>,
}

// === impl Load ===

impl Load<'_> {
    /// Returns the number of requests of this case if others get `most`: an expensive request is counted as exactly
    /// with fewer repetitions.
    pub(super) fn times(self, most: u32) -> u32 {
        match self.case {
            Case::Tlsfull | Case::TlsfullRsa | Case::Tlsresume | Case::H3close | Case::H3resume => most / 10,
            Case::Body10m | Case::Post10m | Case::H310m => most / 20,
            _ => most,
        }
    }

    /// Sends this number of requests, over connections that are opened for them and closed afterwards.
    ///
    /// # Errors
    /// Fails if h2load cannot be run, or a request fails.
    pub(super) fn run(self, times: u32) -> anyhow::Result<()> {
        let Some(words) = self.words(times) else {
            let by = if self.case.is_http3() { http3::run } else { by_handshakes };
            let Sample { requests, errors, seconds: _ } = by(self.case, self.target, Amount::Times(times))?;
            ensure!(errors == 0, "{requests} of {times} requests were answered well");
            return Ok(());
        };
        let mut command = Command::new(&words[0]);
        let text = process::capture(command.args(&words[1..]))?;
        let well = succeeded(&text).with_context(|| format!("h2load gave no figures:\n{text}"))?;
        ensure!(well == u64::from(times), "{well} of {times} requests were answered well:\n{text}");
        Ok(())
    }

    /// Returns the command line of h2load; `None` for cases that it does not support, because it neither resumes
    /// sessions, nor opens a TLS connection for each request, nor has HTTP/3.
    fn words(self, times: u32) -> Option<Vec<String>> {
        let Self { case, target: Target { ip, ports, folder, trust: _, pin } } = self;
        let pinned: &[&str] = if pin { &["taskset", "-c", "0"] } else { &[] };
        let [small, large] = ["www/64k", "www/10m"].map(|file| folder.join(file).display().to_string());
        let (options, secure, path): (&[&str], bool, &str) = match case {
            Case::H1 | Case::H1log => (&["--h1", "-c64"], false, "/"),
            Case::H1close => (&["--h1", "-c64", "-H", "connection: close"], false, "/"),
            Case::Https => (&["--h1", "-c64"], true, "/"),
            Case::H2 => (&["-c16", "-m32"], true, "/"),
            Case::Body64k => (&["--h1", "-c32"], false, "/64k"),
            Case::Body10m => (&["--h1", "-c8"], false, "/10m"),
            Case::Https64k => (&["--h1", "-c32"], true, "/64k"),
            Case::Post64k => (&["--h1", "-c32", "-d", &small], false, "/post"),
            Case::Post10m => (&["--h1", "-c8", "-d", &large], false, "/post"),
            Case::Tlsfull | Case::TlsfullRsa | Case::Tlsresume => return None,
            Case::H3 | Case::H3close | Case::H3resume | Case::H364k | Case::H310m | Case::H3post64k => return None,
        };
        let (scheme, port) = if secure { ("https", ports.https) } else { ("http", ports.http) };
        let url = format!("{scheme}://{ip}:{port}{path}");
        let count = format!("-n{times}");
        let words = pinned.iter().copied().chain(["h2load", &count]).chain(options.iter().copied()).chain([&*url]);
        Some(words.map(str::to_owned).collect())
    }
}

/// Returns the number of responses with a status below 400 from h2load's summary.
fn succeeded(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("requests:"))?;
    line.split(',').find_map(|part| part.trim().strip_suffix(" succeeded")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, path::Path};

    use super::*;
    use crate::peers::Ports;
    use ingress_lab::client::Trust;

    #[test]
    fn summaries_are_read() {
        let text = "finished in 161.18ms, 3102.22 req/s, 3.38MB/s\n\
            requests: 500 total, 500 started, 500 done, 498 succeeded, 2 failed, 0 errored, 0 timeout\n";
        assert_eq!(succeeded(text), Some(498));
        assert_eq!(succeeded("unable to connect"), None);
    }

    #[test]
    fn each_case_without_handshakes_has_a_command_line() {
        let trust = Trust::none();
        let check = |case: Case, pin: bool, expect: Option<&str>| {
            let ports = Ports { http: 80, https: 443 };
            let target = Target { ip: Ipv4Addr::LOCALHOST, ports, folder: Path::new("/f"), trust: &trust, pin };
            let words = Load { case, target }.words(500).map(|words| words.join(" "));
            assert_eq!(words.as_deref(), expect, "{case}");
        };
        check(Case::H1, true, Some("taskset -c 0 h2load -n500 --h1 -c64 http://127.0.0.1:80/"));
        check(Case::H1log, false, Some("h2load -n500 --h1 -c64 http://127.0.0.1:80/"));
        check(Case::H1close, false, Some("h2load -n500 --h1 -c64 -H connection: close http://127.0.0.1:80/"));
        check(Case::Https, false, Some("h2load -n500 --h1 -c64 https://127.0.0.1:443/"));
        check(Case::H2, false, Some("h2load -n500 -c16 -m32 https://127.0.0.1:443/"));
        check(Case::Body64k, false, Some("h2load -n500 --h1 -c32 http://127.0.0.1:80/64k"));
        check(Case::Body10m, false, Some("h2load -n500 --h1 -c8 http://127.0.0.1:80/10m"));
        check(Case::Https64k, false, Some("h2load -n500 --h1 -c32 https://127.0.0.1:443/64k"));
        check(Case::Post64k, false, Some("h2load -n500 --h1 -c32 -d /f/www/64k http://127.0.0.1:80/post"));
        check(Case::Post10m, false, Some("h2load -n500 --h1 -c8 -d /f/www/10m http://127.0.0.1:80/post"));
        for case in [Case::Tlsfull, Case::TlsfullRsa, Case::Tlsresume, Case::H3, Case::H3close] {
            check(case, true, None);
        }
    }
}
