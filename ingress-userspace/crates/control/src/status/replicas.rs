//! Finds the other replicas of this controller by the label of their pods.

use k8s_openapi::api::core::v1;
use kube::{Client, Resource as _, api::ListParams};

use super::{
    Options,
    access::{Permission, RetryLog, ask},
    addresses::{Pod, PodFacts},
    options::request_timeout,
};
use crate::wire_object::WireObject;

/// The label of this controller's pods; the manifests in `deploy` set it.
pub(super) const LABEL: &str = "app.kubernetes.io/name=xdp-ingress";

/// Returns `true` if no other replica runs or is about to. If the list cannot be read, the answer is `false`: an
/// address that leads nowhere for a while is better than names that vanish from the DNS.
pub(super) async fn is_last(client: &Client, options: &Options) -> bool {
    let lost = "statuses stay as they are when the last replica leaves";
    let mut retry_log = RetryLog::new(Permission { verb: "list", resource: "pods", lost });
    let pods = WireObject::api::<v1::Pod>(client, Some(&options.namespace));
    match ask(request_timeout(options), pods.list(&ListParams::default().labels(LABEL))).await {
        Ok(list) => list.items.iter().all(|pod| is_self(pod, options) || is_leaving(pod)),
        Err(failure) => {
            retry_log.failed(&failure);
            false
        }
    }
}

fn is_self(pod: &WireObject, options: &Options) -> bool {
    pod.meta().name.as_deref() == Some(options.identity.as_str())
}

/// Returns `false` for a pod that cannot be read: it may run.
fn is_leaving(pod: &WireObject) -> bool {
    pod.decode::<Pod>().is_ok_and(|pod| PodFacts::of(&pod).is_leaving)
}
