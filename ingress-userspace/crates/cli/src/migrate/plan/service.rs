//! A share of the clients that come by a Service of ingress-nginx: pods of this controller become further endpoints of it.

use super::{
    Step,
    shell::{quoted, yaml},
    situation::Situation,
    target::Target,
};
use crate::check::Entrance;

/// Beginning of the name of the EndpointSlice that a step adds; the name of the Service follows.
const SLICE: &str = "xdp-ingress-share";
/// Ports of the Services that this controller serves, which are those of its nodes, too.
const SERVED: [u64; 2] = [80, 443];

/// Writes the slice with as many pods as its argument says. `head` takes two lines for each.
const FUNCTION: &str = r#"FUNCTION() { { cat <<'END'
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
  kubectl --namespace NAMESPACE get pods --selector app.kubernetes.io/name=xdp-ingress --field-selector status.phase=Running --output jsonpath='{range .items[*]}- addresses: ["{.status.podIP}"]{"\n"}  nodeName: {.spec.nodeName}{"\n"}{end}' |
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
    let share = format!("share_{}", name.name.replace(|other: char| !other.is_ascii_alphanumeric(), "_"));
    let text = vec![
        format!(
            "Pods of xdp-ingress become endpoints of Service `{name}` beside those of ingress-nginx. With n of xdp-ingress and \
             m of ingress-nginx, about n of n + m new connections come to xdp-ingress. With `externalTrafficPolicy: \
             Local`, only the pods of the node that a connection comes to count. The address stays, and so do open \
             connections."
        ),
        format!(
            "`{share} 2` takes two pods. The controller of EndpointSlices leaves this slice alone, so write it again when a \
             node comes or goes. A client may change its side with each connection. In a cluster of IPv6, write \
             `addressType: IPv6`."
        ),
    ];
    let slice = slice(service);
    let function = FUNCTION
        .replace("FUNCTION", &share)
        .replace("SERVICE_NAMESPACE", &yaml(&name.namespace))
        .replace("SERVICE,", &format!("{},", yaml(&name.name)))
        .replace("SLICE", &yaml(&slice))
        .replace("PORTS", &format!("[{}]", ports.join(", ")))
        .replace("NAMESPACE", &quoted(&target.namespace));
    let (namespace, slice) = (quoted(&name.namespace), quoted(&format!("endpointslice/{slice}")));
    let commands = vec![function, format!("{share} 1"), format!("kubectl --namespace {namespace} get {slice}")];
    // A later step deletes it, too.
    let back = vec![deletion(service)];
    Some(Step { title: "Move clients of the Service".to_owned(), text, commands, back })
}

/// Returns commands that delete the slices: they have no owner, and would serve a later Service of the same name.
pub(super) fn removal(situation: &Situation) -> impl Iterator<Item = String> {
    situation.services.iter().map(deletion)
}

fn deletion(service: &Entrance) -> String {
    let slice = quoted(&format!("endpointslice/{}", slice(service)));
    format!("kubectl --namespace {} delete {slice} --ignore-not-found", quoted(&service.name.namespace))
}

fn slice(service: &Entrance) -> String {
    format!("{SLICE}-{}", service.name.name)
}
