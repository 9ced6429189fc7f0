//! A blob: content that is named by its SHA-256. It knows nothing of the meaning of its content.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A part of an image or another artifact, named by its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    media_type: &'static str,
    content: Vec<u8>,
    hash: String,
}

// === impl Blob ===

impl Blob {
    /// Names `content`, which has this media type.
    #[must_use]
    pub fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        let hash = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { media_type, content, hash }
    }

    /// Names a document; equal values give equal bytes.
    #[must_use]
    pub fn json(media_type: &'static str, value: &Value) -> Self {
        // serde_json sorts the keys of its maps.
        Self::new(media_type, value.to_string().into_bytes())
    }

    /// Returns `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.hash)
    }

    /// Returns the SHA-256 as hexadecimal digits.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the path of the blob in a layout.
    #[must_use]
    pub fn path(&self) -> String {
        format!("blobs/sha256/{}", self.hash)
    }

    /// Returns the content.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Returns the content, without the blob.
    #[must_use]
    pub fn into_content(self) -> Vec<u8> {
        self.content
    }

    /// Returns the descriptor (OCI image-spec, descriptor.md), by which other documents name the blob.
    #[must_use]
    pub fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest(), "size": self.content.len() })
    }
}
