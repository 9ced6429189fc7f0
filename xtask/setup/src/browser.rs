//! Headless Chromium and its driver from the distribution, and axe-core, which finds faults of accessibility in pages.
//! Only the lane `ui`, `cargo xtask shots` and `cargo xtask ui-figures` need them, so `cargo xtask setup` leaves them out.
//!
//! axe-core is under the MPL-2.0, has 652 kB, and is no part of the product, so it is not in the work tree. Its authors
//! publish it for npm alone. It comes from a wheel that contains their file unchanged, because this project has Python's
//! package installer already and needs nothing of npm.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cache::{self, Cache, sha256_file};
use super::system;
use xtask_tools::{process, workspace};

/// Wheel with axe-core.
const WHEEL: &str = "pytest-playwright-axe";
const WHEEL_VERSION: &str = "4.14.0";
const WHEEL_SHA256: &str = "b8eed34ac17e1c1094983eaef97687e65b3e0c5a0de0257b8b34cc05430a07ca";
/// The script in the wheel, and its hash: that of the file that its authors publish.
const SCRIPT: &str = "pytest_playwright_axe/resources/axe.min.js";
const SCRIPT_SHA256: &str = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878";
/// Version of axe-core.
const AXE_VERSION: &str = "4.14.0";
const LIMIT: Duration = Duration::from_secs(300);

/// Arguments of Chromium without a window and without requests of its own.
pub const HEADLESS: [&str; 10] = [
    "--headless=new",
    // Contents come from this machine alone; the sandbox cannot be used by root or in most containers.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-proxy-server",
];

/// The programs and the script, ready to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserTools {
    /// The browser.
    pub chromium: PathBuf,
    /// Its WebDriver server.
    pub driver: PathBuf,
    /// The script of axe-core, for a page to run.
    pub axe: PathBuf,
}

/// Returns the tools; installs the missing ones.
///
/// # Errors
/// Fails if one is missing and cannot be installed here.
pub(super) fn tools() -> Result<BrowserTools> {
    system::ensure(&system::BROWSER, "test ui")?;
    let program = |name: &str| process::find_program(name).with_context(|| format!("`{name}` is missing"));
    let (chromium, driver) = (program("chromium")?, program("chromedriver")?);
    Ok(BrowserTools { chromium, driver, axe: cache::kept("axe-core", find, install)? })
}

fn find() -> Result<Option<PathBuf>> {
    let cached = workspace::cache_dir()?.join(dir_name()).join(SCRIPT);
    Ok(cached.is_file().then_some(cached))
}

fn install(cache: &Cache) -> Result<()> {
    system::ensure_pip()?;
    let place = cache.install(&dir_name(), |staging| {
        let requirements = staging.join("requirements.txt");
        fs::write(&requirements, format!("{WHEEL}=={WHEEL_VERSION} --hash=sha256:{WHEEL_SHA256}\n"))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
        // Its code does not run here, so its demands on Python do not matter.
        pip.args(["--ignore-requires-python", "--no-compile", "--root-user-action", "ignore", "--target"]);
        pip.arg(staging).arg("-r").arg(&requirements);
        process::run_shown(&format!("fetching axe-core {AXE_VERSION}"), &mut pip, LIMIT)?;
        let found = sha256_file(&staging.join(SCRIPT))?;
        ensure!(found == SCRIPT_SHA256, "`{SCRIPT}` of the wheel has the SHA-256 {found}");
        Ok(())
    });
    place.map(drop).context("cannot get axe-core")
}

fn dir_name() -> String {
    format!("axe-core-{AXE_VERSION}")
}
