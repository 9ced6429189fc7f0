//! Finds the other replicas of this controller by the label of their pods.

use futures_util::Stream;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource as _, api::ListParams, runtime::watcher};

use super::{
    Options,
    access::{Permission, RetryLog, ask},
    address_watcher::{self, AddressEvent},
    addresses::PodFacts,
    options::request_timeout,
};
use crate::wire_object::WireObject;

/// The label of this controller's pods; the manifests in `deploy` set it.
pub(super) const LABEL: &str = "app.kubernetes.io/name=xdp-ingress";

/// Returns the events of the pods of all replicas. `lost` is the function that is lost without them.
pub(super) fn events(
    client: &Client,
    options: &Options,
    lost: &'static str,
) -> impl Stream<Item = AddressEvent<PodFacts>> + use<> {
    let config = watcher::Config::default().labels(LABEL);
    address_watcher::events(pods(client, options), config, "pods", lost, |pod: PodFacts| pod)
}

/// Returns `true` if no other replica runs or is about to. If the list cannot be read, the answer is `false`: an
/// address that leads nowhere for a while is better than names that vanish from the DNS.
pub(super) async fn is_last(client: &Client, options: &Options) -> bool {
    let lost = "statuses stay as they are when the last replica leaves";
    let mut retry_log = RetryLog::new(Permission { verb: "list", resource: "pods", lost });
    let pods = pods(client, options);
    match ask(request_timeout(options), pods.list(&ListParams::default().labels(LABEL))).await {
        Ok(list) => list.items.iter().all(|pod| is_self(pod, options) || is_leaving(pod)),
        Err(failure) => {
            retry_log.failed(&failure);
            false
        }
    }
}

fn pods(client: &Client, options: &Options) -> Api<WireObject> {
    WireObject::api::<Pod>(client, Some(&options.namespace))
}

fn is_self(pod: &WireObject, options: &Options) -> bool {
    pod.meta().name.as_deref() == Some(options.identity.as_str())
}

/// Returns `false` for a pod that cannot be read: it may run.
fn is_leaving(pod: &WireObject) -> bool {
    pod.decode().map_or_else(
        |error| {
            let name = pod.meta().name.as_deref();
            tracing::warn!(name, %error, "a pod cannot be read, so statuses stay as they are when the last replica leaves");
            false
        },
        |PodFacts { is_leaving, .. }| is_leaving,
    )
}
