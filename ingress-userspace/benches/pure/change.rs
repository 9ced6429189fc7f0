//! Cost of one change among many Ingresses, one in ten with TLS, or among as many HTTPRoutes: its translation and its
//! compilation.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use ingress_control::change::Change;

use super::{
    counts,
    pipeline::{
        CERTIFICATES, Pipeline, Times, apply, ingress, object, objects, one_in_ten, route, route_texts, routes, secret,
        slice, texts,
    },
    scattered,
};

/// Creates the changes of a turn, and those that revert them, so that the number of Ingresses stays the same.
type Make = fn(turn: usize, count: usize) -> [Vec<Change>; 2];

/// All objects, and changes among them.
type Among = (fn(usize) -> Vec<Change>, &'static [(&'static str, Make)]);

const AMONG: [Among; 2] = [(ingresses, &INGRESS_CHANGES), (routes, &ROUTE_CHANGES)];

const INGRESS_CHANGES: [(&str, Make); 4] = [
    ("endpoint changed", endpoint_changed),
    ("Ingress added", ingress_added),
    ("Ingress removed", ingress_removed),
    ("certificate rotated", certificate_rotated),
];

const ROUTE_CHANGES: [(&str, Make); 3] = [
    ("endpoint of a route changed", endpoint_changed),
    ("HTTPRoute added", route_added),
    ("HTTPRoute removed", route_removed),
];

type Part = fn(&Times) -> Duration;

const PARTS: [(&str, Part); 2] = [("translate", |times| times.translated), ("compile", |times| times.compiled)];

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("change");
    for (&count, (all, changes)) in counts().iter().flat_map(|count| AMONG.iter().map(move |among| (count, among))) {
        let mut filled: Option<Pipeline> = None;
        for (kind, make) in *changes {
            let mut turn = 0;
            for (part, took) in PARTS {
                group.bench_function(BenchmarkId::new(format!("{part} {kind}"), count), |bencher| {
                    let pipeline = filled.get_or_insert_with(|| {
                        let mut pipeline = Pipeline::new();
                        pipeline.step(all(count));
                        pipeline
                    });
                    let mut measure = || {
                        let [change, back] = make(turn, count);
                        turn += 1;
                        let times = pipeline.step(change);
                        if !back.is_empty() {
                            pipeline.step(back);
                        }
                        took(&times)
                    };
                    bencher.iter_custom(|turns| (0..turns).map(|_| measure()).sum());
                });
            }
        }
    }
    group.finish();
}

fn ingresses(count: usize) -> Vec<Change> {
    objects(count, one_in_ten)
}

fn endpoint_changed(turn: usize, count: usize) -> [Vec<Change>; 2] {
    [vec![apply(&slice(scattered(turn, count), 2 + turn / count))], Vec::new()]
}

fn ingress_added(turn: usize, count: usize) -> [Vec<Change>; 2] {
    let number = count + scattered(turn, count);
    let texts = texts(number, one_in_ten(number));
    [texts.iter().map(|text| apply(text)).collect(), texts.iter().map(|text| remove(text)).collect()]
}

fn ingress_removed(turn: usize, count: usize) -> [Vec<Change>; 2] {
    let number = scattered(turn, count);
    let text = ingress(number, one_in_ten(number));
    [vec![remove(&text)], vec![apply(&text)]]
}

fn route_added(turn: usize, count: usize) -> [Vec<Change>; 2] {
    let texts = route_texts(count + scattered(turn, count));
    [texts.iter().map(|text| apply(text)).collect(), texts.iter().map(|text| remove(text)).collect()]
}

fn route_removed(turn: usize, count: usize) -> [Vec<Change>; 2] {
    let text = route(scattered(turn, count));
    [vec![remove(&text)], vec![apply(&text)]]
}

/// Rotates the certificate of two or three Ingresses in a hundred.
fn certificate_rotated(turn: usize, _count: usize) -> [Vec<Change>; 2] {
    [vec![secret(turn % CERTIFICATES)], Vec::new()]
}

fn remove(text: &str) -> Change {
    Change::Remove(object(text).id())
}
