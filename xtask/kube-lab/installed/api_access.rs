//! The API over TLS with the tokens of a real API server: a user with the right reads it, others do not. A right that is
//! taken away ends within half a minute.

use std::{fs, process::Command};

use ingress_lab::{Lab, Namespace, credentials::Authority};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::{
    rbac::{bind, granted, start},
    stage::{stage, until},
};

#[test]
fn tokens_open_the_api_to_users_with_the_right() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("api");
    let lab = Lab::open("api").expect("a place for logs");
    let control = stage.cluster.control().expect("the control plane's namespace");
    let authority = Authority::generate().expect("an authority");
    let signed = authority.sign(&["api.test"], &KeyPair::generate().expect("a key")).expect("a certificate");
    let file = |name: &str, text: &str| {
        let path = lab.home().join(name);
        fs::write(&path, text).expect("writable");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (certificate, key) = (file("api.crt", signed.certificate()), file("api.key", signed.key()));
    let authorities = file("api-ca.crt", &authority.pem());

    let reviews =
        |resource: &str, group: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["create"]});
    let mut rules = granted(stage);
    rules.push(reviews("tokenreviews", "authentication.k8s.io"));
    rules.push(reviews("subjectaccessreviews", "authorization.k8s.io"));
    bind(&scope, "controller", &rules);
    bind(&scope, "reader", &[json!({"nonResourceURLs": ["/xdp-ingress/api"], "verbs": ["get"]})]);
    bind(&scope, "stranger", &[]);
    bind(&scope, "powerless", &granted(stage));
    let token = |account: &str| scope.kubectl(&["create", "token", account]).trim().to_owned();

    let serve = |account: &str, port: u16| {
        let address = format!("127.0.0.1:{}", port + 3);
        let arguments = [
            "--api-addr",
            &address,
            "--api-tls-cert-file",
            &certificate,
            "--api-tls-key-file",
            &key,
            "--api-token-review",
        ];
        start((&lab, &control), &scope, account, port, &[&arguments[..], &["--update-status=false"]].concat())
    };
    let _process = serve("controller", 20_300);
    let asked = |port: u16, token: Option<&str>| get(&control, &authorities, port, token);
    let reader = token("reader");
    until("the API answers a user with the right", || match asked(20_303, Some(&reader)) {
        (200, body) if body["version"] == "v1" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let (status, body) = asked(20_303, Some(&token("stranger")));
    println!("without the right: {status} {body}");
    let user = format!("`system:serviceaccount:{}:stranger`", scope.name);
    assert_eq!((status, body.to_string().contains(&user)), (403, true), "{body}");
    assert_eq!(asked(20_303, Some("made-up")).0, 401);
    assert_eq!(asked(20_303, None).0, 401);

    // The controller itself lacks the right to ask.
    let powerless = serve("powerless", 20_310);
    until("a controller that may not ask says so", || match asked(20_313, Some(&reader)).0 {
        503 if powerless.log().contains("grant the service account `create` on `tokenreviews`") => Ok(()),
        other => Err(format!("{other}: {}", powerless.log_tail(5))),
    });

    stage.kubectl(&["delete", "clusterrolebinding", &format!("{}-reader", scope.name)]);
    let started = std::time::Instant::now();
    until("a right that is taken away ends", || match asked(20_303, Some(&reader)).0 {
        403 => Ok(()),
        other => Err(other.to_string()),
    });
    println!("the right ended after {:.0?}", started.elapsed());
}

/// Asks for the index of the API in `place`; status 0 means no answer.
fn get(place: &Namespace, authorities: &str, port: u16, token: Option<&str>) -> (u16, Value) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "10", "--cacert", authorities, "--write-out", "\n%{http_code}"]).args([
        "--resolve",
        &format!("api.test:{port}:127.0.0.1"),
        &format!("https://api.test:{port}/api/v1"),
    ]);
    if let Some(token) = token {
        curl.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let output = place.run(|| Ok(curl.output()?)).expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or_default();
    (status.parse().unwrap_or_default(), serde_json::from_str(body).unwrap_or_default())
}
