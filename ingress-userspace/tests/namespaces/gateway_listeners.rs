//! Listeners of a Gateway at addresses that only local routes have, in both families: HTTP and UDP. Answers leave from the
//! address that was asked.

use ingress_lab::{client::Ask, controller::XdpMode, until};

use crate::{
    gateway_addresses::{Node, WITH_POOL, at, pool},
    net::Net,
    udp_services,
};

const PORT: u16 = 5300;
/// One address of the pool in each family.
pub(crate) const ADDRESSES: [&str; 2] = ["203.0.113.82", "2001:db8:3::82"];
const API: &str = "apiVersion: gateway.networking.k8s.io/v1\n";

/// A Gateway with both addresses, and its routes to the pods.
pub(crate) fn gateway() -> String {
    let addresses = ADDRESSES.map(|address| format!("{{type: IPAddress, value: '{address}'}}")).join(", ");
    let listeners = format!("{{name: http, port: 80, protocol: HTTP}}, {{name: dns, port: {PORT}, protocol: UDP}}");
    let parent = |name| format!("parentRefs: [{{name: g, sectionName: {name}}}]");
    let documents = [
        "kind: GatewayClass\nmetadata: {name: xdp}\nspec: {controllerName: xdp-ingress.io/gateway-controller}\n".into(),
        format!(
            "kind: Gateway\nmetadata: {{name: g, namespace: default}}\n\
             spec: {{gatewayClassName: xdp, addresses: [{addresses}], listeners: [{listeners}]}}\n"
        ),
        format!(
            "kind: HTTPRoute\nmetadata: {{name: web, namespace: default}}\n\
             spec: {{{}, hostnames: [web.test], rules: [{{backendRefs: [{{name: web, port: 80}}]}}]}}\n",
            parent("http")
        ),
        format!(
            "kind: UDPRoute\nmetadata: {{name: dns, namespace: default}}\n\
             spec: {{{}, rules: [{{backendRefs: [{{name: dns, port: 53}}]}}]}}\n",
            parent("dns")
        ),
    ];
    documents.map(|document| format!("{API}{document}---\n")).concat()
}

#[test]
fn listeners_at_addresses_without_an_interface_answer_over_tcp_and_udp() {
    let Some(net) = Net::build("gl-routes") else { return };
    for pod in &net.topology.pods {
        udp_services::echo(&pod.namespace, pod.name);
    }
    udp_services::manifests(&net, &[]);
    net.write("web.yaml", &net.site("web", &[0, 1]));
    net.write("gateway.yaml", &gateway());
    let node = Node::of(&net);
    let _process = node.start(&net, "first", XdpMode::Generic, 9110, &WITH_POOL);
    node.announces(&pool());
    for address in ADDRESSES {
        let ask = || net.try_ask(&net.topology.client, at(address), &Ask::get("web.test", "/"));
        let (answer, _) =
            until("an answer over HTTP", || ask().ok()).unwrap_or_else(|error| panic!("{address}: {error:#}"));
        assert_eq!(answer.status, 200, "{address}");
        // The listener's answer, and not that of the Ingress, which has this host, too.
        let (answer, _) =
            net.try_ask(&net.topology.client, at(address), &Ask::get("other.test", "/")).expect("answered");
        assert_eq!(answer.status, 404, "{address}");

        // A connected socket takes answers from no other address.
        let client = udp_services::client(&net, at(address).ip(), PORT);
        let pod = until("an answer over UDP", || udp_services::ask(&client, "question"));
        let pod = pod.unwrap_or_else(|error| panic!("{address}: {error:#}"));
        assert!(net.topology.pods.iter().any(|each| each.name == pod), "{address}: {pod}");
    }
}
