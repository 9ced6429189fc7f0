//! `cargo xtask release`: everything that is published of a version, in one directory, and from there in a registry.
//!
//! ```text
//! source ── commit, time
//!  ├─ xtask_image    one image for each platform ─┐
//!  ├─ repository     index of the images ◀────────┘   its digest is in ─▶ chart, manifests
//!  ├─ cosign         signatures and attestations beside index, images and chart      ◀─ key
//!  ├─ plugin         archives of the plugin of kubectl, manifest for Krew
//!  ├─ provenance     statement about all files
//!  ├─ files          the directory: checksums, signatures of files                   ◀─ key
//!  └─ push           repositories ─▶ registry
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod chart;
pub mod cosign;
mod files;
pub mod key;
mod manifests;
mod plugin;
pub mod provenance;
mod push;
pub mod registry;
pub mod repository;
pub mod source;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use xtask_image::oci::{Blob, Compression, Parts};
use xtask_image::{Platform, SBOM};
use xtask_setup::Compiler;
use xtask_setup::build::Profile;
use xtask_tools::{progress, published, workspace};

use self::files::Files;
use self::key::Key;
use self::plugin::System;
use self::provenance::{Build, Subject};
pub use self::push::Transport;
use self::registry::{CHART, IMAGE, Registry};
use self::repository::{Artifact, Repository, index};
use self::source::{Modified, Source};

/// Text below the options in `release --help`.
pub const AFTER_HELP: &str = "\
Writes into one directory:
  xdp-ingress-VERSION-linux-ARCH.tar   the image for one platform, to import on nodes without a registry
  xdp-ingress-VERSION.tgz              the chart, with the image's digest
  kubectl-xdp_ingress-OS-ARCH.tar.gz, krew.yaml
                                       the plugin of kubectl, and the manifest with which Krew installs it
  install.yaml                         the manifests, with the image's digest, for kubectl apply -f
  xdp-ingress.cdx.json                 the crates in the image, as CycloneDX
  provenance.json                      how all this was built: SLSA, version 1
  SHA256SUMS                           of the files above
  oci/                                 what --push pushes: REGISTRY/xdp-ingress:VERSION for all platforms, and
                                       REGISTRY/charts/xdp-ingress:VERSION, as OCI image layouts
and with --key
  *.sig, cosign.pub                    signatures of the files, and the public key: cosign verify-blob
  provenance.intoto.jsonl              the signed provenance
  in oci/                              signatures and attestations: cosign verify, cosign verify-attestation

The same sources, toolchain and options give the same bytes, except for signatures and with --pgo. Times are that of the
commit, or SOURCE_DATE_EPOCH. A push needs a login: skopeo login REGISTRY.

Examples:
  cargo xtask release                                       # target/release-files, nothing signed
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ~/release.key
  cargo xtask release --registry registry.example.com/xdp-ingress --key ~/release.key --push
  cargo xtask release --key /dev/stdin < ~/release.key      # the key comes through a pipe
  cargo xtask release --arch amd64,arm64 --pgo --macos
  cosign verify --key cosign.pub --insecure-ignore-tlog registry.example.com/xdp-ingress/xdp-ingress:0.1.0";

/// Write images, chart, manifests, checksums, signatures and provenance into one directory, and push them
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for the files; a release that is there is replaced
    #[arg(long, value_name = "DIR", default_value_os_t = directory())]
    out: PathBuf,
    /// Registry, with the beginning of a path, that chart and manifests name
    #[arg(long, value_name = "REGISTRY", default_value = published::REGISTRY)]
    registry: Registry,
    /// Sign with this private key in PEM: ECDSA on P-256, unencrypted; may be a pipe
    #[arg(long, value_name = "PATH")]
    key: Option<PathBuf>,
    /// Platforms of the image [default: this machine's]
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    arch: Vec<Platform>,
    /// Also build the plugin of kubectl for macOS, on both architectures, by zig
    #[arg(long)]
    macos: bool,
    /// Lay the code out by a training run, on this machine's platform; the result is not reproducible
    #[arg(long, conflicts_with = "dev")]
    pgo: bool,
    /// Pack the programs of the dev profile, for tests of the packaging
    #[arg(long)]
    dev: bool,
    /// Push to the registry
    #[arg(long)]
    push: bool,
    /// Push by plain HTTP; implied for loopback
    #[arg(long, requires = "push")]
    plain_http: bool,
    /// Release files that differ from the commit, or are not in it; the provenance says so
    #[arg(long)]
    allow_dirty: bool,
    /// URI of the party that vouches for the build, for the provenance
    #[arg(long, value_name = "URI", default_value = provenance::UNNAMED)]
    builder: String,
}

/// Everything that decides about a release.
#[derive(Debug)]
pub struct Plan {
    /// Directory for the files.
    pub out: PathBuf,
    /// Registry that chart and manifests name.
    pub registry: Registry,
    /// Without a key nothing is signed.
    pub key: Option<Key>,
    /// Platforms of the image; those of another machine need a cross compiler, and no dev profile.
    pub platforms: Vec<Platform>,
    /// Also build the plugin for macOS.
    pub macos: bool,
    /// Profile of the programs.
    pub profile: Profile,
    /// The sources.
    pub source: Source,
    /// URI of the party that vouches for the build.
    pub builder: String,
}

/// A finished release.
#[derive(Debug)]
pub struct Release {
    /// Its directory.
    pub dir: PathBuf,
    registry: Registry,
    repositories: [(&'static str, Repository); 2],
}

/// Runs `cargo xtask release`.
///
/// # Errors
/// Fails if something does not compile, cannot be signed, written or pushed.
pub fn run(args: &Args) -> Result<()> {
    let Args { out, registry, key, arch, macos, pgo, dev, push, plain_http, allow_dirty, builder } = args;
    // First of all, because a pipe ends and a build takes minutes.
    let key = key.as_deref().map(Key::read).transpose()?;
    let is_signed = key.is_some();
    let source = Source::read(if *allow_dirty { Modified::Allow } else { Modified::Refuse })?;
    let mut platforms = if arch.is_empty() { vec![Platform::this_machine()?] } else { arch.clone() };
    platforms.sort_unstable();
    platforms.dedup();
    let release = make(&Plan {
        out: out.clone(),
        registry: registry.clone(),
        key,
        platforms,
        macos: *macos,
        profile: Profile::of(!dev, *pgo),
        source,
        builder: builder.clone(),
    })?;
    release.show();
    if !is_signed {
        progress::note("nothing of it is signed, because there is no `--key`");
    }
    if *push {
        release.push(if *plain_http || registry.is_loopback() { Transport::Http } else { Transport::Https })?;
    }
    Ok(())
}

/// Returns the default directory for a release.
#[must_use]
pub fn directory() -> PathBuf {
    workspace::target_dir().join("release-files")
}

/// Builds everything and writes it.
///
/// # Errors
/// Fails if something does not compile, cannot be signed or written.
pub fn make(plan: &Plan) -> Result<Release> {
    let Plan { out, registry, key, platforms, macos: _, profile, source, builder } = plan;
    let version = env!("CARGO_PKG_VERSION");
    let tools = xtask_setup::packagers()?;
    let mut files = Files::begin(out)?;
    let mut images = Vec::new();
    for platform in platforms {
        images.push((*platform, image(plan, *platform, &mut files)?));
    }
    let manifests: Vec<(&Blob, &Value)> = images.iter().map(|(_, parts)| (&parts.manifest, &parts.platform)).collect();
    let index = index(&manifests, &labels(source)?);
    let digest = index.digest();
    let chart = chart::pack(&tools, chart::Image { registry, digest: &digest, platforms }, source.time)?;
    files.write(&chart.file, &chart.package)?;
    let full_name = format!("{}@{digest}", registry.repository(IMAGE));
    files.write(manifests::FILE, manifests::render(&tools, &full_name)?.as_bytes())?;
    files.write(SBOM, &xtask_image::sbom()?)?;
    write_plugin(plan, &mut files)?;

    let lock = fs::read(workspace::root().join("Cargo.lock")).context("cannot read `Cargo.lock`")?;
    let (lock, compiler) = (Blob::new("", lock), Compiler::active()?);
    let build =
        Build { source, lock: lock.hash(), rustc: &compiler.release, platforms, profile: *profile, registry, builder };
    let statement = provenance::statement(&files.subjects(), build);
    files.write("provenance.json", pretty(&statement)?.as_bytes())?;
    if let Some(key) = key {
        let envelope = cosign::envelope(&statement, key)?;
        files.write_unlisted("provenance.intoto.jsonl", format!("{envelope}\n").as_bytes())?;
    }

    let signed = |name: &str, digests: &[String]| signed(plan, &registry.repository(name), digests, build);
    let mut image_repository = Repository::default();
    let manifests: Vec<Blob> = images.iter().map(|(_, parts)| parts.manifest.clone()).collect();
    let digests: Vec<String> = manifests.iter().map(Blob::digest).chain([digest]).collect();
    let blobs = images.into_iter().flat_map(|(_, parts)| parts.blobs).chain(manifests).collect();
    image_repository.add(Artifact { tag: version.to_owned(), manifest: index, blobs });
    signed(IMAGE, &digests)?.into_iter().for_each(|artifact| image_repository.add(artifact));
    let mut chart_repository = Repository::default();
    let digest = chart.artifact.manifest.digest();
    chart_repository.add(chart.artifact);
    signed(CHART, &[digest])?.into_iter().for_each(|artifact| chart_repository.add(artifact));
    let repositories = [(IMAGE, image_repository), (CHART, chart_repository)];
    for (name, repository) in &repositories {
        repository.write(&files.path(&layout(name)))?;
    }
    Ok(Release { dir: files.finish(key.as_ref())?, registry: registry.clone(), repositories })
}

// === impl Release ===

impl Release {
    /// Pushes image and chart.
    ///
    /// # Errors
    /// Fails if the registry refuses them.
    pub fn push(&self, transport: Transport) -> Result<()> {
        for (name, repository) in &self.repositories {
            push::push(repository, &self.dir.join(layout(name)), &self.registry, name, transport)?;
        }
        Ok(())
    }

    fn show(&self) {
        for (name, repository) in &self.repositories {
            for tag in repository.tags().filter(|tag| !tag.starts_with("sha256-")) {
                let digest = repository.digest(tag).unwrap_or_default();
                println!("{}:{tag}  {digest}", self.registry.repository(name));
            }
        }
        progress::note(&format!("the release is in {}", self.dir.display()));
    }
}

/// Returns the path of a repository's layout in the directory of a release.
fn layout(repository: &str) -> String {
    format!("oci/{repository}")
}

/// Builds the image for a platform, and writes its archive.
fn image(plan: &Plan, platform: Platform, files: &mut Files) -> Result<Parts> {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("{}:{version}", plan.registry.repository(IMAGE));
    if plan.profile == Profile::Guided && !platform.is_this_machine() {
        progress::warn(&format!("the image for {} is built without a training run", platform.oci()));
    }
    let mut image = xtask_image::product_image(plan.profile, platform, &name)?;
    image.compression = Compression::Gzip;
    image.created = Some(plan.source.time);
    image.labels.extend(labels(&plan.source)?);
    let file = format!("xdp-ingress-{version}-linux-{}.tar", platform.oci());
    let parts = image.parts()?;
    files.write(&file, &parts.archive(&name)?)?;
    Ok(parts)
}

/// Builds the plugin of kubectl for each system, and writes its archives and their manifest.
fn write_plugin(plan: &Plan, files: &mut Files) -> Result<()> {
    let read = |name: &str| fs::read(workspace::root().join(name)).with_context(|| format!("cannot read `{name}`"));
    let licences = [("LICENSE-APACHE", read("LICENSE-APACHE")?), ("LICENSE-MIT", read("LICENSE-MIT")?)];
    let mut archives = Vec::new();
    let linux = plan.platforms.iter().copied().map(System::Linux);
    let darwin = [Platform::Amd64, Platform::Arm64].map(System::Darwin);
    for system in linux.chain(darwin.into_iter().filter(|_| plan.macos)) {
        let program = match system {
            System::Linux(platform) => xtask_image::plugin(plan.profile, platform)?,
            System::Darwin(platform) => xtask_image::plugin_for_macos(plan.profile, platform)?,
        };
        let archive = plugin::archive(&program, &licences)?;
        files.write(&plugin::archive_name(system), &archive)?;
        archives.push((system, Blob::new("", archive).hash().to_owned()));
    }
    let template = String::from_utf8(read("deploy/krew/xdp-ingress.yaml")?).context("the manifest is not UTF-8")?;
    files.write(plugin::MANIFEST, plugin::manifest(&template, &archives)?.as_bytes())
}

/// Returns the labels that tell about the sources.
fn labels(source: &Source) -> Result<BTreeMap<String, String>> {
    let created = xtask_image::oci::timestamp(source.time)?;
    let label = |key: &str, value: &str| (format!("org.opencontainers.image.{key}"), value.to_owned());
    Ok([
        label("created", &created),
        label("revision", &source.commit),
        label("source", published::SOURCES),
        label("url", published::HOME),
        label("version", env!("CARGO_PKG_VERSION")),
    ]
    .into())
}

/// Returns the signature and the attested provenance of each digest; without a key none.
fn signed(plan: &Plan, repository: &str, digests: &[String], build: Build<'_>) -> Result<Vec<Artifact>> {
    let mut artifacts = Vec::new();
    let Some(key) = &plan.key else { return Ok(artifacts) };
    for digest in digests {
        artifacts.push(cosign::signature(repository, digest, key)?);
        let sha256 = digest.strip_prefix("sha256:").context("digests are SHA-256")?.to_owned();
        let subject = Subject { name: repository.to_owned(), sha256 };
        artifacts.push(cosign::attestation(digest, &provenance::statement(&[subject], build), key)?);
    }
    Ok(artifacts)
}

fn pretty(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).context("a statement is JSON")? + "\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::files::SUMS;
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn platforms_are_a_list_and_plain_http_is_for_pushes() {
        let parse = |text: &str| Line::try_parse_from(text.split(' ')).map(|line| line.args);
        let args = parse("release --arch amd64,arm64").unwrap();
        assert_eq!(args.arch, [Platform::Amd64, Platform::Arm64]);
        assert_eq!(args.registry.to_string(), published::REGISTRY);
        for wrong in
            ["release --arch riscv64", "release --plain-http", "release --registry https://r", "release --pgo --dev"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("release --push --plain-http").is_ok());
    }

    #[test]
    fn the_help_has_the_placeholder_of_the_registry() {
        assert!(AFTER_HELP.contains(published::REGISTRY));
        assert!(AFTER_HELP.contains(&format!("REGISTRY/{CHART}:VERSION")) && AFTER_HELP.contains(SUMS));
    }
}
