//! Paths as pods see them, after a rule has replaced all or the prefix of them.

use ingress_model::{Filter, PathModifier, ReplacementPath, Rewrite};
use ingress_proxy_testing::{Origin, Proxy, Table};

fn request_lines(modifier: PathModifier, targets: &[&str]) -> Vec<String> {
    let origin = Origin::mirror();
    let filter = Filter::Rewrite(Rewrite::Path(modifier).into());
    let proxy = Proxy::start(&Table::default().host_with("a.test", &[origin.address], vec![filter]));
    let mut client = proxy.client();
    let line = |target: &&str| {
        let response = client.get("a.test", target);
        match response.status {
            200 => response.text().lines().next().expect("a line").trim_start_matches("get ").to_owned(),
            status => status.to_string(),
        }
    };
    targets.iter().map(line).collect()
}

fn replacement(text: &str) -> ReplacementPath {
    ReplacementPath::parse(text).expect("valid")
}

#[test]
fn a_prefix_is_replaced_for_the_pod() {
    let prefix = |by| PathModifier::Prefix { matched: "/foo".into(), replacement: replacement(by) };
    let targets = ["/foo/bar?q=/foo", "/foo", "/foo/", "/foo%2fbar", "/foo/./x/../bar"];
    assert_eq!(
        request_lines(prefix("/xyz/"), &targets),
        ["/xyz/bar?q=/foo", "/xyz", "/xyz/", "/foo%2fbar", "/xyz/bar"].map(|line| format!("{line} http/1.1"))
    );
    assert_eq!(
        request_lines(prefix(""), &targets),
        ["/bar?q=/foo", "/", "/", "/foo%2fbar", "/bar"].map(|line| format!("{line} http/1.1"))
    );
    // What is left of the path cannot lead above it.
    assert_eq!(request_lines(prefix(""), &["/foo//..%2fbar"]), ["400"]);
}

#[test]
fn a_whole_path_is_replaced_for_the_pod() {
    let lines = request_lines(PathModifier::Full(replacement("/one")), &["/", "/x/y?q=1", "/%2e%2e"]);
    assert_eq!(lines, ["/one http/1.1", "/one?q=1 http/1.1", "400"]);
}
