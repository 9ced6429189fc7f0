//! Cost of each filter: the worker's CPU time per request in three cases. In the first, no rule has the filter; in the
//! second, another rule has it; in the third, the request's own rule has it. Each filter is configured by annotations
//! of an Ingress and measured through real sockets, with everything it makes the proxy do. The share of `route::filter`
//! is too small to be visible here: `benches/pure/filter.rs` measures it alone.
//!
//! `cargo bench --bench filters` prints Markdown; `-- cors limit-rps` selects rows. To measure another filter, add a
//! row to [`ROWS`]. All threads run on one CPU. Requests of the three kinds alternate, so that other load on the
//! machine affects all of them equally. The result is the CPU time of the worker's thread (`schedstat`, proc(5)), not
//! elapsed time.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{env, net::SocketAddr};

use served::{Served, medians, pod, request, stay_on_one_cpu};

mod served;

/// A filter, its annotations, and additional fields of a request that uses it.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const ROWS: &[Row] = &[
    ("nothing", &[], ""),
    ("allowlist-source-range", &[("allowlist-source-range", "10.0.0.0/8,127.0.0.0/8")], ""),
    ("denylist-source-range", &[("denylist-source-range", "10.0.0.0/8,192.0.2.0/24")], ""),
    ("limit-rps", &[("limit-rps", "1000000")], ""),
    ("limit-connections", &[("limit-connections", "1000")], ""),
    ("enable-cors", &[("enable-cors", "true")], "Origin: https://b.test\r\n"),
    ("auth-secret", &[("auth-type", "basic"), ("auth-secret", "users")], "Authorization: Basic YTpwYXNz\r\n"),
    ("auth-url", &[("auth-url", "http://s.n.svc.cluster.local/")], ""),
    ("jwt-jwks-secret", &[("xdp-ingress.io/jwt-jwks-secret", "keys")], TOKEN),
    ("rewrite-target", &[("rewrite-target", "/new")], ""),
    ("rewrite-target with groups", &[("use-regex", "true"), ("rewrite-target", "/new$1")], ""),
    ("upstream-vhost", &[("upstream-vhost", "pod.test")], ""),
    ("request-headers", &[("request-headers", "X-A: 1\nX-B: $remote_addr")], ""),
    ("response-headers", &[("response-headers", "X-A: 1\n-Server")], ""),
    ("x-forwarded-prefix", &[("x-forwarded-prefix", "/a"), ("rewrite-target", "/new")], ""),
    ("mirror-target", &[("mirror-target", "http://s.n.svc.cluster.local/")], ""),
    ("custom-http-errors", &[("custom-http-errors", "503"), ("default-backend", "s")], ""),
    (
        "compression, of what is too short for it",
        &[("xdp-ingress.io/compression", "gzip")],
        "Accept-Encoding: gzip\r\n",
    ),
    ("permanent-redirect", &[("permanent-redirect", "https://b.test/")], ""),
    ("affinity", &[("affinity", "cookie")], ""),
    ("upstream-hash-by", &[("upstream-hash-by", "$remote_addr")], ""),
    ("load-balance: ewma", &[("load-balance", "ewma")], ""),
    ("metrics-per-path", &[("xdp-ingress.io/metrics-per-path", "true")], ""),
    ("max-connections", &[("xdp-ingress.io/max-connections", "100")], ""),
    ("proxy-protocol-upstream", &[("proxy-protocol-upstream", "v1")], ""),
];

/// Signed by the key in the Secret `keys`, valid until the year 3000.
const TOKEN: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhIiwiZXhwIjozMjUwMzY4MDAwMH0.7lBx9U6bnjCVb-xhEtfCPOmsx-USzFFZN0Q1f8vsjyw\r\n";

const TARGET: &str = "/old";

fn main() {
    // Threads on one CPU alternate. On several CPUs, the cost of wake-ups hides everything else.
    stay_on_one_cpu();
    let wanted: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let pod = pod();
    println!("| filter | no rule has it | another rule has it | this rule has it | what it costs |");
    println!("|---|--:|--:|--:|--:|");
    for (name, annotations, fields) in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        let new = |annotations| Served::new(&table(pod, annotations), "plain.test", TARGET);
        let (none, beside) = (new(&[][..]), new(annotations));
        let (plain, used) = (request("plain.test", TARGET, ""), request("used.test", TARGET, fields));
        let [none, beside, used] = medians(|| [none.time(&plain), beside.time(&plain), beside.time(&used)]);
        println!("| {name} | {none:.2} µs | {beside:.2} µs | {used:.2} µs | {:+.2} µs |", used - beside);
    }
}

/// Returns the table of two hosts, `plain.test` and `used.test`, of which one has annotations.
fn table(pod: SocketAddr, annotations: &[(&str, &str)]) -> ingress_model::RouteTable {
    let ingress = |name: &str, annotations: &[(&str, &str)]| {
        let lines = annotations.iter().map(|(key, value)| match key.contains('/') {
            true => format!("    {key}: {value:?}\n"),
            false => format!("    nginx.ingress.kubernetes.io/{key}: {value:?}\n"),
        });
        let lines: String = lines.collect();
        let annotations = if lines.is_empty() { String::new() } else { format!("  annotations:\n{lines}") };
        let kind =
            if annotations.contains("use-regex") { ("/old(.*)", "ImplementationSpecific") } else { ("/", "Prefix") };
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: n\n  name: {name}\n{annotations}spec:\n  ingressClassName: xdp\n\
             \x20 rules: [{{host: {name}.test, http: {{paths: [{{path: \"{}\", pathType: {}, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}]}}}}]\n",
            kind.0, kind.1
        )
    };
    let objects = [
        "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n".to_owned(),
        "apiVersion: v1\nkind: Service\nmetadata: {namespace: n, name: s}\nspec: {ports: [{port: 80}]}\n".to_owned(),
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: n, name: s-a, labels: {{kubernetes.io/service-name: s}}}}\n\
             addressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n",
            pod.port()
        ),
        // User `a` with password `pass`.
        "apiVersion: v1\nkind: Secret\nmetadata: {namespace: n, name: users}\nstringData: {auth: \"a:{SHA}nU4eI71bcnBGqeO0t9tXvY1u5oQ=\"}\n".to_owned(),
        "apiVersion: v1\nkind: Secret\nmetadata: {namespace: n, name: keys}\nstringData: {jwks: '{\"keys\":[{\"kty\":\"oct\",\"alg\":\"HS256\",\"k\":\"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY\"}]}'}\n".to_owned(),
        ingress("plain", &[]),
        ingress("used", annotations),
    ];
    served::translate(&objects)
}
