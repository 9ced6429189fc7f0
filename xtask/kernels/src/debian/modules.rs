//! Modules of a kernel by name, and their load order. The dependencies of each are read from the module itself, because
//! `modules.dep` is written only when a kernel is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask_tools::process;

/// The modules below one `lib/modules/RELEASE`.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, PathBuf>,
    /// Modules that are built into the kernel and have no file.
    builtin: BTreeSet<String>,
}

impl Tree {
    /// Reads the names of the modules below `dir`.
    ///
    /// # Errors
    /// Fails if a file or directory cannot be read.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let list = dir.join("modules.builtin");
        let builtin = fs::read_to_string(&list).with_context(|| format!("cannot read `{}`", list.display()))?;
        let builtin = builtin.lines().filter_map(|line| name(Path::new(line))).collect();
        let mut tree = Self { files: BTreeMap::new(), builtin };
        tree.collect(&dir.join("kernel"))?;
        Ok(tree)
    }

    fn collect(&mut self, dir: &Path) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("cannot list `{}`", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                self.collect(&path)?;
            } else if let Some(name) = name(&path) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// Returns the content of a module; `None` if it is built into the kernel.
    ///
    /// # Errors
    /// Fails if there is no such module, or it cannot be read.
    pub(super) fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(path) = self.files.get(name) else {
            if self.builtin.contains(name) {
                return Ok(None);
            }
            bail!("the kernel has no module `{name}`");
        };
        let mut path = path.clone();
        if path.extension() == Some(OsStr::new("xz")) {
            process::capture(Command::new("xz").arg("--decompress").arg(&path))?;
            path.set_extension("");
        }
        fs::read(&path).map(Some).with_context(|| format!("cannot read `{}`", path.display()))
    }
}

/// Returns the name of a module from a file such as `virtio-net.ko`, which may be compressed; the kernel writes the
/// name with `_`.
fn name(path: &Path) -> Option<String> {
    let (name, rest) = path.file_name()?.to_str()?.split_once(".ko")?;
    matches!(rest, "" | ".xz").then(|| name.replace('-', "_"))
}

/// Returns names and contents of the `wanted` modules and all their dependencies, each after its own dependencies.
/// `read` returns `None` for a module that is built into the kernel.
///
/// # Errors
/// Returns the errors of `read`. Also fails if a file is not a module.
pub(super) fn in_order(
    wanted: &[&str],
    read: impl Fn(&str) -> Result<Option<Vec<u8>>>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        add(name, &read, &mut seen, &mut order)?;
    }
    Ok(order)
}

fn add(
    name: &str,
    read: &impl Fn(&str) -> Result<Option<Vec<u8>>>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let Some(content) = read(name)? else { return Ok(()) };
    for dependency in dependencies(&content).with_context(|| format!("in the module `{name}`"))? {
        add(&dependency, read, seen, order)?;
    }
    order.push((name.to_owned(), content));
    Ok(())
}

/// Parses the section `.modinfo`: texts that end in a zero byte, one of which is `depends=` and the names, separated by
/// commas, if any.
fn dependencies(module: &[u8]) -> Result<Vec<String>> {
    let names = module.split(|&byte| byte == 0).find_map(|text| text.strip_prefix(b"depends="));
    let names = names.context("no module: it does not say what it depends on")?;
    let names = str::from_utf8(names).context("dependencies that are no text")?;
    Ok(names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modinfo(depends: &str) -> Vec<u8> {
        format!("\x7fELF\0\0alias=depends=x\0license=GPL\0depends={depends}\0name=x\0").into_bytes()
    }

    #[test]
    fn each_module_follows_its_dependencies_and_occurs_once() {
        let read = |name: &str| {
            Ok(match name {
                "net" => Some(modinfo("ring,failover")),
                "failover" => Some(modinfo("ring,core")),
                "ring" => Some(modinfo("")),
                "pci" => Some(modinfo("ring")),
                "core" => None,
                other => bail!("asked for `{other}`"),
            })
        };
        let order = in_order(&["net", "pci", "net"], read).unwrap();
        assert_eq!(order.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["ring", "failover", "net", "pci"]);
        assert!(in_order(&["nothing"], read).is_err());
    }

    #[test]
    fn dependencies_are_read_from_modinfo() {
        assert_eq!(dependencies(&modinfo("a-b,c")).unwrap(), ["a_b", "c"]);
        assert!(dependencies(&modinfo("")).unwrap().is_empty());
        assert!(dependencies(b"\x7fELF\0license=GPL\0").is_err());
    }

    #[test]
    fn module_files_are_recognised() {
        for (path, expect) in [
            ("kernel/drivers/virtio/virtio-rng.ko", Some("virtio_rng")),
            ("kernel/net/e1000.ko.xz", Some("e1000")),
            ("modules.order", None),
            ("e1000.ko.gz", None),
        ] {
            assert_eq!(name(Path::new(path)).as_deref(), expect, "{path}");
        }
    }

    #[test]
    fn builtin_modules_need_no_file_and_missing_ones_are_named() {
        let tree = Tree { files: BTreeMap::new(), builtin: BTreeSet::from(["virtio_pci".to_owned()]) };
        assert_eq!(tree.module("virtio_pci").unwrap(), None);
        assert!(tree.module("e1000").unwrap_err().to_string().contains("e1000"));
    }
}
