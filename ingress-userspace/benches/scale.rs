//! What one change costs among many Ingresses: from the change of an object to its translation, and from there to the
//! snapshot. It asks no API server and serves nothing.
//!
//! `cargo bench --bench scale -- 1000 10000 100000` prints Markdown for so many Ingresses, each with a host, a Service
//! and an EndpointSlice of its own; in every second table one in ten has TLS, by four certificates. A measurement of
//! this kind needs a median and a tail over 200 changes and nothing of what a framework for benchmarks adds.
#![cfg(all(feature = "control", feature = "proxy"))]
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{
    collections::HashMap,
    env, fs, hint,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use ingress_userspace::{
    control::{
        Origin,
        change::{Change, Object, ObjectId},
        cluster::Cluster,
        source::manifests::parse,
        translate::{Options, Translator},
    },
    model::{HostId, HostPattern},
    proxy::Snapshot,
    route::Names,
};

/// Changes of each kind.
const CHANGES: usize = 200;
/// When to make do with fewer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Different certificates.
const CERTIFICATES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    None,
    OneInTen,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // Each table in a process of its own, or the memory of one would be that of those before it.
    if let [count, tls] = arguments.as_slice()
        && let (Ok(count), Some(tls)) = (count.parse(), Tls::ALL.into_iter().find(|of| of.as_str() == tls))
    {
        return measure(count, tls);
    }
    let counts = if arguments.is_empty() { ["1000", "10000"].map(str::to_owned).into() } else { arguments };
    for count in counts {
        for tls in Tls::ALL {
            let mut command = Command::new(env::current_exe().expect("this program"));
            let status = command.args([count.as_str(), tls.as_str()]).status().expect("it starts");
            assert!(status.success(), "{status}");
        }
    }
}

// === impl Tls ===

impl Tls {
    const ALL: [Self; 2] = [Self::None, Self::OneInTen];

    fn as_str(self) -> &'static str {
        match self {
            Self::None => "no-tls",
            Self::OneInTen => "tls-one-in-ten",
        }
    }
}

fn measure(count: usize, tls: Tls) {
    let before = resident();
    let mut changes = vec![apply(CLASS)];
    changes.extend(
        (0..count)
            .flat_map(|number| [service(number), slice(number, 1), ingress(number, tls)].map(|text| apply(&text))),
    );
    changes.extend((0..CERTIFICATES).map(secret));
    let objects = resident();
    let mut pipeline = Pipeline::new();
    let (translated, published) = pipeline.step(changes);
    println!("\n### {count} Ingresses, {}\n", tls.as_str());
    println!(
        "first: {} ms + {} ms; {} MiB, of which objects {} MiB\n",
        translated.as_millis(),
        published.as_millis(),
        (resident() - before) >> 20,
        (objects - before) >> 20
    );
    let (found, plain) = pipeline.lookup(count);
    println!("to find a host: {found:.0} ns; in std's map {plain:.0} ns\n");
    println!("| change | translated, median | p99 | published, median | p99 | both, p99 | changes |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let some = |change: usize| change.wrapping_mul(7919) % count;
    let kinds: [(&str, Make<'_>); 4] = [
        ("endpoint", &|change| vec![apply(&slice(some(change), 2 + change / count))]),
        ("Ingress added", &|change| {
            let number = count + change;
            [service(number), slice(number, 1), ingress(number, tls)].map(|text| apply(&text)).into()
        }),
        ("Ingress removed", &|change| vec![Change::Remove(id(&ingress(count + change, tls)))]),
        ("certificate rotated", &|change| vec![secret(change % CERTIFICATES)]),
    ];
    for (name, change) in kinds {
        if name.starts_with("certificate") && tls == Tls::None {
            continue;
        }
        let (began, mut times) = (Instant::now(), Vec::new());
        for number in 0..CHANGES {
            times.push(pipeline.step(change(number)));
            if began.elapsed() > PATIENCE {
                break;
            }
        }
        let translated: Vec<_> = times.iter().map(|(translated, _)| *translated).collect();
        let published: Vec<_> = times.iter().map(|(_, published)| *published).collect();
        let both: Vec<_> = times.iter().map(|(translated, published)| *translated + *published).collect();
        let [translated, published, both] = [translated, published, both].map(|mut times| {
            times.sort();
            let at = |part: usize| {
                format!("{:.3} ms", times[(times.len() * part / 100).min(times.len() - 1)].as_secs_f64() * 1e3)
            };
            (at(50), at(99))
        });
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} |",
            translated.0,
            translated.1,
            published.0,
            published.1,
            both.1,
            times.len()
        );
    }
}

/// Makes the change of a number.
type Make<'m> = &'m dyn Fn(usize) -> Vec<Change>;

/// The control path without its source, and what it leads to.
struct Pipeline {
    cluster: Cluster,
    translator: Translator,
    snapshot: Option<Arc<Snapshot>>,
    hosts: u32,
}

impl Pipeline {
    fn new() -> Self {
        let translator = Translator::new(Options::default());
        Self { cluster: Cluster::default(), translator, snapshot: None, hosts: 0 }
    }

    fn step(&mut self, changes: Vec<Change>) -> (Duration, Duration) {
        let began = Instant::now();
        for change in changes {
            self.cluster.apply(change);
        }
        let translation = self.translator.translate(&self.cluster);
        let translated = began.elapsed();
        let began = Instant::now();
        let (snapshot, problems) = Snapshot::compile(self.snapshot.as_deref(), &translation.table, |_| {
            self.hosts += 1;
            Some(HostId(self.hosts))
        });
        assert!(problems.is_empty(), "{problems:?}");
        self.snapshot = Some(Arc::new(snapshot));
        (translated, began.elapsed())
    }

    /// Nanoseconds that it takes to find a host, one after the other: in [`Names`], and in std's map.
    fn lookup(&self, count: usize) -> (f64, f64) {
        let routes = self.snapshot.as_ref().map(|snapshot| &snapshot.routes).expect("a snapshot");
        let (mut names, mut plain) = (Names::default(), HashMap::new());
        for entry in routes.hosts() {
            if let HostPattern::Exact(host) = &entry.pattern {
                names.set(host, Some(entry.id));
                plain.insert(host.clone(), entry.id);
            }
        }
        let hosts: Vec<String> = (0..100_000).map(|number| format!("h{}.bench.test", number * 7919 % count)).collect();
        let time = |find: &dyn Fn(&str) -> Option<HostId>| {
            let rounds: Vec<Duration> = (0..9)
                .map(|_| {
                    let began = Instant::now();
                    for host in &hosts {
                        hint::black_box(find(host));
                    }
                    began.elapsed()
                })
                .collect();
            rounds.iter().min().map_or(0.0, |best| best.as_secs_f64() * 1e9 / hosts.len() as f64)
        };
        (time(&|host| names.get(host).copied()), time(&|host| plain.get(host).copied()))
    }
}

const CLASS: &str = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n";

fn service(number: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: bench, name: s{number}}}\nspec: {{ports: [{{port: 80}}]}}\n"
    )
}

fn slice(number: usize, version: usize) -> String {
    let (high, low) = (number >> 8 & 255, number & 255);
    let endpoints =
        [1, 2].map(|pod| format!("{{addresses: [10.{}.{high}.{low}]}}, ", pod * 64 + version % 64)).concat();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: bench, name: s{number}-a, labels: {{kubernetes.io/service-name: s{number}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{endpoints}]\n"
    )
}

fn ingress(number: usize, tls: Tls) -> String {
    let tls = match tls {
        Tls::OneInTen if number.is_multiple_of(10) => {
            format!("  tls: [{{hosts: [h{number}.bench.test], secretName: c{}}}]\n", number / 10 % CERTIFICATES)
        }
        Tls::OneInTen | Tls::None => String::new(),
    };
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{namespace: bench, name: i{number}, creationTimestamp: 2026-01-01T00:00:00Z}}\n\
         spec:\n  ingressClassName: xdp\n{tls}  rules:\n  - host: h{number}.bench.test\n    http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: s{number}, port: {{number: 80}}}}}}}}]}}\n"
    )
}

/// A new certificate for all hosts.
fn secret(number: usize) -> Change {
    let made = rcgen::generate_simple_self_signed(vec!["*.bench.test".to_owned()]).expect("a certificate");
    let indent = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let (certificate, key) = (indent(&made.cert.pem()), indent(&made.signing_key.serialize_pem()));
    apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{namespace: bench, name: c{number}}}\nstringData:\n  tls.crt: |\n{certificate}  tls.key: |\n{key}"
    ))
}

fn apply(text: &str) -> Change {
    Change::Apply { object: object(text), origin: Origin::Api }
}

fn id(text: &str) -> ObjectId {
    object(text).id()
}

fn object(text: &str) -> Object {
    let path: Arc<Path> = Path::new("bench.yaml").into();
    let parsed = parse(&path, text);
    assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
    parsed.objects.into_iter().next().expect("an object")
}

/// Bytes of memory in use.
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}
