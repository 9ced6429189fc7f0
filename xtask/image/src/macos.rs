//! Builds the plugin of kubectl for macOS on another system, with zig as C compiler and linker. zig has the C library of
//! macOS, but no frameworks. Of these the linker needs only the names that the plugin uses, which are below; macOS
//! brings the rest. Programs that were linked so cannot be started here.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Platform;
use super::programs::{PLUGIN, prefixes};
use xtask_setup::Compiler;
use xtask_setup::build::Profile;
use xtask_tools::{process, workspace};

/// Frameworks of macOS, each with the names that the plugin and its libraries use: trust in certificates, and the servers
/// of DNS. The linker tells which name is missing here.
const FRAMEWORKS: [(&str, &[&str]); 3] = [
    (
        "CoreFoundation",
        &[
            "CFArrayCreate",
            "CFArrayGetCount",
            "CFArrayGetValueAtIndex",
            "CFDataCreate",
            "CFDateCreate",
            "CFDictionaryCreate",
            "CFDictionaryGetTypeID",
            "CFDictionaryGetValueIfPresent",
            "CFErrorCopyDescription",
            "CFErrorGetCode",
            "CFGetTypeID",
            "CFRelease",
            "CFRetain",
            "CFStringCreateWithBytes",
            "CFStringCreateWithBytesNoCopy",
            "CFStringGetBytes",
            "CFStringGetCStringPtr",
            "CFStringGetLength",
            "kCFAbsoluteTimeIntervalSince1970",
            "kCFAllocatorDefault",
            "kCFAllocatorNull",
            "kCFBooleanFalse",
            "kCFBooleanTrue",
            "kCFTypeArrayCallBacks",
            "kCFTypeDictionaryKeyCallBacks",
            "kCFTypeDictionaryValueCallBacks",
        ],
    ),
    (
        "Security",
        &[
            "SecCertificateCopySubjectSummary",
            "SecCertificateCreateWithData",
            "SecCopyErrorMessageString",
            "SecPolicyCreateSSL",
            "SecTrustCreateWithCertificates",
            "SecTrustEvaluateWithError",
            "SecTrustSetAnchorCertificates",
            "SecTrustSetAnchorCertificatesOnly",
            "SecTrustSetOCSPResponse",
            "SecTrustSetVerifyDate",
        ],
    ),
    (
        "SystemConfiguration",
        &["SCDynamicStoreCopyValue", "SCDynamicStoreCreateWithOptions", "kSCDynamicStoreUseSessionKeys"],
    ),
];

/// Oldest macOS on which the plugin starts, the first for arm64; zig alone would take a newer one.
const OLDEST: u32 = 11;
/// Beginning of a 64-bit little-endian program, and numbers of load commands in it (`mach-o/loader.h`).
const MAGIC: u32 = 0xfeed_facf;
const LC_BUILD_VERSION: u32 = 0x32;
const LC_CODE_SIGNATURE: u32 = 0x1d;
const LC_LOAD_DYLIB: u32 = 0xc;
const LC_LOAD_WEAK_DYLIB: u32 = 0x8000_0018;
/// Size of the header in front of the load commands.
const HEADER: usize = 32;

/// Builds the plugin for an architecture of macOS, and returns the program.
///
/// # Errors
/// Fails if it does not compile, zig or the standard library for macOS cannot be had, or a Mac could not start it.
pub(super) fn build(profile: Profile, architecture: Platform) -> Result<Vec<u8>> {
    let path = compile(profile, architecture)?;
    let program = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    can_start(&program, architecture).with_context(|| format!("in `{}`", path.display()))?;
    Ok(program)
}

fn compile(profile: Profile, architecture: Platform) -> Result<PathBuf> {
    let zig = xtask_setup::zig()?;
    let target = format!("{}-apple-darwin", architecture.rust());
    Compiler::active()?.with_target(&target)?;
    let frameworks = workspace::target_dir().join("macos-frameworks");
    write_frameworks(&frameworks)?;
    let (package, program) = PLUGIN;
    let mut cargo = zig.cargo();
    cargo.args(["--target", &target, "--package", package, "--bin", program]);
    // A training run would teach it nothing, as on Linux.
    let profile = if profile == Profile::Dev { Profile::Dev } else { Profile::Release };
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    let mut flags = vec![format!("-Lframework={}", frameworks.display()), "-Cstrip=symbols".to_owned()];
    flags.extend(prefixes("--remap-path-prefix"));
    cargo.env("MACOSX_DEPLOYMENT_TARGET", format!("{OLDEST}.0"));
    // Its symbols are removed in any case.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS");
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), prefixes("-ffile-prefix-map").join(" "));
    process::run(&mut cargo)?;
    Ok(workspace::target_dir().join(target).join(profile.dir()).join(program))
}

/// Writes each framework as a directory with the list of its names, as linkers read it.
fn write_frameworks(place: &Path) -> Result<()> {
    for (framework, names) in FRAMEWORKS {
        let dir = place.join(format!("{framework}.framework"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
        let file = dir.join(format!("{framework}.tbd"));
        fs::write(&file, list(framework, names)).with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    Ok(())
}

/// Returns a text-based stub library, version 4. Names of C begin with an underscore in programs of macOS.
fn list(framework: &str, names: &[&str]) -> String {
    let targets = "[ x86_64-macos, arm64-macos ]";
    let names: Vec<_> = names.iter().map(|name| format!("_{name}")).collect();
    format!(
        "--- !tapi-tbd
tbd-version: 4
targets: {targets}
install-name: '/System/Library/Frameworks/{framework}.framework/Versions/A/{framework}'
exports:
  - targets: {targets}
    symbols: [ {} ]
...
",
        names.join(", ")
    )
}

/// Checks what macOS demands of a program: its version, libraries of the system alone, and on arm64 a signature.
fn can_start(program: &[u8], architecture: Platform) -> Result<()> {
    let number = |at: usize| -> Result<u32> {
        let bytes = program.get(at..at + 4).context("the load commands lie outside of the file")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    ensure!(number(0)? == MAGIC, "not a 64-bit little-endian Mach-O file");
    let (mut at, mut is_signed) = (HEADER, false);
    for _ in 0..number(16)? {
        let (command, size) = (number(at)?, usize::try_from(number(at + 4)?)?);
        match command {
            // The upper half of a version is its first number.
            LC_BUILD_VERSION => {
                let oldest = number(at + 12)? >> 16;
                ensure!(oldest <= OLDEST, "it needs macOS {oldest}, and not {OLDEST}");
            }
            LC_CODE_SIGNATURE => is_signed = true,
            LC_LOAD_DYLIB | LC_LOAD_WEAK_DYLIB => {
                let name = at + usize::try_from(number(at + 8)?)?;
                let name = program.get(name..at + size).context("the name of a library lies outside of the file")?;
                let name = String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default());
                let is_of_system = ["/usr/lib/", "/System/Library/"].iter().any(|place| name.starts_with(place));
                ensure!(is_of_system, "it needs `{name}`, which macOS does not have");
            }
            _ => {}
        }
        at += size;
    }
    ensure!(is_signed || architecture != Platform::Arm64, "it has no signature, without which arm64 does not start it");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a program with these load commands, each with its content after number and size.
    fn program(commands: &[(u32, &[u8])]) -> Vec<u8> {
        let mut made = MAGIC.to_le_bytes().to_vec();
        made.resize(HEADER, 0);
        made[16] = u8::try_from(commands.len()).expect("few");
        for (command, content) in commands {
            made.extend(command.to_le_bytes());
            made.extend(u32::try_from(8 + content.len()).expect("small").to_le_bytes());
            made.extend(*content);
        }
        made
    }

    /// Returns the content of a command that loads a library: place of the name, time, two versions, name.
    fn library(name: &str) -> Vec<u8> {
        let mut content = 24_u32.to_le_bytes().to_vec();
        content.resize(16, 0);
        content.extend(name.as_bytes());
        content.push(0);
        content
    }

    #[test]
    fn a_program_needs_only_libraries_of_the_system_and_on_arm64_a_signature() {
        let [system, framework] = ["/usr/lib/libSystem.B.dylib", "/System/Library/Frameworks/A"].map(library);
        let other = library("/opt/lib/libz.dylib");
        let unsigned = program(&[(LC_LOAD_DYLIB, &system), (LC_LOAD_WEAK_DYLIB, &framework)]);
        let signed = program(&[(LC_CODE_SIGNATURE, &[0; 8]), (LC_LOAD_DYLIB, &system)]);
        // Number of the system, oldest version, version of the SDK, number of tools.
        let version = |oldest: u8| [1, 0, 0, 0, 0, 0, oldest, 0, 0, 0, 15, 0, 0, 0, 0, 0];
        let [known, newer] = [11, 15].map(|oldest| program(&[(LC_BUILD_VERSION, &version(oldest))]));
        let foreign = program(&[(LC_CODE_SIGNATURE, &[0; 8]), (LC_LOAD_DYLIB, &other)]);
        for (program, architecture, fine) in [
            (&unsigned[..], Platform::Amd64, true),
            (&unsigned, Platform::Arm64, false),
            (&signed, Platform::Arm64, true),
            (&foreign, Platform::Arm64, false),
            (&known, Platform::Amd64, true),
            (&newer, Platform::Amd64, false),
            (&signed[..signed.len() - 30], Platform::Arm64, false),
            (b"\x7fELF", Platform::Amd64, false),
        ] {
            assert_eq!(can_start(program, architecture).is_ok(), fine, "{program:?}");
        }
    }

    #[test]
    #[ignore = "fetches 100 MB and compiles the plugin, which takes minutes"]
    fn the_plugin_is_linked_for_macos() {
        for architecture in [Platform::Arm64, Platform::Amd64] {
            build(Profile::Dev, architecture).expect("a program");
        }
    }

    #[test]
    fn a_list_has_the_place_of_the_framework_and_names_as_in_c() {
        let text = list("Security", &["SecA", "kSecB"]);
        assert!(text.contains("/Security.framework/Versions/A/Security'"), "{text}");
        assert!(text.contains("symbols: [ _SecA, _kSecB ]"), "{text}");
    }

    #[test]
    fn names_are_in_order_and_once() {
        for (framework, names) in FRAMEWORKS {
            assert!(names.is_sorted_by(|one, two| one < two), "{framework}");
        }
    }
}
