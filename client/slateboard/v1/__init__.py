"""Generated from protos/slateboard/v1 by `make protos`; do not edit."""
