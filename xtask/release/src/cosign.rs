//! Signatures and attestations in a registry, as cosign looks for them: manifests beside the signed one, with tags that
//! contain its digest (cosign, specs/SIGNATURE_SPEC.md and specs/ATTESTATION_SPEC.md). Nothing is sent to a public log.

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use xtask_image::oci::{Blob, CONFIG, MANIFEST};

use super::key::Key;
use super::repository::Artifact;

/// Media type of a signed payload.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Media type of a signed statement.
const ENVELOPE: &str = "application/vnd.dsse.envelope.v1+json";
/// Type of the statement in an envelope.
const STATEMENT: &str = "application/vnd.in-toto+json";
/// Annotation with the signature of a layer.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// Returns the signature of the manifest `digest` in `repository`, the full name without a tag.
///
/// # Errors
/// Fails if the key cannot sign.
pub fn signature(repository: &str, digest: &str, key: &Key) -> Result<Artifact> {
    let payload = Blob::json(PAYLOAD, &payload(repository, digest));
    let mut layer = payload.descriptor();
    layer["annotations"] = json!({ SIGNATURE: key.sign(payload.content())? });
    beside(digest, "sig", layer, payload)
}

/// Returns the attestation of the manifest `digest`: a signed statement about it.
///
/// # Errors
/// Fails if the key cannot sign, or the statement has no predicate.
pub fn attestation(digest: &str, statement: &Value, key: &Key) -> Result<Artifact> {
    let envelope = Blob::json(ENVELOPE, &envelope(statement, key)?);
    let mut layer = envelope.descriptor();
    let kind = statement["predicateType"].as_str().context("a statement has a predicate")?;
    // The signature is in the envelope; cosign still expects the annotation.
    layer["annotations"] = json!({ SIGNATURE: "", "predicateType": kind });
    beside(digest, "att", layer, envelope)
}

/// Returns a signed statement in an envelope (DSSE, protocol.md).
///
/// # Errors
/// Fails if the key cannot sign.
pub fn envelope(statement: &Value, key: &Key) -> Result<Value> {
    let body = statement.to_string();
    let signature = key.sign(&authenticated(STATEMENT, body.as_bytes()))?;
    Ok(json!({
        "payloadType": STATEMENT,
        "payload": STANDARD.encode(&body),
        "signatures": [{ "keyid": "", "sig": signature }],
    }))
}

/// Returns the bytes that an envelope's signature is about: type and body with their lengths.
fn authenticated(kind: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {kind} {} ", kind.len(), body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Returns the claim that is signed (containers/image, "simple signing").
fn payload(repository: &str, digest: &str) -> Value {
    json!({
        "critical": {
            "identity": { "docker-reference": repository },
            "image": { "docker-manifest-digest": digest },
            "type": "cosign container image signature",
        },
        "optional": null,
    })
}

fn beside(digest: &str, suffix: &str, layer: Value, blob: Blob) -> Result<Artifact> {
    let hash = digest.strip_prefix("sha256:").with_context(|| format!("`{digest}` is no SHA-256"))?;
    let config = Blob::json(
        CONFIG,
        &json!({
            "architecture": "",
            "os": "",
            "config": {},
            "rootfs": { "type": "layers", "diff_ids": [blob.digest()] },
        }),
    );
    let manifest = Blob::json(
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [layer],
        }),
    );
    Ok(Artifact { tag: format!("sha256-{hash}.{suffix}"), manifest, blobs: vec![config, blob] })
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::{key, verifies};
    use super::*;

    fn parse(blob: &Blob) -> Value {
        serde_json::from_slice(blob.content()).unwrap()
    }

    fn digest() -> String {
        format!("sha256:{}", "0f".repeat(32))
    }

    #[test]
    fn a_signature_is_found_by_the_digest_and_is_about_it() {
        let key = key();
        let Artifact { tag, manifest, blobs } = signature("r.example/x", &digest(), &key).unwrap();
        assert_eq!(tag, format!("sha256-{}.sig", "0f".repeat(32)));
        let (manifest, [config, payload]) = (parse(&manifest), &blobs[..]) else { unreachable!("two blobs") };
        let layer = &manifest["layers"][0];
        assert_eq!(layer["mediaType"], PAYLOAD);
        assert_eq!(layer["digest"], payload.digest());
        assert_eq!(manifest["config"], config.descriptor());
        assert_eq!(parse(config)["rootfs"]["diff_ids"][0], payload.digest());
        assert!(verifies(&key, payload.content(), layer["annotations"][SIGNATURE].as_str().unwrap()));
        let claim = parse(payload);
        assert_eq!(claim["critical"]["image"]["docker-manifest-digest"], digest());
        assert_eq!(claim["critical"]["identity"]["docker-reference"], "r.example/x");
    }

    #[test]
    fn an_attestation_holds_the_signed_statement() {
        let key = key();
        let statement = json!({ "predicateType": "https://slsa.dev/provenance/v1", "subject": [] });
        let Artifact { tag, manifest, blobs } = attestation(&digest(), &statement, &key).unwrap();
        assert!(tag.ends_with(".att"));
        let annotations = &parse(&manifest)["layers"][0]["annotations"];
        assert_eq!(annotations["predicateType"], "https://slsa.dev/provenance/v1");
        let envelope = parse(&blobs[1]);
        let body = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), statement);
        let signature = envelope["signatures"][0]["sig"].as_str().unwrap();
        assert!(verifies(&key, &authenticated(STATEMENT, &body), signature));
        assert!(attestation(&digest(), &json!({}), &key).is_err());
    }

    #[test]
    fn an_envelope_signs_type_and_body_with_their_lengths() {
        // The example in DSSE's protocol.md.
        let bytes = authenticated("http://example.com/HelloWorld", b"hello world");
        assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn only_a_sha_256_has_a_signature() {
        assert!(signature("r/x", "sha512:00", &key()).is_err());
    }
}
