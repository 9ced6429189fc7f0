//! Where objects come from: a directory of manifests or an API server. Both tell the same changes.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use tokio::sync::mpsc;

use super::change::Batch;

pub mod kube;
pub mod manifests;

/// Batches under way from a source to the loop. Few, because a source that runs ahead only delays what it says last.
const QUEUED_BATCHES: usize = 16;

pub(super) fn queue() -> (mpsc::Sender<Batch>, mpsc::Receiver<Batch>) {
    mpsc::channel(QUEUED_BATCHES)
}

/// Written by `kubectl apply`: the whole object again, of no use here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Drops what is never looked at, which is often most of an object.
fn strip(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Drops what is no part of a certificate: other secrets are not ours to hold.
fn strip_secret(mut secret: Secret) -> Arc<Secret> {
    let keep = |key: &str| matches!(key, "tls.crt" | "tls.key");
    strip(&mut secret.metadata);
    retain(&mut secret.data, keep);
    retain(&mut secret.string_data, keep);
    Arc::new(secret)
}

fn retain<V>(map: &mut Option<BTreeMap<String, V>>, keep: impl Fn(&str) -> bool) {
    if let Some(map) = map {
        map.retain(|key, _| keep(key));
    }
}
