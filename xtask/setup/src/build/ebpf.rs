//! Builds the kernel programs for the BPF target and puts the object at the path from which userspace embeds it.
//! It installs nothing; the caller passes a complete toolchain.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::btf;
use super::stamp::Stamp;
use crate::{BpfToolchain, LINKER_VERSION};
use xtask_tools::{process, progress, workspace};

/// BPF runs in the byte order of the machine, and all supported machines are little-endian.
const TARGET: &str = "bpfel-unknown-none";
/// Inputs of the object, besides the toolchain.
const SOURCES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "ingress-common", "ingress-ebpf"];

/// Treatment of an up-to-date object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Reuse it.
    Reuse,
    /// Run cargo in any case.
    Rebuild,
}

/// Builds the object if anything it depends on changed, and returns its path.
///
/// # Errors
/// Fails if the programs do not compile, or files cannot be read or written.
pub(super) fn build(toolchain: &BpfToolchain, freshness: Freshness) -> Result<PathBuf> {
    let object = workspace::ebpf_object();
    let stamp_file = object.with_extension("stamp");
    let stamp = stamp(toolchain)?;
    let fresh = object.is_file() && fs::read_to_string(&stamp_file).is_ok_and(|last| last == stamp);
    if fresh && freshness == Freshness::Reuse {
        return Ok(object);
    }
    progress::note("building the kernel programs …");
    process::run(&mut command(toolchain))?;
    let built = workspace::ebpf_target_dir().join(TARGET).join("release/ingress-ebpf");
    let content = fs::read(&built).with_context(|| format!("cargo succeeded but left no `{}`", built.display()))?;
    let content = btf::name_chars(&content).with_context(|| format!("cannot finish `{}`", built.display()))?;
    // An unchanged object keeps its modification time, so that userspace is not rebuilt.
    if !fs::read(&object).is_ok_and(|present| present == content) {
        replace(&object, &content)?;
    }
    replace(&stamp_file, stamp.as_bytes())?;
    Ok(object)
}

fn command(toolchain: &BpfToolchain) -> Command {
    let compiler = &toolchain.compiler;
    let mut cargo = Command::new(compiler.sysroot.join("bin/cargo"));
    cargo.current_dir(workspace::root());
    cargo.args(["build", "--release", "--package", "ingress-ebpf", "--bin", "ingress-ebpf"]);
    cargo.args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"]).arg(workspace::ebpf_target_dir());
    cargo.env("RUSTC", &toolchain.rustc);
    // This is a release compiler with the source of its own standard library; the variable permits `-Zbuild-std`.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags().join("\x1f"));
    cargo.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker);
    // bpf-linker loads the compiler's LLVM from here.
    cargo.env("LD_LIBRARY_PATH", process::prepend_path("LD_LIBRARY_PATH", &compiler.sysroot.join("lib")));
    for leak in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS"] {
        cargo.env_remove(leak);
    }
    cargo
}

fn flags() -> [String; 6] {
    let arch = format!("--cfg=bpf_target_arch=\"{ARCH}\"");
    // BTF names source files; the build directory must not appear in it.
    let anywhere = format!("--remap-path-prefix={}=/src", workspace::root().display());
    // Registers of 32 bits, for shorter code, and 32-bit jumps (both kernel 5.1). The registers without the jumps are
    // wrong: LLVM 22 then compares a zero-extended 32-bit value with a sign-extended constant, and no value equals
    // `u32::MAX`.
    let cpu = "-Ctarget-cpu=v3".to_owned();
    // Otherwise LLVM sets and copies bytes by functions with loops: slower, and the verifier of Linux 6.1 forgets at each
    // call which values it need not tell apart.
    let inline = "-Clink-arg=--disable-expand-memcpy-in-order".to_owned();
    [arch, anywhere, cpu, "-Cdebuginfo=2".to_owned(), "-Clink-arg=--btf".to_owned(), inline]
}

fn stamp(toolchain: &BpfToolchain) -> Result<String> {
    let mut stamp = Stamp::default();
    let rustc = toolchain.rustc.to_string_lossy();
    for text in [toolchain.compiler.release.as_str(), &rustc, LINKER_VERSION, TARGET, btf::VERSION] {
        stamp.text(text);
    }
    flags().iter().for_each(|flag| stamp.text(flag));
    for source in SOURCES {
        stamp.path(workspace::root(), source)?;
    }
    Ok(stamp.finish())
}

fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let staging = path.with_extension(format!("tmp-{}", std::process::id()));
    let dir = path.parent().context("an output path has a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    fs::write(&staging, content).with_context(|| format!("cannot write `{}`", staging.display()))?;
    fs::rename(&staging, path).with_context(|| format!("cannot write `{}`", path.display()))
}
