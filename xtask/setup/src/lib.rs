//! `cargo xtask setup`: ensures that this machine has everything that the other commands need, and installs missing
//! parts.
//! A complete machine is recognised by looking at files, without starting cargo.
//!
//! ```text
//! system ── programs of the distribution
//! apt ── debian ── files of Debian's packages, without their installation
//! cache ── the user's directory with tools ── compiler, rust_src, linker, bpf, typos, packagers, mdbook, prometheus, cosign, zig,
//!     browser
//! go ── programs without a package
//! build ── the kernel programs and the product; other crates of the tooling
//! ```

pub mod apt;
mod bpf;
mod browser;
pub mod build;
pub mod cache;
mod compiler;
mod cosign;
pub mod debian;
pub mod go;
mod linker;
mod mdbook;
mod packagers;
mod prometheus;
mod rust_src;
pub mod system;
mod typos;
mod zig;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

pub use self::bpf::BpfToolchain;
pub use self::bpf::ensure as bpf_toolchain;
pub use self::browser::{BrowserTools, HEADLESS};
pub use self::compiler::Compiler;
pub use self::linker::VERSION as LINKER_VERSION;
pub use self::packagers::Packagers;
pub use self::prometheus::Prometheus;
pub use self::zig::Zig;
use xtask_tools::{process, progress, workspace};

/// Text below the options in `--help`.
pub const AFTER_HELP: &str = "\
Every other command does this first, so there is no need to call it by hand.

What it makes sure of, in this order:
  system packages   curl, iproute2, nftables, openssl, util-linux, python3; with --bench also nginx, haproxy, wrk,
                    nghttp2-client. Missing ones are installed by apt-get when run as root, and named otherwise.
  rust-src          the standard library's source of the pinned compiler, for the kernel programs: from rustup,
                    else from Debian's package of the same version
  bpf-linker        built once by cargo
  typos             the spell checker of `cargo xtask check`
  helm, kustomize   built once by Go, where Go is there, for `cargo xtask check` of the packaging

Tools are kept in $XDG_CACHE_HOME/xdp-ingress (by default ~/.cache/xdp-ingress); deleting it is safe. Kubernetes'
programs (about 700 MB) are added there by `cargo xtask cluster`, kernels (about 15 MB each) by `cargo xtask kernels`,
the conformance tests of Gateway API (70 MB) and Go 1.27 (280 MB) by `cargo xtask test gateway`, mdBook by
`cargo xtask docs`, Prometheus by `cargo xtask test monitoring`, cosign (100 MB) by a test of releases if
asked to, zig (420 MB) by `cargo xtask release --macos`, axe-core by `cargo xtask test ui` (which also installs
the packages chromium and chromium-driver), quic-go, aioquic, qh3 and libcurl by `cargo xtask test interop`
(which also installs the packages firefox-esr, libnss3-tools and ngtcp2-client), none of them by this command.

Environment:
  XDP_INGRESS_BPF_RUSTC=PATH    a compiler that has rust-src, used for the kernel programs instead of all others
  XDP_INGRESS_RUST_SRC=debian   take the source from Debian's package even where rustup has it
  NO_COLOR=1                    no colours

Examples:
  cargo xtask setup
  sudo -E cargo xtask setup --bench";

/// Install missing requirements on this machine; implied by every other command
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also install the programs that `cargo xtask bench` compares with: nginx, haproxy, wrk, h2load
    #[arg(long)]
    bench: bool,
}

/// Purpose for which a machine is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Building userspace and kernel programs.
    Build,
    /// `cargo xtask check`.
    Check,
    /// `cargo xtask demo`, and the tests that create namespaces.
    Demo,
    /// Everything except the bench.
    Everything,
}

/// Runs `cargo xtask setup`.
///
/// # Errors
/// Fails if a part is missing and cannot be installed here.
pub fn run(args: &Args) -> Result<()> {
    let began = Instant::now();
    ensure(Purpose::Everything)?;
    if args.bench {
        system::ensure(&system::BENCH, "bench")?;
    }
    let bpf = bpf_toolchain()?;
    progress::note(&format!("rustc        {} (LLVM {})", bpf.compiler.release, bpf.compiler.llvm_major));
    progress::note(&format!("for BPF      {}", bpf.rustc.display()));
    progress::note(&format!("bpf-linker   {LINKER_VERSION}, {}", bpf.linker.display()));
    progress::note(&format!("cache        {}", workspace::cache_dir()?.display()));
    progress::note(&format!("ready in {:.2} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// Prepares this machine for `purpose`; installs missing parts.
///
/// # Errors
/// Fails if a part is missing and cannot be installed here; the error names the command that would help.
pub fn ensure(purpose: Purpose) -> Result<()> {
    match purpose {
        Purpose::Build => {}
        Purpose::Check => system::ensure(&system::CHECK, "check")?,
        Purpose::Demo => system::ensure(&system::LAB, "demo")?,
        Purpose::Everything => system::ensure(&[&system::LAB[..], &system::CHECK].concat(), "setup")?,
    }
    bpf_toolchain()?;
    if matches!(purpose, Purpose::Check | Purpose::Everything) {
        spell_checker()?;
    }
    if purpose == Purpose::Everything && can_have_packagers()? {
        packagers()?;
    }
    Ok(())
}

/// Ensures that Debian packages are installed, by name, for a command called `what`, such as `bench`.
///
/// # Errors
/// Fails if a package is missing and cannot be installed here; the error names the command that would help.
pub fn packages(names: &[&str], what: &str) -> Result<()> {
    system::ensure(names, what)
}

/// Installs the missing tools that build the fuzz targets beside the pinned compiler.
///
/// # Errors
/// Fails if a tool is missing and cannot be installed here; the error names the command that would help.
pub fn fuzz_tools() -> Result<()> {
    system::ensure(&system::FUZZ, "fuzz")
}

/// Returns the spell checker; installs it if it is missing.
///
/// # Errors
/// Fails if it cannot be installed here.
pub fn spell_checker() -> Result<PathBuf> {
    cache::kept("typos", typos::find, typos::install)
}

/// Returns mdBook, which builds the site of the documentation; builds it if it is missing.
///
/// # Errors
/// Fails if it is missing and cannot be built here.
pub fn book_builder() -> Result<PathBuf> {
    cache::kept("mdbook", mdbook::find, mdbook::install)
}

/// Returns zig and cargo-zigbuild, which build programs for macOS; installs them if they are missing.
///
/// # Errors
/// Fails if they cannot be installed here.
pub fn zig() -> Result<Zig> {
    cache::kept("zig", zig::find, zig::install)
}

/// Returns Chromium, its driver and axe-core; installs the missing ones.
///
/// # Errors
/// Fails if one is missing and cannot be installed here; the error names the command that would help.
pub fn browser() -> Result<BrowserTools> {
    browser::tools()
}

/// Returns Helm and kustomize; builds them if they are missing.
///
/// # Errors
/// Fails if they cannot be built here: they need Go, which this command does not install.
pub fn packagers() -> Result<Packagers> {
    cache::kept("helm", packagers::find, packagers::install)
}

/// Returns `true` if [`packagers()`] can succeed here: they are in the cache, or Go can build them.
///
/// # Errors
/// Fails if there is no cache directory.
pub fn can_have_packagers() -> Result<bool> {
    Ok(packagers::find()?.is_some() || process::find_program("go").is_some())
}

/// Returns Prometheus and promtool; builds them if they are missing.
///
/// # Errors
/// Fails if they cannot be built here: they need Go, which this command does not install.
pub fn prometheus() -> Result<Prometheus> {
    cache::kept("prometheus", prometheus::find, prometheus::install)
}

/// Returns `true` if [`prometheus()`] can succeed here: the programs are in the cache, or Go can build them.
///
/// # Errors
/// Fails if there is no cache directory.
pub fn can_have_prometheus() -> Result<bool> {
    Ok(prometheus::find()?.is_some() || process::find_program("go").is_some())
}

/// Returns cosign; builds it if it is missing.
///
/// # Errors
/// Fails if it cannot be built here: it needs Go, which this command does not install.
pub fn cosign() -> Result<PathBuf> {
    cache::kept("cosign", cosign::find, cosign::install)
}

/// Returns cosign if it is in the cache.
///
/// # Errors
/// Fails if there is no cache directory.
pub fn cosign_if_built() -> Result<Option<PathBuf>> {
    cosign::find()
}
