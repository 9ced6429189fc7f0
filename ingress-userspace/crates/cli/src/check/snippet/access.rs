//! `allow` and `deny`: the first rule that fits an address decides about it, and addresses without a rule pass.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    Place,
    convert::{Converter, Done},
};

/// A rule for a network, or for everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccessRule {
    pub(super) allows: bool,
    pub(super) network: Option<IpNet>,
}

/// Effect of a list of rules, as disjoint networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No address is refused; those of the networks are allowed by a rule.
    Everybody(Vec<IpNet>),
    /// Only these addresses pass.
    Only(Vec<IpNet>),
    /// All but `refused` pass; those of `allowed` by a rule.
    AllBut { refused: Vec<IpNet>, allowed: Vec<IpNet> },
}

/// Maximum number of networks that a list is split into.
const MAX_NETWORKS: usize = 512;
/// Maximum number of rules; each is compared with all networks.
const MAX_RULES: usize = 512;

// === impl AccessRule ===

impl AccessRule {
    pub(super) fn parse(name: &str, network: &str) -> Done<Self> {
        let network = if network == "all" { None } else { Some(network_of(network)?) };
        Ok(Self { allows: name == "allow", network })
    }
}

// === impl Effect ===

impl Effect {
    /// Applies the rules in order to all addresses.
    pub(super) fn of(rules: &[AccessRule]) -> Done<Self> {
        if rules.len() > MAX_RULES {
            return Err(format!("there are more than {MAX_RULES} rules"));
        }
        let everybody = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        let (mut open, mut allowed, mut refused) = (everybody.to_vec(), Vec::new(), Vec::new());
        let mut allows_rest = false;
        for AccessRule { allows, network } in rules {
            let decided = if *allows { &mut allowed } else { &mut refused };
            let Some(network) = network else {
                decided.append(&mut open);
                allows_rest = *allows;
                break;
            };
            let mut left = Vec::new();
            for part in open {
                if network.contains(&part) {
                    decided.push(part);
                } else if part.contains(network) {
                    decided.push(*network);
                    without(part, network, &mut left);
                } else {
                    left.push(part);
                }
            }
            open = left;
            if open.len() + decided.len() > MAX_NETWORKS {
                return Err(format!("the list comes to more than {MAX_NETWORKS} networks"));
            }
        }
        let (allowed, refused) = (IpNet::aggregate(&allowed), IpNet::aggregate(&refused));
        Ok(match (open.is_empty() && !allows_rest, refused.is_empty()) {
            (_, true) => Self::Everybody(allowed),
            (true, false) => Self::Only(allowed),
            (false, false) => Self::AllBut { refused, allowed },
        })
    }
}

/// Appends the networks that are `whole` without `hole`, which lies within it.
fn without(whole: IpNet, hole: &IpNet, left: &mut Vec<IpNet>) {
    let mut whole = whole;
    while whole.prefix_len() < hole.prefix_len() {
        let Ok(halves) = whole.subnets(whole.prefix_len() + 1) else { return };
        let mut inner = whole;
        for half in halves {
            if half.contains(hole) {
                inner = half;
            } else {
                left.push(half);
            }
        }
        whole = inner;
    }
}

/// Returns a network as text, and an address without the length of a prefix.
pub(super) fn shown(network: &IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() { network.addr().to_string() } else { network.to_string() }
}

fn listed(networks: &[IpNet]) -> String {
    networks.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Reads a network. Bits behind the prefix have no meaning.
pub(super) fn network_of(text: &str) -> Done<IpNet> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
    match network.map(|network| network.trunc()) {
        // nginx compares the address within such a network with rules for IPv4.
        Ok(IpNet::V6(network)) if network.network().to_ipv4_mapped().is_some() => {
            Err(format!("`{text}` is a network of IPv4; write it as one"))
        }
        Ok(network) => Ok(network),
        Err(_) => Err(format!("`{text}` is no network")),
    }
}

// === impl Converter ===

impl Converter<'_> {
    /// Collects `allow` or `deny`.
    pub(super) fn access(&mut self, name: &str, network: &str) -> Done {
        if self.place == Place::Auth {
            return Err("the requests to `auth-url` are the proxy's own".to_owned());
        }
        let rule = AccessRule::parse(name, network)?;
        if self.place == Place::Location
            && ["whitelist-source-range", "allowlist-source-range"].iter().any(|key| self.facts.has(key))
        {
            return self.drop(
                "ingress-nginx writes the list of `allowlist-source-range` before it, which decides about each client",
            );
        }
        self.remember_line();
        self.rules.push(rule);
        Ok(())
    }

    /// Converts the collected rules.
    pub(super) fn finish_access(&mut self) {
        let rules = std::mem::take(&mut self.rules);
        if rules.is_empty() {
            return;
        }
        self.recall_line();
        let key = "satisfy";
        let any = |value: &String| value == "any";
        let is_any = self.conversion.annotations.get(key).or_else(|| self.facts.annotations.get(key)).is_some_and(any);
        let effect = match Effect::of(&rules) {
            Ok(effect) => effect,
            Err(reason) => return self.leave(reason),
        };
        let authenticates = self.facts.authenticates();
        let done = match effect {
            // With `satisfy any`, a rule that allows a client takes the place of its password.
            Effect::Only(allowed) | Effect::AllBut { allowed, .. } | Effect::Everybody(allowed)
                if is_any && authenticates =>
            {
                match &*allowed {
                    [] => {
                        self.conversion.annotations.remove(key);
                        if self.facts.annotations.get(key).is_some_and(any) {
                            self.set(key, "all").and_then(|()| self.drop("clients must authenticate"))
                        } else {
                            self.drop("clients must authenticate")
                        }
                    }
                    _ if allowed.iter().any(|network| network.prefix_len() == 0) => {
                        Err("with `satisfy any`, all clients pass without a password".to_owned())
                    }
                    _ => self.set("allowlist-source-range", listed(&allowed)),
                }
            }
            Effect::Everybody(_) => {
                self.differ("nginx refuses no client by it");
                self.drop("nginx refuses no client by it")
            }
            Effect::Only(allowed) if allowed.is_empty() => {
                // Without authentication, there is no other way to satisfy.
                self.conversion.annotations.remove(key);
                self.refuse_all("403");
                Ok(())
            }
            Effect::Only(allowed) => self.set("allowlist-source-range", listed(&allowed)),
            Effect::AllBut { refused, .. } => {
                // nginx applies the list of the annotation, or that of all hosts, too. The new annotation replaces both.
                let key = "denylist-source-range";
                let known = [&self.facts.annotations, &self.facts.settings].into_iter().find_map(|all| all.get(key));
                let known = known.map(|known| known.trim().trim_end_matches(',')).filter(|known| !known.is_empty());
                let both = known.into_iter().map(str::to_owned).chain([listed(&refused)]);
                self.set(key, both.collect::<Vec<_>>().join(", "))
            }
        };
        if let Err(reason) = done {
            self.leave(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(rules: &str) -> String {
        let rule = |rule: &str| {
            let (name, network) = rule.trim().split_once(' ').expect("a rule");
            AccessRule::parse(name, network).expect("a network")
        };
        let rules: Vec<_> = rules.split(';').filter(|rule| !rule.trim().is_empty()).map(rule).collect();
        match Effect::of(&rules).expect("within bounds") {
            Effect::Everybody(_) => "everybody".to_owned(),
            Effect::Only(allowed) => format!("only {}", listed(&allowed)),
            Effect::AllBut { refused, .. } => format!("all but {}", listed(&refused)),
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        for (rules, expect) in [
            ("allow all; deny all", "everybody"),
            ("deny all; allow 10.0.0.0/8", "only "),
            ("deny all; allow all", "only "),
            ("allow 10.0.0.0/8; deny all", "only 10.0.0.0/8"),
            ("allow 10.0.0.0/8; allow 192.0.2.7; deny all; allow 203.0.113.0/24", "only 10.0.0.0/8, 192.0.2.7"),
            ("allow 10.0.0.0/8", "everybody"),
            ("deny 192.0.2.0/24; allow all", "all but 192.0.2.0/24"),
            ("deny 192.0.2.0/24; deny 2001:db8::/32", "all but 192.0.2.0/24, 2001:db8::/32"),
            ("allow 10.0.0.2; deny 10.0.0.0/30", "all but 10.0.0.0/31, 10.0.0.3"),
            ("deny 10.0.0.2; allow 10.0.0.0/30; deny all", "only 10.0.0.0/31, 10.0.0.3"),
            ("allow 10.0.0.0/24; deny 10.0.0.5; deny all", "only 10.0.0.0/24"),
            ("allow 10.0.0.0/24; deny 10.0.0.5", "everybody"),
            ("deny 10.1.2.3/8", "all but 10.0.0.0/8"),
        ] {
            assert_eq!(effect(rules).trim_end(), expect.trim_end(), "{rules}");
        }
    }

    #[test]
    fn lists_have_bounds() {
        let hole = |n: u32| AccessRule {
            allows: true,
            network: Some(IpNet::from(std::net::IpAddr::from((n * 1_000_003).to_be_bytes()))),
        };
        let rules: Vec<_> = (1..=400).map(hole).collect();
        assert!(Effect::of(&rules).is_err_and(|reason| reason.contains("512 networks")));
        assert!(Effect::of(&vec![hole(1); 513]).is_err_and(|reason| reason.contains("512 rules")));
        for text in ["unix:", "10.0.0.0/33", "::ffff:10.0.0.0/104", "x"] {
            assert!(network_of(text).is_err(), "{text}");
        }
    }
}
