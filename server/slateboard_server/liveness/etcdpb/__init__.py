"""Generated from etcd.proto by `make protos`; do not edit."""
