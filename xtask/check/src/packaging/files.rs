//! Checks of files for other tools: scripts parse, the sources of the Dockerfile's copies exist, the Vagrantfile is
//! valid. It starts no machine and builds no image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::walls::rust_files;
use xtask_tools::{process, progress, workspace};

/// Environments in which the Vagrantfile must be valid: by itself, and as `deploy/vagrant/offline.sh` uses it.
const VAGRANT: [&[(&str, &str)]; 2] =
    [&[], &[("XDP_INGRESS_KUBERNETES", "lab"), ("XDP_INGRESS_WORKERS", "1"), ("XDP_INGRESS_DRIVER", "qemu")]];

/// Runs all checks of these files.
///
/// # Errors
/// Describes the first fault of a file.
pub(super) fn run() -> Result<()> {
    for script in scripts()? {
        process::capture(Command::new("bash").arg("-n").arg(&script))?;
    }
    let dockerfile =
        fs::read_to_string(workspace::root().join("deploy/Dockerfile")).context("cannot read the Dockerfile")?;
    let copied = dockerfile_copies_what_exists(&dockerfile, workspace::root())?;
    dockerfile_copies_what_is_included(&copied, workspace::root())?;
    vagrantfile()
}

fn scripts() -> Result<Vec<PathBuf>> {
    let dir = workspace::root().join("deploy/vagrant");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot list `{}`", dir.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let scripts: Vec<_> = paths.into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "sh")).collect();
    ensure!(!scripts.is_empty(), "`{}` holds no scripts", dir.display());
    Ok(scripts)
}

/// Validates the Vagrantfile: with Vagrant if it is present or root can install it, else with Ruby, else not at all.
fn vagrantfile() -> Result<()> {
    let could_install = process::is_root() && process::find_program("apt-get").is_some();
    if process::find_program("vagrant").is_none()
        && could_install
        && let Err(error) = xtask_setup::packages(&["vagrant"], "check")
    {
        progress::warn(&format!("{error:#}"));
    }
    let root = workspace::root();
    if let Some(vagrant) = process::find_program("vagrant") {
        for variables in VAGRANT {
            let mut validate = Command::new(&vagrant);
            // No provider is needed to read the file.
            validate.args(["validate", "--ignore-provider"]).current_dir(root).envs(variables.iter().copied());
            validate.env("VAGRANT_HOME", workspace::target_dir().join("vagrant"));
            validate.env("VAGRANT_CHECKPOINT_DISABLE", "1");
            process::capture(&mut validate).with_context(|| format!("the Vagrantfile with {variables:?}"))?;
        }
        return Ok(());
    }
    if let Some(ruby) = process::find_program("ruby") {
        progress::warn("SKIPPED `vagrant validate`: there is no `vagrant`; Ruby reads the file only");
        return process::capture(Command::new(ruby).args(["-c", "Vagrantfile"]).current_dir(root)).map(drop);
    }
    progress::warn("SKIPPED the check of the Vagrantfile: there is neither `vagrant` nor `ruby`");
    Ok(())
}

/// Checks that each source of a `COPY` from the work tree exists, and that each `COPY --from` names an earlier stage.
/// Returns the sources.
fn dockerfile_copies_what_exists(text: &str, root: &Path) -> Result<Vec<PathBuf>> {
    let joined = text.replace("\\\n", " ");
    let mut stages = Vec::new();
    let mut copied = Vec::new();
    for line in joined.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["FROM", .., "AS", name] => stages.push(*name),
            ["COPY", arguments @ ..] => {
                let (flags, paths): (Vec<&str>, Vec<&str>) = arguments.iter().partition(|word| word.starts_with("--"));
                let Some((_, sources)) = paths.split_last() else { bail!("`{line}` copies nothing") };
                if let Some(from) = flags.iter().find_map(|flag| flag.strip_prefix("--from=")) {
                    ensure!(stages.contains(&from), "`{line}` copies from a stage that is not there");
                    continue;
                }
                for source in sources {
                    let path = root.join(source);
                    ensure!(path.exists(), "`{line}` copies `{source}`, which does not exist");
                    copied.push(path);
                }
            }
            _ => {}
        }
    }
    ensure!(!copied.is_empty(), "the Dockerfile copies nothing");
    Ok(copied)
}

/// Checks that the sources of the product include no file that is not copied.
fn dockerfile_copies_what_is_included(copied: &[PathBuf], root: &Path) -> Result<()> {
    for file in rust_files(&root.join("ingress-userspace"))? {
        let is_test = file
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("benches" | "fuzz" | "tests" | "tests.rs")));
        let text = if is_test { String::new() } else { fs::read_to_string(&file)? };
        for included in included(&text) {
            let path = file.parent().context("a file without a directory")?.join(included);
            let path = path.canonicalize().with_context(|| format!("`{}` includes `{included}`", file.display()))?;
            let is_copied = copied.iter().any(|copied| path.starts_with(copied));
            ensure!(
                is_copied,
                "the Dockerfile does not copy `{}`, which `{}` includes",
                path.display(),
                file.display()
            );
        }
    }
    Ok(())
}

/// Returns the files that a source includes before its tests.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let product = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    product
        .filter_map(|line| ["include_str!(\"", "include_bytes!(\""].iter().find_map(|name| line.split_once(name)))
        .filter_map(|(_, rest)| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_missing_files_are_found() {
        let check = |text: &str, fine: bool| {
            let copied = dockerfile_copies_what_exists(text, workspace::root());
            assert_eq!(copied.is_ok(), fine, "{text}");
        };
        check("FROM a AS build\nCOPY Cargo.toml \\\n  xtask /src/\nCOPY --from=build /x /y", true);
        check("FROM a AS build\nCOPY Cargo.tom /src/", false);
        check("FROM a\nCOPY --from=build /x /y", false);
        check("FROM a", false);
    }

    #[test]
    fn included_files_must_be_copied() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("a path");
        let source = root.join("ingress-userspace/src");
        fs::create_dir_all(&source).expect("a folder");
        let text = "const A: &str = include_str!(\"../../a.txt\");\n#[cfg(test)]\nconst B: &str = include_str!(\"../../b.txt\");";
        fs::write(source.join("lib.rs"), text).expect("a file");
        for name in ["a.txt", "b.txt"] {
            fs::write(root.join(name), "").expect("a file");
        }
        let copied = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<Vec<_>>();
        let error = dockerfile_copies_what_is_included(&copied(&["ingress-userspace"]), &root).expect_err("not copied");
        assert!(error.to_string().contains("a.txt"), "{error:#}");
        dockerfile_copies_what_is_included(&copied(&["ingress-userspace", "a.txt"]), &root).expect("copied");
    }
}
