//! nginx' part: the choice among the locations of a server.

use crate::{HostIngress, Location, LocationMatch, Unmodelled, locations, uri};

/// The locations of a host.
#[derive(Clone, Debug)]
pub struct Server {
    locations: Vec<Location>,
    has_expressions: bool,
    app_root: Option<usize>,
}

/// nginx' treatment of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'s> {
    /// The location serves it.
    Location(&'s Location),
    /// A redirect (301) to the same path with a slash at its end; the location would serve that.
    AddSlash(&'s Location),
    /// A redirect to the `app-root` of the Ingress with this number.
    AppRoot(usize),
    /// 400: the path has no normal form.
    BadRequest,
}

// === impl Server ===

impl Server {
    /// Returns the server for a host that `ingresses` name: all of its Ingresses that are no canaries, the oldest first.
    ///
    /// # Errors
    /// Fails if nginx would refuse the configuration, or if the model is not sure how nginx reads it.
    pub fn of(ingresses: &[HostIngress]) -> Result<Self, Unmodelled> {
        let (locations, has_expressions) = locations::locations(ingresses)?;
        let app_root = locations::app_root(&locations, ingresses);
        Ok(Self { locations, has_expressions, app_root })
    }

    /// Returns the locations in the order in which the controller writes them.
    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Returns whether all locations are regular expressions, because an Ingress has `use-regex` or `rewrite-target`.
    #[must_use]
    pub const fn has_expressions(&self) -> bool {
        self.has_expressions
    }

    /// Decides about a request for `path`, as the client sends it and without a query.
    #[must_use]
    pub fn decide(&self, path: &str) -> Decision<'_> {
        let Some(path) = uri::normalise(path) else { return Decision::BadRequest };
        if let Some(ingress) = self.app_root.filter(|_| path == b"/") {
            return Decision::AppRoot(ingress);
        }
        let found = if self.has_expressions { self.first_expression(&path) } else { self.longest_prefix(&path) };
        // Every server has a location for `/`, which matches each path.
        found.unwrap_or(Decision::BadRequest)
    }

    fn first_expression(&self, path: &[u8]) -> Option<Decision<'_>> {
        let is_match = |location: &&Location| match &location.matching {
            LocationMatch::Expression(expression) => expression.is_match(path),
            LocationMatch::Exact(_) | LocationMatch::Prefix(_) => false,
        };
        self.locations.iter().find(is_match).map(Decision::Location)
    }

    /// The path itself goes first, then the redirect to it with a slash, then the longest prefix.
    fn longest_prefix(&self, path: &[u8]) -> Option<Decision<'_>> {
        let find = |is_wanted: &dyn Fn(&LocationMatch) -> bool| {
            self.locations.iter().find(|location| is_wanted(&location.matching))
        };
        let exact = find(&|matching| matches!(matching, LocationMatch::Exact(text) if text.as_bytes() == path));
        let same = || find(&|matching| matches!(matching, LocationMatch::Prefix(text) if text.as_bytes() == path));
        if let Some(location) = exact.or_else(same) {
            return Some(Decision::Location(location));
        }
        let with_slash = [path, b"/"].concat();
        let slashed = |matching: &LocationMatch| match matching {
            LocationMatch::Exact(text) | LocationMatch::Prefix(text) => text.as_bytes() == with_slash,
            LocationMatch::Expression(_) => false,
        };
        if let Some(location) = find(&slashed) {
            return Some(Decision::AddSlash(location));
        }
        let prefix = |location: &&Location| match &location.matching {
            LocationMatch::Prefix(text) => path.starts_with(text.as_bytes()),
            LocationMatch::Exact(_) | LocationMatch::Expression(_) => false,
        };
        let longest = self.locations.iter().filter(prefix).max_by_key(|location| location.to_string().len());
        longest.map(Decision::Location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IngressPath, Origin, PathKind};

    fn ingress(paths: &[&str]) -> HostIngress {
        let path = |text: &&str| match text.strip_prefix("= ") {
            Some(text) => IngressPath { kind: PathKind::Exact, text: text.to_owned() },
            None => IngressPath { kind: PathKind::Prefix, text: (*text).to_owned() },
        };
        HostIngress { paths: paths.iter().map(path).collect(), ..HostIngress::default() }
    }

    fn regex(paths: &[&str]) -> HostIngress {
        HostIngress { use_regex: true, ..ingress(paths) }
    }

    fn written(server: &Server) -> Vec<String> {
        server.locations().iter().map(ToString::to_string).collect()
    }

    /// Returns the decision in one word: `i/p` for path `p` of Ingress `i`.
    fn decided(server: &Server, path: &str) -> String {
        let of = |location: &Location| match location.origin {
            Origin::Path { ingress, path } => format!("{ingress}/{path}"),
            Origin::Default => "default".to_owned(),
        };
        match server.decide(path) {
            Decision::Location(location) => of(location),
            Decision::AddSlash(location) => format!("301 {}", of(location)),
            Decision::AppRoot(ingress) => format!("app-root {ingress}"),
            Decision::BadRequest => "400".to_owned(),
        }
    }

    #[test]
    fn a_prefix_becomes_two_locations() {
        let server = Server::of(&[ingress(&["/foo", "= /foo/bar", "/x/"])]).expect("modelled");
        assert_eq!(written(&server), ["= /foo/bar", "/foo/", "= /foo", "/x/", "= /x/", "/"]);
        for (path, expect) in [
            ("/foo", "0/0"),
            ("/foo/", "0/0"),
            ("/foobar", "default"),
            ("/foo/bar", "0/1"),
            ("/foo/bar/", "0/0"),
            ("/FOO", "default"),
            ("/x", "301 0/2"),
            ("/x/y", "0/2"),
            ("/foo%2Fbar", "0/1"),
            ("/..", "400"),
        ] {
            assert_eq!(decided(&server, path), expect, "{path}");
        }
    }

    #[test]
    fn one_regular_expression_changes_all_paths_of_the_host() {
        let server = Server::of(&[regex(&["/api/[0-9]+"]), ingress(&["= /head", "/foo"])]).expect("modelled");
        let all = [r#"~* "^/api/[0-9]+""#, r#"~* "^/head""#, r#"~* "^/foo/""#, r#"~* "^/foo""#, r#"~* "^/""#];
        assert_eq!(written(&server), all);
        for (path, expect) in
            [("/HEADers", "1/0"), ("/foobar", "1/1"), ("/API/7/x", "0/0"), ("/api/x", "default"), ("/Foo", "1/1")]
        {
            assert_eq!(decided(&server, path), expect, "{path}");
        }
    }

    #[test]
    fn a_rewrite_to_the_same_path_is_none() {
        let rewriting = |target: &str, path: &str| {
            let rewrite_target = Some(target.to_owned());
            Server::of(&[HostIngress { rewrite_target, ..ingress(&[path]) }]).expect("modelled").has_expressions()
        };
        assert!(!rewriting("/", "/"));
        assert!(rewriting("/", "/foo"));
        assert!(rewriting("/x", "/"));
    }

    #[test]
    fn app_root_goes_before_all_locations() {
        let root = HostIngress { has_app_root: true, ..ingress(&["/foo"]) };
        let server = Server::of(&[ingress(&["= /"]), root]).expect("modelled");
        assert_eq!(decided(&server, "/"), "app-root 1");
        assert_eq!(decided(&server, "/foo"), "1/0");
    }

    #[test]
    fn nginx_refuses_the_same_location_twice() {
        for ingresses in [
            vec![ingress(&["/foo", "/foo/"])],
            // The exact path hides the first prefix from the second.
            vec![ingress(&["= /foo"]), ingress(&["/foo"]), ingress(&["/foo"])],
        ] {
            assert!(matches!(Server::of(&ingresses), Err(Unmodelled::Duplicate(_))), "{ingresses:?}");
        }
        assert!(Server::of(&[ingress(&["/foo"]), ingress(&["/foo"])]).is_ok());
        assert!(matches!(Server::of(&[ingress(&["/a b"])]), Err(Unmodelled::Text(_))));
    }
}
