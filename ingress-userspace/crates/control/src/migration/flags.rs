//! Verdicts on the flags of ingress-nginx. Those that the command line has are full or differ. This module parses no
//! arguments.

use crate::verdict::Verdict;

/// A flag of ingress-nginx that has no effect here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    pub takes: Takes,
    pub verdict: Verdict,
}

/// The form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A boolean, which may be left out for `true`.
    Switch,
    /// Any text, in the same argument behind `=`, or in the next one.
    Text,
}

/// Returns the flags that have no effect here, sorted by name.
#[must_use]
pub fn foreign_flags() -> &'static [Flag] {
    FOREIGN
}

pub(super) fn verdict(name: &str) -> Option<Verdict> {
    let foreign = FOREIGN.iter().find(|flag| flag.name == name).map(|flag| flag.verdict);
    foreign.or_else(|| OWN.iter().find(|(own, _)| *own == name).map(|(_, verdict)| *verdict))
}

const fn text(name: &'static str, verdict: Verdict) -> Flag {
    Flag { name, takes: Takes::Text, verdict }
}

const fn switch(name: &'static str, verdict: Verdict) -> Flag {
    Flag { name, takes: Takes::Switch, verdict }
}

const NO_WEBHOOK: Verdict =
    Verdict::no_effect("this controller has no admission webhook; events on an Ingress name its problems").instead(
        "delete the ValidatingWebhookConfiguration of ingress-nginx once no pod of it runs, or it refuses each Ingress",
    );
const NO_GEOIP: Verdict = Verdict::refused(
    "addresses are not looked up in databases of MaxMind, and no variable has a country",
    "let a proxy in front set a field, or use `block-cidrs`",
);
const BUCKETS: Verdict = Verdict::differs("buckets of histograms are fixed, and it has no effect")
    .instead("the histograms of docs/metrics.md");
const ONE_PROCESS: Verdict =
    Verdict::no_effect("the proxy is part of the controller, so no internal port connects them");
const NO_RELOAD: Verdict = Verdict::no_effect("changes take effect without a reload");

/// Flags that the command line has.
const OWN: &[(&str, Verdict)] = &[
    ("annotations-prefix", Verdict::FULL),
    ("configmap", Verdict::FULL),
    (
        "controller-class",
        Verdict::differs(
            "the default is `xdp-ingress.io/controller`; `k8s.io/ingress-nginx` also selects the defaults of ingress-nginx",
        ),
    ),
    ("default-backend-service", Verdict::FULL),
    ("default-ssl-certificate", Verdict::FULL),
    ("disable-catch-all", Verdict::FULL),
    ("disable-leader-election", Verdict::FULL),
    (
        "disable-svc-external-name",
        Verdict::differs("Services of type ExternalName are always refused, unless `--allow-svc-external-name` is set"),
    ),
    (
        "election-id",
        Verdict::differs(
            "the default is `xdp-ingress-leader`; with another controller's Lease, only one of the two writes statuses",
        ),
    ),
    ("election-ttl", Verdict::differs("at least 3 s, in whole seconds")),
    ("enable-metrics", Verdict::FULL),
    (
        "enable-ssl-passthrough",
        Verdict::differs("hosts with `ssl-passthrough` are always passed through, so it has no effect"),
    ),
    (
        "healthz-port",
        Verdict::differs("the port is opened on 127.0.0.1 alone, and health is asked for by `xdp-ingress probe`"),
    ),
    ("http-port", Verdict::FULL),
    ("https-port", Verdict::FULL),
    ("ingress-class", Verdict::differs("the default is `xdp`")),
    ("ingress-class-by-name", Verdict::differs("the name counts only while the cluster has no IngressClass at all")),
    ("kubeconfig", Verdict::FULL),
    ("metrics-per-host", Verdict::FULL),
    ("publish-service", Verdict::FULL),
    ("publish-status-address", Verdict::FULL),
    ("report-node-internal-ip-address", Verdict::FULL),
    ("shutdown-grace-period", Verdict::FULL),
    (
        "status-update-interval",
        Verdict::differs("at least 1 s; it is the time before a status that another writer changed is written again"),
    ),
    ("tcp-services-configmap", Verdict::FULL),
    ("udp-services-configmap", Verdict::FULL),
    ("update-status", Verdict::FULL),
    ("update-status-on-shutdown", Verdict::FULL),
    ("version", Verdict::FULL),
    ("watch-ingress-without-class", Verdict::FULL),
    ("watch-namespace", Verdict::FULL),
    ("watch-namespace-selector", Verdict::FULL),
];

/// Sorted by name.
const FOREIGN: &[Flag] = &[
    text(
        "apiserver-host",
        Verdict::refused("the address of the API server comes from a kubeconfig or from the pod", "`--kubeconfig`"),
    ),
    text("bucket-factor", BUCKETS),
    text("certificate-authority", Verdict::refused("it belongs to `--apiserver-host`", "`--kubeconfig`")),
    switch(
        "deep-inspect",
        Verdict::no_effect("values become data and never text of a configuration, so none can break out of its place"),
    ),
    text("default-server-port", ONE_PROCESS),
    switch("disable-full-test", NO_WEBHOOK),
    switch("disable-sync-events", Verdict::no_effect("no `Sync` events are written; events report problems alone")),
    text("dynamic-configuration-retries", NO_RELOAD),
    switch(
        "enable-annotation-validation",
        Verdict::no_effect("values are always validated; an event on the Ingress names the valid ones"),
    ),
    switch(
        "enable-ssl-chain-completion",
        Verdict::refused(
            "chains are served as their Secret has them, and intermediate certificates are not fetched",
            "put the whole chain into the Secret, as cert-manager does",
        ),
    ),
    switch(
        "enable-topology-aware-routing",
        Verdict::differs(
            "hints of EndpointSlices apply to each Service that has them, with `--node-name` set; the flag itself has no effect",
        ),
    ),
    text("exclude-socket-metrics", BUCKETS),
    text(
        "health-check-path",
        Verdict::no_effect("probes of Kubernetes run `xdp-ingress probe` in the pod, without a path"),
    ),
    text(
        "health-check-timeout",
        Verdict::no_effect("probes of Kubernetes run `xdp-ingress probe` in the pod, with a time limit of their own"),
    ),
    text("healthz-host", Verdict::refused("health and metrics are not opened on other addresses", "`--admin-addr`")),
    text("internal-logger-address", ONE_PROCESS),
    text("length-buckets", BUCKETS),
    text("max-buckets", BUCKETS),
    text("maxmind-edition-ids", NO_GEOIP),
    text("maxmind-license-key", NO_GEOIP),
    text("maxmind-mirror", NO_GEOIP),
    text("maxmind-retries-count", NO_GEOIP),
    text("maxmind-retries-timeout", NO_GEOIP),
    switch(
        "metrics-per-undefined-host",
        Verdict::no_effect("requests for unknown hosts are counted together, so clients cannot make series"),
    ),
    text("monitor-max-batch-size", ONE_PROCESS),
    text(
        "post-shutdown-grace-period",
        Verdict::no_effect("the process ends when its connections have ended").instead("`--drain-timeout`"),
    ),
    text("profiler-address", Verdict::no_effect("there is no profiler of Go")),
    text("profiler-port", Verdict::no_effect("there is no profiler of Go")),
    switch("profiling", Verdict::no_effect("there is no profiler of Go")),
    switch("report-status-classes", Verdict::no_effect("metrics always count classes of statuses")),
    text("size-buckets", BUCKETS),
    text("ssl-passthrough-proxy-port", ONE_PROCESS),
    text("status-port", ONE_PROCESS),
    text("stream-port", ONE_PROCESS),
    text("sync-period", Verdict::no_effect("objects are watched, and a broken watch lists them anew")),
    text("sync-rate-limit", NO_RELOAD),
    text("time-buckets", BUCKETS),
    text("v", Verdict::no_effect("the log has levels with names").instead("`--log=debug`")),
    text("validating-webhook", NO_WEBHOOK),
    text("validating-webhook-certificate", NO_WEBHOOK),
    text("validating-webhook-key", NO_WEBHOOK),
];
