//! Builds the programs of the images, so that they start in an image with no other files. The caller decides about the
//! use of the files.
//!
//! | profile | linked | why |
//! |---|---|---|
//! | release, guided | statically: one file that needs only a kernel | the shipped images |
//! | dev | dynamically, as for every other use, and packed with its shared libraries | tests need no second build |

use std::collections::BTreeSet;
use std::env::{self, consts::ARCH};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Platform;
use super::oci::File;
use xtask_setup::Compiler;
use xtask_setup::build::{self, Profile, ReleaseBuild};
use xtask_tools::{process, workspace};

/// A package and its program.
pub(super) type Program = (&'static str, &'static str);

/// The product, which is all that a release has in its image.
pub(super) const PRODUCT: Program = ("ingress-userspace", XDP_INGRESS);
/// The programs in the images of this machine.
pub(super) const PROGRAMS: [Program; 2] = [PRODUCT, ("ingress-lab", ECHO_SERVER)];
/// The product.
pub(super) const XDP_INGRESS: &str = "xdp-ingress";
/// The plugin of kubectl, which is in no image, and its package.
pub(super) const PLUGIN: Program = ("ingress-cli", "kubectl-xdp_ingress");
/// The test pod.
pub(super) const ECHO_SERVER: &str = "echo-server";

/// Builds `programs`, some of [`PROGRAMS`], and returns their directory.
///
/// # Errors
/// Fails if something does not compile.
pub(super) fn build(profile: Profile, programs: &[Program]) -> Result<PathBuf> {
    match profile {
        Profile::Dev => development(programs),
        Profile::Release => statically(programs, &usual()),
        Profile::Guided => build::guided(XDP_INGRESS, |guided| statically(programs, guided)),
    }
}

fn development(programs: &[Program]) -> Result<PathBuf> {
    build::userspace(Profile::Dev)?;
    // The product has the features of a release; other programs have those of the tools, which share their dependencies.
    for (_, program) in programs.iter().filter(|program| **program != PRODUCT) {
        process::run(build::cargo().args(["build", "--workspace", "--bin", program]))?;
    }
    Ok(workspace::target_dir().join(Profile::Dev.dir()))
}

fn statically(programs: &[Program], further: &ReleaseBuild) -> Result<PathBuf> {
    compile(programs, &target(&Compiler::active()?), further, &[])
}

/// Returns the settings of a build without counts.
fn usual() -> ReleaseBuild {
    ReleaseBuild { target_dir: workspace::target_dir(), flags: Vec::new(), arguments: Vec::new() }
}

/// Builds a release of the product for another platform than this machine's, and returns its directory. Installs the
/// cross compiler.
///
/// # Errors
/// Fails if something does not compile, or this machine cannot build for that platform.
pub(super) fn cross(platform: Platform) -> Result<PathBuf> {
    cross_compile(&[PRODUCT], platform)
}

/// Builds the plugin for `platform` and returns its path.
///
/// # Errors
/// As [`cross`].
pub(super) fn plugin(profile: Profile, platform: Platform) -> Result<PathBuf> {
    let (package, program) = PLUGIN;
    let place = match (profile, platform.is_this_machine()) {
        (Profile::Dev, _) => {
            process::run(build::cargo().args(["build", "--package", package, "--bin", program]))?;
            workspace::target_dir().join(Profile::Dev.dir())
        }
        // A training run would teach it nothing: it waits for servers.
        (Profile::Release | Profile::Guided, true) => statically(&[PLUGIN], &usual())?,
        (Profile::Release | Profile::Guided, false) => cross_compile(&[PLUGIN], platform)?,
    };
    Ok(place.join(program))
}

fn cross_compile(programs: &[Program], platform: Platform) -> Result<PathBuf> {
    let tools = platform.cross_tools()?;
    let target = format!("{}-unknown-linux-gnu", platform.rust());
    Compiler::active()?.with_target(&target)?;
    let lower = target.replace('-', "_");
    let upper = lower.to_uppercase();
    let variables = [(format!("CARGO_TARGET_{upper}_LINKER"), tools.clone()), (format!("CC_{lower}"), tools)];
    compile(programs, &target, &usual(), &variables)
}

fn compile(
    programs: &[Program],
    target: &str,
    ReleaseBuild { target_dir, flags: further_flags, arguments }: &ReleaseBuild,
    variables: &[(String, String)],
) -> Result<PathBuf> {
    let mut cargo = build::cargo();
    // An explicit target, even if it is this machine's own, keeps the flags away from build scripts and macros, which
    // have to load shared libraries.
    cargo.args(["build", "--release", "--target", target, "--target-dir"]).arg(target_dir).args(arguments);
    // Built together, so that shared dependencies are compiled once.
    for (package, program) in programs {
        cargo.args(["--package", package, "--bin", program]);
    }
    let flags = [&flags()[..], further_flags].concat();
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS");
    // Assertions in the C parts contain the names of their source files.
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), prefixes("-ffile-prefix-map").join(" "));
    cargo.envs(variables.iter().map(|(name, value)| (name, value)));
    process::run(&mut cargo)?;
    Ok(target_dir.join(target).join(Profile::Release.dir()))
}

/// Returns the files for the program at `path` in an image: the program under the path `as_path`, and the shared
/// libraries that it needs, if any.
///
/// # Errors
/// Fails if the program or a library cannot be read, or a program of the release profile is not static.
pub(super) fn pack(path: &Path, as_path: &str, profile: Profile) -> Result<Vec<File>> {
    let content = read(path)?;
    let mut files = Vec::new();
    match (profile, wants_interpreter(&content).with_context(|| format!("in `{}`", path.display()))?) {
        (_, false) => {}
        (Profile::Dev, true) => {
            let listed = process::capture(Command::new("ldd").arg(path).env("LC_ALL", "C"))?;
            for library in libraries(&listed) {
                files.push(File { mode: 0o755, content: read(Path::new(&library))?, path: library });
            }
            ensure!(!files.is_empty(), "`ldd {}` names no libraries:\n{listed}", path.display());
        }
        (Profile::Release | Profile::Guided, true) => {
            bail!("`{}` is not static and would not start in an image without a C library", path.display())
        }
    }
    files.push(File { path: as_path.to_owned(), mode: 0o755, content });
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Returns the files that `ldd` lists: `name => /path (address)`, or `/path (address)` for the dynamic linker.
fn libraries(listed: &str) -> BTreeSet<String> {
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(str::to_owned)
        .collect()
}

fn flags() -> Vec<String> {
    // Symbol names and the build id contain hashes of build paths. Line numbers would be made, optimised and stripped.
    let flags = ["-Ctarget-feature=+crt-static", "-Cdebuginfo=0", "-Cstrip=symbols", "-Clink-arg=-Wl,--build-id=none"];
    let mut flags = flags.map(str::to_owned).to_vec();
    flags.extend(prefixes("--remap-path-prefix"));
    flags
}

/// Returns the flags that hide the paths of this work tree, of cargo's home and of the compiler: the same sources give
/// the same bytes anywhere.
pub(super) fn prefixes(flag: &str) -> Vec<String> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let mut map = vec![format!("{flag}={}=/src", workspace::root().display())];
    map.extend(cargo_home.map(|home| format!("{flag}={}=/cargo", home.display())));
    map
}

/// Returns the target: musl if the toolchain and the C compiler for it are present, because its programs are smaller;
/// else glibc.
fn target(compiler: &Compiler) -> String {
    let musl = format!("{ARCH}-unknown-linux-musl");
    let has_std = compiler.sysroot.join("lib/rustlib").join(&musl).join("lib").is_dir();
    // The TLS library has parts in C.
    let has_cc = ["musl-gcc", &format!("{ARCH}-linux-musl-gcc")].iter().any(|cc| process::find_program(cc).is_some());
    if has_std && has_cc { musl } else { compiler.host.clone() }
}

/// Returns `true` if an ELF program names a dynamic linker, which must exist to start it (program header PT_INTERP).
///
/// # Errors
/// Fails if `elf` is not a 64-bit little-endian ELF file.
fn wants_interpreter(elf: &[u8]) -> Result<bool> {
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
    fn the_target_falls_back_to_gnu_without_musl() {
        assert_eq!(target(&compiler(Path::new("/no/such/sysroot"))), format!("{ARCH}-unknown-linux-gnu"));
    }

    #[test]
    fn an_ordinary_program_needs_an_interpreter() {
        // This test itself is linked like every program of the development profile.
        let own = fs::read(env::current_exe().expect("a path")).expect("readable");
        assert!(wants_interpreter(&own).expect("an ELF file"));
        assert!(wants_interpreter(b"#!/bin/sh").is_err());
    }

    #[test]
    fn the_dynamic_linker_is_one_of_the_libraries() {
        let listed =
            "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so.2 (0x00007f)";
        assert_eq!(libraries(listed).into_iter().collect::<Vec<_>>(), ["/lib/x/libc.so.6", "/lib64/ld.so.2"]);
        assert!(libraries("\tstatically linked").is_empty());
    }

    #[test]
    fn dev_images_include_libraries_and_releases_must_be_static() {
        let own = env::current_exe().expect("a path");
        let files = pack(&own, "/usr/bin/own", Profile::Dev).expect("packed");
        assert!(files.iter().any(|file| file.path.contains("/libc.so")), "{:?}", files.iter().map(|file| &file.path));
        assert_eq!(files.last().map(|file| file.path.as_str()), Some("/usr/bin/own"));
        assert!(pack(&own, "/usr/bin/own", Profile::Release).is_err());
    }

    #[test]
    fn a_program_without_program_headers_needs_no_interpreter() {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64, 0);
        assert!(!wants_interpreter(&elf).expect("an ELF file"));
        // A single program header, at an offset beyond the end of the file.
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        assert!(wants_interpreter(&elf).is_err());
    }
}
