//! Reads a directory of manifests once: the files that `run --manifests` would read, and besides them the objects by which
//! ingress-nginx is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use ingress_control::{ObjectRef, Origin, Outcome, Reason, source::manifests::parse};
use serde_json::Value;

use super::objects::Objects;

/// Maximum size of a file, far above that of any manifest.
const MAX_BYTES: u64 = 64 << 20;
/// Kinds that no translation reads, and what Services have by which clients outside of the cluster reach pods.
const OTHERS: [&str; 6] =
    ["Deployment", "DaemonSet", "ValidatingWebhookConfiguration", "LoadBalancer", "NodePort", "externalIPs"];

/// Reads all manifests in `root`.
///
/// # Errors
/// Fails if `root` is no directory that can be read. A file that cannot be read is a remark.
pub(super) fn read(root: &Path) -> Result<Objects> {
    ensure!(root.is_dir(), "`{}` is not a directory", root.display());
    let mut objects = Objects::default();
    let files = files(root).with_context(|| format!("cannot read `{}`", root.display()))?;
    for file in files {
        let shown: Arc<Path> = file.strip_prefix(root).unwrap_or(&file).into();
        match text(&file) {
            Ok(text) => add(&shown, &text, &mut objects),
            Err(error) => objects.remarks.push(unreadable(&shown, &format!("{error:#}"))),
        }
    }
    Ok(objects)
}

/// Adds the objects in `text`, the content of a file.
pub(super) fn add(file: &Arc<Path>, text: &str, objects: &mut Objects) {
    let origin = Origin::File(Arc::clone(file));
    let parsed = parse(file, text);
    for object in parsed.objects {
        objects.add(object, &origin);
    }
    objects.remarks.extend(parsed.remarks.into_iter().filter(|remark| remark.reason != Reason::UnknownKind));
    for document in documents(text).filter(|document| OTHERS.iter().any(|kind| document.contains(kind))) {
        // Documents that cannot be read are among the remarks already.
        if let Ok(object) = serde_saphyr::from_str::<Value>(document) {
            objects.add_other(&object);
        }
    }
}

/// Returns the documents of a YAML stream. A line of `---` always ends a document (YAML 1.2.2, 9.1.2).
fn documents(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |line: &str| line.strip_prefix("---").is_some_and(|rest| rest.trim().is_empty());
    let (mut start, mut offset) = (0, 0);
    let mut cuts = Vec::new();
    for line in text.split_inclusive('\n') {
        if is_end(line) {
            cuts.push(start..offset);
            start = offset + line.len();
        }
        offset += line.len();
    }
    cuts.push(start..text.len());
    cuts.into_iter().map(|cut| &text[cut])
}

/// Returns the manifests in `root` and below it, in order of their paths.
fn files(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut files, mut directories) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let (entry, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            let is_hidden = entry.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
            let extension = entry.extension().and_then(|extension| extension.to_str());
            if is_hidden {
                continue;
            }
            if kind.is_dir() {
                directories.push(entry);
            } else if matches!(extension, Some("yaml" | "yml" | "json")) {
                files.push(entry);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn text(file: &Path) -> Result<String> {
    let bytes = fs::metadata(file)?.len();
    ensure!(bytes <= MAX_BYTES, "it has {bytes} bytes, but {MAX_BYTES} are allowed; split it");
    Ok(fs::read_to_string(file)?)
}

fn unreadable(file: &Arc<Path>, problem: &str) -> Outcome {
    let origin = Origin::File(Arc::clone(file));
    let object = ObjectRef { kind: "File".into(), namespace: "".into(), name: "".into(), origin };
    Outcome::new(object, Reason::InvalidObject, format!("it cannot be read: {problem}"))
}
