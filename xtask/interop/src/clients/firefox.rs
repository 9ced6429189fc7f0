//! Headless Firefox: a page loads over HTTP/3, and its script runs the cases and reports the results to the pod. What
//! the browser has spoken, its own log says as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ingress_lab::Process;
use xtask_tools::process;

use super::visit::Visit;
use crate::stage::Stage;

/// Longest time for the page and all of its cases; a start of the browser on a busy machine is the slow part.
const LIMIT: Duration = Duration::from_secs(120);
/// Words of its log for the first line of a response by HTTP/3, of one by TCP, at the level below.
const BY_QUIC: &str = "ParseLine [HTTP/3 200]";
const BY_TCP: [&str; 2] = ["ParseLine [HTTP/2 200]", "ParseLine [HTTP/1.1 200"];
/// Port of a proxy that does not exist, for requests of the browser's own.
const NOWHERE: u16 = 9;

/// Returns the browser; installs it, and the tool for its certificates, if one is missing.
pub(super) fn program() -> Result<PathBuf> {
    xtask_setup::packages(&["firefox-esr", "libnss3-tools"], "test interop")?;
    process::find_program("firefox-esr").context("`firefox-esr` is missing")
}

/// Loads the page, and returns its report.
pub(super) fn said(firefox: &Path, stage: &Stage, visit: &Visit) -> Result<String> {
    let home = tempfile::tempdir_in(&stage.scratch).context("cannot make a directory for a profile")?;
    let profile = home.path().join("profile");
    fs::create_dir(&profile)?;
    fs::write(profile.join("user.js"), settings(visit))?;
    let database = format!("sql:{}", profile.display());
    process::capture(Command::new("certutil").args(["-N", "--empty-password", "-d", &database]))?;
    let mut trust = Command::new("certutil");
    trust.args(["-A", "-n", "interop", "-t", "C,,", "-d", &database, "-i"]).arg(&stage.roots);
    process::capture(&mut trust)?;
    let log = home.path().join("http");
    let mut command = Command::new(firefox);
    command.args(["--headless", "--no-remote", "--profile"]).arg(&profile).env("HOME", home.path());
    command.env("MOZ_LOG", "nsHttp:3").env("MOZ_LOG_FILE", &log).env("MOZ_CRASHREPORTER_DISABLE", "1");
    command.arg(visit.url());
    let mut browser = Process::spawn("firefox", command, stage.scratch.join("firefox.log"))?;
    let mut report = None;
    browser.wait_until(LIMIT, "the report of its page", || {
        report = stage.pod.take_reports().pop();
        report.is_some()
    })?;
    // Its processes are one group; a polite end takes seconds.
    browser.kill()?;
    let log = fs::read(log.with_extension("moz_log")).context("the browser wrote no log")?;
    let log = String::from_utf8_lossy(&log);
    ensure!(log.contains(BY_QUIC), "the log of the browser has no response by HTTP/3");
    ensure!(!BY_TCP.iter().any(|line| log.contains(line)), "the log of the browser has a response by TCP");
    report.context("no report")
}

/// Returns the preferences of the profile.
fn settings(visit: &Visit) -> String {
    let mapping = visit.list(|host| format!("{};h3=:{}", host.name, host.at.port()));
    let (address, names) = (visit.page.at.ip().to_string(), visit.list(|host| host.name.clone()));
    let texts = [
        ("network.http.http3.alt-svc-mapping-for-testing", mapping.as_str()),
        // All hosts of a visit have one address.
        ("network.dns.forceResolve", &address),
        // Requests of the browser's own, to other hosts, do not leave the machine.
        ("network.proxy.http", "127.0.0.1"),
        ("network.proxy.ssl", "127.0.0.1"),
        ("network.proxy.no_proxies_on", &names),
    ];
    let numbers = [
        ("network.proxy.type", 1),
        ("network.proxy.http_port", NOWHERE),
        ("network.proxy.ssl_port", NOWHERE),
        // A slow handshake is no reason for TCP.
        ("network.http.http3.backup_timer_delay", 0),
    ];
    let flags = [
        ("network.http.http3.enable", true),
        // An authority that this machine has added is such a root.
        ("network.http.http3.disable_when_third_party_roots_found", false),
        // Names of one address have a connection each.
        ("network.http.http2.coalesce-hostnames", false),
        // Fewer requests of the browser's own.
        ("app.update.enabled", false),
        ("browser.shell.checkDefaultBrowser", false),
        ("datareporting.policy.dataSubmissionEnabled", false),
        ("network.captive-portal-service.enabled", false),
        ("network.connectivity-service.enabled", false),
        ("toolkit.telemetry.enabled", false),
    ];
    let texts = texts.iter().map(|(name, value)| format!("user_pref(\"{name}\", \"{value}\");\n"));
    let flags = flags.iter().map(|(name, value)| format!("user_pref(\"{name}\", {value});\n"));
    let numbers = numbers.iter().map(|(name, value)| format!("user_pref(\"{name}\", {value});\n"));
    texts.chain(numbers).chain(flags).collect()
}
