//! Parsing of request rules.

use super::*;

#[test]
fn each_entry_denies_paths() {
    let text = "/metrics=404, = /status, ~ \\.(git|env)$\n!/.well-known/, ~* ^/a{1,2}(b,c)=410";
    let rules = RequestRules::deny_paths(text).expect("valid");
    assert_eq!(
        rules.to_string(),
        "path ^ /metrics -> 404; path = /status -> 403; path ~ \\.(git|env)$ -> 403; path ^ /.well-known/ -> pass; \
         path ~ ^/a{1,2}(b,c) -> 410"
    );
    assert_eq!(rules.cost().count, 2);
    assert!(RequestRules::deny_paths(" \n,").expect("valid").is_empty());
}

#[test]
fn each_line_is_a_request_rule() {
    let text = "\
        # moved\n\
        host = old.test -> 301 https://new.test$request_uri\n\
        path ~ ^/blog/(.*)$ and header:X-Beta != \"a \\\"b\\\"\" -> https://blog.test/$1\n\
        header:User-Agent ~* bot and arg:q !~ ^a -> 403\n\
        -> 308 /maintenance";
    let rules = RequestRules::redirects(text).expect("valid").to_string();
    assert_eq!(
        rules,
        "Host = old.test -> 301 https://new.test$request_uri; path ~ ^/blog/(.*)$ and header:x-beta != a \"b\" -> \
         302 https://blog.test/$1; header:user-agent ~ bot and Argument(\"q\") !~ ^a -> 403; -> 308 /maintenance"
    );
}

#[test]
fn rules_without_meaning_are_refused() {
    for (text, expect) in [
        ("metrics", "is no path"),
        ("= metrics", "is no path"),
        ("/metrics=200", "is no answer"),
        ("!", "is no path"),
        ("~ (?=a)", "look-around"),
        ("~ (", "no regular expression"),
        (&"/a,".repeat(65), "more than 64 rules"),
        (&"~ a\n".repeat(33), "more than 32 regular"),
        (&format!("~ {}", "a".repeat(4000)), "too large"),
    ] {
        let error = RequestRules::deny_paths(text).expect_err(text).to_string();
        assert!(error.contains(expect), "{text}: {error}");
    }
    for (text, expect) in [
        ("host = a.test", "no `->`"),
        ("host = -> /x", "is no condition"),
        ("host = a b -> /x", "is no condition"),
        ("hosts = a -> /x", "is no subject"),
        ("arg: = a -> /x", "is no subject"),
        ("host == a -> /x", "is no operator"),
        ("->", "is no answer"),
        ("-> 199", "is no answer"),
        ("-> 204 text", "is no answer"),
        ("-> 200 a b", "is no answer"),
        ("client = 10.0.0.0/33 -> 403", "is no network"),
        ("path ~ ^/a -> rewrite b", "is no answer"),
        ("path ~ ^/a -> rewrite /$host", "is no answer"),
        ("-> rewrite /$1", "names a group"),
        ("-> 404 /x", "is no answer"),
        ("-> x", "is no answer"),
        ("-> /$nope", "is no answer"),
        ("host !~ (a) -> /$1", "names a group"),
        ("host = \"a -> /x", "not closed"),
    ] {
        let error = RequestRules::redirects(text).expect_err(text).to_string();
        assert!(error.contains(expect), "{text}: {error}");
    }
}

#[test]
fn conditions_of_a_list_have_a_bound_together() {
    let line = |count: usize| format!("{} -> 403\n", vec!["arg:a = b"; count].join(" and "));
    assert!(RequestRules::redirects(&line(256)).is_ok());
    assert!(RequestRules::redirects(&line(8).repeat(32)).is_ok());
    for text in [line(257), line(8).repeat(33)] {
        let error = RequestRules::redirects(&text).expect_err("too many conditions").to_string();
        assert!(error.contains("more than 256 conditions in the list: join"), "{error}");
    }
}

#[test]
fn a_rule_may_answer_by_itself_or_rewrite_the_path() {
    let text = "\
        method = OPTIONS -> 204\n\
        path = /robots.txt -> 200 \"User-agent: *\\nDisallow: /\\n\"\n\
        client != 10.1.2.3/8 and client = 192.0.2.7 -> 403\n\
        path ~ ^/api/(.*)$ -> rewrite /$1$is_args$args";
    let rules = RequestRules::redirects(text).expect("valid").to_string();
    assert_eq!(
        rules,
        "Method = OPTIONS -> 204; path = /robots.txt -> 200 \"User-agent: *\\nDisallow: /\\n\"; ClientAddress != 10.0.0.0/8 and \
         ClientAddress = 192.0.2.7 -> 403; path ~ ^/api/(.*)$ -> rewrite /$1$is_args$args"
    );
}
