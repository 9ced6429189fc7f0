//! The image of the pods of the conformance tests, made from one static program, which `echo/go.mod` pins. It is in no
//! registry here: every node imports it under the names that the tests use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use xtask_image::oci::{File, Image};
use xtask_setup::cache::{self, Cache};
use xtask_setup::go;
use xtask_tools::{process, workspace};

/// Module that pins the version, relative to the work tree.
const MODULE: &str = "xtask/conformance/echo";
const PACKAGE: &str = "sigs.k8s.io/gateway-api/conformance/echo-basic";
const PROGRAM: &str = "echo-basic";
/// About 15 CPU seconds; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// Writes an archive for each of the `names` of images into `target`, and returns their paths. Builds the program if it
/// is missing.
///
/// # Errors
/// Fails if Go cannot build the program, a name is that of another program, or an archive cannot be written.
pub(super) fn archives(names: &BTreeSet<String>) -> Result<Vec<PathBuf>> {
    let program = cache::kept("the echo server of Gateway API", find, install)?;
    let content = fs::read(&program).with_context(|| format!("cannot read `{}`", program.display()))?;
    let dir = workspace::target_dir().join("images");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    let write = |name: &String| {
        let path = dir.join(file_name(name)?);
        image(name, content.clone()).write(&path)?;
        Ok(path)
    };
    names.iter().map(write).collect()
}

fn find() -> Result<Option<PathBuf>> {
    let place = workspace::cache_dir()?.join(dir_name()?).join(PROGRAM);
    Ok(place.is_file().then_some(place))
}

fn install(cache: &Cache) -> Result<()> {
    let go = go::find("the echo server of Gateway API")?;
    go::fetch(&go, MODULE, PACKAGE, &[])?;
    let place = cache.install(&dir_name()?, |staging| {
        let mut build = go::build(&go, MODULE, PACKAGE, "", &staging.join(PROGRAM));
        process::run_shown("building the echo server of Gateway API (once)", &mut build, BUILD_LIMIT)
    });
    place.map(drop)
}

fn dir_name() -> Result<String> {
    Ok(format!("gateway-echo-{}", go::fingerprint(MODULE)?))
}

/// Returns the file of an image's archive, from the last part of its name and its tag.
fn file_name(name: &str) -> Result<String> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let (title, tag) = last.split_once(':').with_context(|| format!("the image `{name}` has no tag"))?;
    ensure!(title == PROGRAM, "the tests use the image `{name}`, which `{MODULE}` does not build");
    Ok(format!("{title}-{tag}.tar"))
}

fn image(name: &str, content: Vec<u8>) -> Image {
    let program = File { path: format!("/{PROGRAM}"), mode: 0o755, content };
    Image {
        name: name.to_owned(),
        entrypoint: vec![program.path.clone()],
        user: "65532:65532".to_owned(),
        labels: BTreeMap::new(),
        files: vec![program],
        ..Image::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_the_echo_server_are_made() {
        assert_eq!(file_name("registry.example/a/echo-basic:v0.2.0").unwrap(), "echo-basic-v0.2.0.tar");
        for name in ["registry.example/a/other:v1", "registry.example:5000/echo-basic"] {
            assert!(file_name(name).is_err(), "{name}");
        }
    }
}
