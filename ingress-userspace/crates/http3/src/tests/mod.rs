//! Rules of HTTP/3 as tables, and laws.
