//! The model against a real nginx: random sets of Ingresses become servers of one nginx, and each path at a boundary of
//! a set is asked for. Both must decide alike.
//!
//! The test needs the program `nginx`, which the lane `unit` installs. For more than the few sets of a test run:
//!
//! ```sh
//! XDP_INGRESS_NGINX_SETS=10000 cargo test --workspace --test nginx -- --nocapture
//! ```

use std::env;

use ingress_nginx_model::{Decision, HostIngress, Origin, Server, Unmodelled};

mod process;
mod sets;

use process::{Answer, Nginx};

/// Sets of a test run, unless `XDP_INGRESS_NGINX_SETS` says otherwise.
const SETS: usize = 150;
/// Servers of one nginx: it takes about 100 KiB of memory for each.
const SERVERS: usize = 1_000;
/// Refused configurations that are shown to nginx, each by a process of its own.
const REFUSED: usize = 10;
const SEED: u64 = 20_261_126;

#[test]
fn the_model_decides_as_nginx_does() {
    assert!(process::is_installed(), "`nginx` is missing; run `apt-get install nginx`");
    let count = env::var("XDP_INGRESS_NGINX_SETS").map_or(SETS, |sets| sets.parse().expect("a number of sets"));
    let (mut sets, mut refused, mut expressions) = (Vec::new(), Vec::new(), 0);
    let mut seed = SEED;
    while sets.len() < count {
        seed += 1;
        let ingresses = sets::random(&mut fastrand::Rng::with_seed(seed));
        match Server::of(&ingresses) {
            Ok(server) => {
                expressions += usize::from(server.has_expressions());
                sets.push((seed, ingresses, server));
            }
            Err(Unmodelled::Duplicate(location)) => refused.push(location),
            Err(error) => panic!("set {seed} has only what is modelled: {error}"),
        }
    }
    let (mut requests, mut differences) = (0, Vec::new());
    for batch in sets.chunks(SERVERS) {
        let servers: Vec<_> = batch.iter().map(|(_, ingresses, server)| written(ingresses, server)).collect();
        let mut nginx = Nginx::start(&servers);
        for (number, (seed, ingresses, server)) in batch.iter().enumerate() {
            for path in sets::requests(ingresses) {
                requests += 1;
                let (expect, answer) = (expected(server, &path), nginx.ask(number, &path));
                if expect != answer {
                    differences
                        .push(format!("set {seed}, `{path}`: model {expect:?}, nginx {answer:?}, {ingresses:?}"));
                }
            }
        }
    }
    for location in refused.iter().take(REFUSED) {
        let twice = format!("location {location} {{ }}\n").repeat(2);
        assert!(!process::accepts(&twice), "nginx must refuse `{location}` twice");
    }
    eprintln!(
        "{} sets, {expressions} of them with regular expressions, {requests} requests, {} differences; {} further sets \
         have a location twice",
        sets.len(),
        differences.len(),
        refused.len()
    );
    differences.truncate(20);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(expressions > sets.len() / 10, "both kinds of hosts are compared");
}

/// Returns the text of a server: `return` names the location, and `proxy_pass` makes nginx add slashes.
fn written(ingresses: &[HostIngress], server: &Server) -> String {
    let mut text = String::new();
    for location in server.locations() {
        let ingress = match location.origin {
            Origin::Path { ingress, path: _ } => ingress,
            Origin::Default => 0,
        };
        if ingresses[ingress].has_app_root {
            text.push_str(&format!("if ($uri = /) {{ return 302 /app-root-{ingress}; }}\n"));
        }
        let name = name(location.origin);
        text.push_str(&format!("location {location} {{ return 200 \"{name}\"; proxy_pass http://127.0.0.1:9; }}\n"));
    }
    text
}

fn name(origin: Origin) -> String {
    match origin {
        Origin::Path { ingress, path } => format!("{ingress}/{path}"),
        Origin::Default => "default".to_owned(),
    }
}

/// Returns the answer that nginx gives if the model is right.
fn expected(server: &Server, path: &str) -> Answer {
    match server.decide(path) {
        Decision::Location(location) => Answer { status: 200, text: name(location.origin) },
        Decision::AddSlash(location) => {
            let path = location.to_string();
            Answer { status: 301, text: path.trim_start_matches("= ").to_owned() }
        }
        Decision::AppRoot(ingress) => Answer { status: 302, text: format!("/app-root-{ingress}") },
        Decision::BadRequest => Answer { status: 400, text: String::new() },
    }
}
