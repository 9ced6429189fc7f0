//! A repository of a registry as files: an OCI image layout (OCI image-spec, image-layout.md), from which tools push. It
//! knows no network.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use xtask_image::oci::{Blob, INDEX, LAYOUT};

/// Annotation with the tag of a manifest.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A manifest with a tag, and the blobs that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The tag in its repository.
    pub tag: String,
    /// The manifest, or an index.
    pub manifest: Blob,
    /// Everything below the manifest.
    pub blobs: Vec<Blob>,
}

/// Manifests with tags, and their blobs.
#[derive(Debug, Default)]
pub struct Repository {
    blobs: BTreeMap<String, Vec<u8>>,
    /// The entries of the index; each has a tag.
    entries: BTreeMap<String, Value>,
}

// === impl Repository ===

impl Repository {
    /// Adds an artifact; one of the same tag is replaced.
    pub fn add(&mut self, artifact: Artifact) {
        let Artifact { tag, manifest, blobs } = artifact;
        let mut entry = manifest.descriptor();
        entry["annotations"] = json!({ REF_NAME: tag });
        self.entries.insert(tag, entry);
        for blob in blobs.into_iter().chain([manifest]) {
            self.blobs.insert(blob.path(), blob.into_content());
        }
    }

    /// Returns the tags in order.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the digest behind a tag.
    #[must_use]
    pub fn digest(&self, tag: &str) -> Option<&str> {
        self.entries.get(tag)?["digest"].as_str()
    }

    /// Writes the layout to a new directory.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": self.entries.values().collect::<Vec<_>>(),
        });
        let index = index.to_string().into_bytes();
        let blobs = self.blobs.iter().map(|(path, content)| (path.as_str(), content.as_slice()));
        let blob_dir = dir.join("blobs/sha256");
        fs::create_dir_all(&blob_dir).with_context(|| format!("cannot make `{}`", blob_dir.display()))?;
        for (path, content) in blobs.chain([("oci-layout", LAYOUT), ("index.json", &index)]) {
            let path = dir.join(path);
            fs::write(&path, content).with_context(|| format!("cannot write `{}`", path.display()))?;
        }
        Ok(())
    }
}

/// Returns an index of manifests, each of which has its `platform`.
#[must_use]
pub fn index(manifests: &[(&Blob, &Value)], annotations: &BTreeMap<String, String>) -> Blob {
    let entry = |(manifest, platform): &(&Blob, &Value)| {
        let mut entry = manifest.descriptor();
        entry["platform"] = (*platform).clone();
        entry
    };
    let manifests: Vec<Value> = manifests.iter().map(entry).collect();
    Blob::json(
        INDEX,
        &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_image::oci::MANIFEST;

    fn artifact(tag: &str, content: &str) -> Artifact {
        let blob = Blob::new("text/plain", content.as_bytes().to_vec());
        let manifest = Blob::json(MANIFEST, &json!({ "layers": [blob.descriptor()] }));
        Artifact { tag: tag.to_owned(), manifest, blobs: vec![blob] }
    }

    #[test]
    fn every_tag_leads_to_its_manifest_and_blobs() {
        let mut repository = Repository::default();
        repository.add(artifact("1", "one"));
        repository.add(artifact("2", "two"));
        let dir = tempfile::tempdir().unwrap();
        repository.write(dir.path()).unwrap();
        let read = |path: &str| fs::read(dir.path().join(path)).unwrap();
        let index: Value = serde_json::from_slice(&read("index.json")).unwrap();
        assert_eq!(read("oci-layout"), LAYOUT);
        assert_eq!(repository.tags().collect::<Vec<_>>(), ["1", "2"]);
        for (entry, tag) in index["manifests"].as_array().unwrap().iter().zip(["1", "2"]) {
            assert_eq!(entry["annotations"][REF_NAME], tag);
            assert_eq!(entry["digest"].as_str(), repository.digest(tag));
            let path = |digest: &Value| digest.as_str().unwrap().replace("sha256:", "blobs/sha256/");
            let manifest: Value = serde_json::from_slice(&read(&path(&entry["digest"]))).unwrap();
            assert!(!read(&path(&manifest["layers"][0]["digest"])).is_empty());
        }
        assert_eq!(repository.digest("3"), None);
    }

    #[test]
    fn an_index_names_the_platform_of_each_manifest() {
        let [one, two] = ["1", "2"].map(|name| artifact(name, name).manifest);
        let platforms = ["amd64", "arm64"].map(|name| json!({ "architecture": name, "os": "linux" }));
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let made = index(&[(&one, &platforms[0]), (&two, &platforms[1])], &annotations);
        let read: Value = serde_json::from_slice(made.content()).unwrap();
        assert_eq!(read["mediaType"], INDEX);
        assert_eq!(read["annotations"]["a"], "b");
        for (at, manifest) in [one, two].iter().enumerate() {
            assert_eq!(read["manifests"][at]["digest"], manifest.digest());
            assert_eq!(read["manifests"][at]["platform"], platforms[at]);
        }
    }
}
