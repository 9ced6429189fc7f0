//! Manifests that the tests apply, as text. Objects are written `metadata: {name: …}` so that a scope can place them.

/// A Deployment of test pods and a Service `name` in front of them, port 80 named `http`.
pub(crate) fn pods(name: &str, replicas: usize) -> String {
    deployment(name, replicas) + &service(name, "{name: http, port: 80, targetPort: 8080}")
}

/// Pods that continue to serve for a while after SIGTERM, as pods made for rolling updates do.
pub(crate) fn deployment(name: &str, replicas: usize) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  strategy: {{rollingUpdate: {{maxSurge: 1, maxUnavailable: 0}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 15
      topologySpreadConstraints:
        - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {{matchLabels: {{app: {name}}}}}}}
      containers:
        - name: echo
          image: localhost/echo-server:{version}
          args: [--linger=6, '--listen=[::]:8080', '--listen-tls=[::]:8443']
          readinessProbe: {{httpGet: {{path: /ready, port: 8080}}, periodSeconds: 1, failureThreshold: 1}}
",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// A Service `name` for the pods of that name; `port` in YAML's flow style.
pub(crate) fn service(name: &str, port: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{selector: {{app: {name}}}, ports: [{port}]}}\n"
    )
}

/// An Ingress of class `xdp`; `rest` continues its `spec`, two spaces in.
pub(crate) fn ingress(name: &str, rest: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}}}\nspec:\n  ingressClassName: xdp\n{rest}"
    )
}

/// An Ingress that routes a whole host to a Service.
pub(crate) fn site(name: &str, host: &str, service: &str) -> String {
    ingress(name, &rule(host, &[("Prefix", "/", service)]))
}

/// The rules of one host: type, path and Service of each path.
pub(crate) fn rule(host: &str, paths: &[(&str, &str, &str)]) -> String {
    let paths = paths.iter().map(|(kind, path, service)| {
        format!("      - {{pathType: {kind}, path: '{path}', backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}\n")
    });
    format!("  rules:\n  - host: '{host}'\n    http:\n      paths:\n{}", paths.collect::<String>())
}
