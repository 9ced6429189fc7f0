//! The directory that the demo's proxy reads: a copy of the examples, kept up to date. It adds the Secrets that the
//! examples leave out and, without namespaces, replaces the pods' addresses with addresses on loopback. It never writes
//! to the examples.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::Context as _;

/// A copy that follows its original.
#[derive(Debug)]
pub(super) struct Mirror {
    from: PathBuf,
    to: PathBuf,
    replace: Vec<(String, String)>,
    seen: BTreeMap<String, Fingerprint>,
}

type Fingerprint = (SystemTime, u64);

impl Mirror {
    /// Copies the manifests of `from` into the new directory `to`. For each pair in `replace`, the first text is
    /// replaced with the second.
    pub(super) fn new(from: &Path, to: &Path, replace: Vec<(String, String)>) -> anyhow::Result<Self> {
        fs::create_dir(to).with_context(|| format!("cannot make `{}`", to.display()))?;
        let mut mirror = Self { from: from.into(), to: to.into(), replace, seen: BTreeMap::new() };
        let copied = mirror.sync()?;
        anyhow::ensure!(!copied.is_empty(), "`{}` holds no manifest (*.yaml, *.yml, *.json)", from.display());
        Ok(mirror)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.to
    }

    /// Adds a file that the original does not have.
    pub(super) fn add(&self, name: &str, content: &str) -> anyhow::Result<()> {
        write(&self.to.join(name), content)
    }

    /// Brings the copy up to date; returns the names of the files that were new, changed or gone.
    pub(super) fn sync(&mut self) -> anyhow::Result<Vec<String>> {
        let now = self.scan()?;
        let mut changed = Vec::new();
        for (name, fingerprint) in &now {
            if self.seen.get(name) != Some(fingerprint) {
                let path = self.from.join(name);
                let mut text =
                    fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
                for (before, after) in &self.replace {
                    text = text.replace(before, after);
                }
                write(&self.to.join(name), &text)?;
                changed.push(name.clone());
            }
        }
        for name in self.seen.keys().filter(|name| !now.contains_key(*name)) {
            fs::remove_file(self.to.join(name)).with_context(|| format!("cannot remove the copy of `{name}`"))?;
            changed.push(name.clone());
        }
        self.seen = now;
        Ok(changed)
    }

    fn scan(&self) -> anyhow::Result<BTreeMap<String, Fingerprint>> {
        let entries = fs::read_dir(&self.from).with_context(|| format!("cannot read `{}`", self.from.display()))?;
        let mut found = BTreeMap::new();
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read `{}`", self.from.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Editors keep their own files next to the edited one, under names that begin with a dot.
            let is_manifest =
                [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end)) && !name.starts_with('.');
            // A file may disappear between the listing and this look; then it counts as removed.
            if is_manifest
                && let Ok(metadata) = fs::metadata(entry.path())
                && metadata.is_file()
            {
                found.insert(name, (metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len()));
            }
        }
        Ok(found)
    }
}

/// Writes a file atomically: a reader sees all of it or the previous version.
fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.partial"));
    fs::write(&partial, content)
        .and_then(|()| fs::rename(&partial, path))
        .with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_follows_the_original() {
        let root = std::env::temp_dir().join(format!("xd-mirror-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(&from).expect("directory");
        let put = |name: &str, text: &str| fs::write(from.join(name), text).expect("file is written");
        let copy = |name: &str| fs::read_to_string(to.join(name)).ok();
        put("a.yaml", "pod: 10.244.0.11");
        put(".a.yaml.swp.yaml", "editor");
        put("README.md", "text");

        let mut mirror = Mirror::new(&from, &to, vec![("10.244.0.11".into(), "127.0.0.11".into())]).expect("mirror");
        assert_eq!(copy("a.yaml").as_deref(), Some("pod: 127.0.0.11"));
        assert_eq!(fs::read_dir(&to).expect("directory").count(), 1);
        assert!(mirror.sync().expect("sync").is_empty());

        put("a.yaml", "pod: none at all");
        put("b.yml", "new");
        assert_eq!(mirror.sync().expect("sync"), ["a.yaml", "b.yml"]);
        assert_eq!(copy("a.yaml").as_deref(), Some("pod: none at all"));

        fs::remove_file(from.join("a.yaml")).expect("file is removed");
        assert_eq!(mirror.sync().expect("sync"), ["a.yaml"]);
        assert_eq!(copy("a.yaml"), None);
        fs::remove_dir_all(&root).expect("directory is removed");
    }
}
