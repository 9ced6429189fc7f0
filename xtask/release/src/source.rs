//! The sources of a release: commit, time, and whether the work tree differs from the commit.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtask_tools::{process, workspace};

/// Time of the sources, by which reproducible builds go (reproducible-builds.org).
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// State of the work tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The commit, as 40 hexadecimal digits.
    pub commit: String,
    /// Time of the commit in seconds since 1970; `SOURCE_DATE_EPOCH` replaces it.
    pub time: i64,
    /// `true` if files differ from the commit, or are not in it.
    pub is_modified: bool,
}

/// Treatment of files that differ from the commit, or are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modified {
    /// Take them into the release; its provenance says so.
    Allow,
    /// Fail.
    Refuse,
}

// === impl Source ===

impl Source {
    /// Reads the state of the work tree.
    ///
    /// # Errors
    /// Fails if this is no git repository, its time is no number, or modified files are to be refused.
    pub fn read(modified: Modified) -> Result<Self> {
        let changes = git(&["status", "--porcelain"])?;
        let is_modified = !changes.is_empty();
        ensure!(
            !is_modified || modified == Modified::Allow,
            "files differ from the commit that the release would name; commit them, or use `--allow-dirty`:\n{changes}"
        );
        let time = match env::var(EPOCH) {
            Ok(text) => text.parse().with_context(|| format!("`{EPOCH}={text}` is no number of seconds"))?,
            Err(_) => git(&["log", "--max-count=1", "--format=%ct"])?.parse().context("git tells no time")?,
        };
        Ok(Self { commit: git(&["rev-parse", "HEAD"])?, time, is_modified })
    }
}

fn git(args: &[&str]) -> Result<String> {
    process::capture(Command::new("git").args(args).current_dir(workspace::root()))
        .context("a release names the commit of its sources")
}
