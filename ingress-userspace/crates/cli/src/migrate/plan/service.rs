//! A share of the clients that come by a Service of ingress-nginx: pods of this controller become further endpoints of it.

use super::{
    Step,
    shell::{quoted, yaml},
    situation::Situation,
    target::Target,
};
use crate::check::Entrance;

/// Name of the EndpointSlice that the step adds.
const SLICE: &str = "xdp-ingress-share";
/// Ports of the Services that this controller serves, which are those of its nodes, too.
const SERVED: [u64; 2] = [80, 443];

/// Writes the slice with as many pods as its argument says. `head` takes two lines for each.
const FUNCTION: &str = r#"share_service() { { cat <<'END'
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: SERVICE_NAMESPACE
  name: SLICE
  labels: {kubernetes.io/service-name: SERVICE, endpointslice.kubernetes.io/managed-by: xdp-ingress}
addressType: IPv4
ports: PORTS
endpoints:
END
  kubectl --namespace NAMESPACE get pods --selector app.kubernetes.io/name=xdp-ingress --output jsonpath='{range .items[*]}- addresses: ["{.status.podIP}"]{"\n"}  nodeName: {.spec.nodeName}{"\n"}{end}' |
    head -n "$((2 * $1))"; } | kubectl apply --filename -; }"#;

/// Returns a step for each Service that serves clients of HTTP.
pub(super) fn steps(situation: &Situation, target: &Target) -> Vec<Step> {
    situation.services.iter().filter_map(|service| step(service, target)).collect()
}

fn step(service: &Entrance, target: &Target) -> Option<Step> {
    let Entrance { name, kind: _, selector: _, ports } = service;
    let ports = ports.iter().filter(|(_, number)| SERVED.contains(number));
    let ports: Vec<_> = ports.map(|(name, number)| format!("{{name: {}, port: {number}}}", yaml(name))).collect();
    if ports.is_empty() {
        return None;
    }
    let text = vec![
        format!(
            "Pods of xdp-ingress become endpoints of Service `{name}` beside those of ingress-nginx. With n of xdp-ingress and \
             m of ingress-nginx, n of n + m new connections come to xdp-ingress. The address stays, and so do open \
             connections."
        ),
        "`share_service 2` takes two pods. The controller of EndpointSlices leaves this slice alone, so write it again when a \
         node comes or goes. A client may change its side with each connection. In a cluster of IPv6, write \
         `addressType: IPv6`."
            .to_owned(),
    ];
    let (namespace, slice) = (quoted(&name.namespace), format!("endpointslice/{SLICE}"));
    let function = FUNCTION
        .replace("SERVICE_NAMESPACE", &yaml(&name.namespace))
        .replace("SERVICE,", &format!("{},", yaml(&name.name)))
        .replace("SLICE", SLICE)
        .replace("PORTS", &format!("[{}]", ports.join(", ")))
        .replace("NAMESPACE", &quoted(&target.namespace));
    let commands = vec![function, "share_service 1".to_owned(), format!("kubectl --namespace {namespace} get {slice}")];
    let back = vec![format!("kubectl --namespace {namespace} delete {slice}")];
    Some(Step { title: "Move clients of the Service".to_owned(), text, commands, back })
}
