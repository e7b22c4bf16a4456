"""The stubs and examples of other languages, against a real server. Skipped where a toolchain is missing."""
