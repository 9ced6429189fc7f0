//! Keeps what the programs cost in a file of the repository, so that a change of it shows in review.

use std::fs;

use anyhow::Context as _;

use super::costs::Costs;
use crate::{progress, workspace};

const PATH: &str = "docs/kernel-figures.md";
const BEGIN: &str = "<!-- begin: written by `cargo xtask bench kernel --record` -->\n";
const END: &str = "<!-- end -->";

/// Puts the costs between the marks.
pub(super) fn write(costs: &Costs) -> anyhow::Result<()> {
    let path = workspace::root().join(PATH);
    let old = fs::read_to_string(&path).with_context(|| format!("cannot read `{PATH}`"))?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's release")?;
    let version = kernel.trim().split('-').next().unwrap_or_default();
    let new = format!("Linux {version}\n\n{}", costs.table());
    let text = replaced(&old, &new).with_context(|| format!("`{PATH}` lacks its marks"))?;
    fs::write(&path, text).with_context(|| format!("cannot write `{PATH}`"))?;
    progress::note(&format!("written to {PATH}"));
    Ok(())
}

fn replaced(old: &str, new: &str) -> Option<String> {
    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{new}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_its_marks_and_what_is_around_them_stays() {
        let file = include_str!("../../../../docs/kernel-figures.md");
        let once = replaced(file, "new\n").expect("marks");
        assert!(once.contains("-->\nnew\n<!--"));
        assert_eq!(replaced(&once, "new\n").as_deref(), Some(&*once));
        assert_eq!(replaced("no marks", "new\n"), None);
    }
}
