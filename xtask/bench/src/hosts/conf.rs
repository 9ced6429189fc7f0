//! Configurations of nginx and haproxy for many hosts, tuned like those of the other benches, and the command lines of
//! the programs that read them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use super::{Plan, Pod};
use crate::peers::Ports;

/// Inputs of a configuration.
#[derive(Clone, Debug)]
pub(super) struct Conf {
    /// Directory of the configuration and its files: `cert.pem`, `key.pem`, `both.pem`.
    pub(super) folder: PathBuf,
    pub(super) ports: Ports,
    /// Port of the product's admin address.
    pub(super) admin_port: u16,
    /// Port of the pods.
    pub(super) pod_port: u16,
    pub(super) plan: Plan,
}

/// Connections that haproxy accepts, each with two descriptors. More than are opened, and few enough for a limit of
/// 20,000 descriptors, because haproxy does not start if the limit is too low.
const MAXCONN: u32 = 9900;

/// Process model of haproxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haproxy {
    /// With a master, which replaces its worker.
    Master,
    /// A single process that receives changes over a socket.
    Single,
}

// === impl Conf ===

impl Conf {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the socket on which haproxy receives changes.
    pub(super) fn socket(&self) -> PathBuf {
        self.file("haproxy.sock")
    }

    /// Returns the file with the map from hosts to pods.
    pub(super) fn map(&self) -> PathBuf {
        self.file("hosts.map")
    }

    /// Returns the paths from which nginx reads the certificate with this number, and its key.
    pub(super) fn certificate(&self, number: usize) -> [PathBuf; 2] {
        ["cert", "key"].map(|name| self.file(&format!("{name}{number}.pem")))
    }

    /// Writes the configuration of nginx in which these hosts lead to pod b. Returns the command line.
    pub(super) fn nginx(&self, moved: &BTreeSet<usize>) -> anyhow::Result<Vec<String>> {
        let path = self.file("nginx.conf");
        write(&path, &self.nginx_text(moved))?;
        Ok(vec!["nginx".into(), "-c".into(), path.display().to_string()])
    }

    fn nginx_text(&self, moved: &BTreeSet<usize>) -> String {
        let Self { folder, ports: Ports { http, https }, admin_port: _, pod_port, plan } = self;
        let root = folder.display();
        let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("    {name}_temp_path {root}/{name};\n"))
            .concat();
        let upstreams: String = [Pod::A, Pod::B]
            .map(|pod| {
                format!("    upstream {} {{ server {}:{pod_port}; keepalive 64; }}\n", pod.name(), pod.address())
            })
            .concat();
        let tls = |[certificate, key]: [PathBuf; 2]| {
            format!("ssl_certificate {}; ssl_certificate_key {};", certificate.display(), key.display())
        };
        let servers: String = (0..plan.hosts)
            .map(|host| {
                // Not for all servers: nginx creates a TLS context for each server that inherits a certificate, even
                // without a TLS listener.
                let secure = plan.certificate(host).map_or_else(String::new, |number| {
                    format!(" listen 127.0.0.1:{https} ssl http2; {}", tls(self.certificate(number)))
                });
                let (name, pod) = (super::name(host), Pod::of(host, moved).name());
                format!(
                    "    server {{ listen 127.0.0.1:{http};{secure} server_name {name};\n        \
                     location / {{ proxy_pass http://{pod}; }} }}\n"
                )
            })
            .collect();
        format!(
            "worker_processes 1;
worker_rlimit_nofile 100000;
daemon off;
pid {root}/nginx.pid;
error_log {root}/nginx.err crit;
events {{ worker_connections 40000; }}
http {{
    access_log off;
    server_tokens off;
    tcp_nodelay on;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    server_names_hash_max_size {hash};
    server_names_hash_bucket_size 128;
    map $http_upgrade $upgrade {{ default upgrade; '' ''; }}
    proxy_http_version 1.1;
    proxy_read_timeout 1h;
    proxy_set_header Host $host;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $upgrade;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    ssl_protocols TLSv1.2 TLSv1.3;
{temp}{upstreams}    server {{
        listen 127.0.0.1:{http} default_server backlog=4096 reuseport;
        listen 127.0.0.1:{https} default_server ssl http2 backlog=4096 reuseport;
        {tls}
        server_name _;
        location / {{ return 404; }}
    }}
{servers}}}
",
            tls = tls(["cert.pem", "key.pem"].map(|name| self.file(name))),
            hash = 1024.max(4 * plan.hosts),
        )
    }

    /// Writes the configuration of haproxy in which these hosts lead to pod b. Returns the command line.
    pub(super) fn haproxy(&self, kind: Haproxy, moved: &BTreeSet<usize>) -> anyhow::Result<Vec<String>> {
        let path = self.file("haproxy.cfg");
        let line = |host| format!("{} {}\n", super::name(host), Pod::of(host, moved).name());
        write(&self.map(), &(0..self.plan.hosts).map(line).collect::<String>())?;
        write(&path, &self.haproxy_text())?;
        let mode = match kind {
            Haproxy::Master => "-W",
            Haproxy::Single => "-db",
        };
        Ok(vec!["haproxy".into(), mode.into(), "-f".into(), path.display().to_string()])
    }

    fn haproxy_text(&self) -> String {
        let Self { folder, ports: Ports { http, https }, admin_port: _, pod_port, plan: _ } = self;
        let backends: String = [Pod::A, Pod::B]
            .map(|pod| {
                let (name, address) = (pod.name(), pod.address());
                format!("backend {name}\n    server s {address}:{pod_port} pool-purge-delay 1h\n")
            })
            .concat();
        format!(
            "global
    nbthread 1
    maxconn {MAXCONN}
    stats socket {socket} mode 600 level admin
    ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
    option forwardfor
    http-reuse always
frontend f
    bind 127.0.0.1:{http} backlog 4096
    bind 127.0.0.1:{https} backlog 4096 ssl crt {root}/both.pem alpn h2,http/1.1
    use_backend %[req.hdr(host),field(1,:),lower,map_str({map})]
{backends}",
            socket = self.socket().display(),
            map = self.map().display(),
            root = folder.display(),
        )
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Tls;

    #[test]
    fn a_moved_host_leads_to_the_other_pod() {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = Ports { http: 80, https: 443 };
        let plan = Plan { hosts: 3, tls: Tls::None };
        let conf = Conf { folder: folder.path().into(), ports, admin_port: 9110, pod_port: 8080, plan };
        let text = conf.nginx_text(&BTreeSet::from([1]));
        for (host, pod) in [(0, "a"), (1, "b"), (2, "a")] {
            let name = super::super::name(host);
            let server = text.split("server {").find(|server| server.contains(&name)).expect("a server");
            assert!(server.contains(&format!("proxy_pass http://{pod};")), "{server}");
        }
        let words = conf.haproxy(Haproxy::Master, &BTreeSet::from([1])).expect("written");
        assert_eq!(words[..2], ["haproxy", "-W"]);
        let map = fs::read_to_string(conf.map()).expect("a map");
        assert_eq!(map, "h0.bench.test a\nh1.bench.test b\nh2.bench.test a\n");
    }

    #[test]
    fn nginx_has_certificates_only_on_tls_servers() {
        let ports = Ports { http: 80, https: 443 };
        let plan = Plan { hosts: 11, tls: Tls::OneInTen };
        let conf = Conf { folder: "/conf".into(), ports, admin_port: 9110, pod_port: 8080, plan };
        let text = conf.nginx_text(&BTreeSet::new());
        for host in 0..plan.hosts {
            let name = super::super::name(host);
            let server = text.split("server {").find(|server| server.contains(&name)).expect("a server");
            let secure = plan.certificate(host).map(|number| {
                format!(
                    "listen 127.0.0.1:443 ssl http2; ssl_certificate /conf/cert{number}.pem; \
                     ssl_certificate_key /conf/key{number}.pem;"
                )
            });
            assert_eq!(server.contains("ssl"), secure.is_some(), "{server}");
            assert!(secure.is_none_or(|secure| server.contains(&secure)), "{server}");
        }
        // The certificates of hosts 0 and 10, and the default certificate for other names.
        assert_eq!(text.matches("ssl_certificate ").count(), 3, "{text}");
    }
}
