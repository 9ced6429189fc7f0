//! The demo's requests and the expected answers, as data: one table, in the order of the run. It sends nothing.
//!
//! The hosts, paths and pods are those of `deploy/examples`.

use ingress_lab::{
    client::Protocol::{self, Http1, Https1, Https2},
    topology::Family::{self, V4, V6},
};

use Connections::{EachItsOwn, One};
use Expect::{OwnAnswer, Pattern, Receipt, Received, Served};
use Origin::{Client, Node, Pod};

/// A group of requests.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) title: &'static str,
    pub(super) from: Origin,
    pub(super) to: To,
    pub(super) family: Family,
    pub(super) protocol: Protocol,
    pub(super) connections: Connections,
    pub(super) asks: &'static [Asked],
}

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The client beyond the routers: its packets reach the node's NIC.
    Client,
    /// A program on the node itself: no NIC, no XDP.
    Node,
    /// The first pod: its packets reach the node by a link without XDP.
    Pod,
}

/// Intended receiver of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// The node's address, ports 80 and 443: the proxy.
    Proxy,
    /// The first pod's own address, port 80: no program on the way may intercept the packets.
    FirstPod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connections {
    /// All requests of the step on one connection.
    One,
    /// A connection for each request, closed after it.
    EachItsOwn,
}

/// The same request, sent several times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) times: u32,
    pub(super) host: &'static str,
    pub(super) path: &'static str,
    /// Bytes to send; 0 for a GET.
    pub(super) upload: u64,
    pub(super) expect: Expect,
    /// Name under which the requests are counted: the route's host.
    pub(super) counted_as: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// 200 from one of these pods, which reports the request that it received. With enough requests, each of the pods
    /// must answer.
    Served(&'static [&'static str]),
    /// 200 from one of these pods, which received the request in another form than the client sent it.
    Received {
        pods: &'static [&'static str],
        /// Path and query.
        path: &'static str,
        /// `HTTP/1.1` or `HTTP/2.0`.
        protocol: &'static str,
        /// Names, in lower case, and values of some of the fields.
        fields: &'static [(&'static str, &'static str)],
    },
    /// 200 with this many bytes of the pattern.
    Pattern(u64),
    /// 200 from a pod that received every byte that was sent.
    Receipt,
    /// This status from the proxy itself; no pod sees the request.
    OwnAnswer(u16),
}

/// Host name in the counts for requests that match no route.
pub(super) const NOBODY: &str = ingress_lab::maps::UNATTRIBUTED_NAME;

const SHOP: &str = "shop.example.com";
const ACCOUNT: &str = "account.example.com";
const DOCS: &str = "docs.example.com";
const MEDIA: &str = "media.example.com";
const MAIN: &str = "main.preview.example.com";
const TROUBLED: &str = "troubled.example.com";
/// A host of the wildcard `*.preview.example.com`.
const FEATURE: &str = "feature-7.preview.example.com";
const PREVIEW: &str = "*.preview.example.com";
/// A host of an HTTPRoute, with the name under which its listener counts it.
const STORE: &str = "store.gateway.example.com";
const STORE_COUNTS: &str = "store.gateway.example.com@gateway/web/http";
/// A host of a GRPCRoute, with the name under which its listener counts it.
const PRICES: &str = "prices.gateway.example.com";
const PRICES_COUNTS: &str = "prices.gateway.example.com@gateway/web/https";

const fn get(times: u32, host: &'static str, path: &'static str, expect: Expect) -> Asked {
    Asked { times, host, path, upload: 0, expect, counted_as: host }
}

const fn upload(host: &'static str, path: &'static str, bytes: u64) -> Asked {
    Asked { times: 1, host, path, upload: bytes, expect: Receipt, counted_as: host }
}

impl Asked {
    const fn counted_as(mut self, host: &'static str) -> Self {
        self.counted_as = host;
        self
    }
}

const fn step(
    title: &'static str,
    from: Origin,
    family: Family,
    protocol: Protocol,
    connections: Connections,
    asks: &'static [Asked],
) -> Step {
    Step { title, from, to: To::Proxy, family, protocol, connections, asks }
}

const fn transit(title: &'static str, family: Family, asks: &'static [Asked]) -> Step {
    Step { title, from: Client, to: To::FirstPod, family, protocol: Http1, connections: One, asks }
}

pub(super) const STEPS: &[Step] = &[
    step(
        "several hosts on one connection",
        Client,
        V4,
        Http1,
        One,
        &[
            get(6, SHOP, "/", Served(&["pod-a", "pod-b"])),
            get(3, SHOP, "/api/items?page=2", Served(&["pod-c"])),
            get(1, SHOP, "/healthz", Served(&["pod-a"])),
            get(2, DOCS, "/guide/first-steps", Served(&["pod-b"])),
            get(2, DOCS, "/elsewhere", Served(&["pod-c"])),
            get(4, MEDIA, "/files/", Served(&["pod-a", "pod-c"])),
            get(1, MEDIA, "/elsewhere", OwnAnswer(404)),
        ],
    ),
    step(
        "several hosts on one connection",
        Client,
        V6,
        Http1,
        One,
        &[get(4, SHOP, "/", Served(&["pod-a", "pod-b"])), get(4, MEDIA, "/files/list", Served(&["pod-a", "pod-c"]))],
    ),
    step(
        "a new connection for each request",
        Client,
        V4,
        Http1,
        EachItsOwn,
        &[get(8, SHOP, "/", Served(&["pod-a", "pod-b"])), get(2, DOCS, "/", Served(&["pod-c"]))],
    ),
    step(
        "a new connection for each request",
        Client,
        V6,
        Http1,
        EachItsOwn,
        &[get(4, SHOP, "/", Served(&["pod-a", "pod-b"]))],
    ),
    step(
        "HTTPS on one connection",
        Client,
        V4,
        Https1,
        One,
        &[get(6, ACCOUNT, "/login", Served(&["pod-a", "pod-b", "pod-c"]))],
    ),
    step(
        "HTTPS, a handshake for each",
        Client,
        V6,
        Https1,
        EachItsOwn,
        &[get(3, ACCOUNT, "/login", Served(&["pod-a", "pod-b", "pod-c"]))],
    ),
    step(
        "HTTP/2 on one connection",
        Client,
        V4,
        Https2,
        One,
        &[get(12, ACCOUNT, "/", Served(&["pod-a", "pod-b", "pod-c"])), get(2, SHOP, "/", Served(&["pod-a", "pod-b"]))],
    ),
    step(
        "HTTP/2 on one connection",
        Client,
        V6,
        Https2,
        One,
        &[get(6, ACCOUNT, "/", Served(&["pod-a", "pod-b", "pod-c"]))],
    ),
    step(
        "HTTP to a host with TLS is redirected",
        Client,
        V4,
        Http1,
        One,
        &[get(2, ACCOUNT, "/login?next=%2F", OwnAnswer(308))],
    ),
    step(
        "wildcard, and the exact host before it",
        Client,
        V4,
        Http1,
        One,
        &[get(3, FEATURE, "/", Served(&["pod-b"])).counted_as(PREVIEW), get(2, MAIN, "/", Served(&["pod-a"]))],
    ),
    step(
        "Gateway API: weights and filters",
        Client,
        V4,
        Http1,
        One,
        &[
            get(8, STORE, "/", Served(&["pod-a", "pod-b", "pod-c"])).counted_as(STORE_COUNTS),
            get(3, STORE, "/?version=2", Served(&["pod-c"])).counted_as(STORE_COUNTS),
            get(1, STORE, "/catalog/shoes?size=42", CATALOG).counted_as(STORE_COUNTS),
            get(2, STORE, "/account/orders", OwnAnswer(308)).counted_as(STORE_COUNTS),
        ],
    ),
    step(
        "Gateway API: a GRPCRoute over HTTPS",
        Client,
        V6,
        Https2,
        One,
        &[
            get(3, PRICES, "/shop.Prices/Latest", CALL).counted_as(PRICES_COUNTS),
            get(1, PRICES, "/shop.Orders/Latest", OwnAnswer(404)).counted_as(NOBODY),
        ],
    ),
    step("10 MB down", Client, V4, Http1, One, &[get(1, MEDIA, "/files/bytes/10000000", Pattern(10_000_000))]),
    step(
        "3 MB down across the small link",
        Client,
        V4,
        Http1,
        One,
        &[get(1, SHOP, "/bytes/3000000", Pattern(3_000_000))],
    ),
    step(
        "3 MB down across the small link",
        Client,
        V6,
        Http1,
        One,
        &[get(1, SHOP, "/bytes/3000000", Pattern(3_000_000))],
    ),
    step(
        "3 MB down across it by HTTP/2",
        Client,
        V6,
        Https2,
        One,
        &[get(1, ACCOUNT, "/bytes/3000000", Pattern(3_000_000))],
    ),
    step("4 MB up", Client, V4, Http1, One, &[upload(SHOP, "/api/upload", 4_000_000)]),
    step("1 MB up by HTTP/2", Client, V6, Https2, One, &[upload(ACCOUNT, "/upload", 1_000_000)]),
    step(
        "hosts that nobody serves",
        Client,
        V4,
        Http1,
        One,
        &[
            get(2, "nobody.example.com", "/", OwnAnswer(404)).counted_as(NOBODY),
            get(1, "a.b.preview.example.com", "/", OwnAnswer(404)).counted_as(NOBODY),
        ],
    ),
    step(
        "what goes wrong behind the proxy",
        Client,
        V4,
        Http1,
        One,
        &[
            get(1, TROUBLED, "/", Served(&["pod-a"])),
            get(2, TROUBLED, "/starting", OwnAnswer(503)),
            get(2, TROUBLED, "/gone", OwnAnswer(503)),
            get(2, TROUBLED, "/refusing", OwnAnswer(502)),
        ],
    ),
    step("from the node itself", Node, V4, Http1, EachItsOwn, &[get(3, SHOP, "/", Served(&["pod-a", "pod-b"]))]),
    step(
        "from the node itself, HTTPS",
        Node,
        V6,
        Https1,
        EachItsOwn,
        &[get(2, ACCOUNT, "/", Served(&["pod-a", "pod-b", "pod-c"]))],
    ),
    step("from a pod to the node", Pod, V4, Http1, EachItsOwn, &[get(2, SHOP, "/", Served(&["pod-a", "pod-b"]))]),
    step("from a pod to the node", Pod, V6, Http1, EachItsOwn, &[get(2, SHOP, "/", Served(&["pod-a", "pod-b"]))]),
    transit("past the node to a pod's port 80", V4, &[get(3, "pod-a.internal", "/", Served(&["pod-a"]))]),
    transit("past the node to a pod's port 80", V6, &[get(3, "pod-a.internal", "/", Served(&["pod-a"]))]),
];

/// The request that a pod gets for a path below `/catalog`.
const CATALOG: Expect = Received {
    pods: &["pod-a", "pod-b"],
    path: "/shoes?size=42",
    protocol: "HTTP/1.1",
    fields: &[("host", STORE), ("x-shelf", "catalog")],
};

/// The request that a pod gets for a call: HTTP/2 without TLS.
const CALL: Expect = Received {
    pods: &["pod-b"],
    path: "/shop.Prices/Latest",
    protocol: "HTTP/2.0",
    fields: &[("x-forwarded-proto", "https")],
};

/// Hosts of the certificate in the Secret that `gateway.yaml` names.
pub(super) const GATEWAY_CERTIFICATE_HOSTS: &[&str] = &["*.gateway.example.com"];

/// Hosts of the certificate in the Secret that `tls.yaml` names.
pub(super) const CERTIFICATE_HOSTS: &[&str] = &[ACCOUNT, SHOP];
