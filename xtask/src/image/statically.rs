//! Builds the programs of the images so that they need nothing but a kernel: one file, linked statically.
//! It decides how; what becomes of the files is the caller's affair.

use std::env::{self, consts::ARCH};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::{self, Profile};
use crate::setup::Compiler;
use crate::{process, workspace};

/// The programs, linked statically.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) xdp_ingress: PathBuf,
    pub(super) echo_server: PathBuf,
}

/// Builds all of them in one go, so that what they share is compiled once.
///
/// # Errors
/// When something does not compile.
pub(super) fn build(profile: Profile) -> Result<Programs> {
    let target = target(&Compiler::active()?);
    process::run(&mut command(&target, profile))?;
    let place = workspace::target_dir().join(&target).join(profile.dir());
    let program = |name: &str| {
        let path = place.join(name);
        std::fs::metadata(&path).with_context(|| format!("cargo succeeded but left no `{}`", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    Ok(Programs { xdp_ingress: program("xdp-ingress")?, echo_server: program("echo-server")? })
}

fn command(target: &str, profile: Profile) -> Command {
    let mut cargo = build::cargo();
    // A named target, even if it is this machine's own, keeps the flags away from build scripts and macros, which have
    // to load shared libraries.
    cargo.args(["build", "--target", target]);
    cargo.args(["--package", "ingress-userspace", "--bin", "xdp-ingress"]);
    cargo.args(["--package", "xtask", "--bin", "echo-server"]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags().join("\x1f")).env_remove("RUSTFLAGS");
    // Assertions of the C parts name their source files.
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), prefixes("-ffile-prefix-map").join(" "));
    cargo
}

fn flags() -> Vec<String> {
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned(), "-Cstrip=debuginfo".to_owned()];
    flags.extend(prefixes("--remap-path-prefix"));
    flags
}

/// What hides where this work tree, cargo's home and the compiler are: the same sources give the same bytes anywhere.
fn prefixes(flag: &str) -> Vec<String> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let mut map = vec![format!("{flag}={}=/src", workspace::root().display())];
    map.extend(cargo_home.map(|home| format!("{flag}={}=/cargo", home.display())));
    map
}

/// musl where the toolchain and the C compiler for it are there, because its programs are smaller; else glibc.
fn target(compiler: &Compiler) -> String {
    let musl = format!("{ARCH}-unknown-linux-musl");
    let has_std = compiler.sysroot.join("lib/rustlib").join(&musl).join("lib").is_dir();
    // The TLS library has parts in C.
    let has_cc = ["musl-gcc", &format!("{ARCH}-linux-musl-gcc")].iter().any(|cc| process::find_program(cc).is_some());
    if has_std && has_cc { musl } else { compiler.host.clone() }
}

/// Whether an ELF program names a dynamic linker that has to be there to start it (program header PT_INTERP).
///
/// # Errors
/// When this is no 64-bit little-endian ELF file.
pub(super) fn wants_interpreter(elf: &[u8]) -> Result<bool> {
    const PT_INTERP: u64 = 3;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        bail!("not a 64-bit little-endian ELF file");
    }
    let number = |at: u64, bytes: usize| -> Result<u64> {
        let at = usize::try_from(at)?;
        let field = elf.get(at..at + bytes).context("the program headers lie outside of the file")?;
        Ok(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    // e_phoff, e_phentsize, e_phnum; p_type is the first field of a program header (ELF-64 object file format).
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        if number(table + index * size, 4)? == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler(sysroot: &Path) -> Compiler {
        Compiler {
            release: "1".to_owned(),
            host: format!("{ARCH}-unknown-linux-gnu"),
            llvm_major: 1,
            sysroot: sysroot.to_owned(),
        }
    }

    #[test]
    fn without_musl_it_is_the_hosts_own_c_library() {
        assert_eq!(target(&compiler(Path::new("/no/such/sysroot"))), format!("{ARCH}-unknown-linux-gnu"));
    }

    #[test]
    fn an_ordinary_program_wants_an_interpreter() {
        // This test itself is linked like every program of the development profile.
        let own = std::fs::read(env::current_exe().expect("a path")).expect("readable");
        assert!(wants_interpreter(&own).expect("an ELF file"));
        assert!(wants_interpreter(b"#!/bin/sh").is_err());
    }

    #[test]
    fn a_program_without_program_headers_wants_none() {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64, 0);
        assert!(!wants_interpreter(&elf).expect("an ELF file"));
        // One program header where the file has already ended.
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        assert!(wants_interpreter(&elf).is_err());
    }
}
