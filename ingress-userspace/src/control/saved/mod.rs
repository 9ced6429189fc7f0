//! Keeps what is served in a file, so that a process that starts while the API server is away can serve it. It decides
//! neither when that is, nor what it leads to.
//!
//! The file is one JSON document with the objects that a translation used. It is meant for a tmpfs of the node, which
//! outlives the pod but not the machine. It holds no private key, and no hash of a password, unless that is asked for:
//! hosts whose key is not there get the default certificate, and rules whose users are not there answer 503. Keys for
//! tickets of TLS sessions are never in it: whoever has one reads what was said in the past. It is replaced as a
//! whole, belongs to this user alone (mode 0600), and one that others could have written is not read: it decides where
//! traffic goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    io::{BufWriter, Read, Write},
    net::IpAddr,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::{
    core::v1::{Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::Ingress,
};
use nix::{
    fcntl::{Flock, FlockArg, OFlag},
    sys::statfs::{TMPFS_MAGIC, statfs},
    unistd::geteuid,
};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{
    change::{Change, Kind, Object, ObjectName},
    cluster::{Cluster, Stored},
    outcome::Origin,
    translate::{self, Translation, annotation_references, service_of_url, services_of, stream_references},
};
use crate::model::TicketKeys;

/// Where what is served is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// In a directory that exists and is no symbolic link. Should be on a tmpfs.
    pub path: PathBuf,
    pub private_keys: PrivateKeys,
}

/// Whether private keys of certificates, and hashes of passwords, are written to the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrivateKeys {
    #[default]
    Leave,
    /// Whoever reads the file, as root of the node does, has the keys of all hosts, and can guess at passwords.
    Keep,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{path}` is no directory, or a symbolic link to one; give a file in a directory by its own name")]
    Directory { path: PathBuf },
    #[error("cannot write `{path}`")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{path}` is no file that this user alone can write; it is not used")]
    Foreign { path: PathBuf },
    #[error("`{path}` is larger than {MAX_BYTES} bytes; it is not used")]
    TooLarge { path: PathBuf },
    #[error("`{path}` is damaged; it is not used and will be replaced")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("`{path}` has version {found} of the format, not {VERSION}; it is not used and will be replaced")]
    Version { path: PathBuf, found: u32 },
}

/// What was saved, and when.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) cluster: Cluster,
    pub(super) age: Duration,
}

/// What is to be saved: what a translation used. To make it costs nothing; its parts are gathered where it is written.
/// `Debug` shows no object.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) cluster: Cluster,
    pub(super) translation: Translation,
    pub(super) options: translate::Options,
    pub(super) keys: PrivateKeys,
}

/// Raised when a reader of the old version would misunderstand the new.
const VERSION: u32 = 1;

/// Some hundred thousand objects. A file beyond is none of ours.
const MAX_BYTES: u64 = 512 * 1024 * 1024;

/// The document. The version comes first, and is read first.
#[derive(Serialize)]
struct Document<'c> {
    version: u32,
    written_unix_seconds: u64,
    resolved: BTreeMap<&'c str, &'c [IpAddr]>,
    objects: Vec<Written<'c>>,
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

#[derive(Deserialize)]
struct Body {
    written_unix_seconds: u64,
    resolved: BTreeMap<String, Vec<IpAddr>>,
    objects: Vec<Value>,
}

/// An object as JSON, with its `apiVersion` and `kind`.
struct Written<'c>(&'c Object);

// === impl Content ===

impl Content {
    /// The objects that the translation used.
    fn objects(&self) -> Vec<Object> {
        let Self { cluster, translation, options, keys } = self;
        let (mut services, mut secrets) = (BTreeSet::new(), BTreeSet::new());
        services.extend(options.default_backend.clone());
        services.insert(ObjectName::new("default", "kubernetes"));
        secrets.extend(options.default_certificate.clone());
        let mut objects: Vec<Object> = Vec::new();
        for name in translation.served.keys() {
            let Some(Stored { object: ingress, origin: _ }) = cluster.ingresses.get(name) else { continue };
            services.extend(backends(ingress).map(|service| ObjectName::new(&name.namespace, service)));
            let tls = ingress.spec.iter().flat_map(|spec| spec.tls.iter().flatten());
            let named = tls.filter_map(|tls| tls.secret_name.as_deref());
            secrets.extend(named.map(|secret| ObjectName::new(&name.namespace, secret)));
            let named = annotation_references(ingress, &options.annotations_prefix).into_iter();
            services.extend(services_of(ingress, &options.annotations_prefix));
            secrets.extend(named.filter(|id| id.kind == Kind::Secret).map(|id| id.name));
            objects.push(Object::Ingress(Arc::clone(ingress)));
        }
        let settings = cluster.config_maps.values().filter_map(|stored| stored.object.data.as_ref());
        let urls = settings.filter_map(|data| data.get("global-auth-url"));
        services.extend(urls.filter_map(|url| service_of_url(url.trim())));
        let streams = [&options.tcp_services, &options.udp_services].into_iter().flatten();
        let streams = streams.filter_map(|name| cluster.config_maps.get(name));
        services.extend(streams.flat_map(|stored| stream_references(&stored.object)));
        for name in &services {
            objects.extend(cluster.services.get(name).map(|stored| Object::Service(Arc::clone(&stored.object))));
            let slices = cluster.slices_of(name);
            objects.extend(slices.map(|(_, stored)| Object::EndpointSlice(Arc::clone(&stored.object))));
        }
        let secret = |name| cluster.secrets.get(name).map(|stored| Object::Secret(saved_secret(&stored.object, *keys)));
        objects.extend(secrets.iter().filter_map(secret));
        objects.extend(cluster.classes.values().map(|stored| Object::IngressClass(Arc::clone(&stored.object))));
        objects.extend(cluster.config_maps.values().map(|stored| Object::ConfigMap(Arc::clone(&stored.object))));
        objects.extend(cluster.nodes.values().map(|stored| Object::Node(Arc::clone(&stored.object))));
        objects
    }

    /// The addresses of the names that the translation wants.
    fn resolved(&self) -> BTreeMap<&str, &[IpAddr]> {
        let Self { cluster, translation, options: _, keys: _ } = self;
        let wanted = cluster.resolved.iter().filter(|(name, _)| translation.external_names.contains_key(*name));
        wanted.map(|(name, addresses)| (&**name, addresses.as_slice())).collect()
    }
}

/// Services that an Ingress names as backends.
fn backends(ingress: &Ingress) -> impl Iterator<Item = &str> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
    let paths = rules.filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths).map(|path| &path.backend);
    let default = ingress.spec.iter().filter_map(|spec| spec.default_backend.as_ref());
    paths.chain(default).filter_map(|backend| backend.service.as_ref()).map(|service| service.name.as_str())
}

fn saved_secret(secret: &Arc<Secret>, keys: PrivateKeys) -> Arc<Secret> {
    let is_saved = |key: &str| match keys {
        PrivateKeys::Keep => !key.starts_with(TicketKeys::FIELD),
        PrivateKeys::Leave => matches!(key, "ca.crl" | "ca.crt" | "tls.crt" | "tls.ocsp-staple"),
    };
    let mut secret = Secret::clone(secret);
    if let Some(data) = &mut secret.data {
        data.retain(|key, _| is_saved(key));
    }
    if let Some(data) = &mut secret.string_data {
        data.retain(|key, _| is_saved(key));
    }
    Arc::new(secret)
}

// === impl File ===

impl File {
    /// What there is to warn of before anything is written.
    pub(super) fn warn(&self) {
        let Self { path, private_keys } = self;
        let is_tmpfs = statfs(directory(path)).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC);
        if *private_keys == PrivateKeys::Keep && !is_tmpfs {
            tracing::warn!(path = %path.display(), "private keys are written to a disk; use a path on a tmpfs, as under /run");
        }
    }

    /// Replaces the file by one with `content`, and returns its size. Blocks.
    ///
    /// # Errors
    /// If it cannot be written; the file is then what it was.
    pub(super) fn write(&self, content: &Content, now: SystemTime) -> Result<u64, Error> {
        let Self { path, private_keys: _ } = self;
        let directory = directory(path);
        // A link in place of the directory may be somebody's attempt to have a file written elsewhere.
        if !fs::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Error::Directory { path: directory.into() });
        }
        // Two processes of a node, in an update, save to one place; one after the other.
        let _lock = self.lock()?;
        let new = self.beside(".new");
        let written = put(&new, content, now).and_then(|size| {
            fs::rename(&new, path)?;
            fs::File::open(directory)?.sync_all()?;
            Ok(size)
        });
        written.map_err(|source| {
            // What is half written may hold keys. If it cannot be removed, the next attempt removes it.
            drop(fs::remove_file(&new));
            Error::Write { path: path.clone(), source }
        })
    }

    /// Waits for the lock of this place: a file beside it that no other user can open, and so none can hold. It stays,
    /// for who removed it might remove one that another holds by now.
    fn lock(&self) -> Result<Flock<fs::File>, Error> {
        let path = self.beside(".lock");
        let error = |source| Error::Write { path: path.clone(), source };
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(&path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(Error::Foreign { path });
        }
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| error(errno.into()))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        directory(&self.path).join(name)
    }

    /// What is in the file; `None` if there is none. Blocks.
    ///
    /// # Errors
    /// If there is a file that cannot be used.
    pub(super) fn read(&self, now: SystemTime) -> Result<Option<Restored>, Error> {
        let Self { path, private_keys: _ } = self;
        let error = |source| Error::Read { path: path.clone(), source };
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(error(source)),
        };
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(Error::Foreign { path: path.clone() });
        }
        if metadata.len() > MAX_BYTES {
            return Err(Error::TooLarge { path: path.clone() });
        }
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(error)?;
        let damaged = |source| Error::Damaged { path: path.clone(), source };
        let Head { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version != VERSION {
            return Err(Error::Version { path: path.clone(), found: version });
        }
        let Body { written_unix_seconds, resolved, objects } = serde_json::from_slice(&text).map_err(damaged)?;
        let mut cluster = Cluster::default();
        for object in objects {
            if let Some(object) = read_object(object).map_err(damaged)? {
                cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
        }
        cluster.resolved = resolved.into_iter().map(|(name, addresses)| (name.into(), addresses)).collect();
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(written_unix_seconds.min(u64::from(u32::MAX)));
        Ok(Some(Restored { cluster, age: now.duration_since(written).unwrap_or_default() }))
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn put(new: &Path, content: &Content, now: SystemTime) -> io::Result<u64> {
    // Left by a process that was killed; a new file is made, so that nobody holds it open or has linked it elsewhere.
    if let Err(error) = fs::remove_file(new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    let objects = content.objects();
    let document = Document {
        version: VERSION,
        written_unix_seconds: now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        resolved: content.resolved(),
        objects: objects.iter().map(Written).collect(),
    };
    let mut writer = BufWriter::new(file);
    serde_json::to_writer(&mut writer, &document)?;
    writer.flush()?;
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// `None` for a kind that is of no interest.
fn read_object(value: Value) -> Result<Option<Object>, serde_json::Error> {
    let field = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let Some(kind) = Kind::parse(field("apiVersion"), field("kind")) else { return Ok(None) };
    Ok(Some(match kind {
        Kind::Ingress => Object::Ingress(serde_json::from_value(value).map(Arc::new)?),
        Kind::IngressClass => Object::IngressClass(serde_json::from_value(value).map(Arc::new)?),
        Kind::Service => {
            let object: Service = serde_json::from_value(value)?;
            Object::Service(Arc::new(object.into()))
        }
        Kind::EndpointSlice => {
            let object: EndpointSlice = serde_json::from_value(value)?;
            Object::EndpointSlice(Arc::new(object.into()))
        }
        Kind::Secret => Object::Secret(serde_json::from_value(value).map(Arc::new)?),
        Kind::ConfigMap => Object::ConfigMap(serde_json::from_value(value).map(Arc::new)?),
        Kind::Node => Object::Node(serde_json::from_value(value).map(Arc::new)?),
    }))
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Object::Ingress(object) => (**object).serialize(serializer),
            Object::IngressClass(object) => (**object).serialize(serializer),
            Object::Service(service) => Service::from(&**service).serialize(serializer),
            Object::EndpointSlice(slice) => EndpointSlice::from(&**slice).serialize(serializer),
            Object::Secret(object) => (**object).serialize(serializer),
            Object::ConfigMap(object) => (**object).serialize(serializer),
            Object::Node(object) => (**object).serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests;
