//! Checks both lock files for packages with known vulnerabilities, by the snapshot of RustSec advisories in
//! `advisories.toml`. The check needs no network; advisories published after the snapshot are unknown to it.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use semver::VersionReq;
use serde::Deserialize;

use super::lock_file::{LockFile, Locked};
use xtask_tools::{progress, workspace};

const SNAPSHOT: &str = "advisories.toml";
/// Age in days above which the snapshot causes a warning.
const DAYS_MAX: i64 = 30;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    /// The day on which the snapshot was taken: `YYYY-MM-DD`.
    taken: String,
    advisory: Vec<Advisory>,
}

/// An advisory with the field names of RustSec's format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    package: String,
    /// Short description of the vulnerability.
    title: String,
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
}

/// Checks the lock files.
///
/// # Errors
/// Fails if a package has a known vulnerability, or a file cannot be read.
pub(super) fn run() -> Result<()> {
    let (snapshot, lock) = (Snapshot::read()?, LockFile::read()?);
    let hits = hits(&snapshot, &lock);
    if !hits.is_empty() {
        bail!("packages with known vulnerabilities (`cargo update --package NAME`):\n  {}", hits.join("\n  "));
    }
    let age = today()? - day(&snapshot.taken)?;
    if age > DAYS_MAX {
        progress::warn(&format!(
            "the advisories in `{SNAPSHOT}` are {age} days old: later ones are NOT looked at. Bring it up to date from \
             https://rustsec.org, or run `cargo audit`"
        ));
    }
    let Snapshot { taken, advisory } = snapshot;
    let (packages, known) = (lock.package.len(), advisory.len());
    progress::note(&format!("none of {packages} packages is hit by the {known} advisories of {taken}"));
    Ok(())
}

// === impl Snapshot ===

impl Snapshot {
    fn read() -> Result<Self> {
        let text = fs::read_to_string(workspace::root().join(SNAPSHOT));
        let text = text.with_context(|| format!("cannot read `{SNAPSHOT}`"))?;
        toml::from_str(&text).with_context(|| format!("cannot understand `{SNAPSHOT}`"))
    }
}

fn hits(snapshot: &Snapshot, lock: &LockFile) -> Vec<String> {
    let pairs = snapshot.advisory.iter().flat_map(|advisory| {
        let same = lock.package.iter().filter(|locked| locked.name == advisory.package);
        same.map(move |locked| (advisory, locked))
    });
    let hit = |(advisory, locked): &(&Advisory, &Locked)| {
        let mut fine = advisory.patched.iter().chain(&advisory.unaffected);
        !fine.any(|versions| versions.matches(&locked.version))
    };
    let shown = |(Advisory { id, title, .. }, Locked { name, version, source: _ }): (&Advisory, &Locked)| {
        format!("`{name}` {version}: {title} (https://rustsec.org/advisories/{id})")
    };
    pairs.filter(hit).map(shown).collect()
}

fn today() -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(i64::try_from(since.as_secs() / 86_400)?)
}

/// Returns the days since 1970 of a date in the Gregorian calendar.
fn day(date: &str) -> Result<i64> {
    let parts: Vec<i64> = date.split('-').map(str::parse).collect::<Result<_, _>>().context("a date is YYYY-MM-DD")?;
    let [year, month @ 1..=12, day @ 1..=31] = parts[..] else { bail!("`{date}` is no date; it is YYYY-MM-DD") };
    // If years begin in March, a leap day is the last day of its year.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let before = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Ok(before + (153 * month + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_neither_patched_nor_unaffected_are_reported() {
        let snapshot: Snapshot = toml::from_str(
            r#"
            taken = "2026-11-23"
            [[advisory]]
            id = "RUSTSEC-2026-0001"
            package = "it"
            title = "it breaks"
            patched = [">=1.2.3, <2.0.0-alpha.1", ">=2.0.1"]
            unaffected = ["<1.0.0"]
            [[advisory]]
            id = "RUSTSEC-2026-0002"
            package = "never"
            title = "nobody mends it"
            patched = []
            "#,
        )
        .unwrap();
        let check = |name: &str, version: &str, expect: bool| {
            let lock = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"");
            let found = hits(&snapshot, &toml::from_str(&lock).unwrap());
            assert_eq!(!found.is_empty(), expect, "{name} {version}: {found:?}");
        };
        check("it", "0.9.0", false);
        check("it", "1.0.0", true);
        check("it", "1.2.2", true);
        check("it", "1.2.3", false);
        check("it", "2.0.0", true);
        check("it", "2.0.1", false);
        check("other", "1.0.0", false);
        check("never", "7.0.0", true);
    }

    #[test]
    fn dates_convert_to_days_since_1970() {
        for (date, expect) in
            [("1970-01-01", 0), ("2000-02-29", 11_016), ("2000-03-01", 11_017), ("2026-11-23", 20_780)]
        {
            assert_eq!(day(date).unwrap(), expect, "{date}");
        }
        for date in ["", "2026-13-01", "2026-11", "yesterday"] {
            assert!(day(date).is_err(), "{date}");
        }
    }

    #[test]
    fn the_snapshot_parses_and_names_locked_packages() {
        let (snapshot, lock) = (Snapshot::read().unwrap(), LockFile::read().unwrap());
        assert!(day(&snapshot.taken).is_ok());
        for Advisory { id, package, .. } in &snapshot.advisory {
            assert!(lock.package.iter().any(|locked| locked.name == *package), "{id}: nobody uses `{package}`");
        }
    }
}
