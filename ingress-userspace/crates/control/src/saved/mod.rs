//! Saves the served configuration to a file, so that a process that starts while the API server is away can serve it.
//! This module decides neither when to restore it nor what follows from it.
//!
//! The file is one JSON document with the objects that a translation used. It is meant for a tmpfs of the node, which
//! outlives the pod but not the machine. By default it holds no private keys and no password hashes: a host without its
//! key gets the default certificate, and a rule without its users answers 503. Keys of TLS session tickets are never
//! saved, because they decrypt recorded sessions of the past. The file is replaced as a whole and belongs to this user
//! alone (mode 0600). A file that other users could have written is not read, since it decides where traffic goes.

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

use k8s_openapi::api::{core::v1::Secret, networking::v1::Ingress};
use nix::{
    fcntl::{Flock, FlockArg, OFlag},
    unistd::geteuid,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    change::{Change, Kind, Object, ObjectName},
    cluster::{Cluster, Stored},
    held_secret::HeldSecret,
    outcome::Origin,
    service,
    translate::{self, Translation, annotation_references, reached, services_of, settings_services, stream_references},
};
use ingress_model::TicketKeys;

mod gateway_api;
mod written;

use written::{Written, read_object};

/// Location and content of the saved configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The directory must exist and must not be a symbolic link. The path should be on a tmpfs.
    pub path: PathBuf,
    pub private_keys: PrivateKeys,
}

/// Whether private keys of certificates, and hashes of passwords, are written to the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrivateKeys {
    #[default]
    Leave,
    /// Every reader of the file, such as root of the node, has the keys of all hosts, and can guess at passwords.
    Keep,
}

#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    #[error("`{path}` is not a directory, or is a symbolic link to one; give the path of a file in a real directory")]
    Directory { path: PathBuf },
    #[error("cannot write `{path}`")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{path}` is not a regular file that only this user can write; it is not used")]
    Foreign { path: PathBuf },
    #[error("`{path}` is larger than {MAX_BYTES} bytes; it is not used")]
    TooLarge { path: PathBuf },
    #[error("`{path}` is damaged; it is not used and will be replaced")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("`{path}` has version {found} of the format, not {VERSION}; it is not used and will be replaced")]
    Version { path: PathBuf, found: u32 },
}

/// A configuration read from the file, and its age.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) cluster: Cluster,
    pub(super) age: Duration,
}

/// The state to save: the objects that a translation used. It is cheap to make, because the objects are gathered only
/// when the file is written. `Debug` shows no object.
#[derive(Clone, Debug)]
pub(super) struct SavedContent {
    pub(super) cluster: Cluster,
    pub(super) translation: Translation,
    pub(super) options: translate::Options,
    pub(super) keys: PrivateKeys,
}

/// Raised when a reader of the old version would misunderstand the new one.
const VERSION: u32 = 1;

/// Enough for some hundred thousand objects. This program writes no larger file.
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
struct Body<'t> {
    written_unix_seconds: u64,
    resolved: BTreeMap<String, Vec<IpAddr>>,
    #[serde(borrow)]
    objects: Vec<&'t RawValue>,
}

// === impl SavedContent ===

impl SavedContent {
    /// Returns the objects that the translation used.
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
        services.extend(cluster.config_maps.values().flat_map(|stored| settings_services(&stored.object)));
        let streams = [&options.tcp_services, &options.udp_services].into_iter().flatten();
        let streams = streams.filter_map(|name| cluster.config_maps.get(name));
        services.extend(streams.flat_map(|stored| stream_references(&stored.object)));
        objects.extend(gateway_api::objects(cluster, &mut services, &mut secrets));
        for name in &services {
            objects.extend(cluster.services.get(name).map(|stored| Object::Service(Arc::clone(&stored.object))));
            let slices = cluster.slices_of(name);
            objects.extend(slices.map(|(_, stored)| Object::EndpointSlice(Arc::clone(&stored.object))));
        }
        objects.extend(self.trespassed(&objects).into_iter().map(Object::Service));
        // Grants in namespaces that no reference leads to have no effect on this configuration.
        let led_to = services.iter().chain(&secrets).chain(cluster.config_maps.keys());
        let led_to: BTreeSet<_> = led_to.map(|name| &name.namespace).collect();
        let grants = cluster.grants.iter().filter(|(name, _)| led_to.contains(&name.namespace));
        objects.extend(grants.map(|(_, stored)| Object::ReferenceGrant(Arc::clone(&stored.object))));
        let secret = |name| cluster.secrets.get(name).map(|stored| Object::Secret(saved_secret(&stored.object, *keys)));
        objects.extend(secrets.iter().filter_map(secret));
        objects.extend(cluster.classes.values().map(|stored| Object::IngressClass(Arc::clone(&stored.object))));
        objects.extend(cluster.config_maps.values().map(|stored| Object::ConfigMap(Arc::clone(&stored.object))));
        objects.extend(cluster.nodes.values().map(|stored| Object::Node(Arc::clone(&stored.object))));
        objects
    }

    /// Returns the Services outside `objects` with a cluster IP that an endpoint in `objects`, or a resolved name,
    /// leads to. Such endpoints are refused, and with these Services in the file they are refused after a restore, too.
    fn trespassed(&self, objects: &[Object]) -> Vec<Arc<service::Service>> {
        let mut known: BTreeSet<ObjectName> =
            objects.iter().map(|object| object.id()).filter(|id| id.kind == Kind::Service).map(|id| id.name).collect();
        let slices = objects.iter().filter_map(|object| match object {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        });
        let addresses = slices.flat_map(|slice| &slice.endpoints).filter_map(|endpoint| endpoint.address.parse().ok());
        let resolved = self.resolved();
        let addresses = addresses.chain(resolved.values().copied().flatten().copied());
        let names = addresses.flat_map(|address: IpAddr| self.cluster.with_cluster_ip(reached(address)));
        let new = names.filter(|name| known.insert((*name).clone()));
        new.filter_map(|name| self.cluster.services.get(name)).map(|stored| Arc::clone(&stored.object)).collect()
    }

    /// Returns the addresses of the names that the translation wants.
    fn resolved(&self) -> BTreeMap<&str, &[IpAddr]> {
        let Self { cluster, translation, options: _, keys: _ } = self;
        let wanted = cluster.resolved.iter().filter(|(name, _)| translation.external_names.contains_key(*name));
        wanted.map(|(name, addresses)| (&**name, addresses.as_slice())).collect()
    }
}

/// Returns the Services that an Ingress names as backends.
fn backends(ingress: &Ingress) -> impl Iterator<Item = &str> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
    let paths = rules.filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths).map(|path| &path.backend);
    let default = ingress.spec.iter().filter_map(|spec| spec.default_backend.as_ref());
    paths.chain(default).filter_map(|backend| backend.service.as_ref()).map(|service| service.name.as_str())
}

/// Copies only what is saved.
fn saved_secret(secret: &HeldSecret, keys: PrivateKeys) -> Arc<HeldSecret> {
    fn saved<V: Clone>(values: Option<&BTreeMap<String, V>>, keys: PrivateKeys) -> Option<BTreeMap<String, V>> {
        let is_saved = |key: &str| match keys {
            PrivateKeys::Keep => !key.starts_with(TicketKeys::FIELD),
            PrivateKeys::Leave => matches!(key, "ca.crl" | "ca.crt" | "tls.crt" | "tls.ocsp-staple"),
        };
        let saved = |values: &BTreeMap<String, V>| {
            let values = values.iter().filter(|(key, _)| is_saved(key));
            values.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        values.map(saved)
    }
    let Secret { data, string_data, immutable, metadata, type_ } = &**secret;
    let copy = Secret {
        data: saved(data.as_ref(), keys),
        string_data: saved(string_data.as_ref(), keys),
        immutable: *immutable,
        metadata: metadata.clone(),
        type_: type_.clone(),
    };
    Arc::new(copy.into())
}

// === impl File ===

impl File {
    /// Logs a warning if private keys are to be written to a disk.
    pub(super) fn warn(&self) {
        let Self { path, private_keys } = self;
        if *private_keys == PrivateKeys::Keep && !is_on_tmpfs(directory(path)) {
            tracing::warn!(path = %path.display(), "private keys are written to a disk; use a path on a tmpfs, as under /run");
        }
    }

    /// Replaces the file by one with `content`, and returns its size. Blocks.
    ///
    /// # Errors
    /// If it cannot be written; the file is then unchanged.
    pub(super) fn write(&self, content: &SavedContent, now: SystemTime) -> Result<u64, SavedError> {
        let Self { path, private_keys: _ } = self;
        let directory = directory(path);
        // A link in place of the directory may be an attempt to have a file written elsewhere.
        if !fs::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(SavedError::Directory { path: directory.into() });
        }
        // During an update, two processes of a node save to the same path; the lock makes them write one after the
        // other.
        let _lock = self.lock()?;
        let new = self.beside(".new");
        let written = put(&new, content, now).and_then(|size| {
            fs::rename(&new, path)?;
            fs::File::open(directory)?.sync_all()?;
            Ok(size)
        });
        written.map_err(|source| {
            // A partly written file may hold keys. If it cannot be removed, the next attempt removes it.
            drop(fs::remove_file(&new));
            SavedError::Write { path: path.clone(), source }
        })
    }

    /// Waits for the lock of this path: a file beside it that other users cannot open, and so cannot hold. The lock
    /// file is never removed, because a process could remove one that another process holds by then.
    fn lock(&self) -> Result<Flock<fs::File>, SavedError> {
        let path = self.beside(".lock");
        let error = |source| SavedError::Write { path: path.clone(), source };
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(&path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(SavedError::Foreign { path });
        }
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| error(errno.into()))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        directory(&self.path).join(name)
    }

    /// Reads the file. Returns `None` if it does not exist. Blocks.
    ///
    /// # Errors
    /// If there is a file that cannot be used.
    pub(super) fn read(&self, now: SystemTime) -> Result<Option<Restored>, SavedError> {
        let Self { path, private_keys: _ } = self;
        let error = |source| SavedError::Read { path: path.clone(), source };
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(error(source)),
        };
        let metadata = file.metadata().map_err(error)?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(SavedError::Foreign { path: path.clone() });
        }
        if metadata.len() > MAX_BYTES {
            return Err(SavedError::TooLarge { path: path.clone() });
        }
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(error)?;
        let damaged = |source| SavedError::Damaged { path: path.clone(), source };
        let Head { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version != VERSION {
            return Err(SavedError::Version { path: path.clone(), found: version });
        }
        let Body { written_unix_seconds, resolved, objects } = serde_json::from_slice(&text).map_err(damaged)?;
        let mut cluster = Cluster::default();
        for object in objects {
            if let Some(object) = read_object(object.get()).map_err(damaged)? {
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

#[cfg(target_os = "linux")]
fn is_on_tmpfs(directory: &Path) -> bool {
    use nix::sys::statfs::{TMPFS_MAGIC, statfs};

    statfs(directory).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC)
}

/// The plugin runs elsewhere, too, and saves nothing.
#[cfg(not(target_os = "linux"))]
fn is_on_tmpfs(_: &Path) -> bool {
    false
}

fn put(new: &Path, content: &SavedContent, now: SystemTime) -> io::Result<u64> {
    // A file left by a killed process is removed first. A new file has no other open descriptors and no other links.
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

#[cfg(test)]
mod tests;
