//! Rules of nftables, as the alternative to this project's programs.

use std::{fs, path::Path, process::Command};

use anyhow::Context as _;

use super::Namespace;
use xtask_tools::process;

/// Writes rules to the file `path` and applies them inside `namespace`.
///
/// # Errors
/// Fails if nft(8) is missing or refuses them.
pub fn apply(namespace: &Namespace, path: &Path, rules: &str) -> anyhow::Result<()> {
    let nft = process::find_program("nft").context("`nft` is missing (package `nftables`)")?;
    fs::write(path, rules).with_context(|| format!("cannot write `{}`", path.display()))?;
    namespace.run(|| process::capture(Command::new(nft).arg("-f").arg(path))).map(drop)
}
