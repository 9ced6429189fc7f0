//! Requests to the pods of a Service, or to its cluster IP (`service-upstream`).

use super::Ingress;
use ingress_proxy_testing::Origin;

/// A Service `own` with the cluster IP `address` and the port of `pod`. Its own endpoint refuses connections.
fn serve(annotations: &[(&str, &str)], pod: &Origin, address: &str) -> super::Site {
    let nobody = ([127, 0, 0, 9], 9).into();
    let port = pod.address.port();
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: own, namespace: default}}\nspec: {{clusterIP: {address}, clusterIPs: [{address}], ports: [{{port: {port}}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: own, namespace: default, labels: {{kubernetes.io/service-name: own}}}}\n\
         addressType: IPv4\nports: [{{port: 9}}]\nendpoints: [{{addresses: [127.0.0.9]}}]\n"
    );
    let ingress = Ingress::with(annotations).beside(&service).leading_to("own", port);
    ingress.serve_from(&[nobody]).in_order()
}

#[test]
fn service_upstream_uses_the_cluster_ip() {
    let pod = Origin::answering("pod");
    let annotation = [("service-upstream", "true")];
    assert_eq!(serve(&annotation, &pod, "127.0.0.1").get("/").text(), "pod");
    assert_eq!(serve(&[], &pod, "127.0.0.1").get("/").status, 502, "nobody listens at the pod's address");
    assert_eq!(serve(&annotation, &pod, "None").get("/").status, 502, "a headless service has no address");
}
