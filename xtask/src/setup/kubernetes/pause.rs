//! The image of the container that holds a pod's namespaces, made from one static program without any tool of
//! containers. It makes no other image.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::setup::cache::Cache;
use crate::{process, workspace};

/// The image's name. No registry has it: it is imported into every node.
pub(super) const NAME: &str = "xdp-ingress.local/pause:1";
const SOURCE: &str = include_str!("../../../kubernetes/pause.rs");
const FILE: &str = "pause.tar";
const LIMIT: Duration = Duration::from_secs(300);
const BLOCK: usize = 512;

/// Where the image archive is kept, whether or not it is there yet.
///
/// # Errors
/// When there is no cache directory.
pub(super) fn place() -> Result<PathBuf> {
    Ok(workspace::cache_dir()?.join(dir_name()).join(FILE))
}

/// Whether the archive is in the cache.
///
/// # Errors
/// When there is no cache directory.
pub(super) fn is_there() -> Result<bool> {
    Ok(place()?.is_file())
}

/// Compiles the program and packs it.
///
/// # Errors
/// When the compiler cannot make a static program here.
pub(super) fn install(cache: &Cache) -> Result<()> {
    cache.install(&dir_name(), |staging| {
        let (source, program) = (staging.join("pause.rs"), staging.join("pause"));
        fs::write(&source, SOURCE)?;
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols"]);
        rustc.args(["-C", "target-feature=+crt-static", "-o"]).arg(&program).arg(&source);
        process::run_shown("compiling the pause program", &mut rustc, LIMIT)
            .context("cannot compile a static program; Debian's package `libc6-dev` holds the static C library")?;
        let program = fs::read(&program).context("cannot read the pause program")?;
        fs::write(staging.join(FILE), image(&program, architecture()?)).context("cannot write the pause image")
    })?;
    Ok(())
}

fn dir_name() -> String {
    format!("pause-{}", &hex(SOURCE.as_bytes())[..12])
}

/// This machine's architecture in the words of OCI images.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no image can be made for `{other}`; only amd64 and arm64 are known"),
    }
}

/// An archive with an OCI image layout (image-spec `image-layout.md`) of one layer with one program.
fn image(program: &[u8], architecture: &str) -> Vec<u8> {
    let layer = archive(&[("pause".to_owned(), program)]);
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({"io.containerd.image.name": NAME});
    entry["platform"] = json!({"architecture": architecture, "os": "linux"});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into_bytes();
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", hex(bytes));
    archive(&[
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json".to_owned(), &index),
        (blob(&layer), &layer),
        (blob(&config), &config),
        (blob(&manifest), &manifest),
    ])
}

fn descriptor(media_type: &str, bytes: &[u8]) -> serde_json::Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tar archive (POSIX ustar) of executable files that belong to root, without times, so that equal files make equal
/// archives.
fn archive(files: &[(String, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, content) in files {
        out.extend(header(path, content.len()));
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

fn header(path: &str, size: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |offset: usize, text: &str| block[offset..offset + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000755");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    // The checksum is taken with blanks in its own field.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_understands_the_archive() {
        let dir = tempfile_dir();
        let path = dir.join("a.tar");
        fs::write(&path, archive(&[("a".to_owned(), b"x"), ("b/c".to_owned(), &[7; 600])])).unwrap();
        let listing = process::capture(Command::new("tar").arg("-tvf").arg(&path)).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let words: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words.len(), 2, "{listing}");
        assert_eq!((words[0][0], words[0][2], words[0].last()), ("-rwxr-xr-x", "1", Some(&"a")));
        assert_eq!((words[1][2], words[1].last()), ("600", Some(&"b/c")));
    }

    #[test]
    fn equal_programs_make_equal_images() {
        assert_eq!(image(b"program", "amd64"), image(b"program", "amd64"));
        assert_ne!(image(b"program", "amd64"), image(b"program", "arm64"));
    }

    #[test]
    fn every_blob_is_named_by_its_digest() {
        let image = image(b"program", "amd64");
        let text = String::from_utf8_lossy(&image);
        let layer = archive(&[("pause".to_owned(), b"program")]);
        assert!(text.contains(&format!("blobs/sha256/{}", hex(&layer))));
        assert!(text.contains(&format!(r#""diff_ids":["{}"]"#, digest(&layer))));
    }

    fn tempfile_dir() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xdp-ingress-pause-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}
