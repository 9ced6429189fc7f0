//! The program of the suite and the image of its pods, built by Go from a copy of the sources. It runs no test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use xtask_image::oci::{self, Image};
use xtask_setup::go;
use xtask_tools::process;

const PACKAGE: &str = "sigs.k8s.io/ingress-controller-conformance";
/// Declares the image of the pods, relative to the sources.
const DEPLOYMENT: &str = "test/kubernetes/deployment.go";
/// Sources of the program in that image, likewise.
const ECHO: &str = "images/echoserver";
/// About two CPU minutes; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The suite, built.
#[derive(Debug)]
pub(super) struct Suite {
    /// Directory in which the program finds its features.
    pub(super) dir: PathBuf,
    pub(super) program: PathBuf,
    /// Archive with the image of its pods.
    pub(super) image: PathBuf,
    /// Names of the files with scenarios.
    pub(super) features: Vec<String>,
}

/// Builds the suite in `work` from the sources in `given`, or from the newest version of its Go module.
///
/// # Errors
/// Fails if there is no Go, the sources cannot be had or are incomplete, or Go cannot build them.
pub(super) fn build(given: Option<&Path>, work: &Path) -> Result<Suite> {
    if let Some(given) = given {
        contains_suite(given)?;
    }
    let go = go::find("the conformance tests for Ingress")?;
    fs::create_dir_all(work).with_context(|| format!("cannot make `{}`", work.display()))?;
    let sources = match given {
        Some(dir) => dir.to_owned(),
        None => {
            let fetched = fetch(&go, work)?;
            contains_suite(&fetched)?;
            fetched
        }
    };
    let dir = work.join("sources");
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    }
    // Go's own copy is read-only.
    process::run(Command::new("cp").args(["--recursive", "--no-preserve=mode"]).arg(&sources).arg(&dir))?;
    let echo = work.join("echoserver");
    compile(&go, "the suite's echo server", &["build"], &dir.join(ECHO), &echo)?;
    let (name, image) = image(&dir, &echo)?;
    let archive = work.join("echoserver.tar");
    let bytes = image.archive(&name)?;
    fs::write(&archive, bytes).with_context(|| format!("cannot write `{}`", archive.display()))?;
    let program = work.join("conformance.test");
    compile(&go, "the conformance tests for Ingress", &["test", "-c"], &dir, &program)?;
    let features = features(&dir.join("features"))?;
    Ok(Suite { dir, program, image: archive, features })
}

/// Checks that the directory has all parts of the suite that are needed.
fn contains_suite(sources: &Path) -> Result<()> {
    let missing = ["go.mod", "features", DEPLOYMENT, ECHO].into_iter().find(|name| !sources.join(name).exists());
    match missing {
        Some(missing) => {
            bail!("`{}` has no `{missing}`, so it does not contain the sources of `{PACKAGE}`", sources.display())
        }
        None => Ok(()),
    }
}

/// Returns the directory with the newest version of the module.
fn fetch(go: &Path, work: &Path) -> Result<PathBuf> {
    let mut download = Command::new(go);
    download.current_dir(work).env("GOFLAGS", "").env("GOWORK", "off");
    download.args(["mod", "download", "-json", &format!("{PACKAGE}@latest")]);
    let output = download.output().context("cannot start Go")?;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match (said["Dir"].as_str(), said["Error"].as_str()) {
        (Some(dir), _) if output.status.success() => Ok(dir.into()),
        (_, error) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let error = error.unwrap_or(stderr.trim());
            bail!("Go cannot fetch `{PACKAGE}`: {error}; name a copy of its sources with --suite")
        }
    }
}

/// Lets Go build the package in `dir`. Missing checksums of its dependencies are added to the copy.
fn compile(go: &Path, what: &str, action: &[&str], dir: &Path, output: &Path) -> Result<()> {
    let mut command = Command::new(go);
    command.current_dir(dir).env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
    command.args(action).args(["-mod=mod", "-trimpath", "-buildvcs=false", "-o"]).arg(output).arg(".");
    process::run_shown(&format!("building {what}"), &mut command, BUILD_LIMIT)
}

/// Returns the image of the pods and its name. Writes its digest into the copy of the sources in `dir`.
fn image(dir: &Path, program: &Path) -> Result<(String, oci::Parts)> {
    let content = fs::read(program).with_context(|| format!("cannot read `{}`", program.display()))?;
    let file = oci::File { path: "/echoserver".to_owned(), mode: 0o755, content };
    let image = Image {
        entrypoint: vec![file.path.clone()],
        user: "65532:65532".to_owned(),
        files: vec![file],
        ..Image::default()
    };
    let parts = image.parts()?;
    let path = dir.join(DEPLOYMENT);
    let source = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let (name, source) = renamed(&source, &parts.manifest.digest())?;
    fs::write(&path, source).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok((name, parts))
}

/// Returns the name of the pods' image with another digest, and the source with that name.
fn renamed(source: &str, digest: &str) -> Result<(String, String)> {
    let declared = source.split_once("const EchoContainer = \"").and_then(|(_, rest)| rest.split_once('"'));
    let (old, _) = declared.with_context(|| format!("`{DEPLOYMENT}` declares no `EchoContainer`"))?;
    let repository = old.split('@').next().unwrap_or(old);
    let slash = repository.rfind('/').unwrap_or(0);
    let end = repository[slash..].find(':').map_or(repository.len(), |at| slash + at);
    let name = format!("{}@{digest}", &repository[..end]);
    let source = source.replace(old, &name);
    Ok((name, source))
}

fn features(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list `{}`", dir.display()))?;
    let names =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
    let features: Vec<_> = names.into_iter().filter(|name| name.ends_with(".feature")).collect();
    ensure!(!features.is_empty(), "`{}` has no features", dir.display());
    Ok(features)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_digest_of_the_image_changes() {
        let check = |old: &str| {
            let source = format!("package x\n\nconst EchoContainer = \"{old}\"\nvar y = 1\n");
            let (name, changed) = renamed(&source, "sha256:12").unwrap();
            assert_eq!(name, "r.example:5000/a/echoserver@sha256:12");
            assert_eq!(changed, source.replace(old, &name));
        };
        check("r.example:5000/a/echoserver@sha256:ab");
        check("r.example:5000/a/echoserver:v1");
        check("r.example:5000/a/echoserver:v1@sha256:ab");
        assert!(renamed("package x\n", "sha256:12").is_err());
    }

    #[test]
    fn a_folder_without_the_suite_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = || build(Some(dir.path()), &dir.path().join("work")).unwrap_err().to_string();
        assert!(error().contains("has no `go.mod`"), "{}", error());
        fs::write(dir.path().join("go.mod"), "").unwrap();
        fs::create_dir(dir.path().join("features")).unwrap();
        assert!(error().contains(&format!("has no `{DEPLOYMENT}`")), "{}", error());
        for part in [DEPLOYMENT, ECHO] {
            fs::create_dir_all(dir.path().join(part)).unwrap();
        }
        assert!(contains_suite(dir.path()).is_ok());
    }
}
