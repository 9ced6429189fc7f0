//! The conformance tests of Gateway API: their program and the texts that belong to it, in the version that
//! `suite/go.mod` pins. Go builds them into the cache. It runs no test.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use xtask_setup::cache::{self, Cache};
use xtask_setup::go;
use xtask_tools::{process, workspace};

/// Module that pins the version, relative to the work tree.
const MODULE: &str = "xtask/conformance/suite";
const PACKAGE: &str = "sigs.k8s.io/gateway-api/conformance";
/// Module with the custom resources.
const API: &str = "sigs.k8s.io/gateway-api";
/// About 290 CPU seconds; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

const PROGRAM: &str = "conformance.test";
const RESOURCES: &str = "resources.yaml";
const TESTS: &str = "tests.txt";
const IMAGES: &str = "images.txt";

/// The suite in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suite {
    dir: PathBuf,
    /// Version of Gateway API, such as `v1.7.0`.
    pub(super) version: String,
}

/// Returns the suite; builds it if it is missing.
///
/// # Errors
/// Fails if there is no Go that can build it, or Go cannot fetch or build it.
pub(super) fn ensure() -> Result<Suite> {
    cache::kept("the conformance tests of Gateway API", find, install)
}

fn find() -> Result<Option<Suite>> {
    let suite = Suite { dir: workspace::cache_dir()?.join(dir_name()?), version: version()? };
    Ok([PROGRAM, RESOURCES, TESTS, IMAGES].iter().all(|name| suite.dir.join(name).is_file()).then_some(suite))
}

fn install(cache: &Cache) -> Result<()> {
    let go = go::newer(cache)?;
    go::fetch(&go, MODULE, PACKAGE, &["-test"])?;
    let place = cache.install(&dir_name()?, |staging| {
        let mut build = go::build_tests(&go, MODULE, PACKAGE, &staging.join(PROGRAM));
        let label = format!("building the conformance tests of Gateway API {} (once, five minutes)", version()?);
        process::run_shown(&label, &mut build, BUILD_LIMIT)?;
        let sources = |module: &str| -> Result<PathBuf> {
            let mut list = go::command(&go, MODULE);
            Ok(process::capture(list.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]))?.into())
        };
        let conformance = sources(PACKAGE)?;
        let resources = texts(&sources(API)?.join("config/crd/standard"), "yaml")?;
        let tests = texts(&conformance.join("tests"), "go")?.iter().flat_map(|text| names(text)).collect();
        let manifests =
            [texts(&conformance.join("base"), "yaml")?, texts(&conformance.join("tests"), "yaml")?].concat();
        let images = manifests.iter().flat_map(|text| images(text)).collect();
        write(staging, RESOURCES, &resources.join("\n---\n"))?;
        write(staging, TESTS, &lines(&tests))?;
        write(staging, IMAGES, &lines(&images))
    });
    place.map(drop)
}

// === impl Suite ===

impl Suite {
    /// Returns the path of the test program.
    pub(super) fn program(&self) -> PathBuf {
        self.dir.join(PROGRAM)
    }

    /// Returns the path of the custom resources of the standard channel, as YAML.
    pub(super) fn resources(&self) -> PathBuf {
        self.dir.join(RESOURCES)
    }

    /// Returns the names of all tests of the suite.
    ///
    /// # Errors
    /// Fails if the list cannot be read.
    pub(super) fn tests(&self) -> Result<BTreeSet<String>> {
        self.list(TESTS)
    }

    /// Returns the full names of all images that the tests' pods use.
    ///
    /// # Errors
    /// Fails if the list cannot be read.
    pub(super) fn images(&self) -> Result<BTreeSet<String>> {
        self.list(IMAGES)
    }

    fn list(&self, name: &str) -> Result<BTreeSet<String>> {
        let path = self.dir.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let found: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        ensure!(!found.is_empty(), "`{}` is empty; remove its directory, to build it anew", path.display());
        Ok(found)
    }
}

fn dir_name() -> Result<String> {
    Ok(format!("gateway-suite-{}-{}", version()?, go::fingerprint(MODULE)?))
}

fn version() -> Result<String> {
    let text = fs::read_to_string(workspace::root().join(MODULE).join("go.mod"));
    required(&text.context("cannot read the pinned version of Gateway API")?, PACKAGE).map(str::to_owned)
}

/// Returns the version of `module` that the text of a `go.mod` requires.
fn required<'a>(go_mod: &'a str, module: &str) -> Result<&'a str> {
    let versions = go_mod.lines().filter_map(|line| {
        let line = line.trim();
        line.strip_prefix("require ").unwrap_or(line).strip_prefix(module)?.strip_prefix(' ')?.split(' ').next()
    });
    versions.into_iter().next().with_context(|| format!("`{MODULE}/go.mod` requires no version of `{module}`"))
}

/// Returns the files in `dir` with this extension, in the order of their names.
fn texts(dir: &Path, extension: &str) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list `{}`", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension() == Some(OsStr::new(extension)));
    paths.sort();
    let read = |path: &PathBuf| fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()));
    paths.iter().map(read).collect()
}

/// Returns the names of the tests that a source of the suite declares.
fn names(source: &str) -> impl Iterator<Item = String> {
    let values = source.lines().filter_map(|line| line.trim().strip_prefix("ShortName:"));
    values.map(|value| value.trim().trim_matches(['"', ',']).to_owned())
}

/// Returns the images of the containers in a manifest.
fn images(manifest: &str) -> impl Iterator<Item = String> {
    let values = manifest.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image:"));
    values.map(|value| value.trim().trim_matches('"').to_owned())
}

fn lines(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| format!("{name}\n")).collect()
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    fs::write(dir.join(name), text).with_context(|| format!("cannot write `{name}` into the cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_go_mod() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(required(text, PACKAGE).ok(), expect, "{text}");
        check("require (\n\tsigs.k8s.io/gateway-api/conformance v1.7.0 // indirect\n)\n", Some("v1.7.0"));
        check("require sigs.k8s.io/gateway-api/conformance v1.8.0\n", Some("v1.8.0"));
        check("require sigs.k8s.io/gateway-api v1.7.0\n", None);
        check("replace a => sigs.k8s.io/gateway-api/conformance v1.6.3\n", None);
        // Both modules are of one release, because the suite refuses custom resources of another.
        let committed = fs::read_to_string(workspace::root().join(MODULE).join("go.mod")).unwrap();
        assert_eq!(required(&committed, PACKAGE).unwrap(), required(&committed, API).unwrap());
    }

    #[test]
    fn names_and_images_are_read_from_the_sources() {
        let source = "var A = suite.ConformanceTest{\n\tShortName:   \"HTTPRouteWeight\",\n\tDescription: \"x\",\n";
        assert_eq!(names(source).collect::<Vec<_>>(), ["HTTPRouteWeight"]);
        let manifest = "containers:\n- name: a\n  image: r.example/echo:v1\n- image: \"r.example/echo:v2\"\n";
        assert_eq!(images(manifest).collect::<Vec<_>>(), ["r.example/echo:v1", "r.example/echo:v2"]);
    }
}
