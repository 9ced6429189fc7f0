//! Writes container images: OCI image layouts in one tar file, from existing files. It needs no daemon, no registry and
//! no base image, and the same input gives the same bytes on every machine. It builds nothing and pushes nothing.
//!
//! There is one layer. Besides the layout (OCI image-spec, image-layout.md) the file contains a `manifest.json`, for
//! versions of `docker load` that know only the older format.

mod archive;
mod blob;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

pub use self::archive::{Archive, gzip};
pub use self::blob::Blob;

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index: manifests for several platforms, or the entries of a layout.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of an image's configuration.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Content of the file `oci-layout`.
pub const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Contents and configuration of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Full name with registry and tag, such as `localhost/xdp-ingress:0.1.0`; containerd looks it up literally.
    pub name: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments that users of the image usually replace.
    pub command: Vec<String>,
    /// Default user of the program: `UID:GID`.
    pub user: String,
    /// Labels of the configuration, which are also annotations of the manifest; keys of OCI's
    /// `org.opencontainers.image.*`.
    pub labels: BTreeMap<String, String>,
    /// All files in the root file system. Directories above a file are created with mode 0755.
    pub files: Vec<File>,
    /// Architecture of the programs, by its name in the OCI image specification: `amd64`.
    pub architecture: String,
    /// Time of the sources in seconds since 1970; without it the image tells none.
    pub created: Option<i64>,
    /// Form of the layer.
    pub compression: Compression,
}

/// Form of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed: tools that push to a registry compress by themselves, and the digest changes then.
    #[default]
    None,
    /// As registries keep it, so that the digest of the image is the same there.
    Gzip,
}

/// An image in the parts of which a registry or a layout is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The manifest; its digest is that of the image.
    pub manifest: Blob,
    /// Configuration and layer.
    pub blobs: [Blob; 2],
    /// `platform` of the manifest's entry in an index.
    pub platform: Value,
}

/// A regular file of an image; owner and group are 0, its time is the beginning of 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Absolute path inside the image.
    pub path: String,
    /// Permission bits, such as 0o755.
    pub mode: u32,
    /// Content of the file.
    pub content: Vec<u8>,
}

/// An image that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Digest of the manifest, by which the image can be named: `sha256:…`.
    pub digest: String,
    /// Size of the tar file in bytes.
    pub size: usize,
}

// === impl Image ===

impl Default for Image {
    /// Returns an image without files for this machine's architecture.
    fn default() -> Self {
        Self {
            name: String::new(),
            entrypoint: Vec::new(),
            command: Vec::new(),
            user: String::new(),
            labels: BTreeMap::new(),
            files: Vec::new(),
            architecture: architecture(std::env::consts::ARCH).to_owned(),
            created: None,
            compression: Compression::default(),
        }
    }
}

impl Image {
    /// Writes the image to `path`; an existing file is replaced atomically.
    ///
    /// # Errors
    /// Fails if a path in the image is not absolute and plain, occurs twice, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<Written> {
        let (bytes, digest) = self.layout().with_context(|| format!("cannot make the image `{}`", self.name))?;
        let dir = path.parent().context("the path of an image has a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
        let staging = path.with_extension(format!("tmp-{}", std::process::id()));
        fs::write(&staging, &bytes).with_context(|| format!("cannot write `{}`", staging.display()))?;
        fs::rename(&staging, path).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Written { digest, size: bytes.len() })
    }

    /// Returns the parts of the image.
    ///
    /// # Errors
    /// Fails if a path in the image is not absolute and plain, or occurs twice.
    pub fn parts(&self) -> Result<Parts> {
        let Self { name: _, entrypoint, command, user, labels, files, architecture, created, compression } = self;
        let plain = layer(files)?;
        let unpacked = Blob::new("application/vnd.oci.image.layer.v1.tar", plain);
        let unpacked_digest = unpacked.digest();
        let layer = match compression {
            Compression::None => unpacked,
            Compression::Gzip => Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", gzip(unpacked.content())?),
        };
        let mut config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": user,
                "Entrypoint": entrypoint,
                "Cmd": command,
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/"],
                "Labels": labels,
            },
            "rootfs": { "type": "layers", "diff_ids": [unpacked_digest] },
        });
        if let Some(seconds) = created {
            config["created"] = timestamp(*seconds)?.into();
        }
        let config = Blob::json(CONFIG, &config);
        let manifest = Blob::json(
            MANIFEST,
            &json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
                "annotations": labels,
            }),
        );
        let platform = json!({ "architecture": architecture, "os": "linux" });
        Ok(Parts { manifest, blobs: [config, layer], platform })
    }

    /// Returns the whole tar file, and the manifest's digest.
    fn layout(&self) -> Result<(Vec<u8>, String)> {
        let parts = self.parts()?;
        Ok((parts.archive(&self.name)?, parts.manifest.digest()))
    }
}

// === impl Parts ===

impl Parts {
    /// Returns a tar file with the parts as a layout, for tools that import an image under `name`.
    ///
    /// # Errors
    /// Fails if `name` has no registry or no tag.
    pub fn archive(&self, name: &str) -> Result<Vec<u8>> {
        let Self { manifest, blobs: [config, layer], platform } = self;
        let mut entry = manifest.descriptor();
        entry["platform"] = platform.clone();
        entry["annotations"] =
            json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag(name)? });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] }).to_string();
        let docker = json!([{ "Config": config.path(), "RepoTags": [name], "Layers": [layer.path()] }]).to_string();
        let mut all = BTreeMap::from([
            ("oci-layout".to_owned(), LAYOUT),
            ("index.json".to_owned(), index.as_bytes()),
            ("manifest.json".to_owned(), docker.as_bytes()),
        ]);
        all.extend([layer, config, manifest].map(|blob| (blob.path(), blob.content())));
        let mut archive = Archive::default();
        archive.directory("blobs", 0o755)?;
        archive.directory("blobs/sha256", 0o755)?;
        for (path, content) in &all {
            archive.file(path, 0o644, content)?;
        }
        archive.finish()
    }
}

fn layer(files: &[File]) -> Result<Vec<u8>> {
    let mut directories = BTreeSet::new();
    let mut sorted = BTreeMap::new();
    for file in files {
        let path = relative(&file.path)?;
        directories.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
        ensure!(sorted.insert(path, file).is_none(), "`{}` is in the image twice", file.path);
    }
    if let Some(both) = directories.iter().find(|path| sorted.contains_key(**path)) {
        bail!("`/{both}` is a file and a directory");
    }
    let mut archive = Archive::default();
    for directory in directories {
        archive.directory(directory, 0o755)?;
    }
    for (path, file) in sorted {
        archive.file(path, file.mode, &file.content)?;
    }
    archive.finish()
}

fn relative(path: &str) -> Result<&str> {
    let plain = path.strip_prefix('/').filter(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")));
    plain.with_context(|| format!("`{path}` is no absolute path without `.`, `..` and empty parts"))
}

fn tag(name: &str) -> Result<&str> {
    let (repository, tag) = name.rsplit_once(':').with_context(|| format!("`{name}` has no tag"))?;
    ensure!(repository.contains('/') && !tag.contains('/'), "`{name}` is not of the form `REGISTRY/NAME:TAG`");
    Ok(tag)
}

/// Writes seconds since 1970 as RFC 3339 has it.
///
/// # Errors
/// Fails if the year has more than four digits.
pub fn timestamp(seconds: i64) -> Result<String> {
    let time = jiff::Timestamp::from_second(seconds).with_context(|| format!("{seconds} is no time"))?;
    Ok(time.to_string())
}

/// Returns an architecture, such as `x86_64`, by its name in the OCI image specification, which is Go's.
pub fn architecture(rust: &'static str) -> &'static str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use sha2::{Digest as _, Sha256};

    use super::*;

    fn file(path: &str, content: &str) -> File {
        File { path: path.to_owned(), mode: 0o755, content: content.as_bytes().to_vec() }
    }

    fn image(files: &[File]) -> Image {
        Image {
            name: "localhost/test:1".to_owned(),
            entrypoint: vec!["/bin/a".to_owned()],
            user: "65532:65532".to_owned(),
            labels: BTreeMap::from([("org.opencontainers.image.title".to_owned(), "test".to_owned())]),
            files: files.to_vec(),
            ..Image::default()
        }
    }

    fn entries(tar: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(tar);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
            (entry.path().unwrap().to_string_lossy().into_owned(), (header.mode().unwrap(), content))
        };
        archive.entries().unwrap().map(read).collect()
    }

    fn parse(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn the_order_of_files_does_not_matter() {
        let (a, b) = (file("/bin/a", "1"), file("/etc/b", "2"));
        let forth = image(&[a.clone(), b.clone()]).layout().unwrap();
        assert_eq!(forth, image(&[b, a.clone()]).layout().unwrap());
        assert_ne!(forth.1, image(&[a]).layout().unwrap().1);
    }

    #[test]
    fn every_descriptor_leads_to_a_blob_of_its_digest_and_size() {
        let (tar, digest) = image(&[file("/usr/bin/a", "hello")]).layout().unwrap();
        let files = entries(&tar);
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
            let content = &files[&format!("blobs/sha256/{digest}")].1;
            assert_eq!(descriptor["size"], content.len());
            assert_eq!(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect::<String>(), digest);
            content.clone()
        };
        let index = parse(&files["index.json"].1);
        assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "localhost/test:1");
        assert_eq!(index["manifests"][0]["digest"], digest);
        let manifest = parse(&blob(&index["manifests"][0]));
        let config = parse(&blob(&manifest["config"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        let layer = entries(&blob(&manifest["layers"][0]));
        assert_eq!(layer.keys().collect::<Vec<_>>(), ["usr/", "usr/bin/", "usr/bin/a"]);
        assert_eq!(layer["usr/bin/a"], (0o755, b"hello".to_vec()));
    }

    #[test]
    fn a_compressed_layer_unpacks_to_what_the_configuration_names() {
        let compressed = Image {
            compression: Compression::Gzip,
            created: Some(86_400),
            architecture: "arm64".to_owned(),
            ..image(&[file("/usr/bin/a", &"hello".repeat(99))])
        };
        let Parts { manifest, blobs: [config, layer], platform } = compressed.parts().unwrap();
        assert_eq!(compressed.layout().unwrap().1, manifest.digest());
        let [config, manifest] = [config, manifest].map(|blob| parse(blob.content()));
        assert_eq!((&config["created"], &platform["architecture"]), (&"1970-01-02T00:00:00Z".into(), &"arm64".into()));
        assert_eq!(manifest["layers"][0], layer.descriptor());
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(layer.content()).read_to_end(&mut unpacked).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], Blob::new("", unpacked.clone()).digest());
        assert!(layer.content().len() < unpacked.len());
        assert!(entries(&unpacked).contains_key("usr/bin/a"));
    }

    #[test]
    fn the_older_format_names_the_same_blobs() {
        let files = entries(&image(&[file("/a", "x")]).layout().unwrap().0);
        let docker = parse(&files["manifest.json"].1);
        for path in [&docker[0]["Config"], &docker[0]["Layers"][0]] {
            assert!(files.contains_key(path.as_str().unwrap()), "{path}");
        }
        assert_eq!(docker[0]["RepoTags"][0], "localhost/test:1");
    }

    #[test]
    fn invalid_and_conflicting_paths_are_refused() {
        let check = |files: &[File], reason: &str| {
            let error = image(files).layout().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        };
        check(&[file("bin/a", "")], "no absolute path");
        check(&[file("/bin/../a", "")], "no absolute path");
        check(&[file("/bin//a", "")], "no absolute path");
        check(&[file("/a", ""), file("/a", "")], "twice");
        check(&[file("/a", ""), file("/a/b", "")], "a file and a directory");
    }

    #[test]
    fn a_name_needs_registry_and_tag() {
        for (name, tagged) in [("localhost/a:1", true), ("a:1", false), ("localhost:5000/a", false), ("r/a", false)] {
            assert_eq!(tag(name).is_ok(), tagged, "{name}");
        }
    }
}
