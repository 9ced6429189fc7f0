//! Installs what the conformance tests need in a cluster: the custom resources of Gateway API, images, and the product
//! with the overlay `product/`.

use std::path::Path;

use anyhow::{Context, Result};

use super::suite::Suite;
use xtask_kube_lab::Cluster;
use xtask_tools::{progress, workspace};

/// The GatewayClass of `deploy/gateway-api`, for which the tests make their Gateways.
pub(super) const CLASS: &str = "xdp-ingress";
/// The product with the flags that the tests need, relative to the work tree.
const PRODUCT: &str = "xtask/conformance/product";
/// Longest wait for custom resources, for the product on all nodes, and for its status of the class.
const LIMIT: &str = "--timeout=180s";

/// Installs everything.
///
/// # Errors
/// Fails if an image cannot be imported, objects are refused, the product does not become ready, or the GatewayClass has no
/// supported features.
pub(super) fn run(cluster: &Cluster, suite: &Suite, images: &[&Path]) -> Result<()> {
    images.iter().try_for_each(|image| cluster.import_image(image))?;
    let resources = suite.resources();
    let resources = resources.to_str().context("the path of the cache is not UTF-8")?;
    progress::note(&format!("installing the custom resources of Gateway API {}", suite.version));
    // Their texts are too long for the annotation that `kubectl apply` makes without `--server-side`.
    cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", resources])?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", LIMIT])?;
    product(cluster, PRODUCT)?;
    // The suite reads them once, and the pods are ready before one of them is elected to write statuses.
    let class = format!("gatewayclass/{CLASS}");
    cluster.kubectl(&["wait", "--for=jsonpath={.status.supportedFeatures[0].name}", &class, LIMIT]).map(drop)
}

/// Installs the product from the directory `overlay`, relative to the work tree. In a cluster that has it already, its
/// pods are replaced, to run the new image.
///
/// # Errors
/// Fails if objects are refused, or the product does not become ready.
pub(super) fn product(cluster: &Cluster, overlay: &str) -> Result<()> {
    progress::note(&format!("$ kubectl apply -k {overlay}"));
    let product = workspace::root().join(overlay);
    let product = product.to_str().context("the path of the work tree is not UTF-8")?;
    let of_product = |args: &[&str]| cluster.kubectl(&[&["--namespace=xdp-ingress"], args].concat());
    let ran = of_product(&["get", "daemonset", "xdp-ingress", "--ignore-not-found", "--output=name"])?;
    cluster.kubectl(&["apply", "--kustomize", product])?;
    if !ran.is_empty() {
        of_product(&["rollout", "restart", "daemonset/xdp-ingress"])?;
    }
    of_product(&["rollout", "status", "daemonset/xdp-ingress", LIMIT]).map(drop)
}
