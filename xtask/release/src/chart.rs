//! The chart of a release: `deploy/chart` with the image of the release, packed by Helm and packed again so that its
//! bytes depend on its content alone, as a file and as an artifact for a registry.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask_image::Platform;
use xtask_image::oci::{Archive, Blob, MANIFEST, gzip, timestamp};
use xtask_setup::Packagers;
use xtask_tools::{process, workspace};

use super::registry::{IMAGE, Registry};
use super::repository::Artifact;
use super::text::replace_once;

/// The chart in the work tree.
const SOURCE: &str = "deploy/chart";
/// Media types of Helm (helm.sh/docs, "Use OCI-based registries").
const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
/// A file of a package, by its path: mode and content.
type Files = BTreeMap<String, (u32, Vec<u8>)>;
/// Names the image of the release in a file of the chart.
type Change = fn(&str, Image<'_>) -> Result<String>;

/// A packed chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chart {
    /// The package, as `helm package` names it: `NAME-VERSION.tgz`.
    pub(crate) file: String,
    /// Its bytes.
    pub(crate) package: Vec<u8>,
    /// For a registry.
    pub(crate) artifact: Artifact,
}

/// The image that a chart installs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image<'a> {
    /// Where it is.
    pub(crate) registry: &'a Registry,
    /// Digest of its index.
    pub(crate) digest: &'a str,
    /// Its platforms.
    pub(crate) platforms: &'a [Platform],
}

/// Packs the chart for an image. `time` is that of the sources.
///
/// # Errors
/// Fails if the chart cannot be read, lacks a text that is replaced, or is refused by Helm.
pub(crate) fn pack(tools: &Packagers, image: Image<'_>, time: i64) -> Result<Chart> {
    let work = tempfile::tempdir().context("cannot make a temporary directory")?;
    let sources = work.path().join("xdp-ingress");
    copy(&workspace::root().join(SOURCE), &sources)?;
    let changes: [(&str, Change); 3] = [("values.yaml", values), ("Chart.yaml", metadata), ("README.md", readme)];
    for (name, change) in changes {
        let path = sources.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let text = change(&text, image).with_context(|| format!("in `{SOURCE}/{name}`"))?;
        fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    let helm = |args: &[&str]| {
        let mut helm = Command::new(&tools.helm);
        helm.args(args).current_dir(work.path());
        process::capture(&mut helm)
    };
    helm(&["package", "xdp-ingress"])?;
    let file = concat!("xdp-ingress-", env!("CARGO_PKG_VERSION"), ".tgz").to_owned();
    let packed = work.path().join(&file);
    let files = unpack(&fs::read(&packed).with_context(|| format!("Helm left no `{file}`"))?)?;
    let package = repack(&files)?;
    fs::write(&packed, &package).with_context(|| format!("cannot write `{}`", packed.display()))?;
    // The package itself, as its users get it.
    let rendered = helm(&["template", "xdp-ingress", &file, "--namespace", "xdp-ingress"])?;
    let wanted = format!("image: {}@{}", image.registry.repository(IMAGE), image.digest);
    ensure!(rendered.contains(&wanted), "the packed chart does not install `{wanted}`");
    let (_, about) = files.get("xdp-ingress/Chart.yaml").context("Helm packed no `Chart.yaml`")?;
    let about: Value = serde_saphyr::from_str(&String::from_utf8_lossy(about)).context("`Chart.yaml` is no YAML")?;
    let artifact = artifact(package.clone(), &about, time)?;
    Ok(Chart { file, package, artifact })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make `{}`", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list `{}`", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("cannot copy `{}`", from.display()))?;
        }
    }
    Ok(())
}

fn values(text: &str, Image { registry, digest, platforms: _ }: Image<'_>) -> Result<String> {
    let text = replace_once(text, "\n    registry: localhost\n", &format!("\n    registry: {registry}\n"))?;
    replace_once(&text, "\n    digest: \"\"\n", &format!("\n    digest: {digest}\n"))
}

fn metadata(text: &str, Image { registry, digest: _, platforms }: Image<'_>) -> Result<String> {
    let text = replace_once(text, "image: localhost/", &format!("image: {registry}/"))?;
    let platforms: Vec<String> = platforms.iter().map(|platform| format!("linux/{}", platform.oci())).collect();
    let all = "platforms: [linux/amd64, linux/arm64]";
    replace_once(&text, all, &format!("platforms: [{}]", platforms.join(", ")))
}

fn readme(text: &str, Image { registry, digest, platforms: _ }: Image<'_>) -> Result<String> {
    let text = replace_once(
        text,
        "| `global.image.registry` | `localhost` |",
        &format!("| `global.image.registry` | `{registry}` |"),
    )?;
    replace_once(&text, "| `controller.image.digest` | none |", &format!("| `controller.image.digest` | `{digest}` |"))
}

fn unpack(package: &[u8]) -> Result<Files> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(package));
    let mut files = Files::new();
    for entry in archive.entries().context("Helm's package is no archive")? {
        let mut entry = entry.context("Helm's package is no archive")?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).with_context(|| format!("cannot read `{path}` of Helm's package"))?;
        files.insert(path, (entry.header().mode()?, content));
    }
    Ok(files)
}

/// Packs the files without times and in order, but for `Chart.yaml`, which Helm has first.
fn repack(files: &Files) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let (first, rest): (Vec<_>, Vec<_>) = files.iter().partition(|(path, _)| path.ends_with("/Chart.yaml"));
    for (path, (mode, content)) in first.into_iter().chain(rest) {
        archive.file(path, mode & 0o777, content)?;
    }
    gzip(&archive.finish()?)
}

/// Returns the artifact that `helm push` would make of a package, with the time of the sources.
fn artifact(package: Vec<u8>, about: &Value, time: i64) -> Result<Artifact> {
    let (config, content) = (Blob::json(CONFIG, about), Blob::new(CONTENT, package));
    let text = |pointer: &str| about.pointer(pointer).and_then(Value::as_str);
    let mut annotations = BTreeMap::from([("org.opencontainers.image.created".to_owned(), timestamp(time)?)]);
    for (key, pointer) in [
        ("title", "/name"),
        ("version", "/version"),
        ("description", "/description"),
        ("url", "/home"),
        ("source", "/sources/0"),
    ] {
        let value = text(pointer).with_context(|| format!("`Chart.yaml` has no `{pointer}`"))?;
        annotations.insert(format!("org.opencontainers.image.{key}"), value.to_owned());
    }
    let tag = text("/version").context("`Chart.yaml` has no version")?.to_owned();
    let manifest = Blob::json(
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [content.descriptor()],
            "annotations": annotations,
        }),
    );
    Ok(Artifact { tag, manifest, blobs: vec![config, content] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_image<T>(test: impl FnOnce(Image<'_>) -> T) -> T {
        let registry = "r.example/x".parse().unwrap();
        test(Image { registry: &registry, digest: "sha256:00", platforms: &[Platform::Amd64] })
    }

    fn source(name: &str) -> String {
        fs::read_to_string(workspace::root().join(SOURCE).join(name)).unwrap()
    }

    #[test]
    fn values_and_metadata_name_the_image_of_the_release() {
        with_image(|image| {
            let values: Value = serde_saphyr::from_str(&values(&source("values.yaml"), image).unwrap()).unwrap();
            assert_eq!(values["global"]["image"]["registry"], "r.example/x");
            assert_eq!(values["controller"]["image"]["digest"], "sha256:00");
            let about: Value = serde_saphyr::from_str(&metadata(&source("Chart.yaml"), image).unwrap()).unwrap();
            let images = about["annotations"]["artifacthub.io/images"].as_str().unwrap();
            assert!(images.contains("image: r.example/x/xdp-ingress:") && images.contains("[linux/amd64]"), "{images}");
            let readme = readme(&source("README.md"), image).unwrap();
            assert!(readme.contains("| `r.example/x` |") && readme.contains("| `sha256:00` |"));
        });
    }

    #[test]
    fn a_package_does_not_depend_on_times() {
        let packed = |time: u64| {
            let mut builder = tar::Builder::new(Vec::new());
            for (path, content) in [("x/values.yaml", "a: 1"), ("x/Chart.yaml", "name: x")] {
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o644);
                header.set_mtime(time);
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, content.as_bytes()).unwrap();
            }
            gzip(&builder.into_inner().unwrap()).unwrap()
        };
        let [early, late] = [1, 2].map(|time| repack(&unpack(&packed(time)).unwrap()).unwrap());
        assert_ne!(packed(1), packed(2));
        assert_eq!(early, late);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(early.as_slice()));
        let paths: Vec<_> =
            archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(paths, ["x/Chart.yaml", "x/values.yaml"]);
    }

    #[test]
    fn an_artifact_has_the_media_types_of_helm() {
        let about: Value = serde_saphyr::from_str(&source("Chart.yaml")).unwrap();
        let Artifact { tag, manifest, blobs } = artifact(b"package".to_vec(), &about, 0).unwrap();
        assert_eq!(tag, env!("CARGO_PKG_VERSION"));
        let manifest: Value = serde_json::from_slice(manifest.content()).unwrap();
        assert_eq!(manifest["config"]["mediaType"], CONFIG);
        assert_eq!(manifest["layers"][0]["mediaType"], CONTENT);
        assert_eq!(manifest["layers"][0]["digest"], blobs[1].digest());
        assert_eq!(manifest["annotations"]["org.opencontainers.image.created"], "1970-01-01T00:00:00Z");
        assert_eq!(manifest["annotations"]["org.opencontainers.image.title"], "xdp-ingress");
        assert!(artifact(Vec::new(), &json!({}), 0).is_err());
    }
}
