//! Checks both lock files for packages with known vulnerabilities, by the snapshot of RustSec advisories in
//! `advisories.toml`. The check needs no network; advisories published after the snapshot are unknown to it.
//!
//! The crate `rustsec` would replace `hits` alone: it reads a copy of the database with all texts, not a list of ranges.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use semver::VersionReq;
use serde::Deserialize;

use super::lock_file::{LockFile, Locked};
use xtask_tools::{progress, workspace};

const SNAPSHOT: &str = "advisories.toml";
/// Age in days of the snapshot's source above which the snapshot causes a warning.
const DAYS_MAX: i64 = 30;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    /// The date of the newest advisory that the source had, about whichever package: `YYYY-MM-DD`.
    source_date: String,
    /// The day on which the source was looked through for every locked package. It has no part in the snapshot's age:
    /// an old copy of the database that was read today is old.
    checked: String,
    advisory: Vec<Advisory>,
}

/// An advisory with the field names of RustSec's format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    package: String,
    date: String,
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
    if let Some(text) = snapshot.warning(today()?)? {
        progress::warn(&text);
    }
    let Snapshot { source_date, checked, advisory } = snapshot;
    let (packages, known) = (lock.package.len(), advisory.len());
    progress::note(&format!(
        "none of {packages} packages is hit by {known} advisories (source complete to {source_date}, looked through on {checked})"
    ));
    Ok(())
}

// === impl Snapshot ===

impl Snapshot {
    fn read() -> Result<Self> {
        let text = fs::read_to_string(workspace::root().join(SNAPSHOT));
        let text = text.with_context(|| format!("cannot read `{SNAPSHOT}`"))?;
        toml::from_str(&text).with_context(|| format!("cannot understand `{SNAPSHOT}`"))
    }

    /// Returns the warning about an old source, with what to do.
    fn warning(&self, today: i64) -> Result<Option<String>> {
        let Self { source_date, checked, advisory: _ } = self;
        let age = today - day(source_date)?;
        Ok((age > DAYS_MAX).then(|| {
            format!(
                "the source of `{SNAPSHOT}` ends on {source_date}, {age} days ago (looked through on {checked}): later \
                 advisories are compared only in part. Now: `cargo audit`, which asks the live database. To end this \
                 warning: look through a newer copy of https://github.com/rustsec/advisory-db as the head of the file \
                 says, and set `source_date` and `checked`"
            )
        }))
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
    let shown = |(Advisory { id, date, title, .. }, Locked { name, version, source: _ }): (&Advisory, &Locked)| {
        format!("`{name}` {version}: {title} ({date}, https://rustsec.org/advisories/{id})")
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn versions_neither_patched_nor_unaffected_are_reported() {
        let snapshot: Snapshot = toml::from_str(
            r#"
            source_date = "2026-11-22"
            checked = "2026-11-23"
            [[advisory]]
            id = "RUSTSEC-2026-0001"
            package = "it"
            date = "2026-01-02"
            title = "it breaks"
            patched = [">=1.2.3, <2.0.0-alpha.1", ">=2.0.1"]
            unaffected = ["<1.0.0"]
            [[advisory]]
            id = "RUSTSEC-2026-0002"
            package = "never"
            date = "2026-01-03"
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
    fn an_old_source_is_named_however_recently_it_was_checked() {
        let source_date = "2026-10-09".to_owned();
        let warning = |checked: &str, today: &str| {
            let snapshot = Snapshot { source_date: source_date.clone(), checked: checked.to_owned(), advisory: vec![] };
            snapshot.warning(day(today).unwrap()).unwrap()
        };
        assert_eq!(warning("2026-10-10", "2026-11-08"), None);
        for checked in ["2026-10-10", "2026-11-09"] {
            let text = warning(checked, "2026-11-09").unwrap();
            assert!(text.contains("ends on 2026-10-09, 31 days ago") && text.contains(checked), "{text}");
            assert!(text.contains("`cargo audit`") && text.contains("set `source_date`"), "{text}");
        }
    }

    #[test]
    fn the_snapshot_parses_and_names_locked_packages() {
        let (snapshot, lock) = (Snapshot::read().unwrap(), LockFile::read().unwrap());
        let (source_date, checked) = (day(&snapshot.source_date).unwrap(), day(&snapshot.checked).unwrap());
        assert!(source_date <= checked);
        let mut ids = BTreeSet::new();
        for Advisory { id, package, date, .. } in &snapshot.advisory {
            assert!(ids.insert(id), "{id} is there twice");
            assert!(day(date).unwrap() <= checked, "{id}: {date}");
            assert!(lock.package.iter().any(|locked| locked.name == *package), "{id}: nobody uses `{package}`");
        }
    }
}
