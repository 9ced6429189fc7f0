//! Cost of many regular expressions in the paths of one Ingress: the time of the control thread until they are served
//! or refused, the growth of the process's memory at its peak, and the cost of a request with 1,000 of them.
//!
//! `cargo bench -p ingress-userspace --bench expressions` prints Markdown. The targets: at most 100 ms and 64 MiB for
//! 10,000 expressions, refused or not; a request among 1,000 light ones costs at most 1.2 times that beside one. The
//! CPU time of the worker's thread is measured, as in `benches/filters.rs`.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{env, fs, net::SocketAddr, path::Path, process::Command, sync::Arc, time::Instant};

use ingress_control::{
    Origin,
    change::Change,
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator},
};
use ingress_model::HostId;
use ingress_proxy::Snapshot;
use served::{Served, medians, pod, request, stay_on_one_cpu, translate};

mod served;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Light,
    Heavy,
}

const CASES: [(Kind, usize); 6] = [
    (Kind::Light, 1_000),
    (Kind::Light, 2_000),
    (Kind::Light, 10_000),
    (Kind::Heavy, 10),
    (Kind::Heavy, 1_000),
    (Kind::Heavy, 10_000),
];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // Each row runs in a separate process; otherwise, memory that earlier rows released would be used again.
    if let [kind, count] = arguments.as_slice()
        && let (Some(kind), Ok(count)) = (Kind::ALL.into_iter().find(|of| of.as_str() == kind), count.parse())
    {
        return control(kind, count);
    }
    println!("| expressions | number | control thread | peak memory | result |");
    println!("|---|--:|--:|--:|---|");
    for (kind, count) in CASES {
        let mut command = Command::new(env::current_exe().expect("this program"));
        let status = command.args([kind.as_str(), &count.to_string()]).status().expect("it starts");
        assert!(status.success(), "{status}");
    }
    requests();
}

/// Prints the cost of an Ingress with these expressions, beside another one.
fn control(kind: Kind, count: usize) {
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let mut cluster = Cluster::default();
    let (before, after) =
        (objects("victim", &Kind::Light.paths(1), address), objects("many", &kind.paths(count), address));
    let mut translator = Translator::new(Options::default());
    let mut snapshot = None;
    let mut step = |texts: &[String]| {
        let path: Arc<Path> = Path::new("bench.yaml").into();
        let changes: Vec<_> = texts.iter().flat_map(|text| parse(&path, text).objects).collect();
        // Resets `VmHWM`, see proc(5).
        fs::write("/proc/self/clear_refs", "5").expect("a reset of the peak");
        let (resident, began) = (memory("VmRSS:"), Instant::now());
        for object in changes {
            cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
        let translation = translator.translate(&cluster);
        let (compiled, _) = Snapshot::compile(snapshot.as_ref(), &translation.table, |_| Some(HostId(1)));
        snapshot = Some(compiled);
        (translation, began.elapsed(), memory("VmHWM:").saturating_sub(resident))
    };
    let _first = step(&before);
    let (translation, time, kib) = step(&after);
    let refusals: Vec<_> = translation.outcomes.keys().map(|outcome| outcome.message.clone()).collect();
    let result = match refusals.as_slice() {
        [] => "served".to_owned(),
        refusals => refusals.join("; "),
    };
    assert_eq!(translation.table.hosts.len(), 1 + usize::from(refusals.is_empty()), "{result}");
    let milliseconds = time.as_secs_f64() * 1e3;
    println!("| {} | {count} | {milliseconds:.1} ms | {:.1} MiB | {result} |", kind.as_str(), kib as f64 / 1024.0);
}

/// Prints the cost of a request beside one expression, and beside 1,000.
fn requests() {
    const TARGET: &str = "/a-0/12345";
    // Threads on one CPU alternate. On several CPUs, the cost of wake-ups hides everything else.
    stay_on_one_cpu();
    let pod = pod();
    let served = [1, 1_000].map(|count| {
        let table = translate(&objects("many", &Kind::Light.paths(count), pod));
        Served::new(&table, "many.test", TARGET)
    });
    let request = request("many.test", TARGET, "");
    let [one, many] = medians(|| served.each_ref().map(|served| served.time(&request)));
    println!("\n| a request beside | worker | ratio |\n|---|--:|--:|");
    println!(
        "| 1 light expression | {one:.2} µs | 1.00 |\n| 1,000 light expressions | {many:.2} µs | {:.2} |",
        many / one
    );
}

/// Returns the class, a Service with one endpoint, and an Ingress for `NAME.test`.
fn objects(name: &str, paths: &[String], endpoint: SocketAddr) -> Vec<String> {
    let path = |text: &String| {
        format!(
            "      - {{path: {text:?}, pathType: ImplementationSpecific, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}\n"
        )
    };
    let paths: String = paths.iter().map(path).collect();
    vec![
        "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n".to_owned(),
        format!("apiVersion: v1\nkind: Service\nmetadata: {{namespace: {name}, name: s}}\nspec: {{ports: [{{port: 80}}]}}\n"),
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: {name}, name: s-a, labels: {{kubernetes.io/service-name: s}}}}\n\
             addressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [{}]}}]\n",
            endpoint.port(),
            endpoint.ip()
        ),
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: {name}\n  name: i\n  \
             annotations: {{nginx.ingress.kubernetes.io/use-regex: \"true\"}}\n\
             spec:\n  ingressClassName: xdp\n  rules:\n  - host: {name}.test\n    http:\n      paths:\n{paths}"
        ),
    ]
}

/// Returns a line of `/proc/self/status`, in KiB.
fn memory(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

// === impl Kind ===

impl Kind {
    const ALL: [Self; 2] = [Self::Light, Self::Heavy];

    fn as_str(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Heavy => "heavy",
        }
    }

    fn paths(self, count: usize) -> Vec<String> {
        let text = |number| match self {
            Self::Light => format!("/a-{number}/[0-9]+"),
            Self::Heavy => format!("/{number}_a{{2400}}x?"),
        };
        (0..count).map(text).collect()
    }
}
