//! Resolves DNS names by hickory, with the servers of `/etc/resolv.conf`; NSS has no part in it. It caches nothing.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use hickory_resolver::{
    ConnectionProvider, Resolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    lookup::Lookup,
    net::{DnsError, NetError, NoRecords, runtime::TokioRuntimeProvider},
    proto::rr::RecordType,
    system_conf,
};
use tokio::time::{Instant, timeout};

use super::answer::{LookupAnswer, LookupError};

/// Time limit for all queries about one name, regardless of `/etc/resolv.conf`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a name counts as nonexistent if the response has no TTL (RFC 2308, 5, allows no caching then).
const NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// DNS client. Clones share their sockets.
#[derive(Clone)]
pub(crate) struct Dns<P: ConnectionProvider = TokioRuntimeProvider> {
    resolver: Result<Resolver<P>, NetError>,
}

/// Kind of names to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// Names of the cluster: `/etc/hosts` belongs to this node and does not apply.
    Cluster,
    /// Names that the operator gave, as in a kubeconfig.
    Operator,
}

// === impl Dns ===

impl Dns {
    /// Uses the servers of `/etc/resolv.conf`, on macOS those of the system's configuration. If these cannot be read,
    /// every lookup returns that error.
    pub(crate) fn system(names: NameKind) -> Self {
        Self { resolver: system_resolver(names) }
    }
}

impl<P: ConnectionProvider> Dns<P> {
    /// Returns the addresses of an absolute name, whether or not it ends in a dot.
    pub(super) async fn lookup(&self, name: &str) -> Result<LookupAnswer, LookupError> {
        self.ask(format!("{}.", name.trim_end_matches('.'))).await
    }

    /// Returns the addresses of a name as people write it: the search list of `/etc/resolv.conf` applies.
    pub(crate) async fn search(&self, name: &str) -> Result<LookupAnswer, LookupError> {
        self.ask(name.to_owned()).await
    }

    async fn ask(&self, name: String) -> Result<LookupAnswer, LookupError> {
        let resolver =
            self.resolver.as_ref().map_err(|source| LookupError::Configuration { source: source.clone() })?;
        let questions = async {
            tokio::join!(
                resolver.lookup(name.as_str(), RecordType::A),
                resolver.lookup(name.as_str(), RecordType::AAAA)
            )
        };
        let Ok((a, aaaa)) = timeout(TIMEOUT, questions).await else {
            return Err(LookupError::Timeout { name: name.into(), after: TIMEOUT });
        };
        match (answer(a), answer(aaaa)) {
            (Ok(a), Ok(aaaa)) => Ok(a.join(aaaa)),
            // Some servers fail to answer for the address family that they do not know, so the addresses of the other
            // one are used.
            (Ok(answer), Err(_)) | (Err(_), Ok(answer)) if !answer.addresses.is_empty() => Ok(answer),
            (Err(source), _) | (_, Err(source)) => Err(LookupError::Lookup { name: name.into(), source }),
        }
    }
}

fn system_resolver(names: NameKind) -> Result<Resolver<TokioRuntimeProvider>, NetError> {
    let (config, options) = system_conf::read_system_conf()?;
    build(config, plain(options, names), TokioRuntimeProvider::default())
}

/// Returns `options` without a cache: the caller decides when to ask.
fn plain(mut options: ResolverOpts, names: NameKind) -> ResolverOpts {
    options.cache_size = 0;
    options.use_hosts_file = match names {
        NameKind::Cluster => ResolveHosts::Never,
        NameKind::Operator => ResolveHosts::Always,
    };
    options
}

fn build<P: ConnectionProvider>(
    config: ResolverConfig,
    options: ResolverOpts,
    provider: P,
) -> Result<Resolver<P>, NetError> {
    Resolver::builder_with_config(config, provider).with_options(options).build()
}

/// Returns the addresses of an absolute name and how long they are valid, from the data on the sockets of `provider`;
/// `None` without an answer. For fuzz targets, because a real DNS server sends no broken messages.
pub async fn lookup_over<P: ConnectionProvider>(provider: P, name: &str) -> Option<(Vec<IpAddr>, Duration)> {
    let connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    let server = NameServerConfig::new(Ipv4Addr::new(192, 0, 2, 53).into(), true, connections);
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
    let dns = Dns { resolver: build(config, plain(ResolverOpts::default(), NameKind::Cluster), provider) };
    let LookupAnswer { addresses, ttl } = dns.lookup(name).await.ok()?;
    Some((addresses, ttl))
}

/// Maximum number of addresses used per name.
const MAX_ADDRESSES: usize = 64;

/// Converts the result of a lookup. "No records" is an answer, too.
fn answer(result: Result<Lookup, NetError>) -> Result<LookupAnswer, NetError> {
    match result {
        Ok(lookup) => {
            let mut addresses: Vec<_> = lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
            addresses.sort();
            addresses.dedup();
            // More than any service needs. Each address is checked, and load is balanced over all.
            addresses.truncate(MAX_ADDRESSES);
            let ttl = lookup.valid_until().saturating_duration_since(Instant::now().into_std());
            Ok(LookupAnswer { addresses, ttl })
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(NoRecords { negative_ttl, .. }))) => {
            let ttl = negative_ttl.map_or(NEGATIVE_TTL, |seconds| Duration::from_secs(seconds.into()));
            Ok(LookupAnswer { addresses: Vec::new(), ttl })
        }
        Err(error) => Err(error),
    }
}

// === impl LookupAnswer ===

impl LookupAnswer {
    /// Joins both families. A family without addresses does not shorten the TTL of the other.
    fn join(self, other: Self) -> Self {
        match (self.addresses.is_empty(), other.addresses.is_empty()) {
            (false, true) => self,
            (true, false) => other,
            (_, _) => {
                let ttl = self.ttl.min(other.ttl);
                let addresses = self.addresses.into_iter().chain(other.addresses).collect();
                Self { addresses, ttl }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, str::FromStr};

    use hickory_resolver::proto::{
        op::{Message, OpCode, ResponseCode},
        rr::{Name, RData, Record, rdata::A, rdata::AAAA},
    };
    use tokio::{net::UdpSocket, task::JoinHandle};

    use super::*;

    type Reply = (ResponseCode, Vec<(u32, RData)>);

    /// Starts a DNS server on loopback that answers according to `script`, and a client of it.
    async fn serve(script: fn(&str, RecordType) -> Reply) -> (Dns, JoinHandle<()>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a socket");
        let address: SocketAddr = socket.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, peer) = socket.recv_from(&mut buffer).await.expect("a question");
                let question = Message::from_vec(&buffer[..length]).expect("a message");
                let query = question.queries.first().expect("a query").clone();
                let (code, records) = script(&query.name().to_string(), query.query_type());
                let mut reply = Message::response(question.metadata.id, OpCode::Query);
                reply.metadata.response_code = code;
                for (ttl, data) in records {
                    reply.add_answer(Record::from_rdata(query.name().clone(), ttl, data));
                }
                reply.add_query(query);
                socket.send_to(&reply.to_vec().expect("bytes"), peer).await.expect("sent");
            }
        });
        let mut connection = ConnectionConfig::udp();
        connection.port = address.port();
        let server_config = NameServerConfig::new(address.ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(
            Some(Name::from_str("search.test.").expect("a name")),
            vec![],
            vec![server_config],
        );
        let options = plain(ResolverOpts::default(), NameKind::Cluster);
        (Dns { resolver: build(config, options, TokioRuntimeProvider::default()) }, server)
    }

    fn script(name: &str, kind: RecordType) -> Reply {
        let v4 = |last| RData::A(A(Ipv4Addr::new(192, 0, 2, last)));
        match (name, kind) {
            ("both.test.", RecordType::A) => (ResponseCode::NoError, vec![(60, v4(2)), (30, v4(1)), (60, v4(2))]),
            ("both.test.", RecordType::AAAA) => {
                (ResponseCode::NoError, vec![(90, RData::AAAA(AAAA("2001:db8::1".parse().expect("an address"))))])
            }
            ("v4.test." | "half.test.", RecordType::A) => (ResponseCode::NoError, vec![(20, v4(3))]),
            ("v4.test.", RecordType::AAAA) => (ResponseCode::NoError, vec![]),
            ("half.test." | "broken.test.", RecordType::AAAA) => (ResponseCode::ServFail, vec![]),
            ("broken.test.", RecordType::A) => (ResponseCode::NoError, vec![]),
            ("host.search.test.", RecordType::A) => (ResponseCode::NoError, vec![(20, v4(4))]),
            _ => (ResponseCode::NXDomain, vec![]),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn addresses_of_both_families_live_as_long_as_the_shortest() {
        let (dns, server) = serve(script).await;
        for (name, addresses, ttl) in [
            ("both.test", vec![ip("192.0.2.1"), ip("192.0.2.2"), ip("2001:db8::1")], 30),
            ("v4.test.", vec![ip("192.0.2.3")], 20),
            ("half.test", vec![ip("192.0.2.3")], 20),
        ] {
            let answer = dns.lookup(name).await.expect("an answer");
            assert_eq!(answer.addresses, addresses, "{name}");
            let ttl = Duration::from_secs(ttl);
            assert!(answer.ttl <= ttl && answer.ttl > ttl / 2, "{name}: {:?}", answer.ttl);
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_missing_name_has_no_address_and_a_failure_is_an_error() {
        let (dns, server) = serve(script).await;
        let answer = dns.lookup("nowhere.test").await.expect("an answer");
        assert_eq!(answer.addresses, Vec::<IpAddr>::new());
        let error = dns.lookup("broken.test").await.expect_err("no answer");
        assert!(matches!(&error, LookupError::Lookup { name, .. } if **name == *"broken.test."), "{error}");
        server.abort();
    }

    #[tokio::test]
    async fn search_domains_apply_only_to_names_of_the_operator() {
        let (dns, server) = serve(script).await;
        assert_eq!(dns.lookup("host").await.expect("an answer").addresses, Vec::<IpAddr>::new());
        assert_eq!(dns.search("host").await.expect("an answer").addresses, vec![ip("192.0.2.4")]);
        server.abort();
    }
}
