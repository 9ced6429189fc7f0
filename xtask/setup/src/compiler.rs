//! Facts about the installed compilers: version, LLVM, host, and the presence of their standard library's source.
//! It installs nothing.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use xtask_tools::{process, workspace};

/// The compiler that everything is built with. `rust-toolchain.toml` names the same version, and a test compares them.
pub(super) const RELEASE: &str = "1.95.0";

const RUSTUP_LIMIT: Duration = Duration::from_secs(120);

/// An installed compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiler {
    /// Its version, such as `1.95.0`.
    pub release: String,
    /// The machine it runs on, such as `x86_64-unknown-linux-gnu`.
    pub host: String,
    /// The major version of its LLVM, which the BPF linker uses.
    pub llvm_major: u32,
    /// Directory of the installation, with `bin/rustc` and `lib/`.
    pub sysroot: PathBuf,
}

impl Compiler {
    /// Returns the compiler that cargo uses in the work tree.
    ///
    /// # Errors
    /// Fails if there is none, or it is not the pinned one.
    pub fn active() -> Result<Self> {
        let rustc = env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let compiler =
            Self::ask(&rustc).context("the Rust compiler does not answer; install it from https://rustup.rs")?;
        if compiler.release != RELEASE {
            bail!(
                "the active compiler is rustc `{}`, but this project is built with `{RELEASE}` (its LLVM is the one the \
                 BPF linker uses); run `rustup toolchain install {RELEASE}`, or set `RUSTUP_TOOLCHAIN` to the name under \
                 which it is installed",
                compiler.release
            );
        }
        Ok(compiler)
    }

    /// Queries the program `rustc` for its version and paths.
    ///
    /// # Errors
    /// Fails if the program cannot be run or its output cannot be parsed.
    pub fn ask(rustc: &Path) -> Result<Self> {
        let ask = |args: &[&str]| process::capture(Command::new(rustc).args(args).current_dir(workspace::root()));
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        parse_version(&ask(&["-vV"])?, sysroot).with_context(|| format!("cannot understand `{} -vV`", rustc.display()))
    }

    /// Adds a component with rustup.
    ///
    /// # Errors
    /// Fails if the compiler is not rustup's, or rustup cannot get the component in time.
    pub(super) fn add_component(&self, component: &str) -> Result<()> {
        self.add("component", component)
    }

    /// Ensures that the standard library for `target` is there; adds it with rustup if it is missing.
    ///
    /// # Errors
    /// Fails if it is missing, and the compiler is not rustup's or rustup cannot get it in time.
    pub fn with_target(&self, target: &str) -> Result<()> {
        if self.sysroot.join("lib/rustlib").join(target).join("lib").is_dir() {
            return Ok(());
        }
        self.add("target", target).with_context(|| format!("there is no standard library for `{target}`"))
    }

    fn add(&self, kind: &str, name: &str) -> Result<()> {
        let toolchain = match (self.sysroot.parent().and_then(Path::file_name), self.sysroot.file_name()) {
            (Some(parent), Some(name)) if parent == "toolchains" => name,
            _ => bail!("`{}` was not installed by rustup", self.sysroot.display()),
        };
        let mut rustup = Command::new("rustup");
        rustup.args([kind, "add", name, "--toolchain"]).arg(toolchain);
        process::run_shown(&format!("asking rustup for {name}"), &mut rustup, RUSTUP_LIMIT)
    }

    /// Returns the llvm-profdata of this compiler's LLVM, because other versions may not read its files; installs it if
    /// missing.
    ///
    /// # Errors
    /// Fails if rustup cannot install it.
    pub fn profdata(&self) -> Result<PathBuf> {
        let program = self.sysroot.join("lib/rustlib").join(&self.host).join("bin/llvm-profdata");
        if !program.is_file() {
            self.add_component("llvm-tools").context(
                "profile-guided optimisation needs llvm-profdata; run `rustup component add llvm-tools` where rustup's \
                 servers can be reached",
            )?;
            ensure!(program.is_file(), "rustup said it was done but `{}` is not there", program.display());
        }
        Ok(program)
    }

    /// Returns `true` if the source of the standard library is installed beside the compiler.
    pub fn has_source(&self) -> bool {
        self.sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file()
    }
}

/// Returns the same release as `wanted`, with its source, under another name in rustup's home.
pub(super) fn rustup_twin(wanted: &Compiler) -> Option<Compiler> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".rustup")))?;
    [&wanted.release, "stable"].into_iter().find_map(|name| {
        let sysroot = home.join("toolchains").join(format!("{name}-{}", wanted.host));
        let twin = Compiler::ask(&sysroot.join("bin/rustc")).ok()?;
        (twin.release == wanted.release && twin.has_source()).then_some(twin)
    })
}

fn parse_version(text: &str, sysroot: PathBuf) -> Option<Compiler> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim);
    let llvm = field("LLVM version")?;
    Some(Compiler {
        release: field("release")?.to_owned(),
        host: field("host")?.to_owned(),
        llvm_major: llvm.split('.').next()?.parse().ok()?,
        sysroot,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_release_matches_the_toolchain_file() {
        let text = std::fs::read_to_string(workspace::root().join("rust-toolchain.toml")).unwrap();
        assert!(text.contains(&format!("channel = \"{RELEASE}\"")), "{text}");
    }

    #[test]
    fn versions_are_read_from_the_output_of_rustc() {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n\
            release: 1.95.0\nLLVM version: 22.1.2";
        let compiler = parse_version(text, PathBuf::from("/s")).unwrap();
        assert_eq!((compiler.release.as_str(), compiler.llvm_major), ("1.95.0", 22));
        assert_eq!(compiler.host, "x86_64-unknown-linux-gnu");
        assert_eq!(parse_version("rustc 1.95.0", PathBuf::from("/s")), None);
        assert_eq!(parse_version(&text.replace("22.1.2", "unknown"), PathBuf::from("/s")), None);
    }
}
