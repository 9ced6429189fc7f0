//! `cargo xtask build` and `build-ebpf`: the kernel programs first, then the program that embeds them.
//! The product's own build script never starts a second compiler; it takes the object that is made here.

mod btf;
mod ebpf;
mod guided;
mod stamp;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

pub use self::guided::guided;
use crate::{Compiler, Purpose};
use xtask_tools::{process, progress, workspace};

/// The product.
const PROGRAM: &str = "xdp-ingress";

/// Cargo's profile for programs that make load, and their directory below the target directory.
const LOAD_PROFILE: &str = "load";

/// Text below the options in `build --help`.
pub const AFTER_HELP: &str = "\
Examples:
  cargo xtask build                   # target/debug/xdp-ingress
  cargo xtask build --release         # target/release/xdp-ingress
  cargo xtask build --release --pgo   # below target/guided; takes more than twice as long";

/// Text below the options in `build-ebpf --help`.
pub const AFTER_HELP_EBPF: &str = "\
Writes target/ebpf/ingress-ebpf.o, and only when it changed. Does nothing when the sources, the lock file and the
toolchain are the ones of the last build.

Examples:
  cargo xtask build-ebpf
  cargo xtask build-ebpf --force && llvm-objdump -d target/ebpf/ingress-ebpf.o";

/// Build the kernel programs, then the binary `xdp-ingress` with them inside
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Optimise, as for an image
    #[arg(long)]
    release: bool,
    /// Also lay code out by a training run: run the load of `cargo xtask bench` on a build that counts its branches
    #[arg(long, requires = "release")]
    pgo: bool,
}

/// Build the kernel programs only
#[derive(Debug, clap::Args)]
pub struct EbpfArgs {
    /// Build even if nothing changed since the last build
    #[arg(long)]
    force: bool,
}

/// Build profile of userspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// The profile for everything except measurements and images.
    Dev,
    /// Optimised.
    Release,
    /// Optimised, and laid out by a training run.
    Guided,
}

/// Settings of a build in the release profile.
#[derive(Debug)]
pub struct ReleaseBuild {
    pub target_dir: PathBuf,
    /// Further flags of the compiler.
    pub flags: Vec<String>,
    /// Further arguments of cargo.
    pub arguments: Vec<String>,
}

impl Profile {
    /// Returns the profile for `--release` and `--pgo`.
    pub fn of(release: bool, pgo: bool) -> Self {
        match (release, pgo) {
            (_, true) => Self::Guided,
            (true, false) => Self::Release,
            (false, false) => Self::Dev,
        }
    }

    /// Returns the name of the directory below a target directory.
    pub fn dir(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release | Self::Guided => "release",
        }
    }
}

/// Runs `cargo xtask build`.
///
/// # Errors
/// Fails if something does not compile or a tool is missing.
pub fn run(args: &Args) -> Result<()> {
    let binary = userspace(Profile::of(args.release, args.pgo))?;
    progress::note(&format!("built {}", binary.display()));
    Ok(())
}

/// Runs `cargo xtask build-ebpf`.
///
/// # Errors
/// Fails if the kernel programs do not compile or a tool is missing.
pub fn run_ebpf(args: &EbpfArgs) -> Result<()> {
    let freshness = if args.force { ebpf::Freshness::Rebuild } else { ebpf::Freshness::Reuse };
    let object = ebpf::build(&crate::bpf_toolchain()?, freshness)?;
    progress::note(&format!("the kernel programs are in {}", object.display()));
    Ok(())
}

/// Prepares the machine, builds the kernel programs and the product, and returns the path of the binary `xdp-ingress`.
///
/// # Errors
/// Fails if something does not compile or a tool is missing.
pub fn userspace(profile: Profile) -> Result<PathBuf> {
    kernel_programs()?;
    let place = if profile == Profile::Guided {
        guided(PROGRAM, release_with)?
    } else {
        process::run(cargo_build().args((profile == Profile::Release).then_some("--release")))?;
        workspace::target_dir().join(profile.dir())
    };
    let binary = place.join(PROGRAM);
    std::fs::metadata(&binary).with_context(|| format!("cargo succeeded but left no `{}`", binary.display()))?;
    Ok(binary)
}

/// Builds a release in its own target directory, with further compiler flags; returns the directory of the programs.
fn release_with(ReleaseBuild { target_dir, flags, arguments }: &ReleaseBuild) -> Result<PathBuf> {
    let host = Compiler::active()?.host;
    // An explicit target, even if it is this machine's own, keeps the flags away from build scripts and macros.
    let mut cargo = cargo_build();
    cargo.args(["--release", "--target", &host, "--target-dir"]).arg(target_dir).args(arguments);
    process::run(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS"))?;
    Ok(target_dir.join(host).join(Profile::Release.dir()))
}

/// Returns the cargo command that builds the product.
fn cargo_build() -> Command {
    let mut cargo = cargo();
    cargo.args(["build", "--package", "ingress-userspace", "--bin", PROGRAM]);
    cargo
}

/// Prepares the machine and builds the kernel programs if their sources changed.
///
/// # Errors
/// Fails if the programs do not compile or a tool is missing.
pub fn kernel_programs() -> Result<()> {
    crate::ensure(Purpose::Build)?;
    ebpf::build(&crate::bpf_toolchain()?, ebpf::Freshness::Reuse).map(drop)
}

/// Returns a cargo command that runs in the work tree.
pub fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command
}

/// Returns the cargo command that runs the integration tests called `targets`.
///
/// The command selects the whole workspace instead of the packages of the tests. Cargo unites the features of
/// dependencies over the selected packages, and compiles a dependency again for other features. So all tests share one set.
pub fn test(targets: &[&str]) -> Command {
    let mut cargo = cargo();
    cargo.args(["test", "--workspace"]).args(targets.iter().flat_map(|target| ["--test", target]));
    cargo
}

/// Builds `package`, a crate of the tooling, and returns the command that starts its program. The program runs in the
/// current directory, because arguments may name files there.
///
/// # Errors
/// Fails if something does not compile.
pub fn tool(package: &str) -> Result<Command> {
    // For the whole workspace, so that all tools share one set of features. Tests have more.
    built(package, &["--workspace"], Profile::Dev.dir())
}

/// Returns the command of [`tool`] for a program that makes load, which is optimised: it shares the machine with the
/// programs that it measures.
///
/// # Errors
/// As [`tool`].
pub fn load_tool(package: &str) -> Result<Command> {
    if !workspace::target_dir().join(LOAD_PROFILE).join(package).exists() {
        progress::note(&format!("building `{package}`, optimised (once, some minutes)"));
    }
    built(package, &["--package", package, "--profile", LOAD_PROFILE], LOAD_PROFILE)
}

fn built(program: &str, selection: &[&str], directory: &str) -> Result<Command> {
    let place = workspace::target_dir();
    let mut build = cargo();
    build.args(["build", "--quiet", "--bin", program]).args(selection).arg("--target-dir").arg(&place);
    // With a target, even this machine's own, the program would be in another directory.
    process::run(build.env_remove("CARGO_BUILD_TARGET"))?;
    Ok(Command::new(place.join(directory).join(program)))
}
