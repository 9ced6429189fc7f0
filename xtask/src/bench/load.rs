//! Makes the load of each case with wrk or h2load and reads what they print.

use std::{net::Ipv4Addr, process::Command, time::Duration};

use anyhow::{Context, bail};

use super::{Case, peers::Ports};

/// What one measurement saw.
#[derive(Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) requests: u64,
    /// Requests without a 2xx answer; a measurement with any of these is worth nothing.
    pub(super) errors: u64,
    pub(super) seconds: f64,
}

/// Loads the peer at `ip` for `length`.
pub(super) fn run(case: Case, ip: Ipv4Addr, ports: Ports, length: Duration, pin: bool) -> anyhow::Result<Sample> {
    let seconds = length.as_secs();
    let plain = |path: &str| format!("http://{ip}:{}{path}", ports.http);
    let secure = format!("https://{ip}:{}/", ports.https);
    let wrk = |url: String, connections: u32, more: &[&str]| {
        let mut words: Vec<String> = vec![
            "wrk".into(),
            "-t1".into(),
            format!("-c{connections}"),
            format!("-d{seconds}s"),
            "--timeout".into(),
            "10s".into(),
        ];
        words.extend(more.iter().map(|&word| word.to_owned()));
        words.push(url);
        words
    };
    let words = match case {
        Case::H1 => wrk(plain("/"), 64, &[]),
        Case::H1close => wrk(plain("/"), 64, &["-H", "Connection: close"]),
        Case::Https => wrk(secure, 64, &[]),
        Case::Body64k => wrk(plain("/64k"), 32, &[]),
        Case::Body10m => wrk(plain("/10m"), 8, &[]),
        Case::H2 => vec!["h2load".into(), "-D".into(), seconds.to_string(), "-c16".into(), "-m32".into(), secure],
    };
    let words = if pin { [vec!["taskset".into(), "-c".into(), "0".into()], words].concat() } else { words };
    let output =
        Command::new(&words[0]).args(&words[1..]).output().with_context(|| format!("cannot run `{}`", words[0]))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sample = if case == Case::H2 { h2load(&text, length) } else { wrk_summary(&text) };
    match sample {
        Some(sample) if sample.requests > 0 => Ok(sample),
        _ => bail!("`{}` gave no figures:\n{text}{}", words.join(" "), String::from_utf8_lossy(&output.stderr)),
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

fn h2load(text: &str, length: Duration) -> Option<Sample> {
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
        let text = "  120345 requests in 4.01s, 150MB read\n  Socket errors: connect 0, read 2, write 0, timeout 1\n  Non-2xx or 3xx responses: 7\n";
        assert_eq!(wrk_summary(text), Some(Sample { requests: 120_345, errors: 10, seconds: 4.01 }));
        assert_eq!(wrk_summary("unable to connect"), None);
        let text = "requests: 5100 total, 5200 started, 5100 done, 5090 succeeded, 6 failed, 4 errored, 0 timeout\n";
        let expect = Sample { requests: 5090, errors: 10, seconds: 2.0 };
        assert_eq!(h2load(text, Duration::from_secs(2)), Some(expect));
    }
}
