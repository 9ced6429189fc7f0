//! Headless Chromium: a page loads over HTTP/3, and its script runs the cases and reports the results to the pod.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ingress_lab::Process;

use super::Host;
use super::visit::Visit;
use crate::stage::Stage;

/// Longest time for the page and all of its cases; a start of the browser on a busy machine is the slow part.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the browser; installs it if it is missing.
pub(super) fn program() -> Result<PathBuf> {
    Ok(xtask_setup::browser()?.chromium)
}

/// Loads the page, and returns its report.
pub(super) fn said(chromium: &Path, stage: &Stage, visit: &Visit) -> Result<String> {
    let profile = tempfile::tempdir_in(&stage.scratch).context("cannot make a directory for a profile")?;
    let mut command = Command::new(chromium);
    command.args(xtask_setup::HEADLESS).arg("--enable-quic");
    command.arg(format!("--origin-to-force-quic-on={}", visit.list(Host::to_string)));
    let rules = visit.list(|host| format!("MAP {host} {}", host.at));
    command.arg(format!("--host-resolver-rules={rules},MAP * ~NOTFOUND"));
    // Chromium takes no other certificate of an unknown authority over QUIC.
    command.arg(format!("--ignore-certificate-errors-spki-list={}", stage.key_hashes));
    command.arg(format!("--user-data-dir={}", profile.path().display())).env("HOME", profile.path());
    command.arg(visit.url());
    let mut browser = Process::spawn("chromium", command, stage.scratch.join("chromium.log"))?;
    let mut report = None;
    browser.wait_until(LIMIT, "the report of its page", || {
        report = stage.pod.take_reports().pop();
        report.is_some()
    })?;
    // Its processes are one group; a polite end takes seconds.
    browser.kill()?;
    report.context("no report")
}
