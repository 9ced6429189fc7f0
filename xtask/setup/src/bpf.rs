//! The compiler and linker for the kernel programs, assembled from installed parts. It compiles nothing itself.
//!
//! ```text
//! XDP_INGRESS_BPF_RUSTC  →  active compiler with its source  →  its twin in rustup's home  →  private sysroot in the cache
//!        else install:      rustup component add rust-src     →  Debian's rust-src of the same version
//! ```

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::cache::{self, Cache};
use super::compiler::{self, Compiler, RELEASE};
use super::{linker, rust_src};
use xtask_tools::progress;

/// Names a compiler with the source of its standard library beside it, to be used instead of all others.
const RUSTC_VARIABLE: &str = "XDP_INGRESS_BPF_RUSTC";
/// The value `debian` skips rustup. This tests the way through Debian's package on a machine that has both.
const SOURCE_VARIABLE: &str = "XDP_INGRESS_RUST_SRC";

/// The tools that build the kernel programs.
#[derive(Debug)]
pub struct BpfToolchain {
    /// The compiler to call; it finds the source of its own standard library.
    pub rustc: PathBuf,
    /// The compiler that `rustc` is or stands for; the linker uses the LLVM in its `lib/`.
    pub compiler: Compiler,
    /// bpf-linker.
    pub linker: PathBuf,
}

/// Returns the toolchain; installs missing parts.
///
/// # Errors
/// Fails if a part is missing and cannot be installed here. The error names the commands that would help.
pub fn ensure() -> Result<BpfToolchain> {
    let (rustc, compiler) = ensure_compiler()?;
    let linker = cache::kept("bpf-linker", linker::find, linker::install)?;
    if compiler.llvm_major != linker::LLVM_MAJOR {
        progress::warn(&format!(
            "rustc {} has LLVM {}, but bpf-linker {} is made for LLVM {}: expect errors about bitcode",
            compiler.release,
            compiler.llvm_major,
            linker::VERSION,
            linker::LLVM_MAJOR
        ));
    }
    Ok(BpfToolchain { rustc, compiler, linker })
}

fn ensure_compiler() -> Result<(PathBuf, Compiler)> {
    if let Some(rustc) = env::var_os(RUSTC_VARIABLE).map(PathBuf::from) {
        let compiler = Compiler::ask(&rustc).with_context(|| format!("`{RUSTC_VARIABLE}` names no compiler"))?;
        if !compiler.has_source() {
            bail!("`{RUSTC_VARIABLE}` names `{}`, which has no source of the standard library", rustc.display());
        }
        return Ok((rustc, compiler));
    }
    let active = Compiler::active()?;
    let only_debian = only_debian()?;
    if let Some(found) = find(&active, only_debian)? {
        return Ok(found);
    }
    let mut reasons = Vec::new();
    if !only_debian {
        let added = rust_src::add_component(&active);
        reasons.extend(added.err().map(|error| format!("rustup: {error:#}")));
    }
    if find(&active, only_debian)?.is_none() {
        let cache = Cache::lock()?;
        // Another process may have fetched it while this one waited for the lock.
        if !rust_src::is_fetched()? {
            let fetched = rust_src::fetch_from_debian(&cache);
            reasons.extend(fetched.err().map(|error| format!("Debian: {error:#}")));
        }
    }
    find(&active, only_debian)?.with_context(|| {
        format!(
            "the kernel programs need the source of the standard library of rustc {RELEASE}, which cannot be had here\n  \
             {}\nrun `rustup toolchain install {RELEASE} --component rust-src` where rustup's servers can be reached, then \
             `cargo xtask setup`; or set `{RUSTC_VARIABLE}` to a compiler that has its source",
            reasons.join("\n  ")
        )
    })
}

fn find(active: &Compiler, only_debian: bool) -> Result<Option<(PathBuf, Compiler)>> {
    if !only_debian {
        let with_source = active.has_source().then(|| active.clone()).or_else(|| compiler::rustup_twin(active));
        if let Some(compiler) = with_source {
            return Ok(Some((compiler.sysroot.join("bin/rustc"), compiler)));
        }
    }
    Ok(rust_src::private_sysroot(active)?.map(|rustc| (rustc, active.clone())))
}

fn only_debian() -> Result<bool> {
    match env::var(SOURCE_VARIABLE).as_deref() {
        Err(env::VarError::NotPresent) | Ok("" | "auto") => Ok(false),
        Ok("debian") => Ok(true),
        other => bail!("`{SOURCE_VARIABLE}` is {other:?}; it may be `auto` or `debian`"),
    }
}
