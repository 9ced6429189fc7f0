//! The corpus: Ingresses of charts, with annotations as the charts or ingress-nginx document them. `charts/*.yaml` has
//! a file for each chart. Each Ingress names the repository and the file that it follows; names and hosts are its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use expect_test::expect_file;
use ingress_control::{
    Origin, Outcome,
    change::{Change, Object},
    migration::{Kind, Surface},
    translate::translate,
};
use k8s_openapi::api::networking::v1::Ingress;

use super::{
    controller::Controller,
    directory,
    finding::{Counts, Finding, Report, Verdict},
    fix::Files,
    judge, objects, read_text, snippet,
};

/// The prefix of annotations that ingress-nginx reads.
const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// Returns the charts' names and manifests.
fn charts() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/check/charts");
    let entries = fs::read_dir(directory).expect("the corpus").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    files.sort();
    let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).expect("a manifest"))).collect()
}

/// Returns all charts as one set of objects.
fn all() -> objects::Objects {
    read_text(&charts().into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("---\n"))
}

fn judged(objects: &objects::Objects, with_requests: bool) -> Report {
    let controller = Controller::of(objects, None, None).expect("no installation");
    let (conversions, _) = judge::conversions(objects, &controller, true);
    let extent = judge::Extent { is_directory: true, namespace: None, with_requests };
    judge::judge(objects, &controller, &conversions, extent)
}

/// Returns the annotations of ingress-nginx of each Ingress, without their prefix.
fn annotations(objects: &objects::Objects) -> Vec<(String, BTreeMap<String, String>)> {
    let of = |stored: &Ingress| {
        let annotations = stored.metadata.annotations.iter().flatten();
        annotations.filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value.clone()))).collect()
    };
    objects.cluster.ingresses.iter().map(|(name, stored)| (name.to_string(), of(&stored.object))).collect()
}

#[test]
fn the_corpus_is_large_and_names_its_sources() {
    let charts = charts();
    let (mut count, mut seen) = (0, BTreeMap::new());
    for (chart, text) in &charts {
        for document in text.split("\n---\n") {
            count += 1;
            let (source, manifest) = document.split_once('\n').expect("a source and a manifest");
            let source = source.strip_prefix("# source: ").expect("a source in front of the manifest");
            let (repository, file) = source.split_once(' ').expect("a repository and a file");
            assert!(repository.split('/').count() == 2 && file.contains('.'), "{chart}: {source}");
            // Without names and hosts, no Ingress is the copy of another one of its chart.
            let is_own = |line: &&str| !["name: ", "- host", "secretName"].iter().any(|own| line.contains(own));
            let rest: Vec<_> = manifest.lines().filter(is_own).collect();
            let name = manifest.lines().find(|line| line.starts_with("  name: ")).expect("a name");
            let entry = seen.entry((chart, rest)).or_insert_with(Vec::new);
            entry.push(name.trim());
        }
    }
    assert!(charts.len() >= 25 && count >= 300, "{count} Ingresses of {} charts", charts.len());
    let copies: Vec<_> = seen.values().filter(|names| names.len() > 1).collect();
    assert!(copies.len() <= 40, "{} alike: {copies:?}", copies.len());
}

/// `UPDATE_EXPECT=1 cargo test -p ingress-cli charts` writes the file anew.
#[test]
fn each_chart_has_its_findings() {
    let (mut text, mut totals) = (String::new(), BTreeMap::<Verdict, usize>::new());
    let mut sum = Counts::default();
    for (chart, manifests) in charts() {
        let objects = read_text(&manifests);
        let Report { ingresses, counts, findings, .. } = judged(&objects, false);
        let Counts { ready, differs, needs_fix, refused } = counts;
        let _written = writeln!(
            text,
            "{chart}: {ingresses} Ingresses, ready {ready}, differs {differs}, needs fix {needs_fix}, refused {refused}"
        );
        sum = Counts {
            ready: sum.ready + ready,
            differs: sum.differs + differs,
            needs_fix: sum.needs_fix + needs_fix,
            refused: sum.refused + refused,
        };
        let mut lines = BTreeMap::<(std::cmp::Reverse<Verdict>, &str), BTreeSet<&str>>::new();
        for Finding { verdict, object, key, .. } in &findings {
            *totals.entry(*verdict).or_default() += 1;
            let prefix = format!("{chart}-");
            let name = object.name.strip_prefix(&prefix).unwrap_or(&object.name);
            lines.entry((std::cmp::Reverse(*verdict), key)).or_default().insert(name);
        }
        for ((verdict, key), names) in lines {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            let _written = writeln!(text, "  {} {key}: {names}", verdict.0.as_str());
        }
    }
    let Counts { ready, differs, needs_fix, refused } = sum;
    let totals: Vec<_> = totals.iter().map(|(verdict, count)| format!("{} {count}", verdict.as_str())).collect();
    let _written =
        writeln!(text, "\nIngresses: ready {ready}, differs {differs}, needs fix {needs_fix}, refused {refused}");
    let _written = writeln!(text, "findings: {}", totals.join(", "));
    expect_file!["charts/findings.expected.txt"].assert_eq(&text);
}

#[test]
fn outcomes_say_whether_rules_are_refused() {
    let objects = all();
    let controller = Controller::of(&objects, None, None).expect("no installation");
    let translation = translate(&objects.cluster, &controller.options(&objects, true));
    let (refusing, others): (Vec<_>, Vec<_>) =
        translation.outcomes.keys().map(|outcome| &**outcome).partition(|outcome| outcome.refuses);
    let says_so = |outcome: &&Outcome| outcome.message.contains("its rules answer 503");
    assert!(refusing.len() >= 50, "{}", refusing.len());
    assert_eq!(refusing.into_iter().find(|outcome| !says_so(outcome)), None);
    assert_eq!(others.into_iter().find(says_so), None);
}

/// A name without effect, a refused one and an unknown one is always a finding. A name that differs is one for the
/// values that its row is about; the file has the others, which behave alike.
#[test]
fn no_difference_is_dropped() {
    let objects = all();
    let found: BTreeSet<_> = judged(&objects, false)
        .findings
        .into_iter()
        .filter(|finding| finding.object.kind == "Ingress")
        .map(|finding| (format!("{}/{}", finding.object.namespace, finding.object.name), finding.key))
        .collect();
    let (mut dropped, mut alike) = (Vec::new(), BTreeMap::<String, BTreeSet<String>>::new());
    for (ingress, annotations) in annotations(&objects) {
        for (key, value) in annotations {
            let verdict = Surface::Annotations.verdict(&key);
            if verdict.is_some_and(|verdict| verdict.kind == Kind::Full)
                || found.contains(&(ingress.clone(), key.clone()))
            {
                continue;
            }
            match verdict.map(|verdict| verdict.kind) {
                Some(Kind::Differs) => {
                    alike.entry(key).or_default().insert(value);
                }
                kind => dropped.push(format!("{ingress}: {key}: {kind:?}")),
            }
        }
    }
    assert!(dropped.is_empty(), "{dropped:#?}");
    let mut text = String::new();
    for (key, values) in alike {
        let verdict = Surface::Annotations.verdict(&key).expect("a row");
        let _written = writeln!(text, "{key} differs: {}", verdict.text);
        for value in values {
            let _written = writeln!(text, "  alike: {value}");
        }
    }
    expect_file!["charts/alike.expected.txt"].assert_eq(&text);
}

/// docs/paths.md explains each difference of single requests; those by an escaped slash are counted.
#[test]
fn requests_of_all_charts_are_compared() {
    let objects = all();
    let report = judged(&objects, true);
    let (mut text, mut escaped) = (String::new(), 0);
    for finding in report.findings.iter().filter(|finding| finding.key == "request") {
        if finding.what.contains("%2F") && finding.what.contains("; here: 400: pods may read the path as") {
            escaped += 1;
            continue;
        }
        let _written = writeln!(text, "{} {}: {}", finding.verdict.as_str(), finding.subject(), finding.what);
    }
    let compared = report.compared.expect("a comparison");
    let _written =
        writeln!(text, "{escaped} findings about an escaped slash, which gets 400 if another rule has the path");
    let _written = writeln!(text, "{} requests on {} hosts", compared.requests, compared.hosts);
    expect_file!["charts/requests.expected.txt"].assert_eq(&text);
}

/// With its patch, an Ingress has no snippet left, and no annotation that the patch wrote is refused.
#[test]
fn patches_of_all_charts_are_written_and_hold() {
    let mut objects = all();
    let controller = Controller::of(&objects, None, None).expect("no installation");
    let (conversions, snippets) = judge::conversions(&objects, &controller, true);
    assert!(conversions.len() >= 30, "{}", conversions.len());
    let home = tempfile::tempdir().expect("a directory");
    let fix = home.path().join("fix");
    Files::of(&conversions, &snippets).and_then(|files| files.write(&fix)).expect("patches");
    let (mut whole, mut written) = (BTreeSet::new(), BTreeSet::new());
    for (name, conversion) in &conversions {
        let stem = format!("{}.{}", name.namespace, name.name);
        let config_map = fix.join(format!("configmap.{stem}.yaml"));
        if let Ok(text) = fs::read_to_string(&config_map) {
            directory::add(&config_map.as_path().into(), &text, &mut objects);
        }
        let Ok(text) = fs::read_to_string(fix.join(format!("ingress.{stem}.yaml"))) else {
            assert!(!conversion.is_whole() && conversion.annotations.is_empty(), "{name} has no patch");
            continue;
        };
        assert_eq!(text.contains("# not converted"), !conversion.is_whole(), "{name}: {text}");
        let patch: Ingress = serde_saphyr::from_str(&text).expect("a patch");
        let annotations = patch.metadata.annotations.expect("annotations");
        let mut ingress = (*objects.cluster.ingresses.get(name).expect("its Ingress").object).clone();
        written.extend(annotations.keys().filter_map(|key| Some((stem.clone(), key.split_once('/')?.1.to_owned()))));
        ingress.metadata.annotations.get_or_insert_default().extend(annotations);
        let object = Object::Ingress(Arc::new(ingress));
        objects.cluster.apply(Change::Apply { object, origin: Origin::Api });
        if conversion.is_whole() {
            whole.insert(stem);
        }
    }
    assert!(whole.len() >= 15, "{}", whole.len());
    let problems: Vec<_> = judged(&objects, false)
        .findings
        .into_iter()
        .filter(|finding| finding.verdict >= Verdict::Fix)
        .filter(|Finding { object, key, .. }| {
            let stem = format!("{}.{}", object.namespace, object.name);
            let is_snippet = snippet::Place::ALL.iter().any(|place| place.annotation() == key);
            if is_snippet { whole.contains(&stem) } else { written.contains(&(stem, key.clone())) }
        })
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Times are those of a build with optimization; here only the sizes are those of a large cluster.
#[test]
fn a_thousand_ingresses_of_charts_are_checked() {
    let text = charts().into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("---\n");
    let copies: Vec<_> = (0..3)
        .map(|number| {
            let text = text.replace("  namespace: ", &format!("  namespace: n{number}-"));
            text.replace(".test\"", &format!(".n{number}.test\""))
        })
        .collect();
    let began = Instant::now();
    let objects = read_text(&copies.join("---\n"));
    let read = began.elapsed();
    let report = judged(&objects, false);
    let checked = began.elapsed();
    let compared = judged(&objects, true);
    eprintln!(
        "{} Ingresses: read {read:?}, checked {checked:?}, with requests {:?}: {:?}",
        report.ingresses,
        began.elapsed() - checked,
        compared.compared
    );
    assert!(report.ingresses >= 1_000, "{}", report.ingresses);
}
