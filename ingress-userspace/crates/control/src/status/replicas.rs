//! Finds the other replicas of this controller by the label of their pods.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};

use super::{
    Options,
    access::{Permission, RetryLog, ask},
    addresses::PodFacts,
    options::request_timeout,
};

/// The label of this controller's pods; the manifests in `deploy` set it.
pub(super) const LABEL: &str = "app.kubernetes.io/name=xdp-ingress";

/// Returns `true` if no other replica runs or is about to. If the list cannot be read, the answer is `false`: an
/// address that leads nowhere for a while is better than names that vanish from the DNS.
pub(super) async fn is_last(client: &Client, options: &Options) -> bool {
    let lost = "statuses stay as they are when the last replica leaves";
    let mut retry_log = RetryLog::new(Permission { verb: "list", resource: "pods", lost });
    let pods: Api<Pod> = Api::namespaced(client.clone(), &options.namespace);
    match ask(request_timeout(options), pods.list(&ListParams::default().labels(LABEL))).await {
        Ok(list) => list.items.iter().all(|pod| is_self(pod, options) || PodFacts::of(pod).is_leaving),
        Err(failure) => {
            retry_log.failed(&failure);
            false
        }
    }
}

fn is_self(pod: &Pod, options: &Options) -> bool {
    pod.metadata.name.as_deref() == Some(options.identity.as_str())
}
