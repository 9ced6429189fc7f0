//! The access log.

use std::{fs, io::Write as _};

use super::{Ingress, Site, configured};
use ingress_proxy_testing::Origin;

/// Serves `ingress` with these settings, sends requests by `ask`, and returns the lines written.
fn logged(settings: &str, ingress: &Ingress, pod: &Origin, ask: impl FnOnce(&Site)) -> Vec<String> {
    let settings = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata:\n{settings}\n"
    );
    let mut site = ingress.clone().beside(&settings).serve_with(&[pod.address], &configured()).in_order();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let guard = site.proxy.log_to(file.reopen().expect("a file"));
    ask(&site);
    // A request is logged when it is over, which may be after the client has read the response.
    ingress_proxy_testing::wait_until("no request is under way", || {
        site.proxy.count(1).active + site.proxy.count(0).active == 0
    });
    site.proxy.stop();
    drop(guard);
    fs::read_to_string(file.path()).expect("text").lines().map(str::to_owned).collect()
}

const ON: &str = "  disable-access-log: \"false\"";

/// Returns a time with `0` for each digit and `a` for each letter.
fn shape(time: &str) -> String {
    let plain = |c: char| match c {
        '0'..='9' => '0',
        'a'..='z' | 'A'..='Z' => 'a',
        _ => c,
    };
    time.chars().map(plain).collect()
}

#[test]
fn json_lines_have_all_fields() {
    let pod = Origin::answering("12345");
    let lines = logged(ON, &Ingress::with(&[]), &pod, |site| {
        let mut client = site.client();
        client.send("POST /x?y=1 HTTP/1.1\r\nHost: A.test\r\nUser-Agent: \"evil\\\r\nX-Request-ID: id-1\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(client.response().status, 200);
        assert_eq!(client.get("other.test", "/").status, 404);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    let line: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
    for (field, expect) in [
        ("remote_addr", "127.0.0.1"),
        ("method", "POST"),
        ("scheme", "http"),
        ("host", "a.test"),
        ("uri", "/x?y=1"),
        ("protocol", "HTTP/1.1"),
        ("request_id", "id-1"),
        ("namespace", "default"),
        ("ingress", "web"),
        ("upstream", "default/web:80"),
        ("upstream_addr", &pod.address.to_string()),
        ("user_agent", "\"evil\\"),
    ] {
        assert_eq!(line[field].as_str(), Some(expect), "{field}");
    }
    let numbers = ["status", "received", "sent", "upstream_status"].map(|field| line[field].as_u64());
    assert_eq!(numbers, [Some(200), Some(3), Some(5), Some(200)]);
    assert!(line["seconds"].as_f64() >= line["upstream_seconds"].as_f64(), "{line}");
    let time = line["time"].as_str().expect("a text");
    assert!(shape(time) == shape("2026-11-22T08:00:00+00:00") && time.ends_with("+00:00"), "{time}");
    let line: serde_json::Value = serde_json::from_str(&lines[1]).expect("JSON");
    assert_eq!((line["status"].as_u64(), line.get("upstream"), line.get("ingress")), (Some(404), None, None));
}

#[test]
fn nginx_log_formats_are_supported() {
    let pod = Origin::answering("12345");
    let format = format!(
        "{ON}\n  log-format-upstream: '$remote_addr [$remote_user] \"$request\" $status $body_bytes_sent \"$http_referer\" $http_x_none at $time_local, $msec'"
    );
    let lines = logged(&format, &Ingress::with(&[]), &pod, |site| {
        site.ask("/x", "Authorization: Basic YWxpY2U6c2VjcmV0\r\nReferer: a\"b\r\n");
    });
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    let (said, time) = line.split_once(" at ").expect("a time");
    assert_eq!(said, "127.0.0.1 [alice] \"GET /x HTTP/1.1\" 200 5 \"a\\x22b\" -");
    assert_eq!(shape(time), shape("22/Nov/2026:08:00:00 +0000, 1795334400.000"));
}

#[test]
fn http_host_includes_the_port() {
    let pod = Origin::answering("pod");
    let format = format!("{ON}\n  log-format-upstream: '$host $http_host'");
    let lines = logged(&format, &Ingress::with(&[]), &pod, |site| {
        site.client().get("A.test:8080", "/");
        site.get("/");
    });
    assert_eq!(lines, ["a.test a.test:8080", "a.test a.test"]);
}

#[test]
fn rules_and_paths_can_be_excluded() {
    let pod = Origin::answering("pod");
    let skip = format!("{ON}\n  skip-access-log-urls: /health");
    let lines = logged(&skip, &Ingress::with(&[]), &pod, |site| {
        for path in ["/health", "/health?x", "/healthy"] {
            assert_eq!(site.get(path).status, 200);
        }
    });
    assert!(lines.len() == 1 && lines[0].contains("/healthy"), "{lines:?}");
    let silent = Ingress::with(&[("enable-access-log", "false")]);
    assert!(logged(ON, &silent, &pod, |site| assert_eq!(site.get("/").status, 200)).is_empty());
    let off = "  disable-access-log: \"true\"";
    assert!(logged(off, &Ingress::with(&[]), &pod, |site| assert_eq!(site.get("/").status, 200)).is_empty());
}

#[test]
fn a_websocket_is_logged_at_its_end() {
    let pod = Origin::start(|peer| {
        peer.head();
        peer.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        );
        peer.until_closed();
    });
    let lines = logged(ON, &Ingress::with(&[]), &pod, |site| {
        let mut client = site.client();
        client.send(
            "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        assert!(client.head().is_some_and(|head| head.contains("101")));
    });
    assert!(lines.len() == 1 && lines[0].contains("\"status\":101"), "{lines:?}");
}

#[test]
fn a_disconnect_before_the_response_is_logged_as_499() {
    let pod = Origin::start(|peer| {
        peer.head();
        peer.until_closed();
    });
    let lines = logged(ON, &Ingress::with(&[]), &pod, |site| {
        let mut client = site.client();
        client.send("GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n");
        ingress_proxy_testing::wait_until("the pod has the request", || !pod.heads().is_empty());
        drop(client);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!((line["status"].as_u64(), line["uri"].as_str()), (Some(499), Some("/slow")), "{line}");
    assert_eq!((line["upstream"].as_str(), line.get("upstream_addr")), (Some("default/web:80"), None), "{line}");
}

#[test]
fn lines_without_a_reader_are_dropped_and_counted() {
    let pod = Origin::answering("pod");
    let settings =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata:\n{ON}\n");
    let site = Ingress::with(&[]).beside(&settings).serve_with(&[pod.address], &configured()).in_order();
    // A pipe without a reader takes 64 KiB.
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&[b'x'; 65_536]).expect("room");
    let guard = site.proxy.log_to(std::os::fd::OwnedFd::from(writer).into());
    let mut client = site.client();
    let mut asked = 0;
    while site.proxy.shared.stats().log_lines_dropped == 0 && asked < 100_000 {
        assert_eq!(client.get("a.test", "/").status, 200);
        asked += 1;
    }
    assert!(site.proxy.shared.stats().log_lines_dropped > 0, "{asked} requests");
    drop(reader);
    drop(guard);
}

#[test]
fn the_trusted_client_address_is_logged() {
    let pod = Origin::answering("pod");
    let trust = format!("{ON}\n  use-forwarded-headers: \"true\"\n  proxy-real-ip-cidr: 127.0.0.1");
    let lines = logged(&trust, &Ingress::with(&[]), &pod, |site| {
        site.ask("/", "X-Forwarded-For: 198.51.100.1, 192.0.2.1\r\nX-Forwarded-Proto: https\r\n");
    });
    let line: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!((line["remote_addr"].as_str(), line["scheme"].as_str()), (Some("192.0.2.1"), Some("https")));
}
