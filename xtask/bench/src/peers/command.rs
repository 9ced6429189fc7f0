//! Command lines of peers, and the configuration files that they name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit};
use serde_json::json;

use super::{BACKEND_PORT, Peer, Ports, Setting, Stage};
use crate::credentials::{Credentials, ECDSA, RSA};
use xtask_tools::process;

/// Receive buffer of QUIC sockets in bytes, as the product asks for.
pub(super) const UDP_BUFFER: u32 = 4 << 20;

/// Returns the ports of the peer with this number, and its command line.
pub(super) fn command(
    peer: Peer,
    index: u16,
    stage: Stage<'_>,
    setting: Setting,
) -> anyhow::Result<(Ports, Vec<String>)> {
    let ports = Ports { http: 18_000 + index * 10, https: 18_001 + index * 10 };
    let words = match peer {
        Peer::Nginx => nginx_proxy(stage, ports, setting)?,
        Peer::Haproxy => haproxy(stage, ports, setting)?,
        Peer::Caddy => caddy(stage, ports, setting)?,
        Peer::XdpIngress | Peer::Again => xdp_ingress(stage.binary, stage, ports, setting, 18_002 + index * 10)?,
        Peer::Before => {
            let before = stage.before.context("the peer `before` needs `--before`")?;
            xdp_ingress(before, stage, ports, setting, 18_002 + index * 10)?
        }
    };
    Ok((ports, words))
}

fn nginx_proxy(stage: Stage<'_>, ports: Ports, setting: Setting) -> anyhow::Result<Vec<String>> {
    let program = stage.programs.words(Peer::Nginx, setting.http3)?;
    nginx(program, stage.folder, "nginx", setting, &nginx_servers(ports, stage.credentials, setting.http3))
}

/// Returns the text inside of `http`. `http2` is a parameter of `listen` before nginx 1.25.1 and a directive since.
/// OpenSSL 3.5 would ask for a hybrid key exchange by another round trip; all peers use X25519.
fn nginx_servers(ports: Ports, credentials: &Credentials, http3: bool) -> String {
    let Ports { http, https } = ports;
    let Credentials { ecdsa, rsa, trust: _ } = credentials;
    let (h2, directives) =
        if http3 { ("", "http2 on; http3 on; ssl_ecdh_curve X25519:prime256v1;") } else { (" http2", "") };
    let quic = |options: &str| {
        if http3 { format!("listen 127.0.0.1:{https} quic{options};") } else { String::new() }
    };
    format!(
        "tcp_nodelay on; proxy_http_version 1.1; proxy_request_buffering off; proxy_buffer_size 16k;
         proxy_buffers 16 64k; proxy_busy_buffers_size 128k; proxy_max_temp_file_size 0;
         proxy_set_header Host $host; proxy_set_header Connection \"\";
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
         ssl_protocols TLSv1.2 TLSv1.3; {directives}
         upstream b {{ server 127.0.0.1:{BACKEND_PORT};
                      keepalive 512; keepalive_requests 1000000000; keepalive_timeout 1h; }}
         server {{ listen 127.0.0.1:{http} backlog=4096 reuseport;
                  listen 127.0.0.1:{https} ssl{h2} backlog=4096 reuseport; {}
                  ssl_certificate {}; ssl_certificate_key {}; location / {{ proxy_pass http://b; }} }}
         server {{ listen 127.0.0.1:{https} ssl{h2}; {} server_name {RSA};
                  ssl_certificate {}; ssl_certificate_key {}; location / {{ proxy_pass http://b; }} }}",
        quic(&format!(" reuseport rcvbuf={UDP_BUFFER}")),
        ecdsa.certificate.display(),
        ecdsa.key.display(),
        quic(""),
        rsa.certificate.display(),
        rsa.key.display(),
    )
}

/// Writes the configuration of an nginx, whose program begins the returned command line.
pub(super) fn nginx(
    program: Vec<String>,
    folder: &Path,
    name: &str,
    setting: Setting,
    http: &str,
) -> anyhow::Result<Vec<String>> {
    let (root, workers) = (folder.display(), setting.workers);
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|t| format!("{t}_temp_path {root}/{name}-{t};\n"))
        .concat();
    let log = if setting.access_log {
        format!("{} combined buffer=64k flush=1s", nginx_log(folder, name).display())
    } else {
        "off".to_owned()
    };
    // Near this number of connections, nginx closes idle ones. At the limit of open files it only stops accepting, and
    // peers that leave connections open would leave the others without answers.
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
    let connections = (files / 5 * 4).min(40_000);
    let conf = format!(
        "worker_processes {workers}; worker_rlimit_nofile {files}; daemon off; pid {root}/{name}.pid;
         error_log {root}/{name}.err crit; events {{ worker_connections {connections}; }}
         http {{ access_log {log}; server_tokens off; keepalive_timeout 1h; keepalive_requests 1000000000;
                client_max_body_size 0; client_body_buffer_size 128k; {temp} {http} }}\n"
    );
    let path = folder.join(format!("{name}.conf"));
    fs::write(&path, conf)?;
    Ok([program, vec!["-c".into(), path.display().to_string()]].concat())
}

pub(super) fn nginx_log(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.access.log"))
}

fn haproxy(stage: Stage<'_>, ports: Ports, setting: Setting) -> anyhow::Result<Vec<String>> {
    let path = stage.folder.join("haproxy.cfg");
    fs::write(&path, haproxy_conf(ports, stage.credentials, setting))?;
    let program = stage.programs.words(Peer::Haproxy, setting.http3)?;
    Ok([program, vec!["-db".into(), "-f".into(), path.display().to_string()]].concat())
}

/// Returns the configuration. `limited-quic` allows QUIC with Debian's OpenSSL, which is QUIC without early data.
fn haproxy_conf(ports: Ports, credentials: &Credentials, setting: Setting) -> String {
    let Ports { http, https } = ports;
    let Setting { workers, pin: _, access_log, http3 } = setting;
    let (log_to, log) =
        if access_log { (" log stdout format raw local0\n", " log global\n option httplog\n") } else { ("", "") };
    let Credentials { ecdsa, rsa, trust: _ } = credentials;
    let certificates = format!("ssl crt {} crt {}", ecdsa.both.display(), rsa.both.display());
    let (limits, quic) = if http3 {
        (
            format!(" limited-quic\n tune.rcvbuf.frontend {UDP_BUFFER}\n ssl-default-bind-curves X25519:P-256\n"),
            format!(" bind quic4@127.0.0.1:{https} {certificates} alpn h3\n"),
        )
    } else {
        (String::new(), String::new())
    };
    format!(
        "global\n nbthread {workers}\n maxconn 9900\n ssl-default-bind-options ssl-min-ver TLSv1.2\n{limits}{log_to}\
         defaults\n mode http\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n\
         \x20timeout http-keep-alive 1h\n option forwardfor\n http-reuse always\n{log}\
         frontend f\n bind 127.0.0.1:{http} backlog 4096\n\
         \x20bind 127.0.0.1:{https} backlog 4096 {certificates} alpn h2,http/1.1\n{quic}\
         \x20default_backend b\nbackend b\n server s1 127.0.0.1:{BACKEND_PORT} pool-purge-delay 1h\n",
    )
}

/// Returns the command line of Caddy, whose threads in Go are as many as the workers. It runs without CAP_NET_ADMIN,
/// with which it would enlarge its UDP buffers beyond `net.core.rmem_max`.
fn caddy(stage: Stage<'_>, ports: Ports, setting: Setting) -> anyhow::Result<Vec<String>> {
    let path = stage.folder.join("caddy.json");
    fs::write(&path, caddy_conf(stage.folder, ports, stage.credentials, setting))?;
    let unprivileged: &[&str] = if process::is_root() { &["setpriv", "--bounding-set=-net_admin"] } else { &[] };
    let home = stage.folder.join("caddy").display().to_string();
    let environment = [format!("GOMAXPROCS={}", setting.workers), format!("HOME={home}")];
    let program = stage.programs.words(Peer::Caddy, setting.http3)?;
    let mut words: Vec<String> = unprivileged.iter().chain(&["env"]).map(|&word| word.to_owned()).collect();
    words.extend(environment.into_iter().chain(program));
    words.extend(["run".into(), "--config".into(), path.display().to_string()]);
    Ok(words)
}

fn caddy_conf(folder: &Path, ports: Ports, credentials: &Credentials, setting: Setting) -> String {
    let Ports { http, https } = ports;
    let Credentials { ecdsa, rsa, trust: _ } = credentials;
    let routes = json!([{"handle": [{
        "handler": "reverse_proxy",
        "upstreams": [{"dial": format!("127.0.0.1:{BACKEND_PORT}")}],
        // As the other peers, it asks the pod for no compression.
        "transport": {
            "protocol": "http",
            "compression": false,
            "keep_alive": {"idle_timeout": "1h", "max_idle_conns_per_host": 512},
        },
    }]}]);
    let server = |port: u16, protocols: &[&str]| {
        let mut server = json!({
            "listen": [format!("127.0.0.1:{port}")],
            "protocols": protocols,
            "idle_timeout": "1h",
            "automatic_https": {"disable": true},
            "routes": routes,
        });
        if setting.access_log {
            server["logs"] = json!({});
        }
        server
    };
    let mut tls = server(https, if setting.http3 { &["h1", "h2", "h3"] } else { &["h1", "h2"] });
    // Some clients send an address as the server name.
    tls["tls_connection_policies"] =
        json!([{"default_sni": ECDSA, "fallback_sni": ECDSA, "curves": ["x25519", "secp256r1"]}]);
    let files = [ecdsa, rsa].map(|files| json!({"certificate": files.certificate, "key": files.key}));
    let conf = json!({
        "admin": {"disabled": true, "config": {"persist": false}},
        "logging": {"logs": {"default": {"level": if setting.access_log { "INFO" } else { "ERROR" }}}},
        "storage": {"module": "file_system", "root": folder.join("caddy")},
        "apps": {
            "http": {"grace_period": "1s", "servers": {"plain": server(http, &["h1"]), "tls": tls}},
            "tls": {"certificates": {"load_files": files}},
        },
    });
    format!("{conf:#}\n")
}

/// Returns the command line of the product as in an installation: with manifests, counters and metrics, but without the
/// kernel part, which loopback traffic does not pass.
fn xdp_ingress(
    binary: &Path,
    stage: Stage<'_>,
    ports: Ports,
    setting: Setting,
    admin: u16,
) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let Stage { folder, credentials: Credentials { ecdsa, rsa, trust: _ }, .. } = stage;
    let Setting { workers, pin: _, access_log, http3 } = setting;
    let manifests = folder.join("manifests");
    fs::create_dir_all(&manifests)?;
    fs::write(manifests.join("bench.yaml"), include_str!("../bench.yaml").replace("19000", &BACKEND_PORT.to_string()))?;
    let settings = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\n\
         data: {{disable-access-log: \"{}\"}}\n",
        !access_log
    );
    fs::write(manifests.join("settings.yaml"), settings)?;
    for (name, files) in [("ecdsa", ecdsa), ("rsa", rsa)] {
        fs::copy(&files.secret, manifests.join(format!("{name}.yaml")))?;
    }
    let mut words = vec![binary.display().to_string(), "run".into()];
    for (flag, value) in [
        ("--manifests", manifests.display().to_string()),
        ("--configmap", "default/settings".into()),
        ("--default-ssl-certificate", "default/ecdsa".into()),
        ("--steer", "bind".into()),
        ("--xdp-mode", "off".into()),
        ("--http-port", http.to_string()),
        ("--https-port", https.to_string()),
        ("--workers", workers.to_string()),
        ("--admin-addr", format!("127.0.0.1:{admin}")),
    ] {
        words.extend([flag.into(), value]);
    }
    words.extend(http3.then(|| "--http3=on".into()));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: Ports = Ports { http: 18_000, https: 18_001 };

    fn setting(http3: bool) -> Setting {
        Setting { workers: 1, pin: true, access_log: false, http3 }
    }

    fn credentials(folder: &Path) -> Credentials {
        Credentials::write(folder).expect("certificates")
    }

    #[test]
    fn only_peers_of_http3_listen_for_quic() {
        let folder = tempfile::tempdir().expect("a folder");
        let credentials = credentials(folder.path());
        for http3 in [false, true] {
            let nginx = nginx_servers(PORTS, &credentials, http3);
            assert_eq!(nginx.matches(" quic").count(), if http3 { 2 } else { 0 }, "{nginx}");
            assert_eq!(nginx.contains("listen 127.0.0.1:18001 quic reuseport rcvbuf=4194304;"), http3, "{nginx}");
            assert_eq!(nginx.contains("http3 on; ssl_ecdh_curve X25519:"), http3, "{nginx}");
            assert_eq!(nginx.contains("ssl http2"), !http3, "a parameter that newer ones warn about: {nginx}");
            let haproxy = haproxy_conf(PORTS, &credentials, setting(http3));
            assert_eq!(haproxy.contains("\n bind quic4@127.0.0.1:18001 ssl crt "), http3, "{haproxy}");
            assert_eq!(haproxy.contains("\n limited-quic\n"), http3, "{haproxy}");
            assert_eq!(haproxy.contains("\n ssl-default-bind-curves X25519:"), http3, "{haproxy}");
            assert!(!haproxy.contains("0rtt"), "{haproxy}");
            let caddy = caddy_conf(folder.path(), PORTS, &credentials, setting(http3));
            assert_eq!(caddy.contains("\"h3\""), http3, "{caddy}");
            assert!(caddy.contains("\"x25519\""), "{caddy}");
        }
    }

    #[test]
    fn every_peer_has_both_certificates() {
        let folder = tempfile::tempdir().expect("a folder");
        let credentials = credentials(folder.path());
        let named = |text: &str, path: &Path| text.contains(&path.display().to_string());
        for http3 in [false, true] {
            let nginx = nginx_servers(PORTS, &credentials, http3);
            let caddy = caddy_conf(folder.path(), PORTS, &credentials, setting(http3));
            let haproxy = haproxy_conf(PORTS, &credentials, setting(http3));
            for files in [&credentials.ecdsa, &credentials.rsa] {
                assert!(named(&nginx, &files.certificate) && named(&nginx, &files.key), "{nginx}");
                assert!(named(&caddy, &files.certificate) && named(&caddy, &files.key), "{caddy}");
                assert!(named(&haproxy, &files.both), "{haproxy}");
            }
        }
    }

    #[test]
    fn caddy_logs_requests_only_if_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let credentials = credentials(folder.path());
        for access_log in [false, true] {
            let text = caddy_conf(folder.path(), PORTS, &credentials, Setting { access_log, ..setting(true) });
            let conf: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            for server in ["plain", "tls"] {
                assert_eq!(conf["apps"]["http"]["servers"][server].get("logs").is_some(), access_log, "{text}");
            }
        }
    }
}
