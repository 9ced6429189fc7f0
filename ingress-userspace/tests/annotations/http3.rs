//! HTTP/3 by annotation and setting, as responses over TLS offer it.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use ingress_control::translate::Options as TranslateOptions;
use ingress_proxy::Options;
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::{Ingress, configured};
use ingress_proxy_testing::tls::config;
use ingress_proxy_testing::{DEADLINE, Origin, Proxy};

/// Returns whether a response over TLS offers HTTP/3.
fn is_offered(ingress: &Ingress, options: &TranslateOptions) -> bool {
    let origin = Origin::answering("pod");
    let (table, outcomes) = ingress.translated(&[origin.address], options);
    assert_eq!(outcomes, "");
    let proxy = Proxy::start_http3(&table, &Options { http3_advertise_port: Some(8443), ..Options::default() }, 1);
    let name = ServerName::try_from("a.test").expect("valid name");
    let client = ClientConnection::new(config(&["http/1.1"]), name).expect("a client");
    let socket = TcpStream::connect(proxy.https).expect("connected");
    socket.set_read_timeout(Some(DEADLINE)).expect("set");
    let mut stream = StreamOwned::new(client, socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    response.to_lowercase().contains("\r\nalt-svc: h3=\":8443\"; ma=86400\r\n")
}

#[test]
fn http3_is_offered_unless_annotation_or_setting_forbid_it() {
    let settings = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{use-http3: {value:?}}}"
        )
    };
    for (annotations, setting, expect) in [
        (&[][..], None, true),
        (&[("xdp-ingress.io/http3", "true")], None, true),
        (&[("xdp-ingress.io/http3", "false")], None, false),
        (&[], Some("true"), true),
        (&[], Some("false"), false),
        (&[("xdp-ingress.io/http3", "true")], Some("false"), false),
    ] {
        let mut ingress = Ingress::with(annotations).with_tls();
        let mut options = TranslateOptions::for_manifests();
        if let Some(setting) = setting {
            ingress = ingress.beside(&settings(setting));
            options = configured();
        }
        assert_eq!(is_offered(&ingress, &options), expect, "{annotations:?} {setting:?}");
    }
}
