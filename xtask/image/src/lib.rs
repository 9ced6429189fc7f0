//! `cargo xtask image`: the product as a container image, without Docker, and the echo test server on demand. The command
//! builds for this machine's architecture; `cargo xtask release` also for others. It pushes nothing.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod macos;
pub mod oci;
mod platform;
mod programs;
mod sbom;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::oci::{File, Image};
pub use self::platform::Platform;
use xtask_setup::build::{self, Profile};
use xtask_tools::{progress, workspace};

/// Text below the options in `image --help`.
pub const AFTER_HELP: &str = "\
Writes xdp-ingress.tar, an OCI image layout with one statically linked program, and xdp-ingress.cdx.json, the crates of
the product as CycloneDX, which is also in the image. With --echo-server it also writes echo-server.tar, the pod of the
examples for virtual machines. The files are the same bytes whenever the sources and the toolchain are the same, except
with --pgo. The C library is musl where the toolchain has that target and `musl-gcc` is there, else glibc. The names are
localhost/xdp-ingress:TAG and localhost/echo-server:TAG, which no node tries to fetch from a public registry. With --dev
the programs are those that tests and demo use, packed with the shared libraries they need, so that nothing is compiled
twice; both images are written.

Take them into a node with one of
  ctr --namespace k8s.io images import xdp-ingress.tar
  k3s ctr images import xdp-ingress.tar
  docker load --input xdp-ingress.tar
and into a registry with
  skopeo copy oci-archive:xdp-ingress.tar docker://REGISTRY/xdp-ingress:TAG

Examples:
  cargo xtask image                       # target/images/xdp-ingress.tar, optimised
  cargo xtask image --pgo                 # the same, faster by some percent; takes more than twice as long
  cargo xtask image --echo-server         # the pod of the examples, too
  cargo xtask image --dev                 # for tests: both images, built faster, run slower
  cargo xtask image --tag next --output /tmp";

/// Registry part of the names: it marks images that were made here, and prevents nodes from asking a public registry.
const REGISTRY: &str = "localhost";
/// User of the programs by default; distroless images use the same number for `nonroot`.
const USER: &str = "65532:65532";
/// Licences of the software in the product's image.
const LICENCES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-GPL-2.0", "LICENSE-MIT"];

/// Write the container image of xdp-ingress, and that of the echo test server on demand
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for the images
    #[arg(long, value_name = "DIR", default_value_os_t = directory())]
    output: PathBuf,
    /// Tag of the images
    #[arg(long, value_name = "TAG", default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Optimise; this is the default
    #[arg(long, conflicts_with = "dev")]
    release: bool,
    /// Pack the programs of the dev profile, for tests
    #[arg(long)]
    dev: bool,
    /// Also lay the programs' code out by a training run, as `build --pgo` does; the result is not reproducible
    #[arg(long, conflicts_with = "dev")]
    pgo: bool,
    /// Also write the image of the echo test server, which --dev always does
    #[arg(long)]
    echo_server: bool,
}

/// Name of the document about the crates in the product's image.
pub const SBOM: &str = "xdp-ingress.cdx.json";

/// A finished image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its full name, as used in manifests.
    pub name: String,
    /// The OCI tar file.
    pub file: PathBuf,
    /// Digest of its manifest.
    pub digest: String,
}

/// All images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// The product.
    pub xdp_ingress: Made,
    /// The test pod, `ingress_lab::echo`.
    pub echo_server: Made,
}

/// Runs `cargo xtask image`.
///
/// # Errors
/// Fails if something does not compile, is not static, or cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let Args { output, tag, release: _, dev, pgo, echo_server } = args;
    let profile = Profile::of(!dev, *pgo);
    if *dev || *echo_server {
        make(profile, output, tag)?;
    } else {
        build::kernel_programs()?;
        let place = programs::build(profile, &[programs::PRODUCT])?;
        write_product(&place.join(programs::XDP_INGRESS), profile, output, tag)?;
    }
    progress::note("for another architecture: `cargo xtask release --arch …`, or do this there");
    Ok(())
}

/// Returns the default directory for images.
pub fn directory() -> PathBuf {
    workspace::target_dir().join("images")
}

/// Builds the programs and writes their images with `tag` to `output`. For tests, `XDP_INGRESS_BINARY=PATH` names another
/// build of the product for the image of the development profile.
///
/// # Errors
/// Fails if something does not compile, is not static, or cannot be written.
pub fn make(profile: Profile, output: &Path, tag: &str) -> Result<Images> {
    build::kernel_programs()?;
    let place = programs::build(profile, &programs::PROGRAMS)?;
    let other = std::env::var_os("XDP_INGRESS_BINARY").filter(|_| profile == Profile::Dev).map(PathBuf::from);
    if let Some(other) = &other {
        // The image starts it by this name.
        let is_named = other.file_name().is_some_and(|name| name == programs::XDP_INGRESS);
        ensure!(is_named, "XDP_INGRESS_BINARY is `{}`; name the file `{}`", other.display(), programs::XDP_INGRESS);
    }
    let program = other.unwrap_or_else(|| place.join(programs::XDP_INGRESS));
    let about = "HTTP server for tests that says who it is and what it received";
    let echo = image(programs::ECHO_SERVER, &name_of(programs::ECHO_SERVER, tag), about);
    Ok(Images {
        xdp_ingress: write_product(&program, profile, output, tag)?,
        echo_server: write(echo, &place.join(programs::ECHO_SERVER), profile, output)?,
    })
}

/// Writes the image of the product, and the list of its crates beside it.
fn write_product(program: &Path, profile: Profile, output: &Path, tag: &str) -> Result<Made> {
    let components = sbom()?;
    fs::create_dir_all(output).with_context(|| format!("cannot make `{}`", output.display()))?;
    let beside = output.join(SBOM);
    fs::write(&beside, &components).with_context(|| format!("cannot write `{}`", beside.display()))?;
    write(with_documents(&name_of(programs::XDP_INGRESS, tag), components)?, program, profile, output)
}

fn name_of(title: &str, tag: &str) -> String {
    format!("{REGISTRY}/{title}:{tag}")
}

/// Writes an image of another build of the product to `output`, for tests. The image is called `name`.
///
/// # Errors
/// Fails if the program cannot be read, or the image cannot be written.
pub fn of_program(program: &Path, name: &str, output: &Path) -> Result<Made> {
    let about = "Kubernetes ingress controller with an XDP data path, another build";
    let mut product = image(programs::XDP_INGRESS, name, about);
    product.command = vec!["run".to_owned()];
    write(product, program, Profile::Dev, output)
}

/// Builds the product for `platform` and returns its image under `name`, unwritten. A guided build for another platform
/// than this machine's is an ordinary release: the training cannot run here.
///
/// # Errors
/// Fails if something does not compile, is not static, or the platform cannot be built for here.
pub fn product_image(profile: Profile, platform: Platform, name: &str) -> Result<Image> {
    build::kernel_programs()?;
    let place = if platform.is_this_machine() {
        programs::build(profile, &[programs::PRODUCT])?
    } else {
        programs::cross(platform)?
    };
    let mut product = with_documents(name, sbom()?)?;
    platform.oci().clone_into(&mut product.architecture);
    let program = place.join(programs::XDP_INGRESS);
    product.files.extend(programs::pack(&program, &path_of(programs::XDP_INGRESS), profile)?);
    Ok(product)
}

/// Builds the plugin of kubectl for `platform` and returns the program. It is static, but for the profile dev.
///
/// # Errors
/// Fails if it does not compile, is not static, or the platform cannot be built for here.
pub fn plugin(profile: Profile, platform: Platform) -> Result<Vec<u8>> {
    let files = programs::pack(&programs::plugin(profile, platform)?, "plugin", profile)?;
    // The program comes after the libraries that only the profile dev has.
    files.into_iter().last().map(|program| program.content).context("the plugin has no program")
}

/// Builds the plugin of kubectl for macOS on this architecture, and returns the program. It needs no file but the system's.
///
/// # Errors
/// Fails if it does not compile, or the tools for it cannot be had.
pub fn plugin_for_macos(profile: Profile, architecture: Platform) -> Result<Vec<u8>> {
    macos::build(profile, architecture)
}

/// Returns the crates of the product as CycloneDX.
///
/// # Errors
/// Fails if cargo cannot list them.
pub fn sbom() -> Result<Vec<u8>> {
    sbom::write().context("cannot tell what the image is made of")
}

/// Returns the product's image without its program: configuration, licences and the list of its crates.
fn with_documents(name: &str, components: Vec<u8>) -> Result<Image> {
    let mut product = image(programs::XDP_INGRESS, name, "Kubernetes ingress controller with an XDP data path");
    product.command = vec!["run".to_owned()];
    for name in LICENCES {
        let content = fs::read(workspace::root().join(name)).with_context(|| format!("cannot read `{name}`"))?;
        product.files.push(File { path: format!("/usr/share/doc/xdp-ingress/{name}"), mode: 0o644, content });
    }
    let path = format!("/usr/share/doc/xdp-ingress/{SBOM}");
    product.files.push(File { path, mode: 0o644, content: components });
    Ok(product)
}

/// Returns the files of the product in its image: the shared libraries, if it needs any, and then the program.
///
/// # Errors
/// Fails if something does not compile, or is not static.
pub fn product(profile: Profile) -> Result<Vec<File>> {
    build::kernel_programs()?;
    let program = programs::build(profile, &[programs::PRODUCT])?.join(programs::XDP_INGRESS);
    programs::pack(&program, &path_of(programs::XDP_INGRESS), profile)
}

/// Returns the path of a program in its image.
fn path_of(title: &str) -> String {
    format!("/usr/bin/{title}")
}

fn image(title: &str, name: &str, description: &str) -> Image {
    let label = |key: &str, value: &str| (format!("org.opencontainers.image.{key}"), value.to_owned());
    Image {
        name: name.to_owned(),
        entrypoint: vec![path_of(title)],
        user: USER.to_owned(),
        labels: BTreeMap::from([
            label("title", title),
            label("description", description),
            label("version", env!("CARGO_PKG_VERSION")),
            label("licenses", "(MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only)"),
        ]),
        ..Image::default()
    }
}

fn write(mut image: Image, program: &Path, profile: Profile, output: &Path) -> Result<Made> {
    let path = image.entrypoint.first().context("an image has an entrypoint")?;
    let files = programs::pack(program, path, profile)?;
    let size = files.last().map_or(0, |program| program.content.len());
    image.files.extend(files);
    let title = program.file_name().context("a program has a name")?;
    let file = output.join(title).with_extension("tar");
    let written = image.write(&file)?;
    let mb = |bytes: usize| format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10);
    println!("{}  {}", image.name, written.digest);
    println!("  {}: {}, of which the program {}", file.display(), mb(written.size), mb(size));
    Ok(Made { name: image.name, file, digest: written.digest })
}
