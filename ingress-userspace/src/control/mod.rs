//! Reads Kubernetes objects and translates them into a route table.
