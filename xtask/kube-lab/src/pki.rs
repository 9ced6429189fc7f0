//! The cluster's certificate authority and its certificates: every program and every user has its own. Keys are
//! generated for each cluster, are readable by root only, and are removed with the cluster.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::plan::{API_V4, CONTROL_V4, CONTROL_V6, NodePlan, Plan};

/// The user with all rights.
pub(super) const ADMIN: &str = "admin";
pub(super) const CONTROLLER_MANAGER: &str = "controller-manager";
pub(super) const SCHEDULER: &str = "scheduler";
pub(super) const PROXY: &str = "proxy";
/// The API server as a client of kubelets.
pub(super) const KUBELET_CLIENT: &str = "kubelet-client";
/// The API server as a client of aggregated API servers.
pub(super) const FRONT_PROXY: &str = "front-proxy";
pub(super) const API_SERVER: &str = "apiserver";
/// Signs the tokens of service accounts; a key pair without a certificate.
pub(super) const SERVICE_ACCOUNTS: &str = "service-accounts";

/// The directory of keys and certificates.
#[derive(Debug, Clone)]
pub(super) struct Pki {
    dir: PathBuf,
}

/// Identity in a certificate.
struct Subject<'a> {
    name: &'a str,
    group: Option<&'a str>,
}

impl Pki {
    pub(super) fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Creates all keys and certificates for a cluster with this plan.
    ///
    /// # Errors
    /// Fails if a key cannot be generated or written.
    pub(super) fn generate(&self, plan: Plan) -> Result<()> {
        let authority = authority()?;
        write_public(&self.certificate("ca"), &authority.pem())?;
        write_secret(&self.key("ca"), &authority.key().serialize_pem())?;
        for (file, name, group) in [
            (ADMIN, "admin", Some("system:masters")),
            (CONTROLLER_MANAGER, "system:kube-controller-manager", None),
            (SCHEDULER, "system:kube-scheduler", None),
            (PROXY, "system:kube-proxy", None),
            (KUBELET_CLIENT, "kube-apiserver-kubelet-client", Some("system:masters")),
            (FRONT_PROXY, "front-proxy", None),
        ] {
            self.client(&authority, file, &Subject { name, group })?;
        }
        self.server(&authority, API_SERVER, &Subject { name: "kube-apiserver", group: None }, api_server_names())?;
        for node in plan.nodes() {
            let name = format!("system:node:{}", node.name());
            let subject = Subject { name: &name, group: Some("system:nodes") };
            self.client(&authority, &node.name(), &subject)?;
            let names = [vec![node.name()], node.addresses().iter().map(ToString::to_string).collect()].concat();
            self.server(&authority, &kubelet_server(node), &subject, names)?;
        }
        let key = KeyPair::generate().context("cannot make a key")?;
        write_secret(&self.key(SERVICE_ACCOUNTS), &key.serialize_pem())?;
        write_public(&self.dir.join(format!("{SERVICE_ACCOUNTS}.pub")), &key.public_key_pem())
    }

    pub(super) fn certificate(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.crt"))
    }

    pub(super) fn key(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.key"))
    }

    fn client(&self, authority: &CertifiedIssuer<'_, KeyPair>, file: &str, subject: &Subject<'_>) -> Result<()> {
        self.sign(authority, file, params(subject, ExtendedKeyUsagePurpose::ClientAuth, Vec::new())?)
    }

    fn server(
        &self,
        authority: &CertifiedIssuer<'_, KeyPair>,
        file: &str,
        subject: &Subject<'_>,
        names: Vec<String>,
    ) -> Result<()> {
        self.sign(authority, file, params(subject, ExtendedKeyUsagePurpose::ServerAuth, names)?)
    }

    fn sign(&self, authority: &CertifiedIssuer<'_, KeyPair>, file: &str, params: CertificateParams) -> Result<()> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = params.signed_by(&key, authority).with_context(|| format!("cannot sign for `{file}`"))?;
        write_public(&self.certificate(file), &certificate.pem())?;
        write_secret(&self.key(file), &key.serialize_pem())
    }
}

/// Returns the name of a kubelet's server certificate.
pub(super) fn kubelet_server(node: NodePlan) -> String {
    format!("{}-server", node.name())
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "xdp-ingress test cluster");
    let key = KeyPair::generate().context("cannot make a key")?;
    CertifiedIssuer::self_signed(params, key).context("cannot make an authority")
}

fn params(subject: &Subject<'_>, usage: ExtendedKeyUsagePurpose, names: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names).context("unusable names for a certificate")?;
    params.distinguished_name.push(DnType::CommonName, subject.name);
    if let Some(group) = subject.group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    Ok(params)
}

fn api_server_names() -> Vec<String> {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let long = "kubernetes.default.svc.cluster.local";
    let addresses = ["127.0.0.1".to_owned(), "::1".to_owned()];
    let own = [API_V4.to_string(), CONTROL_V4.to_string(), CONTROL_V6.to_string()];
    names.into_iter().chain([long]).map(str::to_owned).chain(addresses).chain(own).collect()
}

fn write_public(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

fn write_secret(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::plan::Services;
    use super::*;

    #[test]
    fn keys_are_private_and_every_node_has_its_own() {
        let dir = std::env::temp_dir().join(format!("xdp-ingress-pki-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let pki = Pki::at(dir.clone());
        pki.generate(Plan::new(2, Services::Unrouted).unwrap()).unwrap();
        let mut keys = Vec::new();
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".key") {
                assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
                keys.push(fs::read_to_string(entry.path()).unwrap());
            }
        }
        fs::remove_dir_all(&dir).unwrap();
        // The authority, seven for the control plane, the service accounts', two for each node.
        assert_eq!(keys.len(), 1 + 7 + 1 + 2 * 2);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 13);
    }
}
